//! Memory that a mount's daemon has freed, given back to the system.
//!
//! What: a thread that looks every few seconds what the allocator keeps, and trims it where that is
//! much and has changed since. A daemon runs for months, under loads that come and go.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use uext4_device::heap;

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(10);

/// Less free memory than this is kept for what comes next, in bytes.
const KEPT: usize = 16 << 20;

/// The thread. Dropping it ends it.
pub(crate) struct Trimmer {
    /// Nothing is sent: that it is gone is the word.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Trimmer {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the system says of a new thread.
    pub(crate) fn start() -> io::Result<Trimmer> {
        let (end, ended) = mpsc::channel::<()>();
        let run = move || {
            let mut seen = 0;
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let free = heap::free_bytes().unwrap_or(0);
                if free >= KEPT && free != seen {
                    heap::trim();
                }
                seen = free;
            }
        };
        let thread = thread::Builder::new().name("uext4-trim".to_owned()).spawn(run)?;
        Ok(Trimmer { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Trimmer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It cannot fail, and there is nothing to tell if it did.
            let _ = thread.join();
        }
    }
}
