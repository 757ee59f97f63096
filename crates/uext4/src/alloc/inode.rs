//! Allocating and freeing inodes.
//!
//! Policy: a file gets an inode in its directory's group, else in the next group with a free one;
//! groups of the same flex group come first. Directories are spread, see [`super::orlov`].
//! Locking: an allocation takes a leaf lock of the group for a few instructions. The group's own
//! lock is taken within the handle, for the journaled bitmap and the descriptor.

use super::Space;
use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::journal::Handle;
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, CorruptKind, GroupNo, Ino, Place, bitmap};

/// An inode number that is allocated in memory and not yet marked used in the journaled bitmap.
/// Dropping the allocation releases it.
#[derive(Debug)]
pub struct InodeAllocation {
    space: Arc<Space>,
    pub(super) group: GroupNo,
    data_group: GroupNo,
    pub(super) index: u32,
    is_used: bool,
    /// Keeps the bitmap in memory, so that marking the inode used reads nothing.
    _bitmap: Option<Arc<Buffer>>,
    /// Blocks of the inode table with slots before this one that were never written.
    pub(super) skipped: Vec<Arc<Buffer>>,
    /// At least this many slots of the table were written.
    pub(super) written: u32,
}

impl InodeAllocation {
    /// The number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.space.layout.ino_of(self.group, self.index)
    }

    /// Credits of [`Space::mark_inode_used`].
    #[must_use]
    pub fn credits(&self) -> u32 {
        let skipped = u32::try_from(self.skipped.len()).unwrap_or(u32::MAX);
        self.space.credits.inode_number.saturating_add(skipped)
    }

    /// The group near which the blocks of the inode are allocated. For a file this is the group of
    /// its directory, even if the number is from another group.
    #[must_use]
    pub fn data_group(&self) -> GroupNo {
        self.data_group
    }
}

impl Drop for InodeAllocation {
    fn drop(&mut self) {
        if !self.is_used {
            self.space.with_loaded_inode_map(self.group, |map| map.release(self.index));
        }
    }
}

/// What an inode number is allocated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// Anything but a directory.
    File,
    /// A directory.
    Directory,
    /// A directory of the top level, or one whose parent is marked as the top of unrelated
    /// hierarchies.
    TopDirectory,
}

/// Free inodes that count as many: more than there are concurrent calls.
const MANY_INODES: i64 = 4096;

impl Space {
    /// Allocates an inode number for a child of the directory `parent`.
    ///
    /// # Errors
    /// `NoSpace` if no inode is free; a corrupt bitmap; a device failure.
    pub fn allocate_inode(&self, parent: Ino, child: Child) -> Result<InodeAllocation> {
        let near = self.layout.group_of_ino(parent).map_or(GroupNo(0), |(group, _)| group);
        let first = match child {
            Child::File => near,
            Child::Directory => self.group_for_directory(near),
            Child::TopDirectory => self.group_for_top_directory(near),
        };
        let flex = self.flex_of(first);
        let rest = (flex.end..self.layout.group_count).chain(0..flex.start);
        let order = (first.get()..flex.end).chain(flex.start..first.get()).chain(rest);
        for group in order.map(GroupNo) {
            if self.groups[group.get() as usize].free_inodes() == 0 {
                continue;
            }
            let data_group = if child == Child::File { near } else { group };
            if let Some(allocation) = self.allocate_number(group, data_group)? {
                return Ok(allocation);
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "no free inode"))
    }

    /// Allocates the lowest free number of a group, and pins in memory what
    /// [`Space::mark_inode_used`] will change. `None`: no number is free.
    fn allocate_number(
        &self,
        group: GroupNo,
        data_group: GroupNo,
    ) -> Result<Option<InodeAllocation>> {
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
        let Some((index, block, written)) = allocated else { return Ok(None) };
        if Fault::LooseNumber.is_injected() {
            self.with_loaded_inode_map(group, |map| map.set_used(index));
        }
        self.prepare_number(group, data_group, index, block, written).map(Some)
    }

    /// The allocation of a number that is taken in the inode map, with what
    /// [`Space::mark_inode_used`] will change pinned in memory. `block` is the group's bitmap, if
    /// it was ever used, and `written` slots of its table were written when the number was taken.
    pub(super) fn prepare_number(
        &self,
        group: GroupNo,
        data_group: GroupNo,
        index: u32,
        mut block: Option<BlockNo>,
        written: u32,
    ) -> Result<InodeAllocation> {
        let space = self.to_arc();
        let (is_used, _bitmap, skipped) = (false, None, Vec::new());
        let mut allocation =
            InodeAllocation { space, group, data_group, index, is_used, _bitmap, skipped, written };
        self.zero_ahead(group, written..index)?;
        self.with_loaded_inode_map(group, |map| {
            (block, allocation.written) = (map.block, map.written);
        });
        let read = |block| self.cache.read(block, BlockKind::InodeBitmap(group));
        allocation._bitmap = block.map(read).transpose()?;
        allocation.skipped = self.read_slots(group, allocation.written..index)?;
        Ok(allocation)
    }

