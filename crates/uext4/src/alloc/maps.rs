//! How many groups have their map in memory.
//!
//! What: a map is made when its group is needed, and goes again when there are more than the budget
//! allows and nothing is in it that the journaled bitmap has not: no allocation, no block whose
//! freeing is not durable, none that is being discarded. Then both have the same free blocks, and
//! the map is read again when the group is needed. Groups are looked at in the order in which their
//! maps were made; one that was needed since has another turn. Where many looks in a row found none
//! to let go, a look at a time goes on until one does.
//! Invariants: a group with a map stands in the queue once, or is being looked at.
//! Locking: `queue` is a leaf, and not held while a group is tried; the caller holds no group.

use super::group::{Group, GroupState};
use super::{FreeMap, Space};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{LockRank, Mutex};
use std::collections::VecDeque;
use uext4_ondisk::GroupNo;

/// Fewest maps that are kept.
const MAPS_MIN: usize = 16;
/// Most groups that are looked at at a time.
const LOOKS_MAX: usize = 64;

/// The groups that have a map.
#[derive(Debug)]
pub(super) struct Maps {
    queue: Mutex<VecDeque<GroupNo>>,
    count: AtomicUsize,
    max: AtomicUsize,
    /// Looks since one last found a map to let go.
    misses: AtomicUsize,
}

impl Maps {
    /// Without a limit yet.
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::new(LockRank::Leaf, VecDeque::new()),
            count: AtomicUsize::new(0),
            max: AtomicUsize::new(usize::MAX),
            misses: AtomicUsize::new(0),
        }
    }

    /// A group got its map. The caller holds the group.
    pub(super) fn note_made(&self, group: GroupNo) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.queue.lock().push_back(group);
    }

    /// From now on there may be `max`.
    pub(super) fn limit(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn surplus(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.max.load(Ordering::Relaxed)
    }
}

impl Group {
    /// Lets the map go if nothing is lost by that; whether it has none now.
    fn evict_map(&self, state: &mut GroupState) -> bool {
        let has_turn = std::mem::take(&mut state.is_map_referenced);
        let is_journaled = |map: &FreeMap| map.free() == state.desc.free_blocks();
        if has_turn || !state.map.as_ref().is_some_and(is_journaled) {
            return false;
        }
        state.map = None;
        // No allocation is left that was made before the bitmap was.
        state.made[0] = None;
        true
    }
}

impl Space {
    /// Bounds the memory of maps.
    pub(crate) fn limit_maps(&self, bytes: u64) {
        let layout = &self.layout;
        let one = FreeMap::bytes(layout.block_size as usize, layout.blocks_per_group);
        let max = usize::try_from(bytes).unwrap_or(usize::MAX) / one;
        self.shared.maps.limit(max.max(MAPS_MIN));
    }

    /// Groups whose map is in memory, and how many may be but for those that hold what only memory
    /// has.
    #[must_use]
    pub fn group_maps(&self) -> (usize, usize) {
        let maps = &self.shared.maps;
        (maps.count.load(Ordering::Relaxed), maps.max.load(Ordering::Relaxed))
    }

    /// Lets maps go while there are more than may be, as far as they can. Waits for nobody. Returns
    /// how many groups it has looked at.
    pub(super) fn evict_maps(&self) -> usize {
        let maps = &self.shared.maps;
        for looks in 0..LOOKS_MAX {
            if !maps.surplus() {
                return looks;
            }
            let Some(number) = maps.queue.lock().pop_front() else { return looks };
            let group = &self.groups[number.get() as usize];
            let is_gone = group.try_lock().is_some_and(|mut state| group.evict_map(&mut state));
            if is_gone {
                maps.count.fetch_sub(1, Ordering::Relaxed);
                maps.misses.store(0, Ordering::Relaxed);
                continue;
            }
            maps.queue.lock().push_back(number);
            // A search comes here for each group that it tries.
            if maps.misses.fetch_add(1, Ordering::Relaxed) >= LOOKS_MAX {
                return looks + 1;
            }
        }
        LOOKS_MAX
    }

    /// As [`Space::evict_maps`] when frees are durable, or allocations were given back: maps that
    /// had to stay may go.
    pub(super) fn evict_released_maps(&self) {
        self.shared.maps.misses.store(0, Ordering::Relaxed);
        self.evict_maps();
    }
}
