//! Requests, counted by kind.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::opcode::{NUMBERS, Opcode};

/// Threads count in so many places, so that they do not take a cache line from each other.
const SHARDS: usize = 8;

thread_local! {
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
}

#[repr(align(64))]
struct Shard([AtomicU64; NUMBERS]);

/// How many requests of each kind a session has taken.
pub struct Counts {
    shards: [Shard; SHARDS],
    next: AtomicUsize,
}

impl Default for Counts {
    fn default() -> Self {
        let shard = |_| Shard(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { shards: std::array::from_fn(shard), next: AtomicUsize::new(0) }
    }
}

impl Counts {
    pub(crate) fn add(&self, opcode: u32) {
        let shard = SHARD.get().unwrap_or_else(|| {
            let shard = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
            SHARD.set(Some(shard));
            shard
        });
        // Kinds that this crate does not know are counted as number 0.
        let number = usize::try_from(opcode).ok().filter(|number| *number < NUMBERS).unwrap_or(0);
        self.shards[shard].0[number].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests of a kind so far.
    #[must_use]
    pub fn of(&self, opcode: Opcode) -> u64 {
        self.shards.iter().map(|shard| shard.0[opcode as usize].load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_is_added_up() {
        let counts = Counts::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| counts.add(Opcode::Read as u32));
            }
        });
        counts.add(9999);
        assert_eq!((counts.of(Opcode::Read), counts.of(Opcode::Write)), (20, 0));
    }
}
