//! Options of an image.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What happens to an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RbdEvent {
    /// Another client has it, and it is waited for that; told by the thread that opens.
    InUse {
        /// Its address.
        by: String,
        /// How long at most.
        patience: Duration,
    },
    /// Every request fails from now on; told by a thread that nothing waits for.
    GivenUp {
        /// Why, in a few words.
        why: String,
    },
}

impl fmt::Display for RbdEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { by, patience } => {
                let seconds = patience.as_secs();
                write!(f, "in use: waiting up to {seconds} s for the client at {by}")
            }
            Self::GivenUp { why } => write!(f, "given up: {why}"),
        }
    }
}

/// Hears events; each shows itself as a line.
pub type Tell = Arc<dyn Fn(&RbdEvent) + Send + Sync>;

/// How an image is used.
#[derive(Clone)]
pub struct RbdOptions {
    /// Whether nothing is written. Then no lock is taken.
    pub read_only: bool,
    /// How long a cluster may owe an answer, from a second to a week; a request that takes longer
    /// fails, and every later one does. Ceph's `client_mount_timeout`, `rados_mon_op_timeout` and
    /// `rados_osd_op_timeout`.
    pub timeout: Duration,
    /// How long a client that is there is waited for: it may be about to close the image.
    pub closing: Duration,
    /// Hears what happens.
    pub tell: Option<Tell>,
    /// Called first by the device's own threads, which may give up rights there. The library's
    /// threads are there by then, and are not asked.
    pub on_thread: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl RbdOptions {
    /// Read and write, 60 s of patience, 10 s for one that closes it.
    #[must_use]
    pub fn new() -> Self {
        Self {
            read_only: false,
            timeout: Duration::from_mins(1),
            closing: Duration::from_secs(10),
            tell: None,
            on_thread: None,
        }
    }
}

impl Default for RbdOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RbdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read_only, timeout, closing, .. } = self;
        f.debug_struct("RbdOptions")
            .field("read_only", read_only)
            .field("timeout", timeout)
            .field("closing", closing)
            .finish_non_exhaustive()
    }
}
