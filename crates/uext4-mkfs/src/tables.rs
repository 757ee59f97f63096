//! Placing each group's bitmaps and inode table.
//!
//! On disk: without flex_bg they are in the group itself. With flex_bg those of all groups of a
//! flex group are packed together at its start: block bitmaps, inode bitmaps, inode tables.

use crate::error::{MkfsError, Result};
use crate::space::Space;
use uext4_ondisk::features::Incompat;
use uext4_ondisk::{BlockNo, GroupNo, Layout, RawGroupDesc};

/// Places the bitmaps and the table of every group from `from` on; those before are not in `space`.
/// `touched` notes the groups that contain tables of other groups (with flex_bg also their own),
/// because their block bitmaps must be written.
/// `stride` is that of a RAID: without flex_bg, the bitmaps of neighbouring groups are moved on by
/// so many blocks, so that they lie on different disks.
pub(crate) fn place(
    layout: &Layout,
    from: GroupNo,
    space: &mut Space,
    touched: &mut [bool],
    stride: u16,
) -> Result<Vec<RawGroupDesc>> {
    let strides = stride > 0 && !layout.features.incompat.contains(Incompat::FLEX_BG);
    let flex = layout.groups_per_flex;
    let table_blocks = u64::from(layout.inode_table_blocks());
    let mut descs: Vec<RawGroupDesc> = Vec::new();
    for number in from.get()..layout.group_count {
        let group = GroupNo(number);
        let mut desc = RawGroupDesc::zeroed();
        let search = Search::new(layout, group);
        let before = descs.last().filter(|_| !number.is_multiple_of(flex));
        let mut take = |space: &mut Space, after: Option<u64>, count: u64| {
            let at = search.find(space, after, count).ok_or_else(no_room)?;
            space.mark(at, count);
            if flex > 1 {
                touch(layout, touched, at, count);
            }
            Ok::<u64, MkfsError>(at)
        };
        let after = match strides {
            true => search.strided(layout, space, group, stride),
            false => before.map(|d| d.block_bitmap().get() + 1),
        };
        let bitmap = take(space, after, 1)?;
        desc.set_block_bitmap(BlockNo(bitmap));
        let after = before.map_or(bitmap + search.stride, |d| d.inode_bitmap().get() + 1);
        let bitmap = take(space, Some(after), 1)?;
        desc.set_inode_bitmap(BlockNo(bitmap));
        let after = before.map_or(bitmap + search.stride, |d| d.inode_table().get() + table_blocks);
        let table = take(space, Some(after).filter(|_| !strides), table_blocks)?;
        desc.set_inode_table(BlockNo(table));
        descs.push(desc);
    }
    Ok(descs)
}

/// Places the bitmaps of all groups at the start, block bitmaps first, and all tables behind them.
pub(crate) fn pack(
    layout: &Layout,
    space: &mut Space,
    touched: &mut [bool],
) -> Result<Vec<RawGroupDesc>> {
    let mut descs = vec![RawGroupDesc::zeroed(); layout.group_count as usize];
    let mut goal = layout.first_data_block.get();
    let mut take = |count: u64| {
        let at = space.find(goal..layout.blocks_count, count).ok_or_else(no_room)?;
        space.mark(at, count);
        touch(layout, touched, at, count);
        goal = at;
        Ok::<BlockNo, MkfsError>(BlockNo(at))
    };
    for desc in &mut descs {
        desc.set_block_bitmap(take(1)?);
    }
    for desc in &mut descs {
        desc.set_inode_bitmap(take(1)?);
    }
    for desc in &mut descs {
        desc.set_inode_table(take(layout.inode_table_blocks().into())?);
    }
    Ok(descs)
}

fn no_room() -> MkfsError {
    MkfsError::option("no room for bitmaps and inode tables: use a larger -i or a smaller -N")
}

/// Notes the groups that contain `count` blocks from `first` on.
pub(crate) fn touch(layout: &Layout, touched: &mut [bool], first: u64, count: u64) {
    let ends = [first, first + count - 1].map(|block| layout.group_of(BlockNo(block)));
    if let [Some((from, _)), Some((to, _))] = ends {
        let range = from.get() as usize..=to.get() as usize;
        touched[range].fill(true);
    }
}

/// Where to look for the tables of one group.
struct Search {
    /// First block to try when there is no better place.
    start: u64,
    /// One past the last block of the flex group.
    end: u64,
    /// Groups from this one to the end of its flex group.
    groups: u64,
    /// Blocks reserved for bitmaps of one kind before those of the next kind start.
    stride: u64,
    /// Most contiguous blocks that are looked for.
    piece_max: u64,
}

impl Search {
    fn new(layout: &Layout, group: GroupNo) -> Self {
        let flex = layout.groups_per_flex;
        let first = group.get() / flex * flex;
        let last = (first + (flex - 1)).min(layout.group_count - 1);
        let groups = u64::from(last - group.get() + 1);
        let end = layout.group_first_block(GroupNo(last)).get()
            + u64::from(layout.blocks_in_group(GroupNo(last)));
        Self {
            start: layout.group_first_block(GroupNo(first)).get(),
            end,
            groups,
            // As in mke2fs, a flex group that starts with one group has room for all that may
            // follow.
            stride: if groups == 1 { u64::from(flex) } else { groups },
            piece_max: u64::from(layout.blocks_per_group / 4),
        }
    }

    /// The block to try first for the bitmap of a group on a RAID.
    fn strided(&self, layout: &Layout, space: &Space, group: GroupNo, stride: u16) -> Option<u64> {
        let first = space.find(self.start..self.end, 1)?;
        let first = first + u64::from(layout.inode_table_blocks());
        let rest = self.end.checked_sub(first).filter(|rest| *rest > 0)?;
        let at = first + u64::from(stride) * u64::from(group.get()) % rest;
        Some(at).filter(|at| at + 1 < self.end)
    }

    /// Finds `count` free blocks: right after those of the group before, skipping small obstacles
    /// such as a backup of the superblock; else where the tables of all following groups fit in one
    /// piece; else anywhere in the flex group.
    fn find(&self, space: &Space, after: Option<u64>, count: u64) -> Option<u64> {
        let piece = (self.groups * count).min(self.piece_max);
        let inside = |at: &u64| at + count <= self.end;
        let near = after.and_then(|after| space.find(after..after + piece, count));
        near.filter(inside)
            .or_else(|| space.find(self.start..self.end, piece))
            .or_else(|| space.find(self.start..self.end, count))
            .filter(inside)
    }
}
