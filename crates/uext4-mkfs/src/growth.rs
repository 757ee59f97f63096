//! Groups that are added behind the end of a file system.
//!
//! What: their bitmaps and inode tables are placed as those of a new file system, but in new groups
//! only. So nothing of the file system that is there has to move, and none of its free blocks are
//! needed.
//! Invariants: a pure function of the geometry.

use crate::error::MkfsError;
use crate::output::fill_block_bitmap;
use crate::plan::fill_descriptors;
use crate::space::Space;
use crate::tables;
use uext4_ondisk::{BlockNo, GroupFlags, GroupNo, Ino, Layout, RawGroupDesc, bitmap};

/// New groups: the last ones of a file system.
#[derive(Clone, Debug)]
pub struct NewGroups {
    layout: Layout,
    first: GroupNo,
    space: Space,
    descs: Vec<RawGroupDesc>,
}

impl NewGroups {
    /// Lays out the groups from `first` on. `layout` is the geometry with them. Their inode tables
    /// are not called zeroed, and nothing has a checksum but the bitmaps.
    ///
    /// # Errors
    /// Bitmaps and tables do not fit into the groups.
    pub fn lay_out(layout: &Layout, first: GroupNo) -> Result<Self, MkfsError> {
        let start = layout.group_first_block(first).get().min(layout.blocks_count);
        let mut space = Space::new(start, layout.blocks_count);
        for group in (first.get()..layout.group_count).map(GroupNo) {
            let count = u64::from(layout.base_meta_blocks(group));
            if count > 0 {
                space.mark(layout.group_first_block(group).get(), count);
            }
        }
        let mut touched = vec![false; layout.group_count as usize];
        let mut descs = tables::place(layout, first, &mut space, &mut touched, 0)?;
        space.widen_to_clusters(u64::from(layout.cluster_blocks));
        fill_descriptors(layout, &space, &touched, Ino(0), first, &mut descs);
        let mut groups = Self { layout: layout.clone(), first, space, descs };
        groups.note_checksums();
        Ok(groups)
    }

    /// The descriptors, in the order of the groups.
    #[must_use]
    pub fn descs(&self) -> &[RawGroupDesc] {
        &self.descs
    }

    /// Notes that the inode tables read as zeroes.
    pub fn call_tables_zeroed(&mut self) {
        if self.layout.checksums.has_group_checksum() {
            for desc in &mut self.descs {
                desc.set_flags(desc.flags() | GroupFlags::INODE_ZEROED);
            }
        }
    }

    /// Calls `visit` with the blocks of all bitmaps that are not left uninitialised, and with their
    /// content.
    ///
    /// # Errors
    /// That of `visit`.
    pub fn bitmaps<E>(
        &self,
        mut visit: impl FnMut(BlockNo, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut map = vec![0; self.layout.block_size as usize];
        for (group, desc) in (self.first.get()..).map(GroupNo).zip(&self.descs) {
            if !desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
                fill_block_bitmap(&self.layout, &self.space, group, &mut map);
                visit(desc.block_bitmap(), &map)?;
            }
            if !desc.flags().contains(GroupFlags::INODE_UNINIT) {
                fill_inode_bitmap(&self.layout, &mut map);
                visit(desc.inode_bitmap(), &map)?;
            }
        }
        Ok(())
    }

    fn note_checksums(&mut self) {
        let layout = &self.layout;
        let mut map = vec![0; layout.block_size as usize];
        for (group, desc) in (self.first.get()..).map(GroupNo).zip(&mut self.descs) {
            if !desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
                fill_block_bitmap(layout, &self.space, group, &mut map);
                let bits = layout.clusters_per_group;
                let csum = bitmap::block_bitmap_csum(&layout.checksums, &map, bits);
                desc.set_block_bitmap_csum(csum.unwrap_or(0));
            }
            if !desc.flags().contains(GroupFlags::INODE_UNINIT) {
                fill_inode_bitmap(layout, &mut map);
                let bits = layout.inodes_per_group;
                let csum = bitmap::inode_bitmap_csum(&layout.checksums, &map, bits);
                desc.set_inode_bitmap_csum(csum.unwrap_or(0));
            }
        }
    }
}

/// Makes `map` the bitmap of a group without inodes in use.
fn fill_inode_bitmap(layout: &Layout, map: &mut [u8]) {
    let inodes = layout.inodes_per_group;
    map.fill(0);
    bitmap::set_range(map, inodes, layout.block_size * 8 - inodes);
}
