//! A mount being served, from its first request to its last.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use uext4_device::Unregistered;

use crate::abi::{InHeader, size_of_in};
use crate::connection::{Connection, Notifier};
use crate::counts::Counts;
use crate::device_queue::DeviceQueue;
use crate::dispatch::{self, Request};
use crate::handler::{Answer, Handler};
use crate::negotiation::{Agreement, negotiate};
use crate::rings::{Prepared, Rings};

/// Whether requests are to come by io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoUring {
    /// Where the kernel can.
    #[default]
    Auto,
    /// A session without it is not started.
    On,
    /// Never.
    Off,
}

/// How a session is served.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whether requests are to come by io_uring.
    pub io_uring: IoUring,
    /// Threads of `/dev/fuse` that are kept while nothing happens; more are started for requests
    /// that sleep.
    pub kept_threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { io_uring: IoUring::Auto, kept_threads: 4 }
    }
}

/// The way that requests take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By `/dev/fuse`, and why not by io_uring.
    Device(String),
    /// By io_uring.
    IoUring,
}

/// What all threads of a session share.
pub(crate) struct Core<H> {
    pub(crate) handler: Arc<H>,
    pub(crate) counts: Counts,
    pub(crate) notifier: Notifier,
    agreement: OnceLock<Agreement>,
    has_panicked: AtomicBool,
    /// Kind of request that a thread panics on before it calls the handler.
    #[cfg(test)]
    panics_on: std::sync::atomic::AtomicU32,
}

impl<H: Handler> Core<H> {
    /// What was agreed on; requests come only after that.
    pub(crate) fn agreement(&self) -> Agreement {
        let nothing = Agreement { setxattr_ext: false };
        self.agreement.get().copied().unwrap_or(nothing)
    }

    /// Bytes of the structure that a request begins with.
    pub(crate) fn size_of_op(&self, header: &InHeader) -> usize {
        #[cfg(test)]
        assert_ne!(self.panics_on.load(Ordering::Relaxed), header.opcode, "planted");
        size_of_in(header.opcode, self.agreement().setxattr_ext)
    }

    /// Counts and serves a request. A handler that panics fails its request with `EIO`.
    pub(crate) fn serve(&self, request: &Request<'_>, out: &mut [u8]) -> Option<Answer<usize>> {
        self.counts.add(request.header.opcode);
        let serve = || dispatch::serve(&*self.handler, request, out);
        catch_unwind(AssertUnwindSafe(serve)).unwrap_or_else(|_| {
            self.has_panicked.store(true, Ordering::Relaxed);
            Some(Err(Errno::IO))
        })
    }
}

/// A mount being served. Dropping it neither unmounts nor waits.
pub struct Session<H: Handler> {
    core: Arc<Core<H>>,
    device: Arc<DeviceQueue<H>>,
    rings: Option<Arc<Rings<H>>>,
    transport: Transport,
}

/// Looks at a session from elsewhere, without keeping it.
pub trait Monitor: Send + Sync {
    /// Requests so far.
    fn counts(&self) -> &Counts;
    /// The way they take.
    fn transport(&self) -> &Transport;
    /// Threads that serve them.
    fn threads(&self) -> usize;
}

impl<H: Handler> Session<H> {
    /// Begins to serve a mount, whose connection (`/dev/fuse`, given to mount(2) or got from
    /// fusermount3) this is. On return it answers.
    ///
    /// # Errors
    /// The kernel speaks no protocol that we do, has been unmounted, or lacks memory or threads;
    /// with [`IoUring::On`], why requests cannot come by it. The connection is closed then.
    pub fn start(connection: OwnedFd, handler: Arc<H>, config: &Config) -> io::Result<Self> {
        Self::start_with(connection, handler, config, Rings::prepare)
    }

    /// As [`Session::start`], with what prepares rings for a length of payload.
    fn start_with(
        connection: OwnedFd,
        handler: Arc<H>,
        config: &Config,
        prepare: impl FnOnce(&Arc<Core<H>>, usize) -> Result<Prepared<H>, String>,
    ) -> io::Result<Self> {
        let connection = Arc::new(Connection::new(connection));
        let core = Arc::new(Core {
            handler,
            counts: Counts::default(),
            notifier: Notifier::new(Arc::clone(&connection)),
            agreement: OnceLock::new(),
            has_panicked: AtomicBool::new(false),
            #[cfg(test)]
            panics_on: Default::default(),
        });
        let mut prepared = None;
        let mut why_not = NOT_OFFERED.to_owned();
        let agreement = negotiate(&*core.handler, &core.notifier, |payload| {
            if config.io_uring == IoUring::Off {
                return false;
            }
            match prepare(&core, payload) {
                Ok(rings) => prepared = Some(rings),
                Err(why) => why_not = why,
            }
            prepared.is_some()
        })?;
        // Set once, here.
        let _ = core.agreement.set(agreement);
        match prepared.as_ref().map(Prepared::register) {
            None | Some(Ok(())) => {}
            Some(Err(why @ Unregistered::Refused(_))) => {
                why_not = why.to_string();
                prepared = None;
            }
            // The kernel waits for rings, and would wait for ever.
            Some(Err(why @ Unregistered::Failed(_))) => return Err(no_rings(&why.to_string())),
        }
        if config.io_uring == IoUring::On && prepared.is_none() {
            return Err(no_rings(&why_not));
        }
        if config.io_uring == IoUring::Off {
            why_not = "switched off".to_owned();
        }
        // First, so that no ring has begun where this fails.
        let kept = if prepared.is_some() { 1 } else { config.kept_threads.max(1) };
        let device = DeviceQueue::start(&core, connection, kept)?;
        let rings = prepared.map(|prepared| prepared.begin(&device));
        let transport = match rings {
            Some(_) => Transport::IoUring,
            None => Transport::Device(why_not),
        };
        Ok(Self { core, device, rings, transport })
    }

    /// Tells the kernel what it cannot know.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.core.notifier.clone()
    }

    /// Waits until the mount is gone, however it was unmounted, and every request is answered.
    ///
    /// # Errors
    /// The connection failed in another way than by an unmount; a handler panicked. Where a thread
    /// panicked beside a handler, or a ring failed, this returns at once: some requests will have
    /// no answer before the process ends, or the mount is aborted, and threads are left till then.
    pub fn join(&self) -> io::Result<()> {
        // After an error calls may be under way, and go on.
        self.device.join()?;
        if let Some(rings) = &self.rings {
            rings.join();
        }
        self.core.handler.end();
        if self.core.has_panicked.load(Ordering::Relaxed) {
            return Err(io::Error::other("a request's handler panicked"));
        }
        Ok(())
    }
}

impl<H: Handler> Monitor for Session<H> {
    fn counts(&self) -> &Counts {
        &self.core.counts
    }

    fn transport(&self) -> &Transport {
        &self.transport
    }

    fn threads(&self) -> usize {
        self.device.threads() + self.rings.as_ref().map_or(0, |rings| rings.threads())
    }
}

/// A kernel before 6.14, or the parameter of its module.
const NOT_OFFERED: &str = "the kernel does not offer it (since 6.14, with enable_uring of fuse)";

fn no_rings(why: &str) -> io::Error {
    let without = "mount with -o io_uring=off to go without";
    io::Error::other(format!("no io_uring for requests: {why}; {without}"))
}

#[cfg(test)]
mod tests;
