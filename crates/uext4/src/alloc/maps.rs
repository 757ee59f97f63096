//! How many groups have their map in memory.
//!
//! What: a map is built when its group is needed. It is evicted when there are more maps than the
//! budget allows and the map knows no more than the journaled bitmap: no allocation, no block whose
//! freeing is not durable, none that is being discarded. Then both have as many free blocks, and
//! the map is read again when the group is needed. Eviction is second chance: groups are considered
//! in the order in which their maps were built, and a group that was needed since then is passed
//! over once. After many misses in a row each call considers one group only, until it finds a map
//! to evict.
//! Invariants: a group with a map is in the queue once, or is being considered.
//! Locking: `queue` is a leaf, and is not held while a group is tried. The caller holds no group.

use super::group::{Group, GroupState};
use super::{FreeMap, Space};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{LockRank, Mutex};
use std::collections::VecDeque;
use uext4_ondisk::GroupNo;

/// Fewest maps that are kept.
const MAPS_MIN: usize = 16;
/// Most groups that one call considers.
const LOOKS_MAX: usize = 64;

/// The groups that have a map.
#[derive(Debug)]
pub(super) struct Maps {
    queue: Mutex<VecDeque<GroupNo>>,
    count: AtomicUsize,
    /// How many there may be.
    pub(super) max: AtomicUsize,
    /// Groups considered since the last eviction.
    misses: AtomicUsize,
}

impl Maps {
    /// No limit yet.
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::new(LockRank::Leaf, VecDeque::new()),
            count: AtomicUsize::new(0),
            max: AtomicUsize::new(usize::MAX),
            misses: AtomicUsize::new(0),
        }
    }

    /// A map of a group was built. The caller holds the group.
    pub(super) fn note_built(&self, group: GroupNo) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.queue.lock().push_back(group);
    }

    fn is_over_limit(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.max.load(Ordering::Relaxed)
    }
}

impl Group {
    /// Evicts the map if that loses nothing. Returns whether it did.
    fn evict_map(&self, state: &mut GroupState) -> bool {
        let is_referenced = std::mem::take(&mut state.is_map_referenced);
        let is_journaled = |map: &FreeMap| map.free() == state.desc.free_blocks();
        if is_referenced || !state.map.as_ref().is_some_and(is_journaled) {
            return false;
        }
        state.map = None;
        // No allocation is left that is older than the bitmap.
        state.created[0] = None;
        true
    }
}

impl Space {
    /// Bounds the memory of maps.
    pub(crate) fn limit_maps(&self, bytes: u64) {
        let layout = &self.layout;
        let one = FreeMap::bytes(layout.block_size as usize, layout.clusters_per_group);
        let max = usize::try_from(bytes).unwrap_or(usize::MAX) / one;
        self.shared.maps.max.store(max.max(MAPS_MIN), Ordering::Relaxed);
    }

    /// Groups whose map is in memory, and the limit. Maps that know more than the journaled bitmap
    /// may exceed it.
    #[must_use]
    pub fn group_maps(&self) -> (usize, usize) {
        let maps = &self.shared.maps;
        (maps.count.load(Ordering::Relaxed), maps.max.load(Ordering::Relaxed))
    }

    /// Evicts maps while there are too many, if they can be evicted. Never waits. Returns how many
    /// groups it considered.
    pub(super) fn evict_maps(&self) -> usize {
        let maps = &self.shared.maps;
        for looks in 0..LOOKS_MAX {
            if !maps.is_over_limit() {
                return looks;
            }
            let Some(number) = maps.queue.lock().pop_front() else { return looks };
            let group = &self.groups[number.get() as usize];
            let is_evicted = group.try_lock().is_some_and(|mut state| group.evict_map(&mut state));
            if is_evicted {
                maps.count.fetch_sub(1, Ordering::Relaxed);
                maps.misses.store(0, Ordering::Relaxed);
                continue;
            }
            maps.queue.lock().push_back(number);
            // A search calls this for each group that it tries.
            if maps.misses.fetch_add(1, Ordering::Relaxed) >= LOOKS_MAX {
                return looks + 1;
            }
        }
        LOOKS_MAX
    }

    /// Evicts maps after frees became durable or allocations were released, because maps that had
    /// to stay may be evictable now.
    pub(super) fn evict_released_maps(&self) {
        self.shared.maps.misses.store(0, Ordering::Relaxed);
        self.evict_maps();
    }
}
