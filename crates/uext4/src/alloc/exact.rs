//! Allocating blocks and inode numbers that somebody else has chosen: those of fast commits.

use super::available::Use;
use super::{Allocation, InodeAllocation, Space};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use uext4_ondisk::{BlockNo, Ino, bitmap};

impl Space {
    /// Allocates those blocks of a run that are free; ascending.
    ///
    /// # Errors
    /// `Corrupt` for a run outside the data area; `NoSpace`; a corrupt bitmap; a device failure.
    pub(crate) fn allocate_exactly(&self, start: BlockNo, len: u32) -> Result<Vec<Allocation>> {
        self.check_run(start, u64::from(len))?;
        let mut allocations = Vec::new();
        for part in self.group_parts(start, len) {
            let (number, bit, _, here) = part?;
            let group = &self.groups[number.get() as usize];
            let mut state = group.lock();
            let allocated = group.map(&mut state, &self.cache)?.allocated();
            let free: Vec<_> = bitmap::free_runs(allocated, bit, bit + here).collect();
            let bitmap = state.block_bitmap(&self.cache, number)?;
            for (bit, len) in free {
                let wanted = i64::from(len);
                if self.shared.available.reserve(wanted, wanted, Use::Nodes) < wanted {
                    return Err(Error::new(ErrorKind::NoSpace, "the blocks of fast commits"));
                }
                let allocated = group.allocate(&mut state, bit, len, bitmap.as_deref());
                allocated.inspect_err(|_| self.shared.available.release(wanted))?;
                let start = self.layout.block_of_bit(number, bit);
                let (group, bitmap) = (Arc::clone(group), bitmap.clone());
                allocations.push(Allocation { group, start, bit, len, bitmap });
            }
        }
        Ok(allocations)
    }

    /// Allocates an inode number. `None`: it is in use.
    ///
    /// # Errors
    /// `NotFound` for a number that does not exist; a corrupt bitmap; a device failure.
    pub(crate) fn allocate_inode_number(&self, ino: Ino) -> Result<Option<InodeAllocation>> {
        let (group, index) = self
            .layout
            .group_of_ino(ino)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("inode {ino}")))?;
        let taken = self.with_inode_map(group, |map| {
            let is_free = !map.is_used(index);
            map.set_used(index);
            is_free.then_some((map.block, map.written))
        })?;
        let Some((block, written)) = taken else { return Ok(None) };
        self.prepare_number(group, group, index, block, written).map(Some)
    }
}
