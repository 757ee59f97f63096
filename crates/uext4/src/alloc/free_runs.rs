//! Free runs of a group, for whoever looks at how free space lies.
//!
//! Locking: the group's lock while its bitmap is copied. Groups can be asked for by several threads
//! at a time.

use super::Space;
use crate::error::{Error, ErrorKind, Result};
use uext4_ondisk::{BlockNo, GroupNo, bitmap};

/// Blocks next to each other that are free. A run ends with its group; the next group's may
/// continue it.
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
    /// The free runs of a group in ascending order, as its journaled bitmap has them: what a
    /// reader of the device finds once the running transaction has been written home. Blocks that
    /// are allocated for data on its way count as free, and so do blocks whose freeing is not
    /// durable.
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
        let first = self.layout.group_first_block(number);
        Ok(bitmap::free_runs(&bitmap, 0, self.layout.blocks_in_group(number))
            .map(|(bit, len)| FreeRun { start: first.plus(u64::from(bit)), len })
            .collect())
    }
}
