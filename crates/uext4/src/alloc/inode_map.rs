//! Busy inodes: who takes which number, before and beside the journal.
//!
//! What: a bitmap for each group, read at the first use: the journaled inode bitmap, plus numbers
//! that are allocated and not journaled yet. The lowest free number of a group is taken first: a
//! table that was never initialised is used from its begin, and what lies behind the last inode in
//! use need not be read by anybody.
//! Invariants: busy contains journaled. No bit below `first_free` is clear.
//! Locking: a leaf for each group, held for a few instructions; never while something is read. A
//! group's own lock may be held above it, which orders the first use and the frees.

use super::Space;
use crate::cache::{BlockKind, Buffer};
use crate::error::Result;
use crate::plant::{self, Fault};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockRank, Mutex};
use std::sync::Arc;
use uext4_ondisk::{BlockNo, GroupFlags, GroupNo, bitmap};

/// Busy inodes of all groups.
#[derive(Debug)]
pub(super) struct InodeMaps {
    groups: Box<[Mutex<Option<Busy>>]>,
    /// Directories of the volume.
    directories: AtomicU64,
}

/// Busy inodes of a group.
#[derive(Debug)]
pub(super) struct Busy {
    bits: Box<[u8]>,
    first_free: u32,
    /// Block of the journaled bitmap; `None` before the group was first used.
    block: Option<BlockNo>,
    /// Slots at the begin of the table that were written, at least: those behind may be anything.
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

impl Busy {
    pub(super) fn is_used(&self, index: u32) -> bool {
        bitmap::test(&self.bits, index)
    }

    /// Takes the lowest free number from `from` on.
    fn allocate(&mut self, from: u32, per_group: u32) -> Option<u32> {
        let found = bitmap::find_next_zero(&self.bits, self.first_free.max(from), per_group);
        if let Some(index) = found {
            bitmap::set(&mut self.bits, index);
        }
        // Free numbers below `from` are nobody's.
        self.first_free = found.map_or(per_group, |index| index.saturating_add(1));
        found
    }

    pub(super) fn release(&mut self, index: u32) {
        bitmap::clear(&mut self.bits, index);
        self.first_free = self.first_free.min(index);
    }

    /// The group has a bitmap on the device from now on, and `written` slots in its table.
    pub(super) fn note_taken(&mut self, block: BlockNo, written: u32) {
        self.block = Some(block);
        self.written = self.written.max(written);
    }
}

impl Space {
    /// Does something with the busy inodes of a group, which are read first if that is their first
    /// use. The caller holds no group lock.
    pub(super) fn with_inode_map<T>(
        &self,
        group: GroupNo,
        work: impl FnOnce(&mut Busy) -> T,
    ) -> Result<T> {
        let slot = &self.inode_maps.groups[group.get() as usize];
        if let Some(busy) = &mut *slot.lock() {
            return Ok(work(busy));
        }
        // Whoever else comes here meanwhile waits for the group, and nobody changes the journaled
        // bitmap while it is copied.
        let mut state = self.groups[group.get() as usize].lock();
        if slot.lock().is_none() {
            state.inode_bits(&self.cache, group)?;
            let bits = state.inode_bits.take().unwrap_or_default();
            let unused = state.desc.flags().contains(GroupFlags::INODE_UNINIT);
            let block = (!unused).then(|| state.desc.inode_bitmap());
            let written = self.written_slots(&state.desc).max(self.slots_in_use(group, &bits));
            *slot.lock() = Some(Busy { bits, first_free: 0, block, written });
        }
        drop(state);
        let mut busy = slot.lock();
        Ok(work(busy.as_mut().expect("it was read, and nobody forgets it")))
    }

    /// As [`Space::with_inode_map`] where they are in memory; for those who hold the group.
    pub(super) fn with_loaded_inode_map(&self, group: GroupNo, work: impl FnOnce(&mut Busy)) {
        if let Some(busy) = &mut *self.inode_maps.groups[group.get() as usize].lock() {
            work(busy);
        }
    }

    /// Takes the lowest free number of a group, and keeps in memory what [`Space::mark_inode_used`]
    /// will change. `None`: there is none.
    pub(super) fn allocate_number(&self, group: GroupNo) -> Result<Option<AllocatedNumber>> {
        let per_group = self.layout.inodes_per_group;
        // Inodes below the first ordinary one are reserved, whatever the bitmap says.
        let reserved = self.layout.first_ino.get().saturating_sub(1);
        let from = if group.get() == 0 { reserved.min(per_group) } else { 0 };
        let allocated = self.with_inode_map(group, |busy| {
            let index = busy.allocate(from, per_group)?;
            if plant::is(Fault::LooseNumber) {
                busy.release(index);
            }
            Some((index, busy.block, busy.written))
        })?;
        if let (Some((index, ..)), true) = (allocated, plant::is(Fault::LooseNumber)) {
            self.with_loaded_inode_map(group, |busy| {
                bitmap::set(&mut busy.bits, index);
            });
        }
        let Some((index, block, written)) = allocated else { return Ok(None) };
        let pinned = self.pin_number(group, index, block, written);
        if pinned.is_err() {
            self.with_loaded_inode_map(group, |busy| busy.release(index));
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
        self.with_loaded_inode_map(group, |busy| (block, written) = (busy.block, busy.written));
        let read = |block| self.cache.read(block, BlockKind::InodeBitmap(group));
        let bitmap = block.map(read).transpose()?;
        let skipped = self.read_slots(group, written..index)?;
        Ok(AllocatedNumber { index, bitmap, skipped, written })
    }
}

/// A number that nobody else can take, as its index in its group.
pub(super) struct AllocatedNumber {
    pub(super) index: u32,
    /// The journaled bitmap, if the group has one yet.
    pub(super) bitmap: Option<Arc<Buffer>>,
    /// Slots of the table that were written, at least.
    pub(super) written: u32,
    /// Blocks of the inode table with slots in front of it that were never written.
    pub(super) skipped: Vec<Arc<Buffer>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_goes_first_and_comes_back() {
        let mut busy = Busy { bits: vec![0_u8; 8].into(), first_free: 0, block: None, written: 64 };
        let taken: Vec<_> = (0..4).map(|_| busy.allocate(10, 16)).collect();
        assert_eq!(taken, [Some(10), Some(11), Some(12), Some(13)]);
        busy.release(11);
        assert!(!busy.is_used(11) && busy.is_used(12));
        assert_eq!((busy.allocate(10, 16), busy.allocate(10, 16)), (Some(11), Some(14)));
        assert_eq!((busy.allocate(10, 16), busy.allocate(10, 16)), (Some(15), None));
        busy.release(15);
        assert_eq!(busy.allocate(10, 16), Some(15));
    }
}
