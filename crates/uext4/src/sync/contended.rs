//! Waits for locks by rank: how often a lock was not free, and how long that took.
//!
//! What: counted only while a program asks for it ([`count_lock_waits`]). A lock that is free costs
//! nothing more, and one that is not, a look at a flag.
//! Invariants: the counts are of the whole process, and they only grow.

use super::LockRank;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static WAITS: [Waited; LockRank::ALL.len()] = [const { Waited::new() }; LockRank::ALL.len()];

/// Those of one rank.
struct Waited {
    count: AtomicU64,
    sum_ns: AtomicU64,
}

impl Waited {
    const fn new() -> Self {
        Self { count: AtomicU64::new(0), sum_ns: AtomicU64::new(0) }
    }
}

/// Waits for the locks of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWaits {
    /// The rank.
    pub rank: LockRank,
    /// How often such a lock was not free.
    pub waits: u64,
    /// How long these waits took together.
    pub total: Duration,
}

/// Begins or ends to count waits for locks, in the whole process.
pub fn count_lock_waits(count: bool) {
    IS_COUNTED.store(count, Ordering::Relaxed);
}

/// The waits that were counted, of all ranks.
#[must_use]
pub fn lock_waits() -> Vec<LockWaits> {
    let of = |(rank, _): (LockRank, &str)| {
        let waited = &WAITS[rank as usize];
        let waits = waited.count.load(Ordering::Relaxed);
        let total = Duration::from_nanos(waited.sum_ns.load(Ordering::Relaxed));
        LockWaits { rank, waits, total }
    };
    LockRank::ALL.into_iter().map(of).collect()
}

/// Takes a lock that was not free.
#[cfg(not(any(feature = "shuttle", feature = "simulate")))]
#[cold]
pub(super) fn wait<G>(rank: LockRank, lock: impl FnOnce() -> G) -> G {
    if !IS_COUNTED.load(Ordering::Relaxed) {
        return lock();
    }
    let began = std::time::Instant::now();
    let guard = lock();
    let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let waited = &WAITS[rank as usize];
    waited.count.fetch_add(1, Ordering::Relaxed);
    waited.sum_ns.fetch_add(ns, Ordering::Relaxed);
    guard
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "simulate"))))]
mod tests {
    use super::*;
    use crate::sync::Mutex;
    use std::thread;

    #[test]
    fn a_wait_is_counted_by_the_rank_of_its_lock() {
        let lock = Mutex::new(LockRank::Rename, ());
        let waits = || lock_waits().into_iter().find(|waits| waits.rank == LockRank::Rename);
        let before = waits().unwrap();
        count_lock_waits(true);
        // Until the other thread has come while this one holds it.
        while waits().unwrap().waits == before.waits {
            let held = lock.lock();
            thread::scope(|scope| {
                scope.spawn(|| drop(lock.lock()));
                thread::sleep(Duration::from_millis(2));
                drop(held);
            });
        }
        count_lock_waits(false);
        assert!(waits().unwrap().total > before.total);
    }
}
