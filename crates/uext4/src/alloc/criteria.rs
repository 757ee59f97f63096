//! Choosing where blocks come from.
//!
//! Policy: at the goal, if enough is free there; else by ext4's five criteria, from the most to the
//! least demanding. The first three ask the indexes of groups by order, nearest groups first,
//! wrapping round the end of the volume; a group that somebody holds is passed over. The fourth
//! goes over all groups; the last one does too, and waits for them.
//! Contrast: `mb_optimize_scan=0` goes over all groups from the first criterion on;
//! `mb_trylock=0` waits for every group; `mb_stream_goal=global` lets all streams begin where the
//! last one got blocks.
//! Kernel counterpart: `ext4_mb_regular_allocator` in `fs/ext4/mballoc.c`.

use super::block::Allocation;
use super::counters::{Count, Criterion};
use super::free_map::{FreeMap, ORDERS, order_of};
use super::group::{Group, GroupState};
use super::order_index::OrderIndex;
use super::{Space, prefetch};
use crate::config::StreamGoal;
use crate::error::Result;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, GroupNo, bitmap};

/// One search.
struct Search<'s> {
    space: &'s Space,
    want: u32,
    /// Where it begins.
    group: u32,
    bit: u32,
    groups: u32,
    considered: u64,
    /// Free runs looked at one after the other.
    scanned: u32,
}

/// What is wanted of a group.
#[derive(Clone, Copy)]
enum Take {
    /// All that is wanted, at a multiple of it.
    Aligned,
    /// All that is wanted.
    Whole,
    /// The longest run, if it has at least so many blocks.
    Longest(u32),
}

/// What to do with a group that somebody holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    PassOver,
    Wait,
}

/// Groups of an order that may lack an aligned run before the next order is asked, where all have
/// one.
const UNALIGNED_MAX: u32 = 4;

impl Space {
    /// Allocates one run of at most `want` blocks; `None` if none was found.
    pub(super) fn search(&self, goal: BlockNo, want: u32) -> Result<Option<Allocation>> {
        let want = want.min(self.layout.blocks_per_group);
        let (group, bit) = self.layout.group_of(goal).unwrap_or((GroupNo(0), 0));
        let found = match self.at_goal(group, bit, want)? {
            Some(allocation) => {
                self.shared.counters.add(Count::GoalHits, 1);
                Some(allocation)
            }
            None => self.by_criteria(group, bit, want)?,
        };
        if let Some(allocation) = &found
            && self.is_global_stream(bit, want)
        {
            let end = allocation.start().plus(u64::from(allocation.len()));
            self.last_stream.store(end.get(), Ordering::Relaxed);
        }
        Ok(found)
    }

    /// With `mb_stream_goal=global`: whether this looks like a request of a stream, which goes on
    /// from a block or is large.
    fn is_global_stream(&self, bit: u32, want: u32) -> bool {
        let options = &self.shared.options;
        options.stream_goal == StreamGoal::Global && (bit > 0 || want >= options.stream_req)
    }

    /// The blocks at the goal: all, or a good part where they go on from a block in use.
    fn at_goal(&self, number: GroupNo, bit: u32, want: u32) -> Result<Option<Allocation>> {
        let group = &self.groups[number.get() as usize];
        if group.free_blocks() == 0 {
            return Ok(None);
        }
        // The first block of a group is no place that anything goes on from: not worth a wait.
        let state = if bit > 0 { Some(group.lock()) } else { group.try_lock() };
        let Some(mut state) = state else { return Ok(None) };
        let map = group.map(&mut state, &self.cache)?;
        let len = map.free_at(bit, want);
        if len < want {
            let least = (want >> self.shared.options.best_avail_max_trim_order).max(1);
            if len < least || bit == 0 || !bitmap::test(map.busy(), bit - 1) {
                return Ok(None);
            }
        }
        self.allocate_in(group, state, bit, len).map(Some)
    }

    pub(super) fn allocate_in(
        &self,
        group: &Arc<Group>,
        mut state: MutexGuard<'_, GroupState>,
        bit: u32,
        len: u32,
    ) -> Result<Allocation> {
        let bitmap = state.block_bitmap(&self.cache, group.number)?;
        group.allocate(&mut state, bit, len);
        drop(state);
        let start = self.layout.group_first_block(group.number).plus(u64::from(bit));
        Ok(Allocation::new(Arc::clone(group), start, bit, len, bitmap))
    }

