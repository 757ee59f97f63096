//! The locks of the engine, and their order.
//!
//! What: `Mutex`, `RwLock` and `Condvar` over `parking_lot`. Each lock is created with a
//! [`LockRank`].
//! Invariants: a thread takes locks in rising rank. A debug build asserts that on every
//! acquisition; a release build knows the rank of a lock only to count waits for it. A thread may
//! hold several locks of a rank that is [`LockRank::is_nestable`] (two directories in a rename), in
//! an order of their own that `docs/locking.md` gives. All locks of the engine come from this
//! module, so two test tools can replace them in one place. The feature `shuttle` puts journal and
//! allocator, with their threads and atomics, under the schedule explorer. It asserts no ranks,
//! because one system thread runs all threads of a schedule. The feature `simulate` puts the whole
//! engine under a seeded scheduler of real threads with a simulated clock (crate
//! `uext4-schedule`), and asserts ranks in every build.

#[cfg(feature = "shuttle")]
mod explored;
#[cfg(feature = "shuttle")]
use explored as imp;
#[cfg(not(any(feature = "shuttle", feature = "simulate")))]
use parking_lot as imp;
#[cfg(feature = "simulate")]
use uext4_schedule as imp;

mod contended;
#[cfg(all(
    any(test, feature = "kept-threads"),
    not(any(feature = "shuttle", feature = "simulate"))
))]
mod kept_threads;
mod mark;
mod rank;
pub(crate) mod thread;

pub use contended::{LockWaits, count_lock_waits, lock_waits};
pub(crate) use mark::with_mark;
pub use rank::{LockRank, RankGuard, locks_taken};

/// Atomics that the schedule explorer and the simulation interleave.
pub(crate) mod atomic {
    #[cfg(feature = "shuttle")]
    pub(crate) use shuttle::sync::atomic::*;
    #[cfg(not(any(feature = "shuttle", feature = "simulate")))]
    pub(crate) use std::sync::atomic::*;
    #[cfg(feature = "simulate")]
    pub(crate) use uext4_schedule::atomic::*;
}

/// Atomics that only the simulation interleaves. The explorer's schedules, which cover parts of the
/// engine, do not depend on them.
pub(crate) mod state {
    #[cfg(not(feature = "simulate"))]
    pub(crate) use std::sync::atomic::*;
    #[cfg(feature = "simulate")]
    pub(crate) use uext4_schedule::atomic::*;
}

/// A value that is initialised once. The initialisation may take locks.
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

    /// Seconds and nanoseconds since 1970 at the last tick of the system's clock.
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

/// Tells a simulation the stage of the calling thread's work; "" means none.
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

/// Primitives of lock-free readers: see `uext4_device`. The explorer and the simulation have models
/// of them that are weaker than any processor.
#[cfg(not(any(feature = "shuttle", feature = "simulate")))]
pub(crate) use uext4_device::{Published, heavy_fence, reader_slot};

#[cfg(any(feature = "shuttle", feature = "simulate"))]
pub(crate) mod explored_reader_slots;
#[cfg(any(feature = "shuttle", feature = "simulate"))]
pub(crate) use explored_reader_slots::{self as reader_slot, Published, heavy_fence};

use std::ops::{Deref, DerefMut};
use std::time::Duration;
use uext4_device::about_to_sleep;

/// Takes a lock: at once if it is free, and otherwise after the hook of the thread
/// ([`uext4_device::on_sleep`]). The explorer and the simulation see one attempt, which may wait. A
/// macro, because the simulation notes the line of the caller.
macro_rules! lock_or_sleep {
    ($rank:expr, $try_lock:expr, $lock:expr) => {{
        #[cfg(not(any(feature = "shuttle", feature = "simulate")))]
        let free = $try_lock;
        #[cfg(any(feature = "shuttle", feature = "simulate"))]
        let free = None;
        match free {
            Some(guard) => guard,
            None => {
                about_to_sleep();
                #[cfg(not(any(feature = "shuttle", feature = "simulate")))]
                let guard = contended::wait($rank, || $lock);
                #[cfg(any(feature = "shuttle", feature = "simulate"))]
                let guard = $lock;
                guard
            }
        }
    }};
}

