//! Locks of the engine, with their order.
//!
//! What: `Mutex`, `RwLock` and `Condvar` over `parking_lot`, each lock born with a [`LockRank`].
//! Invariants: a thread takes locks in rising rank. A debug build asserts it on every
//! acquisition; a release build carries no trace of the rank. Ranks that a thread may hold twice
//! (two directories in a rename) say so in [`LockRank::is_nestable`] and have an order of their own
//! that `docs/locking.md` gives.
//! All locking of the engine comes through this module, so that a schedule explorer can replace
//! it in one place: the feature `shuttle` does, and takes the threads and the atomics of journal
//! and allocator with it. Ranks are not asserted then, for all threads of a schedule are one.
//! The feature `simulate` puts the whole engine under a seeded scheduler of real threads with a
//! clock of its own (crate `uext4-schedule`), and asserts ranks in every build.

#[cfg(feature = "shuttle")]
mod explored;
#[cfg(feature = "shuttle")]
use explored as imp;
#[cfg(not(any(feature = "shuttle", feature = "simulate")))]
use parking_lot as imp;
#[cfg(feature = "simulate")]
use uext4_schedule as imp;

#[cfg(all(
    any(test, feature = "kept-threads"),
    not(any(feature = "shuttle", feature = "simulate"))
))]
mod kept_threads;
mod rank;
pub(crate) mod thread;

pub use rank::{LockRank, RankGuard, locks_taken};

/// Atomics on which schedules depend.
pub(crate) mod atomic {
    #[cfg(feature = "shuttle")]
    pub(crate) use shuttle::sync::atomic::*;
    #[cfg(not(any(feature = "shuttle", feature = "simulate")))]
    pub(crate) use std::sync::atomic::*;
    #[cfg(feature = "simulate")]
    pub(crate) use uext4_schedule::atomic::*;
}

/// Atomics that are points of a simulation. The explorer's schedules, which are of pieces, pass
/// them over.
pub(crate) mod state {
    #[cfg(not(feature = "simulate"))]
    pub(crate) use std::sync::atomic::*;
    #[cfg(feature = "simulate")]
    pub(crate) use uext4_schedule::atomic::*;
}

/// A value that is made once; making it may lock.
#[cfg(not(feature = "simulate"))]
pub(crate) use std::sync::OnceLock;
#[cfg(feature = "simulate")]
pub(crate) use uext4_schedule::OnceLock;

/// The clocks.
pub(crate) mod time {
    #[cfg(not(feature = "simulate"))]
    pub(crate) use std::time::{Instant, SystemTime};
    #[cfg(feature = "simulate")]
    pub(crate) use uext4_schedule::time::{Instant, SystemTime};

    /// Seconds and nanoseconds since 1970, as of the last tick of the system's clock.
    pub(crate) fn last_tick() -> (i64, u32) {
        #[cfg(not(feature = "simulate"))]
        let now = uext4_device::last_tick();
        #[cfg(feature = "simulate")]
        let now = {
            const TICK: u32 = 4_000_000;
            let since = SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            (since.as_secs().cast_signed(), since.subsec_nanos() / TICK * TICK)
        };
        now
    }
}

/// Tells a simulation what the calling thread is at; "" is nothing.
pub(crate) fn stage(name: &'static str) {
    #[cfg(feature = "simulate")]
    uext4_schedule::stage(name);
    let _ = name;
}

/// A random number.
pub(crate) fn random() -> u32 {
    #[cfg(not(feature = "simulate"))]
    return rand::random();
    #[cfg(feature = "simulate")]
    return (uext4_schedule::random() >> 32) as u32;
}

/// What accesses without locks need: see `uext4_device`. The explorer has its own, weaker than any
/// processor.
#[cfg(not(any(feature = "shuttle", feature = "simulate")))]
pub(crate) use uext4_device::{Published, heavy_fence, reader_slot};

#[cfg(any(feature = "shuttle", feature = "simulate"))]
pub(crate) mod explored_reader_slots;
#[cfg(any(feature = "shuttle", feature = "simulate"))]
pub(crate) use explored_reader_slots::{self as reader_slot, Published, heavy_fence};

use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// A ranked mutual exclusion lock.
#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    rank: LockRank,
    inner: imp::Mutex<T>,
}

/// Guard of a [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    inner: imp::MutexGuard<'a, T>,
    _rank: RankGuard,
}

