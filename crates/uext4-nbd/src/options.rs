//! Options of a network block device, and what it tells.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Hears an event. It must not wait for the device.
pub type Tell = Arc<dyn Fn(&NbdEvent) + Send + Sync>;

/// How an export is used.
#[derive(Clone)]
pub struct NbdOptions {
    /// Whether nothing is written.
    pub read_only: bool,
    /// How long it is tried to reach a server again whose connection was lost, or that does not
    /// answer; from 50 ms to a week. Afterwards every request fails. A replay that has begun may
    /// take half as long again, and one request is sent for twice that time at most.
    pub timeout: Duration,
    /// Most connections, if the server allows several; at least 1.
    pub connections: usize,
    /// Bytes of changes that are kept for a server that forgets them. At that many the device
    /// flushes by itself.
    pub unflushed_bytes: usize,
    /// Hears what happens to the connection, on a thread of its own.
    pub tell: Option<Tell>,
    /// Called first by each thread of the device, which may give up rights there. They connect to
    /// the server again, and look up its host where they may; certificates are read before.
    pub on_thread: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl NbdOptions {
    /// Read and write, 60 s of patience, 4 connections, 128 MiB of changes.
    #[must_use]
    pub fn new() -> Self {
        Self {
            read_only: false,
            timeout: Duration::from_mins(1),
            connections: 4,
            unflushed_bytes: 128 << 20,
            tell: None,
            on_thread: None,
        }
    }

    /// How long a server may owe an answer before the connection is taken for lost; the rest of the
    /// timeout is for another one.
    pub(crate) fn patience(&self) -> Duration {
        self.timeout / 2
    }

    pub(crate) fn on_thread(&self) {
        if let Some(on_thread) = &self.on_thread {
            on_thread();
        }
    }

    /// The same with a timeout that has an end and is not shorter than a request takes.
    pub(crate) fn within_bounds(self) -> Self {
        let timeout = self.timeout.clamp(Duration::from_millis(50), Duration::from_hours(24 * 7));
        Self { timeout, ..self }
    }

    pub(crate) fn tell(&self, event: &NbdEvent) {
        if let Some(tell) = &self.tell {
            tell(event);
        }
    }
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for NbdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read_only, timeout, connections, unflushed_bytes, .. } = self;
        f.debug_struct("NbdOptions")
            .field("read_only", read_only)
            .field("timeout", timeout)
            .field("connections", connections)
            .field("unflushed_bytes", unflushed_bytes)
            .finish_non_exhaustive()
    }
}

/// What happened to the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NbdEvent {
    /// It is lost, and is tried again.
    Lost {
        /// The cause.
        why: String,
    },
    /// The server is there again.
    Back {
        /// For how long it was not.
        after: Duration,
        /// Changes that were made once more, in bytes.
        replayed: u64,
    },
    /// It is given up: every request fails from now on.
    GivenUp {
        /// The cause.
        why: String,
    },
}

impl fmt::Display for NbdEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { why } => write!(f, "connection lost, trying again: {why}"),
            Self::Back { after, replayed } => {
                let seconds = after.as_secs_f64();
                write!(f, "connected again after {seconds:.1} s, {replayed} bytes written again")
            }
            Self::GivenUp { why } => write!(f, "given up: {why}"),
        }
    }
}
