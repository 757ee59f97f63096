//! Decisions of the allocator that ablation options change, so that the lab can measure what each
//! mechanism is worth.
//!
//! What: each method answers one question of the allocator. With the default options the answer is
//! that of the production allocator.

use super::Space;
use super::block::Allocation;
use super::group::{Group, GroupState};
use crate::config::{AllocAblation, AllocOptions, FreeMode, StreamGoal};
use crate::journal::Freed;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockRank, Mutex, MutexGuard};
use std::sync::Arc;
use uext4_ondisk::{BlockNo, GroupNo, Layout};

#[derive(Debug)]
pub(super) struct Policy {
    ablation: AllocAblation,
    layout: Arc<Layout>,
    stream_req: u32,
    /// With `mb_stream_goal=global`: the block behind those that the last stream got.
    last_stream: AtomicU64,
    /// With `mb_free=global`: held for each free.
    frees: Mutex<()>,
}

impl Policy {
    pub(super) fn new(options: &AllocOptions, layout: &Arc<Layout>) -> Self {
        Self {
            ablation: options.ablation.clone(),
            layout: Arc::clone(layout),
            stream_req: options.stream_req,
            last_stream: AtomicU64::new(0),
            frees: Mutex::new(LockRank::Frees, ()),
        }
    }

    /// With `mb_stream_goal=global`: whether a request looks like one of a stream, because it
    /// continues behind a block or is large.
    fn is_global_stream(&self, bit: u32, want: u32) -> bool {
        self.ablation.stream_goal == StreamGoal::Global && (bit > 0 || want >= self.stream_req)
    }

    /// The group and bit at which a search for `want` blocks begins if nothing is free at its goal.
    pub(super) fn search_start(&self, goal: (GroupNo, u32), want: u32) -> (GroupNo, u32) {
        if !self.is_global_stream(goal.1, want) {
            return goal;
        }
        self.layout.bit_of(BlockNo(self.last_stream.load(Ordering::Relaxed))).unwrap_or(goal)
    }

    /// A search for `want` blocks, whose goal was bit `goal_bit` of a group, has found blocks.
    pub(super) fn note_found(&self, goal_bit: u32, want: u32, found: &Allocation) {
        if self.is_global_stream(goal_bit, want) {
            let blocks = u64::from(found.len()) * u64::from(self.cluster_blocks());
            let end = found.start().plus(blocks);
            self.last_stream.store(end.get(), Ordering::Relaxed);
        }
    }

    /// Whether criteria ask the indexes of groups. Without them each criterion scans all groups.
    pub(super) fn has_indexes(&self) -> bool {
        self.ablation.optimize_scan
    }

    /// Whether a scan of all groups for a run of `want` blocks looks into a group. Kernels without
    /// the indexes look into each group that has so many free blocks.
    pub(super) fn may_have_run(&self, group: &Group, want: u32) -> bool {
        want <= if self.has_indexes() { group.longest_run() } else { group.free_blocks() }
    }

    /// Locks a group in whose place another will do. `None`: another thread holds it.
    pub(super) fn lock_group<'g>(&self, group: &'g Group) -> Option<MutexGuard<'g, GroupState>> {
        if self.ablation.trylock { group.try_lock() } else { Some(group.lock()) }
    }

    /// Held while a run is freed or released.
    pub(super) fn lock_frees(&self) -> Option<MutexGuard<'_, ()>> {
        (self.ablation.free == FreeMode::Global).then(|| self.frees.lock())
    }

    /// Makes the runs usable that a durable transaction has freed.
    pub(super) fn release(&self, space: &Space, freed: Vec<Freed>) {
        match self.ablation.free {
            FreeMode::Sharded => space.release_by_group(freed),
            FreeMode::Global => freed.into_iter().for_each(|run| {
                let _frees = self.lock_frees();
                space.release_in_group(space.group_of_freed(&run), &[run]);
            }),
        }
    }

    /// Whether streams hold blocks ahead of their need. A cluster is itself allocated ahead.
    pub(super) fn preallocates(&self) -> bool {
        self.ablation.preallocate && !self.layout.has_clusters()
    }

    /// Blocks of a bit of the block bitmap.
    pub(super) fn cluster_blocks(&self) -> u32 {
        self.layout.cluster_blocks
    }
}
