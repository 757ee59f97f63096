//! Conversion by reserved handles: `writeback=unwritten`, a contrast.
//!
//! What: as the kernel does with `dioread_nolock`. Each run is mapped as an unwritten extent of its
//! own in a first handle, then its data is written, then a second handle makes it written. The
//! credits of that one are kept back before the I/O: with many threads, they are what the journal
//! runs out of.
//! Invariants: a block is reachable as data only after its data is on the device.

use super::Files;
use super::batch::{Part, Pending, PendingBlocks};
use crate::error::Result;
use crate::extent::{NodeAllocations, NodeSource, edit_credits};
use crate::inode::Inode;

impl Files {
    /// Writes all pending runs, each with two handles of its own.
    pub(super) fn write_and_convert(&self, parts: &mut [Part<'_>]) -> Result<()> {
        for part in parts {
            let size = part.size;
            let pending = std::mem::take(&mut part.pending);
            let count = pending.len();
            for (n, mut pending) in pending.into_iter().enumerate() {
                let end = u64::from(pending.end().get()) * self.block_size();
                let reached = if n + 1 == count { size } else { size.min(end) };
                self.convert_one(part.inode, &mut pending, reached)?;
            }
        }
        Ok(())
    }

    fn convert_one(&self, inode: &Inode, pending: &mut Pending, reached: u64) -> Result<()> {
        let journal = self.space.journal();
        let place = [pending.first];
        let reserved = journal.reserve(1 + edit_credits(inode))?;
        let run = pending.take_run();
        let start = run.start;
        {
            let mut nodes =
                NodeAllocations::for_edits(&self.space, inode, &place, NodeSource::Reserved)?;
            journal.run(3 + edit_credits(inode), |handle| {
                self.map_one(handle, inode, pending, &mut nodes, true)
            })?;
        }
        self.write_runs(vec![run])?;
        inode.note_written(journal.flush_gate().epoch());
        pending.blocks = PendingBlocks::Unwritten(start);
        let mut nodes =
            NodeAllocations::for_edits(&self.space, inode, &place, NodeSource::Reserved)?;
        reserved.run(|handle| {
            self.map_one(handle, inode, pending, &mut nodes, false)?;
            self.set_disk_size(inode, handle, reached)
        })
    }
}
