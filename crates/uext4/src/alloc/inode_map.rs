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
use crate::cache::{BlockKind, Buffer};
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockRank, Mutex};
use std::sync::Arc;
use uext4_ondisk::{BlockNo, GroupFlags, GroupNo, bitmap};

/// The in-memory bitmaps of all groups.
#[derive(Debug)]
pub(super) struct InodeMaps {
    groups: Box<[Mutex<Option<InodeMap>>]>,
    /// Directories of the volume.
    directories: AtomicU64,
}

/// The in-memory bitmap of a group.
#[derive(Debug)]
pub(super) struct InodeMap {
    bits: Box<[u8]>,
    first_free: u32,
    /// Block of the journaled bitmap. `None`: the group was never used.
    block: Option<BlockNo>,
    /// At least this many slots at the start of the table were written. The others may hold
    /// anything.
    written: u32,
}

impl InodeMaps {
    pub(super) fn new(groups: u32, directories: u64) -> Self {
        let group = |_| Mutex::new(LockRank::Leaf, None);
        Self { groups: (0..groups).map(group).collect(), directories: AtomicU64::new(directories) }
    }

    pub(super) fn directories(&self) -> u64 {
        self.directories.load(Ordering::Relaxed)
    }

    pub(super) fn count_directory(&self, made: bool) {
        if made {
            self.directories.fetch_add(1, Ordering::Relaxed);
        } else {
            self.directories.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl InodeMap {
    pub(super) fn is_used(&self, index: u32) -> bool {
        bitmap::test(&self.bits, index)
    }

    /// Allocates the lowest free number from `from` on.
    fn allocate(&mut self, from: u32, per_group: u32) -> Option<u32> {
        let found = bitmap::find_next_zero(&self.bits, self.first_free.max(from), per_group);
        if let Some(index) = found {
            bitmap::set(&mut self.bits, index);
        }
        // Free numbers below `from` are reserved.
        self.first_free = found.map_or(per_group, |index| index.saturating_add(1));
        found
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

    /// Allocates the lowest free number of a group, and pins in memory what
    /// [`Space::mark_inode_used`] will change. `None`: no number is free.
    pub(super) fn allocate_number(&self, group: GroupNo) -> Result<Option<AllocatedNumber>> {
        let per_group = self.layout.inodes_per_group;
        // Inodes below the first ordinary one are reserved, whatever the bitmap says.
        let reserved = self.layout.first_ino.get().saturating_sub(1);
        let from = if group.get() == 0 { reserved.min(per_group) } else { 0 };
        let allocated = self.with_inode_map(group, |map| {
            let index = map.allocate(from, per_group)?;
            if Fault::LooseNumber.is_injected() {
                map.release(index);
            }
            Some((index, map.block, map.written))
        })?;
        if let (Some((index, ..)), true) = (allocated, Fault::LooseNumber.is_injected()) {
            self.with_loaded_inode_map(group, |map| {
                bitmap::set(&mut map.bits, index);
            });
        }
        let Some((index, block, written)) = allocated else { return Ok(None) };
        let pinned = self.pin_number(group, index, block, written);
        if pinned.is_err() {
            self.with_loaded_inode_map(group, |map| map.release(index));
        }
        pinned.map(Some)
    }

    fn pin_number(
        &self,
        group: GroupNo,
        index: u32,
        mut block: Option<BlockNo>,
        mut written: u32,
    ) -> Result<AllocatedNumber> {
        self.zero_ahead(group, written..index)?;
        self.with_loaded_inode_map(group, |map| (block, written) = (map.block, map.written));
        let read = |block| self.cache.read(block, BlockKind::InodeBitmap(group));
        let bitmap = block.map(read).transpose()?;
        let skipped = self.read_slots(group, written..index)?;
        Ok(AllocatedNumber { index, bitmap, skipped, written })
    }
}

/// An allocated number, as the index in its group.
pub(super) struct AllocatedNumber {
    pub(super) index: u32,
    /// The journaled bitmap, if the group has one yet.
    pub(super) bitmap: Option<Arc<Buffer>>,
    /// At least this many slots of the table were written.
    pub(super) written: u32,
    /// Blocks of the inode table with slots before this one that were never written.
    pub(super) skipped: Vec<Arc<Buffer>>,
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
