//! A volume that grows just before it is closed.
//!
//! Invariants: what grows are the journaled bitmaps, descriptors and counts. Nobody allocates any
//! more, so the in-memory bitmaps stay as they are: more is set in them than in the journaled ones.

use super::Space;
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::Handle;
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::{GroupNo, RawGroupDesc, bitmap};

impl Space {
    fn last_group(&self) -> GroupNo {
        GroupNo(self.layout.group_count.saturating_sub(1))
    }

    /// Reads what [`Space::extend_last_group`] changes.
    ///
    /// # Errors
    /// A corrupt bitmap; a device failure.
    pub(crate) fn pin_last_group(&self) -> Result<Option<Arc<Buffer>>> {
        let group = self.last_group();
        let mut state = self.groups[group.get() as usize].lock();
        state.read_block_bitmap(&self.cache, group)?;
        state.block_bitmap(&self.cache, group)
    }

    /// The last group gets `bits` blocks (clusters with bigalloc), of which the new ones are free.
    /// Costs two credits.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub(crate) fn extend_last_group(&self, handle: &mut Handle<'_>, bits: u32) -> Result<()> {
        let number = self.last_group();
        let added = bits.saturating_sub(self.layout.bits_in_group(number));
        if added == 0 {
            return Ok(());
        }
        let mut state = self.groups[number.get() as usize].lock();
        let buffer = state.block_bitmap_for_change(handle, &self.cache, number)?;
        bitmap::clear_range(&mut handle.write(&buffer)?, bits - added, added);
        let free = state.desc.free_blocks() + added;
        state.desc.set_free_blocks(free);
        self.shared.journaled_blocks.add(number, i64::from(added));
        self.write_desc(handle, number, &state.desc)
    }

    /// The descriptors of new groups, sealed, are in the last descriptor block from now on, as far
    /// as they belong there. Costs a credit.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub(crate) fn add_descs(&self, handle: &mut Handle<'_>, new: &[Vec<u8>]) -> Result<()> {
        let per_block = self.layout.descs_per_block();
        let used = self.layout.group_count % per_block;
        let Some(buffer) = self.desc_buffers.last().filter(|_| used > 0) else { return Ok(()) };
        for (slot, desc) in (used..per_block).zip(new) {
            let at = slot as usize * desc.len();
            handle.write_slot(buffer, slot)?[at..at + desc.len()].copy_from_slice(desc);
        }
        Ok(())
    }

    /// What new groups have free counts as free in the superblock, in blocks and inodes.
    pub(crate) fn count_new_groups(&self, new: &[RawGroupDesc]) {
        let bits = new.iter().map(|desc| i64::from(desc.free_blocks())).sum();
        let inodes = new.iter().map(|desc| i64::from(desc.free_inodes())).sum();
        self.shared.journaled_blocks.add(self.last_group(), bits);
        self.journaled_inodes.fetch_add(inodes, Ordering::AcqRel);
    }

    /// Descriptor block `n` as it is committed: with the checksums of the groups that there were
    /// before the volume grew.
    ///
    /// # Errors
    /// There was no such block.
    pub(crate) fn sealed_descs(&self, n: u32) -> Result<Vec<u8>> {
        let missing = || Error::new(ErrorKind::Internal, "no such descriptor block");
        let buffer = self.desc_buffers.get(n as usize).ok_or_else(missing)?;
        let first = GroupNo(n * self.layout.descs_per_block());
        let groups = self.layout.descs_per_block().min(self.layout.group_count - first.get());
        let mut bytes = buffer.read()[..].to_vec();
        let mask = u128::MAX >> (128 - groups.clamp(1, 128));
        let kind = crate::cache::BlockKind::GroupDescs { first };
        self.cache.sealer().seal(buffer.block(), kind, &mut bytes, mask);
        Ok(bytes)
    }
}