    fn by_criteria(&self, group: GroupNo, bit: u32, want: u32) -> Result<Option<Allocation>> {
        let counters = &self.shared.counters;
        counters.add(Count::Requests, 1);
        let (group, bit) = match self.is_global_stream(bit, want) {
            true => {
                let last = BlockNo(self.last_stream.load(Ordering::Relaxed));
                self.layout.group_of(last).unwrap_or((group, bit))
            }
            false => (group, bit),
        };
        let groups = self.layout.group_count;
        let (considered, scanned) = (0, 0);
        let group = group.get();
        let mut search = Search { space: self, want, group, bit, groups, considered, scanned };
        for criterion in Criterion::ALL {
            if !search.applies(criterion) {
                continue;
            }
            search.considered = 0;
            let found = search.by(criterion)?;
            counters.add_tried(criterion, search.considered, found.is_some());
            if let Some(allocation) = found {
                counters.add(Count::Successes, 1);
                counters.add(Count::LengthHits, u64::from(allocation.len() == want));
                counters.add(Count::ExtentsScanned, search.scanned.into());
                return Ok(Some(allocation));
            }
        }
        Ok(None)
    }
}

impl Search<'_> {
    fn applies(&self, criterion: Criterion) -> bool {
        let options = &self.space.shared.options;
        match criterion {
            Criterion::PowerOfTwoAligned => {
                self.want.is_power_of_two() && order_of(self.want) >= options.order2_req
            }
            Criterion::BestAvailable => options.optimize_scan && self.want > 1,
            _ => true,
        }
    }

    fn by(&mut self, criterion: Criterion) -> Result<Option<Allocation>> {
        match criterion {
            Criterion::PowerOfTwoAligned => self.aligned(),
            Criterion::GoalLengthFast => self.goal_length_fast(),
            Criterion::BestAvailable => self.best_available(),
            Criterion::GoalLengthSlow => {
                let (want, is_index_true) = (self.want, self.space.shared.options.optimize_scan);
                // Kernels without the index look into each group that has so many free blocks.
                let is_good = |group: &Group| {
                    group.free_blocks() >= want && (!is_index_true || group.longest_run() >= want)
                };
                self.linear(self.groups, is_good, Take::Whole, Busy::PassOver)
            }
            Criterion::AnyFree => self.any_free(),
        }
    }

    fn aligned(&mut self) -> Result<Option<Allocation>> {
        let want = self.want;
        let is_good = |group: &Group| group.longest_run() >= want;
        let found = self.linear(self.linear_groups(), is_good, Take::Aligned, Busy::PassOver)?;
        if found.is_some() || !self.space.shared.options.optimize_scan {
            return Ok(found);
        }
        let space = self.space;
        for order in order_of(want)..ORDERS as u32 {
            let misses = if order == order_of(want) { UNALIGNED_MAX } else { u32::MAX };
            let found = self.at_order(&space.shared.by_longest, order, Take::Aligned, misses)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn goal_length_fast(&mut self) -> Result<Option<Allocation>> {
        let want = self.want;
        let is_good = |group: &Group| group.average_run() >= want && group.longest_run() >= want;
        let found = self.linear(self.linear_groups(), is_good, Take::Whole, Busy::PassOver)?;
        if found.is_some() || !self.space.shared.options.optimize_scan {
            return Ok(found);
        }
        // Groups with long runs only come first: those with short ones too keep their long ones
        // until nothing else is there.
        let shared = &self.space.shared;
        for index in [&shared.by_average, &shared.by_longest] {
            for order in order_of(want)..ORDERS as u32 {
                let found = self.at_order(index, order, Take::Whole, u32::MAX)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    fn best_available(&mut self) -> Result<Option<Allocation>> {
        let shared = &self.space.shared;
        let order = order_of(self.want);
        let least = order.saturating_sub(shared.options.best_avail_max_trim_order);
        for order in (least..=order).rev() {
            let take = Take::Longest(1 << order);
            let found = self.at_order(&shared.by_longest, order, take, u32::MAX)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn any_free(&mut self) -> Result<Option<Allocation>> {
        let shared = &self.space.shared;
        if shared.options.optimize_scan {
            for order in (0..ORDERS as u32).rev() {
                let found = self.at_order(&shared.by_longest, order, Take::Longest(1), u32::MAX)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        let is_good = |group: &Group| group.free_blocks() > 0;
        self.linear(self.groups, is_good, Take::Longest(1), Busy::Wait)
    }

    /// How many groups a criterion goes over before it asks the index.
    fn linear_groups(&self) -> u32 {
        let options = &self.space.shared.options;
        if options.optimize_scan { options.max_linear_groups.min(self.groups) } else { self.groups }
    }

    /// Goes over `count` groups from the goal's on.
    fn linear(
        &mut self,
        count: u32,
        is_good: impl Fn(&Group) -> bool,
        take: Take,
        busy: Busy,
    ) -> Result<Option<Allocation>> {
        let mut ahead = 1;
        for step in 0..count {
            let number = (self.group + step) % self.groups;
            self.considered += 1;
            if !is_good(&self.space.groups[number as usize]) {
                continue;
            }
            // A search that goes on past its first group, over all of them.
            if count == self.groups && step >= ahead {
                ahead = step + prefetch::GROUPS;
                self.space.prefetch(number, (count - step).min(prefetch::GROUPS));
            }
            let found = self.try_group(number, take, busy)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Goes over the groups of an order, from the goal's on, until `misses_max` of them did not
    /// have it.
    fn at_order(
        &mut self,
        index: &OrderIndex,
        order: u32,
        take: Take,
        misses_max: u32,
    ) -> Result<Option<Allocation>> {
        let mut misses = 0;
        for (mut from, to) in [(self.group, self.groups), (0, self.group)] {
            while let Some(number) = index.next(order, from, to) {
                self.considered += 1;
                from = number + 1;
                let least = if let Take::Longest(least) = take { least } else { self.want };
                if self.space.groups[number as usize].longest_run() < least {
                    continue;
                }
                let found = self.try_group(number, take, Busy::PassOver)?;
                misses += 1;
                if found.is_some() || misses == misses_max {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    fn try_group(&mut self, number: u32, take: Take, busy: Busy) -> Result<Option<Allocation>> {
        self.space.evict_maps();
        let group = &self.space.groups[number as usize];
        let waits = busy == Busy::Wait || !self.space.shared.options.trylock;
        let state = if waits { Some(group.lock()) } else { group.try_lock() };
        let Some(mut state) = state else {
            self.space.shared.counters.add(Count::BusySkips, 1);
            return Ok(None);
        };
        let map = group.map(&mut state, &self.space.cache)?;
        let from = if number == self.group { self.bit } else { 0 };
        let base = self.space.layout.group_first_block(group.number).get();
        let Some((bit, len)) = self.find(map, from, base, take) else { return Ok(None) };
        self.space.allocate_in(group, state, bit, len).map(Some)
    }

    /// A run in a group that begins at block `base`: first bit and length.
    fn find(&mut self, map: &FreeMap, from: u32, base: u64, take: Take) -> Option<(u32, u32)> {
        let want = self.want;
        match take {
            Take::Aligned => Some((self.find_aligned(map, from, want, 0)?, want)),
            Take::Whole => {
                let stripe = self.space.shared.options.stripe;
                if stripe > 1 && want >= stripe {
                    let before = u32::try_from(base % u64::from(stripe)).unwrap_or(0);
                    if let Some(bit) = self.find_aligned(map, from, stripe, before) {
                        return Some((bit, want));
                    }
                }
                Some((self.find_best(map, from)?, want))
            }
            Take::Longest(least) => {
                let longest = map.longest();
                if longest < least.max(1) {
                    return None;
                }
                let len = longest.min(want);
                let bit = map.next_run(from, len).or_else(|| map.next_run(0, len))?;
                Some((bit, len))
            }
        }
    }

    /// The first place with all that is wanted where bit plus `before` is a multiple of `unit`.
    fn find_aligned(&mut self, map: &FreeMap, from: u32, unit: u32, before: u32) -> Option<u32> {
        let mut looks = 0;
        for (mut at, end) in [(from, u32::MAX), (0, from)] {
            while let Some(start) = map.next_run(at, self.want) {
                if start >= end || looks >= self.space.shared.options.max_to_scan {
                    break;
                }
                looks += 1;
                self.scanned += 1;
                let bit = (start + before).next_multiple_of(unit) - before;
                if map.free_at(bit, self.want) == self.want {
                    return Some(bit);
                }
                // Behind the start, where the run would have been long enough if aligned.
                at = bit;
            }
        }
        None
    }

    /// The shortest of the first runs that are long enough.
    fn find_best(&mut self, map: &FreeMap, from: u32) -> Option<u32> {
        let options = &self.space.shared.options;
        let looks_max = options.min_to_scan.min(options.max_to_scan).max(1);
        // What is longer than this is as good as any.
        let long = self.want.saturating_mul(4).saturating_add(64);
        let (mut best, mut looks): (Option<(u32, u32)>, u32) = (None, 0);
        for (mut at, end) in [(from, u32::MAX), (0, from)] {
            while let Some(start) = map.next_run(at, self.want) {
                if start >= end || looks == looks_max {
                    break;
                }
                looks += 1;
                self.scanned += 1;
                let len = map.free_at(start, long);
                if best.is_none_or(|best| len < best.1) {
                    best = Some((start, len));
                }
                if len == self.want {
                    return Some(start);
                }
                at = start + len;
            }
        }
        best.map(|best| best.0)
    }
}
