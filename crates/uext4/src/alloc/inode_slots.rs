//! A look at the slots of all inodes in use, which are not taken into the caches for it.

use super::Space;
use crate::error::{Error, Result};
use uext4_ondisk::{BlockNo, GroupNo};

/// Blocks of a table that are read at a time.
const BLOCKS_PER_READ: u32 = 64;

impl Space {
    /// Calls `visit` with the slot of each inode of a group that is in use, until it returns false;
    /// returns whether it never did. Slots are as the journal has them; checksums are not looked
    /// at. For volumes that nobody changes meanwhile.
    ///
    /// # Errors
    /// A corrupt bitmap; a device failure.
    pub(crate) fn visit_inode_slots(
        &self,
        group: GroupNo,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool> {
        let per_block = self.layout.inodes_per_block();
        let table = self.group_desc(group).inode_table();
        let used = self.with_inode_map(group, |map| {
            (0..self.layout.inodes_per_group)
                .filter(|index| map.is_used(*index))
                .collect::<Vec<_>>()
        })?;
        let (slot_size, block_size) = (self.layout.inode_size as usize, self.cache.block_size());
        for part in
            used.chunk_by(|a, b| a / per_block / BLOCKS_PER_READ == b / per_block / BLOCKS_PER_READ)
        {
            let first = part[0] / per_block;
            let blocks = part[part.len() - 1] / per_block - first + 1;
            let bytes = self.read_table(table.plus(u64::from(first)), blocks)?;
            for index in part {
                let block = (index / per_block - first) as usize;
                let at = block * block_size + (index % per_block) as usize * slot_size;
                if !visit(&bytes[at..at + slot_size]) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// So many blocks, as they are in memory where they are newer there.
    fn read_table(&self, first: BlockNo, blocks: u32) -> Result<Vec<u8>> {
        let block_size = self.cache.block_size();
        let mut bytes = vec![0; blocks as usize * block_size];
        self.cache
            .device()
            .read_at(first.get() * block_size as u64, &mut bytes)
            .map_err(|e| Error::io(format!("reading the inode table at block {first}"), e))?;
        for (number, block) in (0..).zip(bytes.chunks_mut(block_size)) {
            if let Some(newest) = self.cache.newest(first.plus(number)) {
                block.copy_from_slice(&newest);
            }
        }
        Ok(bytes)
    }
}
