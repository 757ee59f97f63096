//! Writing new groups behind the end of a file system.
//!
//! Invariants: everything of them that may be read is durable when [`write`] returns, and nothing
//! of the file system leads there.

use crate::error::Result;
use uext4::Volume;
use uext4_mkfs::NewGroups;
use uext4_ondisk::{GroupNo, Layout, RawGroupDesc, RawSuperblock, group_desc};

/// Zeroes are written in pieces of this many bytes.
const ZERO_CHUNK: usize = 1 << 20;

/// Writes bitmaps, inode tables, and the backups in the new groups; `sb` is the superblock with
/// them.
pub(crate) fn write(
    volume: &Volume,
    layout: &Layout,
    sb: &RawSuperblock,
    groups: &mut NewGroups,
) -> Result<()> {
    let is_zero = volume.zero_behind_end(layout.bytes())?;
    if is_zero {
        groups.call_tables_zeroed();
    } else if !layout.checksums.has_group_checksum() {
        // Nothing can say that a table is not zeroed yet.
        zero_tables(volume, layout, groups.descs())?;
    }
    groups.bitmaps(|block, bytes| volume.write_behind_end(layout.byte_of(block), bytes))?;
    write_backups(volume, layout, sb, groups.descs())?;
    Ok(volume.flush_behind_end()?)
}

fn zero_tables(volume: &Volume, layout: &Layout, descs: &[RawGroupDesc]) -> Result<()> {
    let zeroes = vec![0; ZERO_CHUNK];
    for desc in descs {
        let mut at = layout.byte_of(desc.inode_table());
        let mut left = layout.inode_table_blocks() as usize * layout.block_size as usize;
        while left > 0 {
            let len = left.min(ZERO_CHUNK);
            volume.write_behind_end(at, &zeroes[..len])?;
            (at, left) = (at + len as u64, left - len);
        }
    }
    Ok(())
}

/// Writes superblock and descriptors into the new groups that have them.
fn write_backups(
    volume: &Volume,
    layout: &Layout,
    sb: &RawSuperblock,
    descs: &[RawGroupDesc],
) -> Result<()> {
    let mut table = Table { volume, layout, descs, whole: None };
    for group in (volume.layout().group_count..layout.group_count).map(GroupNo) {
        if let Some(block) = layout.super_copy(group) {
            volume.write_behind_end(layout.byte_of(block), sb.for_backup(group).bytes())?;
        }
        let (first, count) = layout.desc_copies(group);
        if count > 0 {
            let own = group.get() / layout.descs_per_block();
            let bytes = match layout.is_in_meta_group(group) {
                true => table.blocks(own, 1),
                false => table.whole(count).to_vec(),
            };
            volume.write_behind_end(layout.byte_of(first), &bytes)?;
        }
    }
    Ok(())
}

/// The group descriptors.
struct Table<'a> {
    volume: &'a Volume,
    layout: &'a Layout,
    descs: &'a [RawGroupDesc],
    /// All blocks before the first meta group, once they were needed.
    whole: Option<Vec<u8>>,
}

impl Table<'_> {
    fn whole(&mut self, count: u32) -> &[u8] {
        if self.whole.is_none() {
            self.whole = Some(self.blocks(0, count));
        }
        self.whole.as_deref().unwrap_or_default()
    }

    /// `count` blocks of descriptors from block `first` of them on.
    fn blocks(&self, first: u32, count: u32) -> Vec<u8> {
        let layout = self.layout;
        let size = usize::from(layout.desc_size);
        let mut bytes = vec![0; count as usize * layout.block_size as usize];
        let group = first * layout.descs_per_block();
        let groups = (group..layout.group_count).map(GroupNo);
        for (group, slot) in groups.zip(bytes.chunks_exact_mut(size)) {
            self.desc(group).write(slot, layout.desc_size);
            group_desc::seal_slot(slot, &layout.checksums, group);
        }
        bytes
    }

    fn desc(&self, group: GroupNo) -> RawGroupDesc {
        let old = self.volume.layout().group_count;
        match group.get().checked_sub(old) {
            None => self.volume.group_desc(group),
            Some(new) => self.descs.get(new as usize).copied().unwrap_or_else(RawGroupDesc::zeroed),
        }
    }
}
