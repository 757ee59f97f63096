//! A wait queue for one event that wakes thousands of threads without lock contention.
//!
//! What: the waiting threads are spread over shards, each with a lock and a condition variable of
//! its own. The waking thread notifies the occupied shards, and within a shard one waiter wakes the
//! next as the lock passes on. So two thousand wake-ups are a few dozen short chains that run in
//! parallel, and none of them touches a lock that the event itself needs.
//! Invariants: the event is an atomic that is stored (`SeqCst`) *before*
//! [`ShardedWaitQueue::wake_all`]. A waiter marks its shard as occupied before it reads the event,
//! so no wake-up is lost: either the waiter finds the event, or the waking thread finds the mark
//! and then waits for the shard's lock until the waiter sleeps.
//! Locking: a shard's lock is a leaf, held only to read the event and to fall asleep.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, LockRank, Mutex};
use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

/// At most 64, because `occupied` has one bit for each.
const SHARDS: usize = 32;

#[derive(Debug)]
pub(super) struct ShardedWaitQueue {
    /// Shards in which a thread may sleep, one bit each.
    occupied: AtomicU64,
    shards: Box<[Shard]>,
}

/// Aligned to two cache lines, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    lock: Mutex<()>,
    wake: Condvar,
}

impl ShardedWaitQueue {
    pub(super) fn new() -> Self {
        let shard = |_| Shard { lock: Mutex::new(LockRank::Leaf, ()), wake: Condvar::new() };
        Self { occupied: AtomicU64::new(0), shards: (0..SHARDS).map(shard).collect() }
    }

    /// Returns when `is_over()` is true. It may read atomics only.
    pub(super) fn wait(&self, is_over: impl Fn() -> bool) {
        let index = my_shard();
        let bit = 1 << index;
        let shard = &self.shards[index];
        let mut guard = shard.lock.lock();
        loop {
            // Only a waking thread clears a mark, and it takes this shard's lock afterwards.
            if self.occupied.load(Ordering::SeqCst) & bit == 0 {
                self.occupied.fetch_or(bit, Ordering::SeqCst);
            }
            if is_over() {
                return;
            }
            shard.wake.wait(&mut guard);
        }
    }

    /// Wakes all waiters. The event has been stored before.
    pub(super) fn wake_all(&self) {
        let mut occupied = self.occupied.swap(0, Ordering::SeqCst);
        while occupied != 0 {
            let shard = &self.shards[occupied.trailing_zeros() as usize];
            occupied &= occupied - 1;
            drop(shard.lock.lock());
            shard.wake.notify_all();
        }
    }
}

/// The shard of the calling thread, the same in every queue.
fn my_shard() -> usize {
    if cfg!(feature = "simulate") {
        return crate::sync::thread::slot() % SHARDS;
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<Option<usize>> = const { Cell::new(None) });
    MINE.with(|mine| {
        mine.get().unwrap_or_else(|| {
            let index = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % SHARDS;
            mine.set(Some(index));
            index
        })
    })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Many rounds of an event: no thread sleeps through one, and none returns before it.
    #[test]
    fn no_waiter_is_left_asleep_and_none_returns_early() {
        let (queue, round, ready) = (ShardedWaitQueue::new(), AtomicU64::new(0), AtomicU64::new(0));
        const THREADS: u64 = 100;
        const ROUNDS: u64 = 200;
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for next in 1..=ROUNDS {
                        ready.fetch_add(1, Ordering::SeqCst);
                        queue.wait(|| round.load(Ordering::SeqCst) >= next);
                        assert_eq!(round.load(Ordering::SeqCst), next);
                    }
                });
            }
            for next in 1..=ROUNDS {
                while ready.load(Ordering::SeqCst) < THREADS * next {
                    std::thread::sleep(Duration::from_micros(20));
                }
                round.store(next, Ordering::SeqCst);
                queue.wake_all();
            }
        });
    }
}
