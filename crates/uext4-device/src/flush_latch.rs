//! The flushes of a file: one at a time, and a failure that is not forgotten.
//!
//! # What
//! Each call runs a flush of its own. Callers that want to share one have a gate above the device,
//! as the engine does (`journal/flush.rs` of `uext4`).
//!
//! # Invariants
//! - At most one flush runs, because the kernel reports a writeback error once per open file.
//!   Suppose two flushes run: one could get the error and the other report success.
//! - After the first failure every later flush fails with the same errno. The kernel marks pages
//!   clean that it could not write, so a later "success" would cover nothing.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;

/// Runs flushes one after the other and latches the first failure.
#[derive(Debug, Default)]
pub(crate) struct FlushLatch {
    running: Mutex<()>,
    /// errno of the first failure; 0: none.
    failed: AtomicI32,
}

impl FlushLatch {
    /// Calls `run`, which flushes, unless a flush has failed before.
    pub(crate) fn flush(&self, run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _running = self.running.lock();
        self.check()?;
        run().inspect_err(|error| self.latch(error))
    }

    /// Fails if an earlier flush failed.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Latches a failure to make data durable that another call met.
    pub(crate) fn latch(&self, error: &io::Error) {
        // Only the first one stays.
        let _ = self.failed.compare_exchange(0, errno(error), Ordering::AcqRel, Ordering::Acquire);
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().filter(|errno| *errno != 0).unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_repeated() {
        let latch = FlushLatch::default();
        latch.flush(|| Ok(())).unwrap();
        let first = latch.flush(|| Err(io::Error::from_raw_os_error(libc::ENOSPC)));
        assert_eq!(first.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        let second = latch.flush(|| panic!("must not run"));
        assert_eq!(second.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert!(latch.check().is_err());
    }
}
