//! fallocate(2) that moves content: collapsing and inserting ranges.
//!
//! What: dirty pages are written back first. Then the mappings behind the range change their place
//! in the file, which changes the extent tree alone. The blocks of a collapsed range are freed as
//! by a punch.
//! Invariants: one handle does it all, so a crash shows the file before or after, unless that
//! handle would be too large. A range of more than four extents is punched first, by a chain of
//! handles. If more leaves must change than a [`LEAVES_PART`]th of a transaction, each handle moves
//! that many: from the range on when they move down, from the end when they move up, so that they
//! never move over each other. A crash between two of those handles leaves a hole of the length of
//! the range where the last one stopped, and the larger of the two sizes; nothing is lost.
//! Locking: file lock exclusively, then the writeback lock.
//! Kernel counterpart: `ext4_collapse_range`, `ext4_insert_range`.

use super::allocate::RangeAllocation;
use super::truncate::change_size;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{
    Distance, Edit, NodeAllocations, NodeSource, Shift, ShiftPins, edit_credits, leaves_from, list,
    lookup_extent,
};
use crate::inode::{ExclusiveGuard, Inode, WritebackState};
use crate::journal::Handle;
use uext4_ondisk::FileBlock;
use uext4_ondisk::extent::Extent;

/// One handle moves this part of the largest transaction in leaves. With the index nodes above them
/// they are less than half of a transaction, however deep the tree is.
const LEAVES_PART: u32 = 16;

impl RangeAllocation {
    /// Collapses `offset .. end`. The caller holds the file lock and the writeback lock.
    pub(super) fn collapse(
        &self,
        inode: &Inode,
        state: &mut WritebackState,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let size = self.check_collapse(inode, offset, end)?;
        // No page may be dirty, because its block is about to change its place in the file.
        self.context.writeback.write_back(inode, state)?;
        let (first, last) = (self.context.block_at(offset), self.context.block_at(end));
        let drained = inode.drain_direct_io(first, FileBlock::END)?;
        let shift =
            Shift { from: last, end: FileBlock::END, by: Distance::Down(last.get() - first.get()) };
        let new_size = size - (end - offset);
        let in_one = self.collapse_in_one(inode, &drained, first, &shift, new_size)?;
        if !in_one {
            self.truncation.remove_range(inode, &drained, first, last)?;
        }
        // Pieces of the preallocation that came back meanwhile are for places before the shift.
        inode.preallocation.discard_pieces(&self.context.space);
        if in_one {
            return Ok(());
        }
        self.truncation.discard_pages(inode, first, FileBlock::END);
        let leaves = leaves_from(inode, last)?;
        let mut parts = leaves.chunks(self.leaves_max()).peekable();
        while let Some(part) = parts.next() {
            let end = parts.peek().map_or(FileBlock::END, |next| next[0]);
            let is_last = parts.peek().is_none();
            let joint = [FileBlock(first.get().saturating_sub(1)), first];
            let places = part.iter().chain(&joint).copied();
            let pins = ShiftPins::read(inode, places)?;
            let shift = Shift { from: part[0], end, ..shift };
            self.context.journal().run(pins.credits + edit_credits(inode), |handle| {
                shift.apply(handle, inode)?;
                if is_last {
                    self.join(handle, inode, first)?;
                }
                change_size(handle, inode, if is_last { new_size } else { size })
            })?;
        }
        Ok(())
    }

    /// Frees the blocks from `first` up to the shift and makes the shift, if one handle can do
    /// both. False if it cannot.
    fn collapse_in_one(
        &self,
        inode: &Inode,
        drained: &ExclusiveGuard<'_>,
        first: FileBlock,
        shift: &Shift,
        new_size: u64,
    ) -> Result<bool> {
        let leaves = leaves_from(inode, shift.from)?;
        if leaves.len() > self.leaves_max() {
            return Ok(false);
        }
        let mut removal = self.truncation.plan_removal(inode, drained, first, shift.from)?;
        let joint = FileBlock(first.get().saturating_sub(1));
        let places = leaves.into_iter().chain([joint]);
        let pins = ShiftPins::read(inode, places)?;
        let credits = removal.credits + pins.credits + edit_credits(inode) + 1;
        if !removal.is_last || credits > self.context.journal().credits_max() / 2 {
            return Ok(false);
        }
        self.context.journal().run(credits, |handle| {
            self.truncation.remove_planned(handle, inode, &mut removal)?;
            shift.apply(handle, inode)?;
            self.join(handle, inode, first)?;
            change_size(handle, inode, new_size)
        })?;
        self.truncation.discard_pages(inode, first, FileBlock::END);
        Ok(true)
    }

