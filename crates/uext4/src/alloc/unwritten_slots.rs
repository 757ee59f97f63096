//! Slots of inode tables that were never written.
//!
//! On disk: mke2fs may leave inode tables as they are (`lazy_itable_init`); `bg_itable_unused` says
//! how many slots at the end of a group's table hold whatever the device held before. The kernel
//! and e2fsck look at all slots in front of those.
//! Invariants: a slot is written or zeroed in the handle in which `bg_itable_unused` falls below
//! it. Example of what would happen else: thread A claims inode 12 and thread B inode 13; B's
//! transaction commits, A's does not, and the power fails. The table is in use up to 13, and slot
//! 12 shows an inode of the file system that was there before, with links and blocks.
//! Kernel counterpart: `ext4_new_inode` zeroes a block of the table when it takes the first inode
//! of it.

use super::{GroupNo, InodeClaim, Space};
use crate::cache::{BlockKind, Buffer};
use crate::error::Result;
use crate::journal::Handle;
use crate::plant::{self, Fault};
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::{GroupFlags, RawGroupDesc};

impl Space {
    /// Slots of a group's table from its begin on that hold inodes, or zeroes.
    pub(super) fn written_slots(&self, desc: &RawGroupDesc) -> u32 {
        let per_group = self.layout.inodes_per_group;
        let flags = desc.flags();
        let has_count = self.layout.checksums.has_group_checksum();
        if !has_count || flags.contains(GroupFlags::INODE_ZEROED) {
            return per_group;
        }
        // Without a bitmap no inode of the group was ever in use.
        if flags.contains(GroupFlags::INODE_UNINIT) {
            return 0;
        }
        per_group.saturating_sub(desc.itable_unused())
    }

    /// Blocks of the table that hold `slots`.
    pub(super) fn read_slots(&self, group: GroupNo, slots: Range<u32>) -> Result<Vec<Arc<Buffer>>> {
        if slots.is_empty() || plant::is(Fault::UninitializedSlots) {
            return Ok(Vec::new());
        }
        let per_block = self.layout.inodes_per_block();
        let read = |index: u32| {
            let block = self.inode_table(group).plus(u64::from(index));
            let first = self.layout.ino_of(group, index * per_block);
            self.cache.read(block, BlockKind::InodeTable { first })
        };
        (slots.start / per_block..slots.end.div_ceil(per_block)).map(read).collect()
    }

    /// Zeroes what was never written of the slots in front of a claimed one. The caller holds the
    /// group, whose table is written up to slot `written`.
    pub(super) fn zero_skipped_slots(
        &self,
        handle: &mut Handle<'_>,
        claim: &InodeClaim,
        written: u32,
    ) -> Result<()> {
        let per_block = self.layout.inodes_per_block();
        let size = self.layout.inode_size as usize;
        for buffer in &claim.skipped {
            let table = self.inode_table(claim.group).get();
            #[allow(clippy::cast_possible_truncation)] // a block of the group's table
            let first = (buffer.block().get() - table) as u32 * per_block;
            for index in first.max(written)..(first + per_block).min(claim.index) {
                let slot = index - first;
                let at = slot as usize * size;
                handle.write_slot(buffer, slot)?[at..at + size].fill(0);
            }
        }
        Ok(())
    }
}