/// A ranked mutual exclusion lock.
#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    rank: LockRank,
    inner: imp::Mutex<T>,
}

/// A held lock: the guard of the lock inside, and its rank.
#[derive(Debug)]
pub struct Guard<G> {
    inner: G,
    _rank: RankGuard,
}

/// Guard of a [`Mutex`].
pub type MutexGuard<'a, T> = Guard<imp::MutexGuard<'a, T>>;
/// Shared guard of a [`RwLock`].
pub type RwLockReadGuard<'a, T> = Guard<imp::RwLockReadGuard<'a, T>>;
/// Exclusive guard of a [`RwLock`].
pub type RwLockWriteGuard<'a, T> = Guard<imp::RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<T> Mutex<T> {
    /// A lock of `rank` over `value`.
    pub const fn new(rank: LockRank, value: T) -> Self {
        Self { rank, inner: imp::Mutex::new(value) }
    }

    /// Unwraps the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Acquires the lock. Waits for it.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let rank = RankGuard::enter(self.rank);
        let inner = lock_or_sleep!(self.rank, self.inner.try_lock(), self.inner.lock());
        Guard { inner, _rank: rank }
    }

    /// Acquires the lock if it is free. May be called out of rank order, because it never waits.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(Guard { inner, _rank: RankGuard::enter_unordered(self.rank) })
    }
}

/// Attempts of [`RwLock::write_adaptive`] before it sleeps, and pauses of the processor between
/// them. Together they take about ten microseconds, the time of two creations of a file.
const SPINS: u32 = 20;
const SPIN_PAUSES: u32 = 16;

/// A ranked reader-writer lock.
#[derive(Debug)]
pub struct RwLock<T: ?Sized> {
    rank: LockRank,
    inner: imp::RwLock<T>,
}

impl<T> RwLock<T> {
    /// A lock of `rank` over `value`.
    pub const fn new(rank: LockRank, value: T) -> Self {
        Self { rank, inner: imp::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Acquires shared access. Waits for it.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let rank = RankGuard::enter(self.rank);
        let inner = lock_or_sleep!(self.rank, self.inner.try_read(), self.inner.read());
        Guard { inner, _rank: rank }
    }

    /// Acquires shared access if no thread has or awaits exclusive access. May be called out of
    /// rank order, because it never waits.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(Guard { inner, _rank: RankGuard::enter_unordered(self.rank) })
    }

    /// Acquires exclusive access. Waits for it.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let rank = RankGuard::enter(self.rank);
        let inner = lock_or_sleep!(self.rank, self.inner.try_write(), self.inner.write());
        Guard { inner, _rank: rank }
    }

    /// [`RwLock::write`] for a lock that is usually held for some microseconds: spins for about as
    /// long before it sleeps. A wake-up costs as much as such a wait, and the holder of the lock
    /// would have to make it.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn write_adaptive(&self) -> RwLockWriteGuard<'_, T> {
        // Tests always take the ranked lock.
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

    /// Acquires exclusive access if no thread has any access. May be called out of rank order,
    /// because it never waits.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(Guard { inner, _rank: RankGuard::enter_unordered(self.rank) })
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar {
    inner: imp::Condvar,
}

impl Condvar {
    /// A condition variable without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: imp::Condvar::new() }
    }

    /// Releases the lock, waits for a notification and acquires the lock again.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        rank::note_condition_wait();
        about_to_sleep();
        self.inner.wait(&mut guard.inner);
    }

    /// [`Condvar::wait`] for at most `timeout`. True if the time is over.
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        rank::note_condition_wait();
        about_to_sleep();
        self.inner.wait_for(&mut guard.inner, timeout).timed_out()
    }

    /// [`Condvar::wait_for`] for a wait that perhaps only the time ends. The schedule explorer has
    /// no clock, so there it ends after other threads got a chance to run.
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