    /// Inserts a hole at `offset .. end`. The caller holds the file lock and the writeback lock.
    pub(super) fn insert(
        &self,
        inode: &Inode,
        state: &mut WritebackState,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let new_size = self.check_insert(inode, offset, end)?;
        self.context.check_end(inode, new_size)?;
        self.context.writeback.write_back(inode, state)?;
        let at = self.context.block_at(offset);
        inode.preallocation.discard_pieces(&self.context.space);
        let drained = inode.drain_direct_io(at, FileBlock::END)?;
        let blocks = self.context.block_at(end).get() - at.get();
        // An extent that crosses the place is split there: its tail is removed and inserted again
        // behind the hole.
        let crossing = lookup_extent(inode, at)?.1.filter(|e| e.first < at);
        let from = crossing.map_or(at, |extent| extent.end());
        self.check_shift_up(inode, from, blocks)?;
        let tail = crossing.map(|extent| Extent {
            first: at,
            len: extent.end().get() - at.get(),
            start: extent.start.plus(u64::from(at.get() - extent.first.get())),
            ..extent
        });
        self.truncation.discard_pages(inode, at, FileBlock::END);
        let leaves = leaves_from(inode, from)?;
        let mut upper = FileBlock::END;
        for part in leaves.chunks(self.leaves_max()).rev() {
            let shift = Shift { from: part[0], end: upper, by: Distance::Up(blocks) };
            upper = part[0];
            let tail = tail.filter(|_| upper == from);
            self.shift_up(inode, &drained, &shift, part, tail, new_size)?;
        }
        Ok(())
    }

    /// One handle of an insertion. The last handle splits the crossing extent.
    fn shift_up(
        &self,
        inode: &Inode,
        _drained: &ExclusiveGuard<'_>,
        shift: &Shift,
        part: &[FileBlock],
        tail: Option<Extent>,
        new_size: u64,
    ) -> Result<()> {
        let places: Vec<FileBlock> =
            tail.map(|tail| [tail.first; 2]).into_iter().flatten().collect();
        let mut nodes = NodeAllocations::for_edits(inode, &places, NodeSource::Pool)?;
        let pins = ShiftPins::read(inode, part.iter().chain(&places).copied())?;
        let edits = if tail.is_some() { 2 * edit_credits(inode) } else { 0 };
        self.context.journal().run(pins.credits + edits + 1, |handle| {
            let mut edit = |handle: &mut Handle<'_>, first, end, new| {
                let edit = Edit { first, end, new };
                edit.apply(handle, inode, &mut nodes).map(drop)
            };
            if let Some(tail) = tail {
                edit(handle, tail.first, tail.end(), None)?;
            }
            shift.apply(handle, inode)?;
            if let (Some(tail), Distance::Up(blocks)) = (tail, shift.by) {
                let moved = Extent { first: tail.first.plus(blocks), ..tail };
                edit(handle, moved.first, moved.end(), Some(moved))?;
            }
            change_size(handle, inode, new_size)
        })
    }

    /// Merges two extents that meet at `at`, now that the range between them is gone, if they
    /// continue each other on the device.
    fn join(&self, handle: &mut Handle<'_>, inode: &Inode, at: FileBlock) -> Result<()> {
        let Some(before) = at.get().checked_sub(1) else { return Ok(()) };
        let extent = |at| lookup_extent(inode, at).map(|(_, extent)| extent);
        let (Some(left), Some(right)) = (extent(FileBlock(before))?, extent(at)?) else {
            return Ok(());
        };
        let continues = right.first == at
            && left.unwritten == right.unwritten
            && left.start.plus(u64::from(left.len)) == right.start
            && left.len + right.len <= Extent::max_len(left.unwritten);
        if continues {
            Edit::insert(right).apply(handle, inode, &mut NodeAllocations::default())?;
        }
        Ok(())
    }

    fn leaves_max(&self) -> usize {
        (self.context.journal().credits_max() / LEAVES_PART).max(1) as usize
    }

    /// Checks a range that is to be collapsed; returns the size of the file. Changes nothing.
    pub(super) fn check_collapse(&self, inode: &Inode, offset: u64, end: u64) -> Result<u64> {
        let size = inode.size();
        self.check_whole_blocks(offset, end)?;
        if end >= size {
            let context = format!("the range ends at {end}, not before the file's {size} bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        Ok(size)
    }

    /// Checks a range that is to be inserted; returns the new size of the file. Changes nothing.
    pub(super) fn check_insert(&self, inode: &Inode, offset: u64, end: u64) -> Result<u64> {
        let size = inode.size();
        self.check_whole_blocks(offset, end)?;
        if offset >= size {
            let context = format!("offset {offset} is not inside the file's {size} bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let new_size = size.saturating_add(end - offset);
        self.context.check_fits(inode, new_size)?;
        Ok(new_size)
    }

    fn check_whole_blocks(&self, offset: u64, end: u64) -> Result<()> {
        // A block keeps its place in its cluster.
        let clusters = u64::from(self.context.space.layout().cluster_blocks);
        let block_size = self.context.block_size() * clusters;
        if offset.is_multiple_of(block_size) && end.is_multiple_of(block_size) {
            return Ok(());
        }
        let context = format!("offset and length must be multiples of {block_size} bytes");
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }

    /// Checks that every block can move up, even blocks that fallocate has left behind the end of
    /// the file.
    fn check_shift_up(&self, inode: &Inode, from: FileBlock, blocks: u32) -> Result<()> {
        let mut end = from;
        list(inode, from, &mut |extent| {
            end = end.max(extent.end());
            true
        })?;
        if u64::from(end.get()) + u64::from(blocks) <= self.context.space.layout().max_file_blocks()
        {
            return Ok(());
        }
        let context = format!("blocks up to {end} cannot move by {blocks}");
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }
}
