//! The allocator without one or more of its mechanisms, so that the lab can measure what each is
//! worth. No reader of the production allocator needs this file.

use super::Space;
use super::block::Allocation;
use super::counters::Criterion;
use super::group::{Group, GroupState};
use super::order_index::OrderIndex;
use super::policy::{Policy, Production};
use crate::config::{AllocAblation, AllocOptions, FreeMode, StreamGoal};
use crate::journal::Freed;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockRank, Mutex, MutexGuard};
use std::sync::Arc;
use uext4_ondisk::{BlockNo, GroupNo, Layout};

/// The policy that options ask for, and the options as it needs them.
pub(super) fn choose(
    options: AllocOptions,
    layout: &Arc<Layout>,
) -> (Box<dyn Policy>, AllocOptions) {
    if options.ablation == AllocAblation::default() {
        return (Box::new(Production), options);
    }
    let policy = Ablated {
        ablation: options.ablation.clone(),
        layout: Arc::clone(layout),
        stream_req: options.stream_req,
        last_stream: AtomicU64::new(0),
        frees: Mutex::new(LockRank::Frees, ()),
    };
    // Without the indexes a criterion scans all groups.
    let max_linear_groups =
        if options.ablation.optimize_scan { options.max_linear_groups } else { u32::MAX };
    (Box::new(policy), AllocOptions { max_linear_groups, ..options })
}

#[derive(Debug)]
struct Ablated {
    ablation: AllocAblation,
    layout: Arc<Layout>,
    stream_req: u32,
    /// With `mb_stream_goal=global`: the block behind those that the last stream got.
    last_stream: AtomicU64,
    /// With `mb_free=global`: held for each free.
    frees: Mutex<()>,
}

impl Ablated {
    /// With `mb_stream_goal=global`: whether a request looks like one of a stream, because it
    /// continues behind a block or is large.
    fn is_global_stream(&self, bit: u32, want: u32) -> bool {
        self.ablation.stream_goal == StreamGoal::Global && (bit > 0 || want >= self.stream_req)
    }
}

impl Policy for Ablated {
    fn search_start(&self, goal: (GroupNo, u32), want: u32) -> (GroupNo, u32) {
        if !self.is_global_stream(goal.1, want) {
            return goal;
        }
        self.layout.bit_of(BlockNo(self.last_stream.load(Ordering::Relaxed))).unwrap_or(goal)
    }

    fn note_found(&self, goal_bit: u32, want: u32, found: &Allocation) {
        if self.is_global_stream(goal_bit, want) {
            let end = found.start().plus(u64::from(found.len()));
            self.last_stream.store(end.get(), Ordering::Relaxed);
        }
    }

    fn criteria(&self) -> &'static [Criterion] {
        const WITHOUT_INDEXES: &[Criterion] = &[
            Criterion::PowerOfTwoAligned,
            Criterion::GoalLengthFast,
            Criterion::GoalLengthSlow,
            Criterion::AnyFree,
        ];
        if self.ablation.optimize_scan { &Criterion::ALL } else { WITHOUT_INDEXES }
    }

    fn next_group(&self, index: &OrderIndex, order: u32, from: u32, to: u32) -> Option<u32> {
        if self.ablation.optimize_scan { index.next(order, from, to) } else { None }
    }

    /// Kernels without the indexes look into each group that has so many free blocks.
    fn may_have_run(&self, group: &Group, want: u32) -> bool {
        if self.ablation.optimize_scan {
            group.longest_run() >= want
        } else {
            group.free_blocks() >= want
        }
    }

    fn lock_group<'g>(&self, group: &'g Group) -> Option<MutexGuard<'g, GroupState>> {
        if self.ablation.trylock { group.try_lock() } else { Some(group.lock()) }
    }

    fn lock_frees(&self) -> Option<MutexGuard<'_, ()>> {
        (self.ablation.free == FreeMode::Global).then(|| self.frees.lock())
    }

    fn release(&self, space: &Space, freed: Vec<Freed>) {
        match self.ablation.free {
            FreeMode::Sharded => space.release_by_group(freed),
            FreeMode::Global => freed.into_iter().for_each(|run| {
                let _frees = self.lock_frees();
                space.release_in_group(space.group_of_freed(&run), &[run]);
            }),
        }
    }

    fn preallocates(&self) -> bool {
        self.ablation.preallocate
    }
}