impl<T> Mutex<T> {
    /// A lock of `rank` over `value`.
    pub const fn new(rank: LockRank, value: T) -> Self {
        Self { rank, inner: imp::Mutex::new(value) }
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let rank = RankGuard::enter(self.rank);
        MutexGuard { inner: self.inner.lock(), _rank: rank }
    }

    /// Takes the lock if it is free; may be called out of order, for it never waits.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, _rank: RankGuard::enter_unordered(self.rank) })
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Looks at a lock before [`RwLock::write_soon`] sleeps, and pauses of the processor between them:
/// together about ten microseconds, two creations.
const SPINS: u32 = 20;
const SPIN_PAUSES: u32 = 16;

/// A ranked reader-writer lock.
#[derive(Debug)]
pub struct RwLock<T: ?Sized> {
    rank: LockRank,
    inner: imp::RwLock<T>,
}

/// Shared guard of a [`RwLock`].
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: imp::RwLockReadGuard<'a, T>,
    _rank: RankGuard,
}

/// Exclusive guard of a [`RwLock`].
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: imp::RwLockWriteGuard<'a, T>,
    _rank: RankGuard,
}

impl<T> RwLock<T> {
    /// A lock of `rank` over `value`.
    pub const fn new(rank: LockRank, value: T) -> Self {
        Self { rank, inner: imp::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let rank = RankGuard::enter(self.rank);
        RwLockReadGuard { inner: self.inner.read(), _rank: rank }
    }

    /// Takes shared access if nobody waits for or has exclusive access; may be called out of
    /// order, for it never waits.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _rank: RankGuard::enter_unordered(self.rank) })
    }

    /// Waits for exclusive access.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let rank = RankGuard::enter(self.rank);
        RwLockWriteGuard { inner: self.inner.write(), _rank: rank }
    }

    /// As [`RwLock::write`] where the lock is held for some microseconds as a rule: looks for about
    /// as long whether it is free before it sleeps. Waking a sleeper costs as much as the wait, and
    /// whoever holds the lock would have to do it.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn write_soon(&self) -> RwLockWriteGuard<'_, T> {
        // Tests go straight to the lock that knows its rank.
        if cfg!(not(any(debug_assertions, feature = "shuttle", feature = "simulate"))) {
            for _ in 0..SPINS {
                if let Some(guard) = self.try_write() {
                    return guard;
                }
                for _ in 0..SPIN_PAUSES {
                    std::hint::spin_loop();
                }
            }
        }
        self.write()
    }

    /// Takes exclusive access if nobody holds the lock; may be called out of order, for it never
    /// waits.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, _rank: RankGuard::enter_unordered(self.rank) })
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar {
    inner: imp::Condvar,
}

impl Condvar {
    /// A condition variable nobody waits on.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: imp::Condvar::new() }
    }

    /// Releases the lock, waits for a notification, takes the lock again.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        rank::about_condition();
        self.inner.wait(&mut guard.inner);
    }

    /// As [`Condvar::wait`], at most `timeout`; true if the time ran out.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        rank::about_condition();
        self.inner.wait_for(&mut guard.inner, timeout).timed_out()
    }

    /// As [`Condvar::wait_for`], for a wait that nothing but the time may end: under the schedule
    /// explorer, which has no clock, it ends after a moment in which others may run.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn wait_briefly<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        #[cfg(feature = "shuttle")]
        {
            let _ = timeout;
            guard.inner.yield_lock();
            true
        }
        #[cfg(not(feature = "shuttle"))]
        self.wait_for(guard, timeout)
    }

    /// Wakes one waiter.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }

    /// Wakes every waiter.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rising_ranks_pass_and_release_in_any_order() {
        let low = Mutex::new(LockRank::File, 1);
        let high = RwLock::new(LockRank::Buffer, 2);
        let a = low.lock();
        let b = high.read();
        drop(a);
        drop(b);
        assert_eq!(*high.write() + *low.try_lock().unwrap(), 3);
    }

    #[test]
    #[cfg(all(debug_assertions, not(feature = "shuttle")))]
    #[should_panic(expected = "lock order: File taken while holding [Buffer]")]
    fn falling_ranks_panic_in_a_debug_build() {
        let low = Mutex::new(LockRank::File, 1);
        let high = Mutex::new(LockRank::Buffer, 2);
        let _b = high.lock();
        let _a = low.lock();
    }
}
