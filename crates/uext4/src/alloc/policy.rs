//! Decisions of the allocator that ablation options replace.
//!
//! What: the default methods of [`Policy`] are the production allocator. `ablation.rs` overrides
//! them. Each mount has one policy, chosen when the volume is opened.

use super::Space;
use super::block::Allocation;
use super::counters::Criterion;
use super::group::{Group, GroupState};
use super::order_index::OrderIndex;
use crate::journal::Freed;
use crate::sync::MutexGuard;
use std::fmt;
use uext4_ondisk::GroupNo;

pub(super) trait Policy: fmt::Debug + Send + Sync {
    /// The group and bit at which a search for `want` blocks begins if nothing is free at its goal.
    fn search_start(&self, goal: (GroupNo, u32), _want: u32) -> (GroupNo, u32) {
        goal
    }

    /// A search for `want` blocks, whose goal was bit `goal_bit` of a group, has found blocks.
    fn note_found(&self, _goal_bit: u32, _want: u32, _found: &Allocation) {}

    /// The criteria, in the order in which they are tried.
    fn criteria(&self) -> &'static [Criterion] {
        &Criterion::ALL
    }

    /// The next group of an order that an index has in `from..to`.
    fn next_group(&self, index: &OrderIndex, order: u32, from: u32, to: u32) -> Option<u32> {
        index.next(order, from, to)
    }

    /// Whether a scan of all groups for a run of `want` blocks looks into a group.
    fn may_have_run(&self, group: &Group, want: u32) -> bool {
        group.longest_run() >= want
    }

    /// Locks a group in whose place another will do. `None`: another thread holds it.
    fn lock_group<'g>(&self, group: &'g Group) -> Option<MutexGuard<'g, GroupState>> {
        group.try_lock()
    }

    /// Held while a run is freed or released.
    fn lock_frees(&self) -> Option<MutexGuard<'_, ()>> {
        None
    }

    /// Makes the runs usable that a durable transaction has freed.
    fn release(&self, space: &Space, freed: Vec<Freed>) {
        space.release_by_group(freed);
    }

    /// Whether streams hold blocks ahead of their need.
    fn preallocates(&self) -> bool {
        true
    }
}

/// The production allocator.
#[derive(Debug)]
pub(super) struct Production;

impl Policy for Production {}
