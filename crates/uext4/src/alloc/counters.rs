//! Statistics of the allocator.
//!
//! What: [`Counters`] are kept in cells, one for each processor, so that counting threads share
//! nothing. [`AllocStats`] is their sum, with the names of `/proc/fs/ext4/*/mb_stats`.
//! [`GroupStats`] is a line of `mb_groups`.

use super::Space;
use super::free_map::ORDERS;
use crate::sync::thread;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_ondisk::bitmap;

/// Ways to choose a group, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Criterion {
    /// A power of two, aligned to it.
    PowerOfTwoAligned,
    /// The whole length, from a group whose average free run is as long.
    GoalLengthFast,
    /// The longest run there is, if it is not much shorter than the request.
    BestAvailable,
    /// The whole length, group by group.
    GoalLengthSlow,
    /// Any run. Waits for groups whose lock is held.
    AnyFree,
}

const CRITERIA: usize = 5;

impl Criterion {
    /// All, in order.
    pub const ALL: [Self; CRITERIA] = [
        Self::PowerOfTwoAligned,
        Self::GoalLengthFast,
        Self::BestAvailable,
        Self::GoalLengthSlow,
        Self::AnyFree,
    ];

    /// Its name in `mb_stats`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PowerOfTwoAligned => "cr_p2_aligned",
            Self::GoalLengthFast => "cr_goal_fast",
            Self::BestAvailable => "cr_best_avail",
            Self::GoalLengthSlow => "cr_goal_slow",
            Self::AnyFree => "cr_any_free",
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    /// Searches.
    Requests = 3 * CRITERIA,
    /// Searches that found blocks.
    Successes,
    /// Searches that got blocks at their goal.
    GoalHits,
    /// Searches that got all the blocks that they wanted.
    LengthHits,
    /// Free runs that were looked at one after the other.
    ExtentsScanned,
    /// Groups that were skipped because their lock was held.
    BusySkips,
    /// Acquisitions of a group's lock that had to wait.
    Contended,
    /// Bitmaps read ahead of a search.
    Prefetched,
    /// Maps built in memory.
    Loaded,
    /// Requests that a preallocation served.
    PreallocationHits,
    /// Preallocations filled.
    PreallocationsFilled,
    /// Preallocations discarded before they were used up.
    PreallocationsDiscarded,
    /// Blocks that returned to a preallocation in the transaction that had allocated them.
    RecycledBlocks,
}

const COUNTS: usize = Count::RecycledBlocks as usize + 1;

/// The allocator's counters.
#[derive(Debug)]
pub struct Counters {
    cells: Box<[CountsCell]>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct CountsCell([AtomicU64; COUNTS]);

impl Counters {
    pub(super) fn new() -> Self {
        Self { cells: (0..thread::slots()).map(|_| CountsCell::default()).collect() }
    }

    /// Counts `number` more.
    pub fn add(&self, count: Count, number: u64) {
        self.add_at(count as usize, number);
    }

    fn add_at(&self, index: usize, number: u64) {
        let cell = &self.cells[thread::slot() % self.cells.len()];
        cell.0[index].fetch_add(number, Ordering::Relaxed);
    }

    /// A criterion was tried.
    pub(super) fn add_tried(&self, criterion: Criterion, groups: u64, found: bool) {
        let at = 3 * criterion as usize;
        self.add_at(at, groups);
        self.add_at(if found { at + 1 } else { at + 2 }, 1);
    }

    /// The sum of all cells.
    pub(super) fn get(&self, count: Count) -> u64 {
        self.sum(count as usize)
    }

    fn sum(&self, index: usize) -> u64 {
        self.cells.iter().map(|cell| cell.0[index].load(Ordering::Relaxed)).sum()
    }
}

/// Statistics of one criterion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CriterionStats {
    /// Searches that it found blocks for.
    pub hits: u64,
    /// Groups that it looked at.
    pub groups_considered: u64,
    /// Searches that it found nothing for.
    pub useless_loops: u64,
}

/// Statistics of the allocator since the volume was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocStats {
    counts: [u64; COUNTS],
    /// All groups.
    pub groups: u64,
}

impl AllocStats {
    /// How many of `count` there were.
    #[must_use]
    pub fn count(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    /// Statistics of one criterion.
    #[must_use]
    pub fn criterion(&self, criterion: Criterion) -> CriterionStats {
        let at = 3 * criterion as usize;
        let [groups_considered, hits, useless_loops] = [at, at + 1, at + 2].map(|i| self.counts[i]);
        CriterionStats { hits, groups_considered, useless_loops }
    }
}

/// A line of `mb_groups`. Blocks are file-system blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Its number.
    pub group: u32,
    /// Free blocks.
    pub free: u32,
    /// `None`: the group has no map in memory, or its lock is held.
    pub runs: Option<RunStats>,
}

/// How the free blocks of a group lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Free runs.
    pub fragments: u32,
    /// The first free block, counted from the start of the group; the number of blocks if none is.
    pub first: u32,
    /// Blocks of the longest free run.
    pub longest: u32,
    /// Free chunks of each power of two, aligned to their size.
    pub chunks: [u32; ORDERS],
}

impl Space {
    /// The allocator's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Statistics of the allocator. Never waits.
    #[must_use]
    pub fn alloc_stats(&self) -> AllocStats {
        let counts = std::array::from_fn(|index| self.counters().sum(index));
        AllocStats { counts, groups: self.layout.group_count.into() }
    }

    /// Statistics of each group. Never waits: of a group whose lock is held only the free blocks
    /// are reported.
    pub fn group_stats(&self) -> impl Iterator<Item = GroupStats> + '_ {
        (0..).zip(&self.groups).map(|(number, group)| {
            let state = group.try_lock();
            let map = state.as_ref().and_then(|state| state.map.as_ref());
            let bits = self.layout.bits_in_group(uext4_ondisk::GroupNo(number));
            let runs = map.map(|map| RunStats {
                fragments: map.fragments(),
                first: bitmap::find_next_zero(map.allocated(), 0, bits).unwrap_or(bits),
                longest: map.longest(),
                chunks: map.chunks(),
            });
            GroupStats { group: number, free: group.free_blocks(), runs }
        })
    }
}
