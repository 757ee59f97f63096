//! Files without extents: their blocks, and the indirect blocks that lead to them.
//!
//! Policy: as in mke2fs, blocks are taken in the order of the file, and each indirect block right
//! before the first block that needs it.

use crate::error::Result;
use crate::inodes::{Files, append, no_space};
use uext4_ondisk::block_map::{BlockPath, direct, entry, path, set_entry};
use uext4_ondisk::extent::Extent;
use uext4_ondisk::features::Incompat;
use uext4_ondisk::{BlockNo, FileBlock, RawInode};

impl Files<'_> {
    /// Whether files are mapped by extents.
    pub(crate) fn has_extents(&self) -> bool {
        self.geometry.layout.features.incompat.contains(Incompat::EXTENT)
    }

    /// Allocates these blocks of a file from `at` on, and maps them. Returns their runs, and the
    /// number of indirect blocks.
    pub(crate) fn map_blocks(
        &mut self,
        raw: &mut RawInode,
        wanted: impl Iterator<Item = u64>,
        at: &mut u64,
    ) -> Result<(Vec<Extent>, u64)> {
        let (mut runs, mut nodes) = (Vec::new(), 0);
        for n in wanted {
            let n = FileBlock(u32::try_from(n).map_err(|_| no_space())?);
            let way = path(n, self.geometry.layout.block_size).ok_or_else(no_space)?;
            nodes += self.add_indirect(raw, &way, at)?;
            let block = self.take_from(at)?;
            self.set_number(raw, &way, way.steps.len(), BlockNo(block));
            append(&mut runs, n, block);
        }
        Ok((runs, nodes))
    }

    /// Maps a block that is allocated already. It is one of the direct blocks.
    pub(crate) fn map_direct(raw: &mut RawInode, n: u32, at: u64) {
        set_entry(&mut raw.i_block, n, BlockNo(at));
    }

    /// Adds the indirect blocks on the way that are missing. Returns their number.
    fn add_indirect(&mut self, raw: &mut RawInode, way: &BlockPath, at: &mut u64) -> Result<u64> {
        let mut added = 0;
        for depth in 0..way.steps.len() {
            if self.number(raw, way, depth) == BlockNo(0) {
                let block = BlockNo(self.take_from(at)?);
                let size = self.geometry.layout.block_size as usize;
                self.blocks.insert(block, vec![0; size]);
                self.set_number(raw, way, depth, block);
                added += 1;
            }
        }
        Ok(added)
    }

    /// Takes the first free block from `at` on.
    fn take_from(&mut self, at: &mut u64) -> Result<u64> {
        let block = self.space.find_one(*at).ok_or_else(no_space)?;
        self.take(block, 1);
        *at = block;
        Ok(block)
    }

    /// The number in the node at `depth` of the way.
    fn number(&self, raw: &RawInode, way: &BlockPath, depth: usize) -> BlockNo {
        way.steps[..depth].iter().fold(direct(&raw.i_block, way.root), |block, &index| {
            self.blocks.get(&block).map_or(BlockNo(0), |bytes| entry(bytes, index))
        })
    }

    fn set_number(&mut self, raw: &mut RawInode, way: &BlockPath, depth: usize, number: BlockNo) {
        let Some(last) = depth.checked_sub(1) else {
            set_entry(&mut raw.i_block, way.root, number);
            return;
        };
        let parent = self.number(raw, way, last);
        if let Some(bytes) = self.blocks.get_mut(&parent) {
            set_entry(bytes, way.steps[last], number);
        }
    }
}
