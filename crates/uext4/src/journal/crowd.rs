//! Many threads that wait for one event, woken once and without a fight.
//!
//! What: the threads are spread over shards, each with a lock and a condition of its own; whoever
//! brings the event about wakes the shards that have somebody, and in each shard one waiter wakes
//! the next. So two thousand wake-ups are a few dozen short chains that run side by side, none of
//! which touches a lock that the event itself needs.
//! Invariants: the event is an atomic that is stored (`SeqCst`) *before* [`Crowd::wake_all`]. A
//! waiter marks its shard as occupied before it looks at the event, so that one of the two sees the
//! other: either the waiter finds the event, or the waker finds the mark, and waits for the shard's
//! lock until the waiter sleeps.
//! Locking: a shard is a leaf, and is held only to look at the event and to fall asleep.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, LockRank, Mutex};
use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

/// At most 64: one bit of a word for each.
const SHARDS: usize = 32;

#[derive(Debug)]
pub(super) struct Crowd {
    /// Shards in which somebody may sleep.
    occupied: AtomicU64,
    shards: Box<[Shard]>,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    lock: Mutex<()>,
    wake: Condvar,
}

impl Crowd {
    pub(super) fn new() -> Self {
        let shard = |_| Shard { lock: Mutex::new(LockRank::Leaf, ()), wake: Condvar::new() };
        Self { occupied: AtomicU64::new(0), shards: (0..SHARDS).map(shard).collect() }
    }

    /// Returns when `is_over()`, which looks at atomics only.
    pub(super) fn wait(&self, is_over: impl Fn() -> bool) {
        let index = my_shard();
        let bit = 1 << index;
        let shard = &self.shards[index];
        let mut guard = shard.lock.lock();
        loop {
            // A mark that stands already is taken off only by a waker who then wants our lock.
            if self.occupied.load(Ordering::SeqCst) & bit == 0 {
                self.occupied.fetch_or(bit, Ordering::SeqCst);
            }
            if is_over() {
                return;
            }
            shard.wake.wait(&mut guard);
        }
    }

    /// Wakes everybody; the event has been stored.
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

/// The shard of the calling thread, the same in every crowd.
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

    /// Rounds of an event: nobody sleeps through one, nobody returns before it.
    #[test]
    fn nobody_is_left_and_nobody_leaves_early() {
        let (crowd, round, ready) = (Crowd::new(), AtomicU64::new(0), AtomicU64::new(0));
        const THREADS: u64 = 100;
        const ROUNDS: u64 = 200;
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for next in 1..=ROUNDS {
                        ready.fetch_add(1, Ordering::SeqCst);
                        crowd.wait(|| round.load(Ordering::SeqCst) >= next);
                        assert_eq!(round.load(Ordering::SeqCst), next);
                    }
                });
            }
            for next in 1..=ROUNDS {
                while ready.load(Ordering::SeqCst) < THREADS * next {
                    std::thread::sleep(Duration::from_micros(20));
                }
                round.store(next, Ordering::SeqCst);
                crowd.wake_all();
            }
        });
    }
}
