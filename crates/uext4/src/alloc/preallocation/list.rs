//! All preallocations of a volume: their statistics, and discarding them when space runs out.

use super::{GROWTH, Preallocation, StreamTail};
use crate::alloc::{Count, Space};
use crate::injected_faults::Fault;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{LockRank, Mutex};
use std::sync::{Arc, Weak};

const SHARD_COUNT: usize = 16;

/// Statistics of preallocation since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreallocationStats {
    /// Tails, and files with pieces, that hold blocks now.
    pub held: u64,
    /// Preallocations filled.
    pub filled: u64,
    /// Preallocations discarded because space ran out.
    pub discarded: u64,
    /// Blocks that returned to a preallocation in the transaction that had allocated them.
    pub recycled_blocks: u64,
}

/// All preallocations of a volume.
#[derive(Debug)]
pub(in crate::alloc) struct Preallocations {
    shards: Box<[Mutex<Vec<Weak<Preallocation>>>]>,
    /// Tails and sets of pieces that are not empty.
    pub(super) held: AtomicUsize,
}

impl Preallocations {
    pub(in crate::alloc) fn new() -> Self {
        let shard = || Mutex::new(LockRank::Leaf, Vec::new());
        Self { shards: (0..SHARD_COUNT).map(|_| shard()).collect(), held: AtomicUsize::new(0) }
    }

    fn of_shard(shard: &Mutex<Vec<Weak<Preallocation>>>) -> Vec<Arc<Preallocation>> {
        shard.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Adds a preallocation to the list, once.
    pub(super) fn list(&self, preallocation: &Arc<Preallocation>) {
        if preallocation.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let weak = Arc::downgrade(preallocation);
        let mut list = self.shards[shard_of(&weak)].lock();
        if list.len() == list.capacity() {
            // Files come and go. The list stays at most twice as long as there are files in memory.
            list.retain(|preallocation| preallocation.strong_count() > 0);
        }
        list.push(weak);
    }
}

/// Spread by address; in a simulation, whose runs must not depend on addresses, by thread.
fn shard_of(preallocation: &Weak<Preallocation>) -> usize {
    let number = match cfg!(feature = "simulate") {
        true => crate::sync::thread::slot(),
        false => preallocation.as_ptr().addr() >> 6,
    };
    number % SHARD_COUNT
}

impl Space {
    /// Statistics of preallocation.
    #[must_use]
    pub fn preallocation_stats(&self) -> PreallocationStats {
        let counters = self.counters();
        PreallocationStats {
            held: self.preallocations.held.load(Ordering::Relaxed) as u64,
            filled: counters.get(Count::PreallocationsFilled),
            discarded: counters.get(Count::PreallocationsDiscarded),
            recycled_blocks: counters.get(Count::RecycledBlocks),
        }
    }

    /// Discards all preallocations, because space runs out. False if that yields nothing. Takes
    /// group locks, so no page lock may be held. May pause for callers that have borrowed a tail.
    pub fn discard_preallocations(&self) -> bool {
        if self.preallocations.held.load(Ordering::Acquire) == 0
            || Fault::HoardedPreallocations.is_injected()
        {
            return false;
        }
        let (mut found, mut borrowed) = (false, false);
        for shard in &self.preallocations.shards {
            for preallocation in Preallocations::of_shard(shard) {
                let (tail, pieces) = preallocation.change(self, |state| {
                    state.size /= GROWTH;
                    let tail = state.take_tail();
                    borrowed |= matches!(state.tail, StreamTail::DiscardOnReturn);
                    (tail, std::mem::take(&mut state.pieces))
                });
                let discarded = u64::from(tail.is_some()) + u64::from(!pieces.is_empty());
                found |= discarded > 0;
                self.counters().add(Count::PreallocationsDiscarded, discarded);
            }
        }
        if !found && borrowed {
            crate::sync::thread::pause();
        }
        found || borrowed
    }

    /// Blocks of all preallocations, without borrowed tails.
    pub(in crate::alloc) fn preallocated_blocks(&self) -> i64 {
        let all = self.preallocations.shards.iter().flat_map(Preallocations::of_shard);
        all.map(|preallocation| i64::from(preallocation.blocks())).sum()
    }
}
