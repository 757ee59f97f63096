//! A condition variable for [`Mutex`](crate::Mutex).

use crate::lock::MutexGuard;
use crate::scheduler::{point, wait, wake_all, wake_one};
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A condition variable. A notification wakes the waiter that the scheduler draws.
#[derive(Debug, Default)]
pub struct Condvar {
    waiters: AtomicU32,
}

/// Whether a wait ran out of time.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether it did.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// A condition variable nobody waits on.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiters: AtomicU32::new(0) }
    }

    /// Releases the lock, waits for a notification, takes the lock again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.sleep(guard, None, Location::caller());
    }

    /// As [`Condvar::wait`], at most `limit` of simulated time.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Duration,
    ) -> WaitTimeoutResult {
        WaitTimeoutResult(self.sleep(guard, Some(limit), Location::caller()))
    }

    #[track_caller]
    fn sleep<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Option<Duration>,
        at: &'static Location<'static>,
    ) -> bool {
        point();
        self.waiters.fetch_add(1, Ordering::Relaxed);
        guard.let_go();
        let timed_out = wait(self.key(), limit, at);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        guard.take_again(at);
        timed_out
    }

    /// Wakes one waiter.
    #[track_caller]
    pub fn notify_one(&self) {
        point();
        if self.waiters.load(Ordering::Relaxed) > 0 {
            wake_one(self.key());
        }
    }

    /// Wakes every waiter.
    #[track_caller]
    pub fn notify_all(&self) {
        point();
        if self.waiters.load(Ordering::Relaxed) > 0 {
            wake_all(self.key());
        }
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(&self.waiters).addr()
    }
}
