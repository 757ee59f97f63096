//! The flushes of a file: one at a time, shared, and a failure that is not forgotten.
//!
//! # What
//! Calls that wait for a flush which runs share the next one. The flush that serves a call always
//! starts after the call began, so it covers every write that was complete by then.
//!
//! # Invariants
//! - At most one flush runs, because the kernel reports a writeback error once per open file.
//!   Suppose two flushes run: one could get the error and the other report success.
//! - After the first failure every later flush fails with the same errno. The kernel marks pages
//!   clean that it could not write, so a later "success" would cover nothing.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Runs flushes one after the other and latches the first failure.
#[derive(Debug, Default)]
pub struct FlushLatch {
    running: Mutex<()>,
    /// Number of the latest flush that was started, and of the latest that succeeded. Both change
    /// under `running`.
    started: AtomicU64,
    finished: AtomicU64,
    /// errno of the first failure; 0: none.
    failed: AtomicI32,
}

impl FlushLatch {
    /// Returns when a flush that started after this call has ended. `run` flushes; it is not called
    /// if another call's flush serves this one, or if a flush has failed before.
    ///
    /// # Errors
    /// The first failure, from then on.
    pub fn flush(&self, run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let wanted = self.started.load(Ordering::SeqCst) + 1;
        let _running = self.running.lock();
        self.check()?;
        if self.finished.load(Ordering::SeqCst) >= wanted {
            return Ok(());
        }
        let number = self.started.fetch_add(1, Ordering::SeqCst) + 1;
        run().inspect_err(|error| self.latch(error))?;
        self.finished.store(number, Ordering::SeqCst);
        Ok(())
    }

    /// Fails if an earlier flush failed.
    ///
    /// # Errors
    /// That failure.
    pub fn check(&self) -> io::Result<()> {
        match self.failed.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Latches a failure to make data durable that another call met.
    pub fn latch(&self, error: &io::Error) {
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

    /// Each thread raises a shared mark and then flushes; a flush makes the mark it saw at its
    /// start durable. No thread may return before its own mark is durable.
    #[test]
    fn the_flush_that_serves_a_caller_started_after_the_call() {
        let latch = FlushLatch::default();
        let [written, durable] = [0, 0].map(AtomicU64::new);
        let run = || {
            let seen = written.load(Ordering::SeqCst);
            std::thread::yield_now();
            durable.fetch_max(seen, Ordering::SeqCst);
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                        latch.flush(run).unwrap();
                        assert!(durable.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        assert!(latch.finished.into_inner() <= 1600);
    }
}
