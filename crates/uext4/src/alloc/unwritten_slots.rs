//! Slots of inode tables that were never written.
//!
//! On disk: mke2fs may leave inode tables as they are (`lazy_itable_init`). `bg_itable_unused` says
//! how many slots at the end of a group's table hold whatever the device held before. The kernel
//! and e2fsck read all slots in front of those.
//! Invariants: a slot is written or zeroed in the handle in which `bg_itable_unused` falls below
//! it. Otherwise: thread A allocates inode 12, thread B allocates inode 13; B's transaction
//! commits, A's does not, and the power fails. Therefore the table is in use up to slot 13, and
//! slot 12 shows an inode of the file system that was there before, with links and blocks. The
//! handle of a new inode zeroes few blocks. If many threads have allocated thousands of numbers,
//! slots far in front of one are zeroed before that, in handles that any journal admits.
//! Kernel counterpart: `ext4_new_inode` zeroes a block of the table when it allocates the first
//! inode of it.

use super::{GroupNo, Space};
use crate::cache::{BlockKind, Buffer};
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::journal::Handle;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, GroupFlags, Ino, RawGroupDesc, bitmap};

/// Blocks of a table that one handle zeroes.
const BLOCKS_PER_HANDLE: u32 = 16;
/// Blocks of a table that are read at a time where reads take long.
const READ_AHEAD_BLOCKS: u32 = 32;

impl Space {
    /// How many slots at the start of a group's table hold inodes or zeroes.
    pub(super) fn written_slots(&self, desc: &RawGroupDesc) -> u32 {
        let per_group = self.layout.inodes_per_group;
        let flags = desc.flags();
        let has_count = self.layout.checksums.has_group_checksum();
        if !has_count || flags.contains(GroupFlags::INODE_ZEROED) {
            return per_group;
        }
        // No inode of the group was ever in use.
        if flags.contains(GroupFlags::INODE_UNINIT) {
            return 0;
        }
        per_group.saturating_sub(desc.itable_unused())
    }

    /// Slots of a group's table up to the last one that is in use by the bitmap. A count of unused
    /// slots that disagrees is wrong.
    pub(super) fn slots_in_use(&self, group: GroupNo, bits: &[u8]) -> u32 {
        let per_group = self.layout.inodes_per_group;
        let reserved = self.layout.first_ino.get().saturating_sub(1).min(per_group);
        let first = if group.get() == 0 { reserved } else { 0 };
        let last = (first..per_group).rev().find(|&index| bitmap::test(bits, index));
        last.map_or(first, |index| index + 1)
    }

    /// Blocks of the inode table in front of an inode that were never written, which are zeroed
    /// when its number is allocated.
    ///
    /// # Errors
    /// A corrupt bitmap; a device failure.
    pub(crate) fn unwritten_blocks_before(&self, ino: Ino) -> Result<u32> {
        let Some((group, index)) = self.layout.group_of_ino(ino) else { return Ok(0) };
        let written = self.with_inode_map(group, |map| map.written)?;
        Ok(index.saturating_sub(written).div_ceil(self.layout.inodes_per_block()))
    }

    /// The block of an inode table that begins with inode `first`. Where reads take long its
    /// neighbours are read with it, as by the kernel's `inode_readahead_blks`.
    ///
    /// # Errors
    /// Those of [`Cache::read`](crate::cache::Cache::read).
    pub(crate) fn read_table_block(&self, block: BlockNo, first: Ino) -> Result<Arc<Buffer>> {
        if self.cache.is_far()
            && !self.cache.has_buffer(block)
            && let Some((group, index)) = self.layout.group_of_ino(first)
        {
            let per_block = self.layout.inodes_per_block();
            let from = index / per_block / READ_AHEAD_BLOCKS * READ_AHEAD_BLOCKS;
            let end = self.layout.inodes_per_group / per_block;
            self.cache.read_ahead((from..end.min(from + READ_AHEAD_BLOCKS)).map(|at| {
                let first = self.layout.ino_of(group, at * per_block);
                (self.inode_table(group).plus(u64::from(at)), BlockKind::InodeTable { first })
            }));
        }
        self.cache.read(block, BlockKind::InodeTable { first })
    }

    /// Blocks of the table that hold `slots`.
    pub(super) fn read_slots(&self, group: GroupNo, slots: Range<u32>) -> Result<Vec<Arc<Buffer>>> {
        if slots.is_empty() || Fault::UninitializedSlots.is_injected() {
            return Ok(Vec::new());
        }
        let per_block = self.layout.inodes_per_block();
        let read = |index: u32| {
            let block = self.inode_table(group).plus(u64::from(index));
            self.read_table_block(block, self.layout.ino_of(group, index * per_block))
        };
        (slots.start / per_block..slots.end.div_ceil(per_block)).map(read).collect()
    }

    /// Zeroes those slots of a group's table that lie in `blocks`. The caller holds the group.
    pub(super) fn zero_slots(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNo,
        blocks: &[Arc<Buffer>],
        slots: Range<u32>,
    ) -> Result<()> {
        let per_block = self.layout.inodes_per_block();
        let size = self.layout.inode_size as usize;
        for buffer in blocks {
            let table = self.inode_table(group).get();
            #[allow(clippy::cast_possible_truncation)] // a block of the group's table
            let first = (buffer.block().get() - table) as u32 * per_block;
            for index in first.max(slots.start)..(first + per_block).min(slots.end) {
                let slot = index - first;
                let at = slot as usize * size;
                handle.write_slot(buffer, slot)?[at..at + size].fill(0);
            }
        }
        Ok(())
    }

    /// Zeroes slots that were never written, from the first on, in handles of their own, until one
    /// handle can zero the rest. No handle may be open.
    pub(super) fn zero_ahead(&self, group: GroupNo, slots: Range<u32>) -> Result<()> {
        let per_block = self.layout.inodes_per_block();
        let most = BLOCKS_PER_HANDLE * per_block;
        let mut from = slots.start;
        while slots.end.saturating_sub(from) > most {
            let to = from - from % per_block + most;
            let blocks = self.read_slots(group, from..to)?;
            let credits = self.credits.inode_number + BLOCKS_PER_HANDLE;
            from = self.journal().run(credits, |handle| {
                self.zero_in_handle(handle, group, &blocks, slots.start..to)
            })?;
        }
        Ok(())
    }

    /// Zeroes those of `slots` that are not written yet, so that they count as free slots. Returns
    /// up to which slot the table is written then. `blocks` hold all slots that may need it.
    fn zero_in_handle(
        &self,
        handle: &mut Handle<'_>,
        group: GroupNo,
        blocks: &[Arc<Buffer>],
        slots: Range<u32>,
    ) -> Result<u32> {
        let mut state = self.groups[group.get() as usize].lock();
        // Another allocation in the group may have zeroed them.
        let written = self.written_slots(&state.desc).max(slots.start);
        if written >= slots.end {
            return Ok(written);
        }
        if state.desc.flags().contains(GroupFlags::INODE_UNINIT) {
            state.inode_bitmap_for_change(handle, &self.cache, group)?;
        }
        self.zero_slots(handle, group, blocks, written..slots.end)?;
        let unused = self.layout.inodes_per_group - slots.end;
        let unused = state.desc.itable_unused().min(unused);
        state.desc.set_itable_unused(unused);
        let desc = state.desc;
        self.write_desc(handle, group, &desc)?;
        self.with_loaded_inode_map(group, |map| map.note_used(desc.inode_bitmap(), slots.end));
        Ok(slots.end)
    }
}
