//! Choosing where blocks come from.
//!
//! Policy: blocks are taken at the goal if enough are free there. Otherwise ext4's five criteria
//! are tried, from the most to the least demanding. The first three ask the indexes of groups by
//! order, nearest groups first, and wrap around the end of the volume. They skip a group whose lock
//! is held. The fourth scans all groups. The last one scans all groups too, and waits for their
//! locks.
//! Kernel counterpart: `ext4_mb_regular_allocator` in `fs/ext4/mballoc.c`.

use super::block::Allocation;
use super::counters::{Count, Criterion};
use super::free_map::{FreeMap, ORDERS, order_of};
use super::group::{Group, GroupState};
use super::order_index::OrderIndex;
use super::{Space, prefetch};
use crate::error::Result;
use crate::sync::MutexGuard;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, GroupNo, bitmap};

/// One search by the criteria.
struct GroupSearch<'s> {
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

/// Which run of a group is acceptable.
#[derive(Clone, Copy)]
enum Wanted {
    /// The whole length, at a multiple of it.
    Aligned,
    /// The whole length.
    Whole,
    /// The longest run, if it has at least this many blocks.
    Longest(u32),
}

/// What to do with a group whose lock another thread holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfLocked {
    Skip,
    Wait,
}

/// Groups of the request's own order that may lack an aligned run before the next order is asked,
/// where every group has one.
const UNALIGNED_MAX: u32 = 4;

impl Space {
    /// Allocates one run of at most `want` blocks. `None` if none was found.
    pub(super) fn search(&self, goal: BlockNo, want: u32) -> Result<Option<Allocation>> {
        let want = want.min(self.layout.clusters_per_group);
        let (group, bit) = self.layout.bit_of(goal).unwrap_or((GroupNo(0), 0));
        let found = match self.at_goal(group, bit, want)? {
            Some(allocation) => {
                self.shared.counters.add(Count::GoalHits, 1);
                Some(allocation)
            }
            None => self.by_criteria(group, bit, want)?,
        };
        if let Some(allocation) = &found {
            self.shared.policy.note_found(bit, want, allocation);
        }
        Ok(found)
    }

