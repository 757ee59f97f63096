//! All windows of a volume: their counts, and taking them back when space runs out.

use super::{GROWTH, Preallocation, State};
use crate::alloc::{Count, Space};
use crate::plant::{self, Fault};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{LockRank, Mutex};
use std::sync::{Arc, Weak};

const SHARD_COUNT: usize = 16;

/// Counts of windows since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreallocationStats {
    /// Preallocations that hold blocks now.
    pub held: u64,
    /// Preallocations filled.
    pub filled: u64,
    /// Preallocations taken back because space ran out.
    pub discarded: u64,
    /// Blocks that went back into a window in the transaction that had taken them.
    pub recycled_blocks: u64,
}

/// All windows of a volume.
#[derive(Debug)]
pub(in crate::alloc) struct Preallocations {
    shards: Box<[Mutex<Vec<Weak<Preallocation>>>]>,
    /// Preallocations that are not empty.
    pub(super) held: AtomicUsize,
    pub(super) filled: AtomicU64,
    discarded: AtomicU64,
    pub(super) recycled_blocks: AtomicU64,
}

impl Preallocations {
    pub(in crate::alloc) fn new() -> Self {
        let shard = || Mutex::new(LockRank::Leaf, Vec::new());
        Self {
            shards: (0..SHARD_COUNT).map(|_| shard()).collect(),
            held: AtomicUsize::new(0),
            filled: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            recycled_blocks: AtomicU64::new(0),
        }
    }

    fn of_shard(shard: &Mutex<Vec<Weak<Preallocation>>>) -> Vec<Arc<Preallocation>> {
        shard.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Puts a window on the list, once.
    pub(super) fn list(&self, preallocation: &Arc<Preallocation>) {
        if preallocation.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let weak = Arc::downgrade(preallocation);
        let shard = (weak.as_ptr().addr() >> 6) % SHARD_COUNT;
        let mut list = self.shards[shard].lock();
        if list.len() == list.capacity() {
            // Files come and go: the list stays as long as twice those in memory.
            list.retain(|preallocation| preallocation.strong_count() > 0);
        }
        list.push(weak);
    }
}

impl Space {
    /// Counts of windows.
    #[must_use]
    pub fn preallocation_stats(&self) -> PreallocationStats {
        let preallocations = &self.preallocations;
        PreallocationStats {
            held: preallocations.held.load(Ordering::Relaxed) as u64,
            filled: preallocations.filled.load(Ordering::Relaxed),
            discarded: preallocations.discarded.load(Ordering::Relaxed),
            recycled_blocks: preallocations.recycled_blocks.load(Ordering::Relaxed),
        }
    }

    /// Takes all windows back, because space runs out; false if that brings nothing. Takes groups,
    /// so not to be called with a page lock held. May pause for those who take from a window now.
    pub fn discard_preallocations(&self) -> bool {
        if self.preallocations.held.load(Ordering::Acquire) == 0
            || plant::is(Fault::HoardedPreallocations)
        {
            return false;
        }
        let (mut found, mut out) = (false, false);
        for shard in &self.preallocations.shards {
            for preallocation in Preallocations::of_shard(shard) {
                let (allocation, pieces) = {
                    let mut inner = preallocation.inner.lock();
                    inner.size /= GROWTH;
                    let allocation = inner.empty();
                    out |= matches!(inner.state, State::DiscardOnReturn);
                    (allocation, std::mem::take(&mut inner.pieces))
                };
                let given = u64::from(allocation.is_some()) + u64::from(!pieces.is_empty());
                found |= given > 0;
                self.shared.counters.add(Count::PreallocationsDiscarded, given);
                self.preallocations.discarded.fetch_add(given, Ordering::Relaxed);
                self.release_tail(allocation);
                self.release_pieces(pieces);
            }
        }
        if !found && out {
            crate::sync::thread::pause();
        }
        found || out
    }

    /// What all windows hold, but for those that somebody takes from now.
    pub(in crate::alloc) fn preallocated_blocks(&self) -> i64 {
        let preallocations = self.preallocations.shards.iter().flat_map(Preallocations::of_shard);
        preallocations.map(|preallocation| i64::from(preallocation.blocks())).sum()
    }
}
