//! Conversion by reserved handles: `writeback=unwritten`.
//!
//! What: the order of the kernel with `dioread_nolock`. A first handle maps each run as an
//! unwritten extent of its own; then the data is written; then a second handle converts the extent.
//! The credits of the second handle are reserved before the I/O: with many threads the journal runs
//! out of these first. A block map has no unwritten blocks: its data is written first, as in
//! production.
//! Invariants: a block is reachable as data only after its data is on the device.

use super::WritebackOrder;
use crate::error::Result;
use crate::extent::{NodeAllocations, NodeSource, edit_credits};
use crate::file::writeback::{Part, Pending, PendingBlocks, Writeback, take_overwrites};
use crate::inode::Inode;

#[derive(Debug)]
pub(super) struct Unwritten;

impl WritebackOrder for Unwritten {
    fn write_and_map(
        &self,
        writeback: &Writeback,
        parts: &mut [Part<'_>],
        times: bool,
    ) -> Result<()> {
        writeback.write_runs(take_overwrites(parts), false)?;
        let by_map = parts.iter_mut().filter(|part| !part.inode.has_extent_tree());
        let runs = by_map.flat_map(|part| part.pending.iter_mut().map(Pending::take_run)).collect();
        writeback.write_runs(runs, false)?;
        writeback.note_written(parts);
        for part in parts.iter_mut().filter(|part| part.inode.has_extent_tree()) {
            let size = part.size;
            let pending = std::mem::take(&mut part.pending);
            let count = pending.len();
            for (n, mut pending) in pending.into_iter().enumerate() {
                let end = u64::from(pending.end().get()) * writeback.block_size();
                let reached = if n + 1 == count { size } else { size.min(end) };
                convert_one(writeback, part.inode, &mut pending, reached)?;
            }
        }
        writeback.map(parts, times)
    }
}

/// Writes a run with two handles of its own.
fn convert_one(
    writeback: &Writeback,
    inode: &Inode,
    pending: &mut Pending,
    reached: u64,
) -> Result<()> {
    let space = writeback.space();
    let journal = space.journal();
    let place = [pending.first];
    let reserved = journal.reserve(1 + edit_credits(inode))?;
    let run = pending.take_run();
    let start = run.start;
    {
        let mut nodes = NodeAllocations::for_edits(inode, &place, NodeSource::Reserved)?;
        journal.run(1 + space.credits().blocks + edit_credits(inode), |handle| {
            writeback.map_one(handle, inode, pending, &mut nodes, true)
        })?;
    }
    writeback.write_runs(vec![run], false)?;
    inode.note_written(journal.flush_gate().epoch());
    pending.blocks = PendingBlocks::Unwritten(start);
    let mut nodes = NodeAllocations::for_edits(inode, &place, NodeSource::Reserved)?;
    reserved.run(|handle| {
        writeback.map_one(handle, inode, pending, &mut nodes, false)?;
        writeback.set_disk_size(inode, handle, reached)
    })
}
