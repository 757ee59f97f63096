//! Allocating and freeing inodes.
//!
//! Policy: a file goes to its directory's group, or the nearest with a free inode. A directory of
//! the top level goes to the next group round the volume with free inodes and blocks above the
//! average; one below stays near its parent unless that group is crowded.

use super::Space;
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::Handle;
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::{CorruptKind, GroupNo, Ino, Place, bitmap};

/// An inode number that nobody else can take, not yet journaled. Dropping it gives it back.
#[derive(Debug)]
pub struct InodeClaim {
    space: Arc<Space>,
    group: GroupNo,
    index: u32,
    taken: bool,
    /// Keeps the bitmap in memory, so that taking the inode reads nothing.
    _bitmap: Option<Arc<Buffer>>,
}

impl InodeClaim {
    /// The number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.space.layout.ino_of(self.group, self.index)
    }
}

impl Drop for InodeClaim {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut state = self.space.groups[self.group.get() as usize].lock();
        if let Some(busy) = &mut state.busy_inodes {
            bitmap::clear(busy, self.index);
        }
    }
}

/// Credits of [`Space::take_inode`] and [`Space::free_inode`]: bitmap and descriptor.
pub const INODE_CREDITS: u32 = 2;

impl Space {
    /// Claims an inode number for a child of a directory that lives in group `parent`.
    ///
    /// # Errors
    /// `NoSpace` if no inode is free; a corrupt bitmap; a device failure.
    pub fn claim_inode(&self, parent: Ino, is_directory: bool) -> Result<InodeClaim> {
        let near = self.layout.group_of_ino(parent).map_or(GroupNo(0), |(group, _)| group);
        let first = if is_directory { self.group_for_directory(parent, near) } else { near };
        let count = self.layout.group_count;
        for step in 0..count {
            let group = GroupNo((first.get() + step) % count);
            if self.groups[group.get() as usize].free_inodes() == 0 {
                continue;
            }
            if let Some(claim) = self.claim_inode_in(group)? {
                return Ok(claim);
            }
        }
        Err(Error::new(ErrorKind::NoSpace, "no free inode"))
    }

    fn claim_inode_in(&self, number: GroupNo) -> Result<Option<InodeClaim>> {
        let mut state = self.groups[number.get() as usize].lock();
        let layout = &self.layout;
        let bitmap = state.inode_bitmap(&self.cache, number)?;
        let busy = state.busy_inodes(&self.cache, number)?;
        // Inodes below the first ordinary one are reserved, whatever the bitmap says.
        let reserved = layout.first_ino.get().saturating_sub(1);
        let from = if number.get() == 0 { reserved.min(layout.inodes_per_group) } else { 0 };
        let Some(index) = bitmap::find_next_zero(busy, from, layout.inodes_per_group) else {
            return Ok(None);
        };
        bitmap::set(busy, index);
        let space = self.shared();
        Ok(Some(InodeClaim { space, group: number, index, taken: false, _bitmap: bitmap }))
    }

    /// Journals a claimed inode as used.
    ///
    /// # Errors
    /// Those of [`Handle::write`]; a device failure.
    pub fn take_inode(
        &self,
        handle: &mut Handle<'_>,
        claim: &mut InodeClaim,
        is_directory: bool,
    ) -> Result<()> {
        let group = &self.groups[claim.group.get() as usize];
        let mut state = group.lock();
        let buffer = state.inode_bitmap_for_change(handle, &self.cache, claim.group)?;
        bitmap::set(&mut handle.write(&buffer)?, claim.index);
        let per_group = self.layout.inodes_per_group;
        let desc = &mut state.desc;
        desc.set_free_inodes(desc.free_inodes().saturating_sub(1));
        if self.layout.checksums.has_group_checksum() {
            // The inodes from here to the end of the table have never been used.
            desc.set_itable_unused(desc.itable_unused().min(per_group - claim.index - 1));
        }
        if is_directory {
            desc.set_used_dirs(desc.used_dirs() + 1);
        }
        let desc = *desc;
        self.journaled_inodes.fetch_sub(1, Ordering::AcqRel);
        self.write_desc(handle, claim.group, &desc)?;
        group.note_inodes(&state, 0);
        claim.taken = true;
        Ok(())
    }

    /// Reads what [`Space::free_inode`] changes: while the pin lives, it reads nothing. To be
    /// called before the handle.
    ///
    /// # Errors
    /// `Corrupt` as [`Space::free_inode`]; a corrupt bitmap; a device failure.
    pub fn pin_inode(&self, ino: Ino) -> Result<Option<Arc<Buffer>>> {
        if !self.is_inode_used(ino)? {
            let why = "to be freed is free already";
            let kind = CorruptKind::Rule { what: "inode", why };
            return Err(kind.at(Place::Inode(ino)).into());
        }
        let number = self.layout.group_of_ino(ino).map_or(GroupNo(0), |(number, _)| number);
        self.groups[number.get() as usize].lock().inode_bitmap(&self.cache, number)
    }

    /// Frees an inode whose blocks are freed.
    ///
    /// # Errors
    /// `Corrupt` if it is not in use.
    pub fn free_inode(&self, handle: &mut Handle<'_>, ino: Ino, is_directory: bool) -> Result<()> {
        let invalid = |why| CorruptKind::Rule { what: "inode", why }.at(Place::Inode(ino));
        let (number, index) =
            self.layout.group_of_ino(ino).ok_or_else(|| invalid("number out of range"))?;
        let group = &self.groups[number.get() as usize];
        let mut state = group.lock();
        state.busy_inodes(&self.cache, number)?;
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
        if let Some(busy) = &mut state.busy_inodes {
            bitmap::clear(busy, index);
        }
        group.note_inodes(&state, 0);
        Ok(())
    }

    /// Whether an inode is in use.
    ///
    /// # Errors
    /// A corrupt bitmap; a device failure.
    pub fn is_inode_used(&self, ino: Ino) -> Result<bool> {
        let Some((number, index)) = self.layout.group_of_ino(ino) else { return Ok(false) };
        let mut state = self.groups[number.get() as usize].lock();
        Ok(bitmap::test(state.busy_inodes(&self.cache, number)?, index))
    }

    fn group_for_directory(&self, parent: Ino, near: GroupNo) -> GroupNo {
        let count = u64::from(self.layout.group_count);
        let sum = |of: fn(&super::Group) -> u32| {
            self.groups.iter().map(|g| u64::from(of(g))).sum::<u64>() / count
        };
        let inodes_average = sum(super::Group::free_inodes);
        let blocks_average = sum(super::Group::free_blocks);
        let dirs_average = sum(super::Group::used_dirs);
        let top_level = parent == Ino::ROOT;
        let start = if top_level {
            self.directory_spread.fetch_add(1, Ordering::Relaxed) % self.layout.group_count
        } else {
            near.get()
        };
        // Below the top level a group may hold more than its share before it counts as crowded.
        let slack = if top_level { 1 } else { 4 };
        (0..self.layout.group_count)
            .map(|step| GroupNo((start + step) % self.layout.group_count))
            .find(|number| {
                let group = &self.groups[number.get() as usize];
                group.free_inodes() > 0
                    && u64::from(group.free_inodes()) * slack >= inodes_average
                    && u64::from(group.free_blocks()) * slack >= blocks_average
                    && (top_level || u64::from(group.used_dirs()) <= dirs_average + 255)
            })
            .unwrap_or(near)
    }
}
