//! One flush for many callers, and a failure that is not forgotten.
//!
//! # What
//! Callers that arrive while a flush runs share the next one. The flush that serves a caller always
//! starts after the call did, so it covers every write that was complete by then.
//!
//! # Invariants
//! - At most one flush runs, because the kernel reports a writeback error once per open file.
//!   Suppose two flushes run: one could get the error and the other report success.
//! - After the first failure every later flush fails with the same errno. The kernel marks pages
//!   clean that it could not write, so a later "success" would cover nothing.
//!
//! # Locking
//! The state lock is never held during the flush.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    /// Number of the last flush that was started.
    started: u64,
    /// Number of the last flush that succeeded.
    finished: u64,
    running: bool,
}

/// Gathers concurrent flushes and latches the first failure.
#[derive(Debug, Default)]
pub(crate) struct GroupFlush {
    state: Mutex<State>,
    ended: Condvar,
    /// errno of the first failure; 0: none. Outside the lock, so that reading it is cheap.
    failed: AtomicI32,
}

impl GroupFlush {
    /// Returns when a flush that started after this call has ended. Runs it if no other thread
    /// does.
    pub(crate) fn flush(&self, run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let wanted = state.started + 1;
        loop {
            self.check()?;
            if state.finished >= wanted {
                return Ok(());
            }
            if !state.running {
                break;
            }
            self.ended.wait(&mut state);
        }
        state.running = true;
        state.started += 1;
        drop(state);

        let result = run();

        let mut state = self.state.lock();
        state.running = false;
        match &result {
            Ok(()) => state.finished = state.started,
            Err(error) => self.latch(error),
        }
        self.ended.notify_all();
        result
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
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn the_first_failure_is_repeated() {
        let group = GroupFlush::default();
        group.flush(|| Ok(())).unwrap();
        let first = group.flush(|| Err(io::Error::from_raw_os_error(libc::ENOSPC)));
        assert_eq!(first.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        let second = group.flush(|| panic!("must not run"));
        assert_eq!(second.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert!(group.check().is_err());
    }

    /// Each thread raises a shared mark and then flushes; a flush makes the mark it saw at its
    /// start durable. No thread may return before its own mark is durable.
    #[test]
    fn the_flush_that_serves_a_caller_started_after_the_call() {
        let group = GroupFlush::default();
        let written = AtomicU64::new(0);
        let durable = AtomicU64::new(0);
        let runs = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                        group
                            .flush(|| {
                                runs.fetch_add(1, Ordering::SeqCst);
                                let seen = written.load(Ordering::SeqCst);
                                std::thread::yield_now();
                                durable.fetch_max(seen, Ordering::SeqCst);
                                Ok(())
                            })
                            .unwrap();
                        assert!(durable.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        assert!(runs.load(Ordering::SeqCst) <= 1600);
    }
}