    /// The blocks at the goal: all of them, or a good part if they continue behind a block in use.
    fn at_goal(&self, number: GroupNo, bit: u32, want: u32) -> Result<Option<Allocation>> {
        let group = &self.groups[number.get() as usize];
        if group.free_blocks() == 0 {
            return Ok(None);
        }
        // No block precedes the first block of a group, so that goal is not worth a wait.
        let state = if bit > 0 { Some(group.lock()) } else { group.try_lock() };
        let Some(mut state) = state else { return Ok(None) };
        let map = group.map(&mut state, &self.cache)?;
        let len = map.free_at(bit, want);
        if len < want {
            let least = (want >> self.shared.options.best_avail_max_trim_order).max(1);
            if len < least || bit == 0 || !bitmap::test(map.allocated(), bit - 1) {
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
        group.allocate(&mut state, bit, len, bitmap.as_deref())?;
        drop(state);
        let start = self.layout.block_of_bit(group.number, bit);
        Ok(Allocation { group: Arc::clone(group), start, bit, len, bitmap })
    }

    fn by_criteria(&self, group: GroupNo, bit: u32, want: u32) -> Result<Option<Allocation>> {
        let (counters, policy) = (&self.shared.counters, &self.shared.policy);
        counters.add(Count::Requests, 1);
        let (group, bit) = policy.search_start((group, bit), want);
        let groups = self.layout.group_count;
        let group = group.get();
        let mut search =
            GroupSearch { space: self, want, group, bit, groups, considered: 0, scanned: 0 };
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

/// The first blocks that `find` returns for one of the `places`, which are tried in order.
fn first_found<T>(
    places: impl IntoIterator<Item = T>,
    mut find: impl FnMut(T) -> Result<Option<Allocation>>,
) -> Result<Option<Allocation>> {
    places.into_iter().find_map(|place| find(place).transpose()).transpose()
}

impl GroupSearch<'_> {
    fn applies(&self, criterion: Criterion) -> bool {
        match criterion {
            Criterion::PowerOfTwoAligned => {
                let least = self.space.shared.options.order2_req;
                self.want.is_power_of_two() && order_of(self.want) >= least
            }
            Criterion::BestAvailable => self.want > 1 && self.space.shared.policy.has_indexes(),
            _ => true,
        }
    }

    fn by(&mut self, criterion: Criterion) -> Result<Option<Allocation>> {
        match criterion {
            Criterion::PowerOfTwoAligned => self.aligned(),
            Criterion::GoalLengthFast => self.goal_length_fast(),
            Criterion::BestAvailable => self.best_available(),
            Criterion::GoalLengthSlow => {
                let (policy, want) = (&self.space.shared.policy, self.want);
                let is_good = |group: &Group| policy.may_have_run(group, want);
                self.linear(self.groups, is_good, Wanted::Whole, IfLocked::Skip)
            }
            Criterion::AnyFree => self.any_free(),
        }
    }

    fn aligned(&mut self) -> Result<Option<Allocation>> {
        let want = self.want;
        let is_good = |group: &Group| group.longest_run() >= want;
        let linear_groups = self.linear_groups();
        let found = self.linear(linear_groups, is_good, Wanted::Aligned, IfLocked::Skip)?;
        if found.is_some() {
            return Ok(found);
        }
        let (index, own) = (&self.space.shared.by_longest, order_of(want));
        first_found(own..ORDERS as u32, |order| {
            let misses = if order == own { UNALIGNED_MAX } else { u32::MAX };
            self.at_order(index, order, Wanted::Aligned, misses)
        })
    }

    fn goal_length_fast(&mut self) -> Result<Option<Allocation>> {
        let want = self.want;
        let is_good = |group: &Group| group.average_run() >= want && group.longest_run() >= want;
        let linear_groups = self.linear_groups();
        let found = self.linear(linear_groups, is_good, Wanted::Whole, IfLocked::Skip)?;
        if found.is_some() {
            return Ok(found);
        }
        // Groups that have long runs only come first. Groups that have short runs too keep their
        // long ones until there is nothing else.
        let shared = &self.space.shared;
        first_found([&shared.by_average, &shared.by_longest], |index| {
            let orders = order_of(want)..ORDERS as u32;
            first_found(orders, |order| self.at_order(index, order, Wanted::Whole, u32::MAX))
        })
    }

    fn best_available(&mut self) -> Result<Option<Allocation>> {
        let shared = &self.space.shared;
        let order = order_of(self.want);
        let least = order.saturating_sub(shared.options.best_avail_max_trim_order);
        first_found((least..=order).rev(), |order| {
            let wanted = Wanted::Longest(1 << order);
            self.at_order(&shared.by_longest, order, wanted, u32::MAX)
        })
    }

    fn any_free(&mut self) -> Result<Option<Allocation>> {
        let index = &self.space.shared.by_longest;
        let found = first_found((0..ORDERS as u32).rev(), |order| {
            self.at_order(index, order, Wanted::Longest(1), u32::MAX)
        })?;
        if found.is_some() {
            return Ok(found);
        }
        let is_good = |group: &Group| group.free_blocks() > 0;
        self.linear(self.groups, is_good, Wanted::Longest(1), IfLocked::Wait)
    }

    /// Groups that a criterion scans before it asks an index.
    fn linear_groups(&self) -> u32 {
        let shared = &self.space.shared;
        match shared.policy.has_indexes() {
            true => shared.options.max_linear_groups.min(self.groups),
            false => self.groups,
        }
    }

    /// Scans `count` groups, from the goal's on.
    fn linear(
        &mut self,
        count: u32,
        is_good: impl Fn(&Group) -> bool,
        wanted: Wanted,
        if_locked: IfLocked,
    ) -> Result<Option<Allocation>> {
        let mut ahead = 1;
        for step in 0..count {
            let number = (self.group + step) % self.groups;
            self.considered += 1;
            if !is_good(&self.space.groups[number as usize]) {
                continue;
            }
            // A scan of all groups, past its first one.
            if count == self.groups && step >= ahead {
                ahead = step + prefetch::GROUPS;
                self.space.prefetch(number, (count - step).min(prefetch::GROUPS));
            }
            let found = self.try_group(number, wanted, if_locked)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Tries the groups of an order, from the goal's on, until `misses_max` of them had no
    /// acceptable run.
    fn at_order(
        &mut self,
        index: &OrderIndex,
        order: u32,
        wanted: Wanted,
        misses_max: u32,
    ) -> Result<Option<Allocation>> {
        if !self.space.shared.policy.has_indexes() {
            return Ok(None);
        }
        let mut misses = 0;
        for (mut from, to) in [(self.group, self.groups), (0, self.group)] {
            while let Some(number) = index.next(order, from, to) {
                self.considered += 1;
                from = number + 1;
                let least = if let Wanted::Longest(least) = wanted { least } else { self.want };
                if self.space.groups[number as usize].longest_run() < least {
                    continue;
                }
                let found = self.try_group(number, wanted, IfLocked::Skip)?;
                misses += 1;
                if found.is_some() || misses == misses_max {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    fn try_group(
        &mut self,
        number: u32,
        wanted: Wanted,
        if_locked: IfLocked,
    ) -> Result<Option<Allocation>> {
        self.space.evict_maps();
        let group = &self.space.groups[number as usize];
        let state = match if_locked {
            IfLocked::Wait => Some(group.lock()),
            IfLocked::Skip => self.space.shared.policy.lock_group(group),
        };
        let Some(mut state) = state else {
            self.space.shared.counters.add(Count::BusySkips, 1);
            return Ok(None);
        };
        let map = group.map(&mut state, &self.space.cache)?;
        let from = if number == self.group { self.bit } else { 0 };
        let base = self.space.layout.group_first_block(group.number).get();
        let Some((bit, len)) = self.find(map, from, base, wanted) else { return Ok(None) };
        self.space.allocate_in(group, state, bit, len).map(Some)
    }

    /// A run in a group that begins at block `base`: first bit and length.
    fn find(&mut self, map: &FreeMap, from: u32, base: u64, wanted: Wanted) -> Option<(u32, u32)> {
        let want = self.want;
        match wanted {
            Wanted::Aligned => Some((self.find_aligned(map, from, want, 0)?, want)),
            Wanted::Whole => {
                let stripe = self.space.shared.options.stripe;
                if stripe > 1 && want >= stripe && !self.space.layout.has_clusters() {
                    let before = u32::try_from(base % u64::from(stripe)).unwrap_or(0);
                    if let Some(bit) = self.find_aligned(map, from, stripe, before) {
                        return Some((bit, want));
                    }
                }
                Some((self.find_best(map, from)?, want))
            }
            Wanted::Longest(least) => {
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

    /// The first place for the whole length where bit plus `before` is a multiple of `unit`.
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
                // The run is long enough at its start, and too short at the aligned place.
                at = bit;
            }
        }
        None
    }

    /// The shortest of the first runs that are long enough.
    fn find_best(&mut self, map: &FreeMap, from: u32) -> Option<u32> {
        let options = &self.space.shared.options;
        let looks_max = options.min_to_scan.min(options.max_to_scan).max(1);
        // Runs longer than this are equally good.
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
