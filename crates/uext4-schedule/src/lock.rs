//! Locks with the interface of `parking_lot`, whose waits are the scheduler's.
//!
//! What: the value stands in a lock of `parking_lot` that is only ever tried. A thread that fails
//! waits for the address of the lock; the holder wakes all waiters when it releases the lock, and
//! they try again in an order that the scheduler chooses. As with `parking_lot`, readers wait
//! behind a writer that waits.

use crate::scheduler::{is_simulated, point, point_of, wait, wake_all};
use parking_lot as inner;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};

/// Waits for the lock whose number of waiters this is.
#[track_caller]
fn wait_for(waiters: &AtomicU32, at: &'static Location<'static>) {
    if !is_simulated() {
        return std::thread::yield_now();
    }
    waiters.fetch_add(1, Ordering::Relaxed);
    wait(std::ptr::from_ref(waiters).addr(), None, at);
    waiters.fetch_sub(1, Ordering::Relaxed);
}

/// The lock whose number of waiters this is has been let go.
fn let_go(waiters: &AtomicU32) {
    if waiters.load(Ordering::Relaxed) > 0 {
        wake_all(std::ptr::from_ref(waiters).addr());
    }
}

/// A mutual exclusion lock.
pub struct Mutex<T: ?Sized> {
    waiters: AtomicU32,
    value: inner::Mutex<T>,
}

/// Guard of a [`Mutex`]; `None` only while a condition is waited for and at its end.
pub struct MutexGuard<'a, T: ?Sized> {
    held: Option<inner::MutexGuard<'a, T>>,
    of: &'a Mutex<T>,
    /// Where it was taken.
    at: &'static Location<'static>,
}

impl<T> Mutex<T> {
    /// A lock over `value`.
    pub const fn new(value: T) -> Self {
        Self { waiters: AtomicU32::new(0), value: inner::Mutex::new(value) }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        point();
        let at = Location::caller();
        MutexGuard { held: Some(self.acquire(at)), of: self, at }
    }

    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        point();
        let held = Some(self.value.try_lock()?);
        Some(MutexGuard { held, of: self, at: Location::caller() })
    }

    fn acquire(&self, at: &'static Location<'static>) -> inner::MutexGuard<'_, T> {
        loop {
            if let Some(held) = self.value.try_lock() {
                return held;
            }
            wait_for(&self.waiters, at);
        }
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Without a point: a thread that waits for a condition lets go and sleeps in one.
    pub(crate) fn let_go(&mut self) {
        self.held = None;
        let_go(&self.of.waiters);
    }

    pub(crate) fn take_again(&mut self, at: &'static Location<'static>) {
        self.held = Some(self.of.acquire(at));
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.let_go();
        point_of(self.at);
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

/// A reader-writer lock.
pub struct RwLock<T: ?Sized> {
    waiters: AtomicU32,
    /// Of the waiters, those that want to write.
    writers: AtomicU32,
    value: inner::RwLock<T>,
}

/// Shared guard of a [`RwLock`].
pub struct RwLockReadGuard<'a, T: ?Sized> {
    held: Option<inner::RwLockReadGuard<'a, T>>,
    waiters: &'a AtomicU32,
    at: &'static Location<'static>,
}

/// Exclusive guard of a [`RwLock`].
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    held: Option<inner::RwLockWriteGuard<'a, T>>,
    waiters: &'a AtomicU32,
    at: &'static Location<'static>,
}

impl<T> RwLock<T> {
    /// A lock over `value`.
    pub const fn new(value: T) -> Self {
        Self {
            waiters: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            value: inner::RwLock::new(value),
        }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        point();
        let at = Location::caller();
        loop {
            if let Some(guard) = self.read_now(at) {
                return guard;
            }
            wait_for(&self.waiters, at);
        }
    }

    /// Takes shared access if nobody waits for or has exclusive access.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        point();
        self.read_now(Location::caller())
    }

    fn read_now(&self, at: &'static Location<'static>) -> Option<RwLockReadGuard<'_, T>> {
        if self.writers.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let held = Some(self.value.try_read()?);
        Some(RwLockReadGuard { held, waiters: &self.waiters, at })
    }

    /// Waits for exclusive access.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        point();
        let at = Location::caller();
        loop {
            if let Some(held) = self.value.try_write() {
                return RwLockWriteGuard { held: Some(held), waiters: &self.waiters, at };
            }
            self.writers.fetch_add(1, Ordering::Relaxed);
            wait_for(&self.waiters, at);
            self.writers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes exclusive access if nobody holds the lock.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        point();
        let held = Some(self.value.try_write()?);
        Some(RwLockWriteGuard { held, waiters: &self.waiters, at: Location::caller() })
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.held.as_deref().expect("held")
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.held.as_deref().expect("held")
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_deref_mut().expect("held")
    }
}

macro_rules! dropped {
    ($($guard:ident),*) => {$(
        impl<T: ?Sized> Drop for $guard<'_, T> {
            fn drop(&mut self) {
                self.held = None;
                let_go(self.waiters);
                point_of(self.at);
            }
        }
    )*};
}

dropped!(RwLockReadGuard, RwLockWriteGuard);

macro_rules! named {
    ($($name:ident $(<$life:lifetime>)?),*) => {$(
        impl<T: ?Sized> fmt::Debug for $name<$($life,)? T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

named!(Mutex, RwLock, MutexGuard<'_>, RwLockReadGuard<'_>, RwLockWriteGuard<'_>);