    /// Whether so many inodes are free that one more allocation cannot take the last one.
    #[must_use]
    pub fn has_many_inodes(&self) -> bool {
        self.journaled_inodes.load(Ordering::Relaxed) > MANY_INODES
    }

    /// Marks an allocated inode used in the journaled bitmap.
    ///
    /// # Errors
    /// Those of [`Handle::write`]; a device failure.
    pub fn mark_inode_used(
        &self,
        handle: &mut Handle<'_>,
        allocation: &mut InodeAllocation,
        is_directory: bool,
    ) -> Result<()> {
        let group = &self.groups[allocation.group.get() as usize];
        let mut state = group.lock();
        let buffer = state.inode_bitmap_for_change(handle, &self.cache, allocation.group)?;
        bitmap::set(&mut handle.write(&buffer)?, allocation.index);
        let written = self.written_slots(&state.desc).max(allocation.written);
        // The slots before it that were never written.
        let slots = written..allocation.index;
        self.zero_slots(handle, allocation.group, &allocation.skipped, slots)?;
        let per_group = self.layout.inodes_per_group;
        let desc = &mut state.desc;
        desc.set_free_inodes(desc.free_inodes().saturating_sub(1));
        if self.layout.checksums.has_group_checksum() {
            // The inodes from here to the end of the table have never been used.
            desc.set_itable_unused(desc.itable_unused().min(per_group - allocation.index - 1));
        }
        if is_directory {
            desc.set_used_dirs(desc.used_dirs() + 1);
        }
        let desc = *desc;
        self.journaled_inodes.fetch_sub(1, Ordering::AcqRel);
        self.write_desc(handle, allocation.group, &desc)?;
        group.publish_inodes(&state);
        let written = self.written_slots(&desc);
        self.with_loaded_inode_map(allocation.group, |map| {
            map.note_used(desc.inode_bitmap(), written);
        });
        if is_directory {
            self.inode_maps.add_directories(1);
        }
        allocation.is_used = true;
        Ok(())
    }

    /// Reads what [`Space::free_inode`] changes. While the pin lives, freeing the inode reads
    /// nothing. Called before the handle starts.
    ///
    /// # Errors
    /// `Corrupt` where [`Space::free_inode`] returns it; a corrupt bitmap; a device failure.
    pub fn pin_inode(&self, ino: Ino) -> Result<Option<Arc<Buffer>>> {
        if !self.is_inode_used(ino)? {
            let why = "to be freed is free already";
            let kind = CorruptKind::Rule { what: "inode", why };
            return Err(kind.at(Place::Inode(ino)).into());
        }
        let number = self.layout.group_of_ino(ino).map_or(GroupNo(0), |(number, _)| number);
        self.groups[number.get() as usize].lock().inode_bitmap(&self.cache, number)
    }

    /// Frees an inode whose blocks have been freed.
    ///
    /// # Errors
    /// `Corrupt` if it is not in use.
    pub fn free_inode(&self, handle: &mut Handle<'_>, ino: Ino, is_directory: bool) -> Result<()> {
        let invalid = |why| CorruptKind::Rule { what: "inode", why }.at(Place::Inode(ino));
        let (number, index) =
            self.layout.group_of_ino(ino).ok_or_else(|| invalid("number out of range"))?;
        let group = &self.groups[number.get() as usize];
        let mut state = group.lock();
        let buffer = state.inode_bitmap_for_change(handle, &self.cache, number)?;
        if !bitmap::test(&buffer.read(), index) {
            return Err(invalid("to be freed is free already").into());
        }
        bitmap::clear(&mut handle.write(&buffer)?, index);
        let desc = &mut state.desc;
        desc.set_free_inodes(desc.free_inodes() + 1);
        if is_directory {
            desc.set_used_dirs(desc.used_dirs().saturating_sub(1));
        }
        let desc = *desc;
        self.journaled_inodes.fetch_add(1, Ordering::AcqRel);
        self.write_desc(handle, number, &desc)?;
        self.with_loaded_inode_map(number, |map| map.release(index));
        if is_directory {
            self.inode_maps.add_directories(-1);
        }
        group.publish_inodes(&state);
        Ok(())
    }

    /// Whether an inode is marked used. A number that is only allocated is not.
    ///
    /// # Errors
    /// A corrupt bitmap; a device failure.
    pub fn is_inode_used(&self, ino: Ino) -> Result<bool> {
        let Some((number, index)) = self.layout.group_of_ino(ino) else { return Ok(false) };
        if !self.with_inode_map(number, |map| map.is_used(index))? {
            return Ok(false);
        }
        if Fault::VisibleCreation.is_injected() {
            return Ok(true);
        }
        let state = self.groups[number.get() as usize].lock();
        let bitmap = state.inode_bitmap(&self.cache, number)?;
        Ok(bitmap.is_some_and(|bitmap| bitmap::test(&bitmap.read(), index)))
    }
}
