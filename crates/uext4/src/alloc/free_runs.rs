//! Free runs of a group, for reports on fragmentation.
//!
//! Locking: the group's lock while its bitmap is copied. Several threads may read groups at a time.

use super::Space;
use crate::error::{Error, ErrorKind, Result};
use uext4_ondisk::{BlockNo, GroupNo, bitmap};

/// Adjacent free blocks. A run ends with its group, even if the next group's first run continues
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeRun {
    /// First block.
    pub start: BlockNo,
    /// Number of blocks; at least 1.
    pub len: u32,
}

impl FreeRun {
    /// The block after the run.
    #[must_use]
    pub fn end(&self) -> BlockNo {
        self.start.plus(u64::from(self.len))
    }
}

impl Space {
    /// The free runs of a group in ascending order, by its journaled bitmap. A reader of the device
    /// finds the same once the running transaction has been checkpointed. Blocks that are allocated
    /// for data under writeback count as free, and so do blocks whose freeing is not durable.
    ///
    /// # Errors
    /// `InvalidArgument` for a group that does not exist; `Corrupt` for a bitmap that does not
    /// agree with its checksum or its descriptor; a device failure.
    pub fn free_runs(&self, number: GroupNo) -> Result<Vec<FreeRun>> {
        let Some(group) = self.groups.get(number.get() as usize) else {
            let context = format!("group {number} of {}", self.groups.len());
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        };
        let bitmap = group.lock().read_block_bitmap(&self.cache, number)?;
        let layout = &self.layout;
        let end = layout.group_first_block(number).plus(layout.blocks_in_group(number).into());
        let run = |(bit, len)| {
            let start = layout.block_of_bit(number, bit);
            // The last cluster of the file system may be short.
            let behind = layout.block_of_bit(number, bit + len).min(end);
            let len = u32::try_from(behind.get() - start.get()).unwrap_or(u32::MAX);
            FreeRun { start, len }
        };
        Ok(bitmap::free_runs(&bitmap, 0, layout.bits_in_group(number)).map(run).collect())
    }
}
