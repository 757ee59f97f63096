//! In-memory inode bitmaps: which numbers are in use or allocated.
//!
//! What: a bitmap for each group, read at the first use. It is the journaled inode bitmap plus the
//! numbers that are allocated and not journaled yet. The lowest free number of a group is allocated
//! first. Therefore a table that was never initialised is used from its start, and the part behind
//! the last inode in use need not be read.
//! Invariants: the in-memory bitmap contains the journaled one. No bit below `first_free` is clear.
//! Locking: a leaf for each group, held for a few instructions and never during a read. The group's
//! own lock may be held above it; that lock orders the first use and the frees.

use super::Space;
use crate::error::Result;
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::sync::{LockRank, Mutex};
use uext4_ondisk::{BlockNo, GroupFlags, GroupNo, bitmap};

/// The in-memory bitmaps of all groups.
#[derive(Debug)]
pub(super) struct InodeMaps {
    groups: Box<[Mutex<Option<InodeMap>>]>,
    /// Directories of the volume.
    directories: AtomicI64,
}

/// The in-memory bitmap of a group.
#[derive(Debug)]
pub(super) struct InodeMap {
    bits: Box<[u8]>,
    first_free: u32,
    /// Block of the journaled bitmap. `None`: the group was never used.
    pub(super) block: Option<BlockNo>,
    /// At least this many slots at the start of the table were written. The others may hold
    /// anything.
    pub(super) written: u32,
}

impl InodeMaps {
    pub(super) fn new(groups: u32, directories: i64) -> Self {
        let group = |_| Mutex::new(LockRank::Leaf, None);
        Self { groups: (0..groups).map(group).collect(), directories: AtomicI64::new(directories) }
    }

    pub(super) fn directories(&self) -> u64 {
        u64::try_from(self.directories.load(Ordering::Relaxed)).unwrap_or(0)
    }

    pub(super) fn add_directories(&self, number: i64) {
        self.directories.fetch_add(number, Ordering::Relaxed);
    }
}

impl InodeMap {
    pub(super) fn is_used(&self, index: u32) -> bool {
        bitmap::test(&self.bits, index)
    }

    /// Allocates the lowest free number from `from` on.
    pub(super) fn allocate(&mut self, from: u32, per_group: u32) -> Option<u32> {
        let found = bitmap::find_next_zero(&self.bits, self.first_free.max(from), per_group);
        if let Some(index) = found {
            self.set_used(index);
        }
        // Free numbers below `from` are reserved.
        self.first_free = found.map_or(per_group, |index| index.saturating_add(1));
        found
    }

    pub(super) fn set_used(&mut self, index: u32) {
        bitmap::set(&mut self.bits, index);
    }

    pub(super) fn release(&mut self, index: u32) {
        bitmap::clear(&mut self.bits, index);
        self.first_free = self.first_free.min(index);
    }

    /// A number was marked used: the group has a bitmap on the device, and `written` slots in its
    /// table.
    pub(super) fn note_used(&mut self, block: BlockNo, written: u32) {
        self.block = Some(block);
        self.written = self.written.max(written);
    }
}

impl Space {
    /// Runs `work` on the inode map of a group, which is read at its first use. The caller holds no
    /// group lock.
    pub(super) fn with_inode_map<T>(
        &self,
        group: GroupNo,
        work: impl FnOnce(&mut InodeMap) -> T,
    ) -> Result<T> {
        let slot = &self.inode_maps.groups[group.get() as usize];
        if let Some(map) = &mut *slot.lock() {
            return Ok(work(map));
        }
        // Under the group's lock one thread reads the map, and the journaled bitmap does not change
        // while it is copied.
        let state = self.groups[group.get() as usize].lock();
        if slot.lock().is_none() {
            let bits = state.read_inode_bitmap(&self.cache, group)?;
            let unused = state.desc.flags().contains(GroupFlags::INODE_UNINIT);
            let block = (!unused).then(|| state.desc.inode_bitmap());
            let written = self.written_slots(&state.desc).max(self.slots_in_use(group, &bits));
            *slot.lock() = Some(InodeMap { bits, first_free: 0, block, written });
        }
        drop(state);
        let mut map = slot.lock();
        Ok(work(map.as_mut().expect("a map that was read stays")))
    }

    /// Runs `work` on the inode map of a group if it is in memory. The caller may hold the group.
    pub(super) fn with_loaded_inode_map(&self, group: GroupNo, work: impl FnOnce(&mut InodeMap)) {
        if let Some(map) = &mut *self.inode_maps.groups[group.get() as usize].lock() {
            work(map);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_allocated_first_and_again_after_a_release() {
        let mut map =
            InodeMap { bits: vec![0_u8; 8].into(), first_free: 0, block: None, written: 64 };
        let taken: Vec<_> = (0..4).map(|_| map.allocate(10, 16)).collect();
        assert_eq!(taken, [Some(10), Some(11), Some(12), Some(13)]);
        map.release(11);
        assert!(!map.is_used(11) && map.is_used(12));
        assert_eq!((map.allocate(10, 16), map.allocate(10, 16)), (Some(11), Some(14)));
        assert_eq!((map.allocate(10, 16), map.allocate(10, 16)), (Some(15), None));
        map.release(15);
        assert_eq!(map.allocate(10, 16), Some(15));
    }
}
