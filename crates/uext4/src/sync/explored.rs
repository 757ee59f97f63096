//! The locks under the schedule explorer, with the interface of `parking_lot`.
//!
//! What: every acquisition, wait and release is a point where the explorer may switch threads. A
//! wait with a timeout never times out, because a schedule has no clock.

use shuttle::sync as explored;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Mutex<T: ?Sized>(explored::Mutex<T>);

/// `held` is `None` only during the wait for a condition.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    held: Option<explored::MutexGuard<'a, T>>,
    of: &'a explored::Mutex<T>,
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Releases the lock, lets other threads run, and acquires it again.
    pub(super) fn yield_lock(&mut self) {
        self.held = None;
        shuttle::thread::yield_now();
        self.held = Some(self.of.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The guard, if the lock was free.
fn free<G>(attempt: TryLockResult<G>) -> Option<G> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl<T> Mutex<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(explored::Mutex::new(value))
    }

    pub(super) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        let held = Some(self.0.lock().unwrap_or_else(PoisonError::into_inner));
        MutexGuard { held, of: &self.0 }
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = Some(free(self.0.try_lock())?);
        Some(MutexGuard { held, of: &self.0 })
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.held.as_deref().expect("held")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_deref_mut().expect("held")
    }
}

#[derive(Debug)]
pub(super) struct RwLock<T: ?Sized>(explored::RwLock<T>);
pub(super) use explored::{RwLockReadGuard, RwLockWriteGuard};

impl<T> RwLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(explored::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        free(self.0.try_read())
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        free(self.0.try_write())
    }
}

#[derive(Debug, Default)]
pub(super) struct Condvar(explored::Condvar);

/// The result of a wait with a timeout, which never times out.
pub(super) struct WaitResult;

impl WaitResult {
    pub(super) fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub(super) const fn new() -> Self {
        Self(explored::Condvar::new())
    }

    pub(super) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("held");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitResult {
        self.wait(guard);
        WaitResult
    }

    pub(super) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(super) fn notify_all(&self) {
        self.0.notify_all();
    }
}
