//! fallocate(2): allocating, punching and zeroing ranges. [`super::shift`] collapses and inserts
//! ranges.
//!
//! Invariants: every handle leaves a valid file, so an operation that an error or a crash
//! interrupts has changed a shorter range, and nothing worse.
//! Locking: file lock exclusively, then the writeback lock.

use super::FileContext;
use super::inline::InlineData;
use super::placement::HoleNeed;
use super::truncate::Truncation;
use super::writeback::Pending;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{
    Edit, Mapping, NodeAllocations, NodeSource, Spot, State, edit_credits, find, lookup,
};
use crate::injected_faults::Fault;
use crate::inode::{Attributes, ExclusiveGuard, InlineState, Inode, InodeRef, WritebackState};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::extent::{Extent, MAX_UNWRITTEN_LEN};
use uext4_ondisk::{FileBlock, FileKind};

/// An operation on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Gives every byte of the range a block. The content stays.
    Allocate {
        /// The size of the file stays, even if the range ends behind it.
        keep_size: bool,
    },
    /// Makes the range a hole. The size of the file stays.
    PunchHole,
    /// Gives the range blocks that read as zeroes.
    ZeroRange {
        /// The size of the file stays, even if the range ends behind it.
        keep_size: bool,
    },
    /// Gives the range blocks of its own, so that writing it cannot run out of space. Files share
    /// no blocks in ext4, so this is the same as [`AllocateMode::Allocate`]. The kernel's ext4 does
    /// not have it.
    UnshareRange {
        /// The size of the file stays, even if the range ends behind it.
        keep_size: bool,
    },
    /// Removes the range, and moves what is behind it to where it began. Offset and length are
    /// multiples of the block size; the range ends before the end of the file.
    CollapseRange,
    /// Inserts a hole of the length of the range at its offset, and moves what is there behind it.
    /// Offset and length are multiples of the block size; the offset is before the end of the file.
    InsertRange,
}

impl AllocateMode {
    /// Whether the file becomes longer where the range ends behind it.
    fn may_grow(self) -> bool {
        match self {
            Self::Allocate { keep_size }
            | Self::ZeroRange { keep_size }
            | Self::UnshareRange { keep_size } => !keep_size,
            Self::PunchHole | Self::CollapseRange | Self::InsertRange => false,
        }
    }
}

/// Allocates, punches, zeroes and shifts ranges.
#[derive(Debug)]
pub(super) struct RangeAllocation {
    pub(super) context: Arc<FileContext>,
    inline: Arc<InlineData>,
    pub(super) truncation: Arc<Truncation>,
}

impl RangeAllocation {
    pub(super) fn new(
        context: &Arc<FileContext>,
        inline: &Arc<InlineData>,
        truncation: &Arc<Truncation>,
    ) -> Self {
        let (context, truncation) = (Arc::clone(context), Arc::clone(truncation));
        Self { context, inline: Arc::clone(inline), truncation }
    }

    /// [`super::Files::allocate`], without the sync of files with the SYNC flag.
    pub(super) fn allocate(
        &self,
        inode: &InodeRef,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let end = self.check(inode, mode, offset, len)?;
        if mode != AllocateMode::PunchHole {
            self.context.check_end(inode, end)?;
        }
        self.allocate_locked(inode, mode, offset, end)
    }

    /// Checks what can be checked without the file's lock. Changes nothing. Returns the byte behind
    /// the range.
    pub(super) fn check(
        &self,
        inode: &Inode,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.context.check_content(inode)?;
        let end = offset
            .checked_add(len)
            .filter(|_| len > 0)
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "a range must have a length"))?;
        if inode.kind() != FileKind::Regular {
            return Err(Error::new(ErrorKind::InvalidArgument, "not a regular file"));
        }
        if mode != AllocateMode::PunchHole {
            if !inode.has_extent_tree() {
                let context = format!("inode {} has a block map", inode.ino());
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
            self.context.check_fits(inode, end)?;
        }
        if !matches!(mode, AllocateMode::Allocate { .. }) {
            self.context.check_not_append_only(inode)?;
        }
        Ok(end)
    }

    fn allocate_locked(
        &self,
        inode: &InodeRef,
        mode: AllocateMode,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let _exclusive = inode.lock().write();
        self.context.check_not_sealed(inode)?;
        let shifts = matches!(mode, AllocateMode::CollapseRange | AllocateMode::InsertRange);
        let is_unlocked = shifts && Fault::UnlockedShift.is_injected();
        let mut lock = (!is_unlocked).then(|| inode.writeback());
        let mut none = WritebackState::default();
        let state = lock.as_deref_mut().unwrap_or(&mut none);
        self.truncation.finish_truncate(inode, state)?;
        if inode.inline_state() != InlineState::No {
            if mode == AllocateMode::PunchHole && inode.is_inline() {
                return self.inline.punch(inode, offset, end);
            }
            self.inline.leave(inode, state)?;
        }
        if mode.may_grow() && inode.is_encrypted() && end > inode.size() {
            self.truncation.hide_tail_durably(inode, state, inode.size())?;
        }
        match mode {
            AllocateMode::Allocate { keep_size } | AllocateMode::UnshareRange { keep_size } => {
                self.allocate_range(inode, state, offset, end, keep_size)
            }
            AllocateMode::PunchHole => self.punch(inode, state, offset, end),
            AllocateMode::CollapseRange => self.collapse(inode, state, offset, end),
            AllocateMode::InsertRange => self.insert(inode, state, offset, end),
            AllocateMode::ZeroRange { keep_size } => {
                self.zero_range(inode, state, offset, end, keep_size)
            }
        }
    }

    fn allocate_range(
        &self,
        inode: &Inode,
        state: &mut WritebackState,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<()> {
        let (first, last) = self.context.blocks_of(offset, end);
        // Pages over holes get their blocks first.
        if inode.pages().hole_pages > 0 {
            self.context.writeback.write_back(inode, state)?;
        }
        let size = if keep_size { None } else { Some(end) };
        self.fill_holes(inode, first, last, size)?;
        self.finish_range(inode, size)
    }

    /// Gives every hole in `first .. last` unwritten blocks, and raises the size with them up to
    /// `size`. The caller holds the writeback lock.
    pub(super) fn fill_holes(
        &self,
        inode: &Inode,
        first: FileBlock,
        last: FileBlock,
        size: Option<u64>,
    ) -> Result<()> {
        let mut at = first;
        while at < last {
            let spot = find(inode, at)?;
            let mapping = spot.mapping;
            if mapping.state != State::Hole {
                at = mapping.end();
                continue;
            }
            let hole = mapping.len.min(last.get() - at.get()).min(MAX_UNWRITTEN_LEN);
            // With clusters nothing is lengthened from a preallocation.
            let has_clusters = self.context.space.layout().has_clusters();
            let held = if has_clusters { None } else { inode.hold_blocks(hole)? };
            let lent = inode.lend(held.into_iter().collect());
            if let Some(next) = self.lengthen(inode, &spot, hole, size)? {
                at = next;
                continue;
            }
            let origin = inode.stream_goal();
            let need = HoleNeed { want: hole, reserved: false, placed: None, origin };
            let (blocks, len) = self.context.placement.place(inode, &spot, &need)?;
            drop(lent);
            let pending = Pending::of(at, len, blocks);
            let held = inode.hold_units(pending.new_units())?;
            let _lent = inode.lend(held.into_iter().collect());
            at = self.insert_unwritten(inode, pending, size)?;
        }
        Ok(())
    }

    /// Lengthens the unwritten extent that ends at a hole of `hole` blocks, if the inode's
    /// preallocation continues it on the device. Returns the block behind it.
    fn lengthen(
        &self,
        inode: &Inode,
        spot: &Spot,
        hole: u32,
        size: Option<u64>,
    ) -> Result<Option<FileBlock>> {
        let at = spot.mapping.first;
        let is_next = |before: &Extent| before.unwritten && before.end() == at;
        let Some(before) = spot.before().filter(is_next) else { return Ok(None) };
        let Some(mut borrowed) =
            self.context.space.borrow_preallocation(&inode.preallocation, at.get())
        else {
            return Ok(None);
        };
        let len = hole.min(MAX_UNWRITTEN_LEN - before.len).min(borrowed.len());
        if len == 0 || borrowed.start() != before.start.plus(u64::from(before.len)) {
            return Ok(None);
        }
        let next = at.plus(len);
        let reached = size.map(|size| size.min(self.context.offset_of(next)));
        let table = inode.table_block()?;
        let credits = self.context.space.credits().blocks + Spot::CREDITS;
        self.context.journal().run(credits, |handle| {
            borrowed.mark_used(handle, len)?;
            spot.lengthen(handle, inode, &table, len, |a| Self::note_range(a, reached))
        })?;
        Ok(Some(next))
    }

    /// Maps newly allocated blocks; returns the block behind them.
    fn insert_unwritten(
        &self,
        inode: &Inode,
        mut pending: Pending,
        size: Option<u64>,
    ) -> Result<FileBlock> {
        let (at, len) = (pending.first, pending.len);
        let mut nodes = NodeAllocations::for_edits(inode, &[at], NodeSource::Free)?;
        let reached = size.map(|size| size.min(self.context.offset_of(at.plus(len))));
        let credits = 1 + self.context.space.credits().blocks + edit_credits(inode);
        self.context.journal().run(credits, |handle| {
            let (start, clusters) = pending.mark_used(&self.context.space, handle)?;
            inode.preallocation.note_used(handle, start, len);
            let new = Extent { first: at, len, start, unwritten: true };
            Edit::insert(new).apply_with(handle, inode, &mut nodes, clusters)?;
            Self::change_range(handle, inode, reached)
        })?;
        Ok(at.plus(len))
    }

    fn change_range(handle: &mut Handle<'_>, inode: &Inode, size: Option<u64>) -> Result<()> {
        inode.note_data_change(handle);
        inode.update(handle, |attributes| Self::note_range(attributes, size))
    }

    fn note_range(attributes: &mut Attributes, size: Option<u64>) {
        if let Some(size) = size.filter(|&size| size > attributes.size) {
            attributes.set_size(size);
        }
        attributes.touch_content();
    }

    /// Brings the new size and times into a transaction when a range has been changed.
    fn touch_range(&self, inode: &Inode, size: Option<u64>) -> Result<()> {
        let _pin = inode.table_block()?;
        self.context.journal().run(1, |handle| Self::change_range(handle, inode, size))
    }

    fn finish_range(&self, inode: &Inode, size: Option<u64>) -> Result<()> {
        if size.is_none_or(|size| size <= inode.size()) && !inode.attributes().times_dirty {
            let is_done = size.is_none_or(|size| size <= inode.attributes().disk_size);
            if is_done && inode.sync_tid(true).is_some() {
                return Ok(());
            }
        }
        self.touch_range(inode, size)
    }

    fn punch(
        &self,
        inode: &Inode,
        state: &mut WritebackState,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let (first, last) = self.zero_edges(inode, offset, end)?;
        self.truncation.write_back_beside(inode, state, first, last)?;
        let drained = inode.drain_direct_io(first, last)?;
        self.truncation.remove_range(inode, &drained, first, last)?;
        self.context.writeback.write_back(inode, state)?;
        self.touch_range(inode, None)
    }

    fn zero_range(
        &self,
        inode: &Inode,
        state: &mut WritebackState,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<()> {
        let (first, last) = self.zero_edges(inode, offset, end)?;
        let drained = inode.drain_direct_io(first, last)?;
        let mut at = first;
        while at < last {
            let mapping = lookup(inode, at)?;
            let next = match mapping.state {
                State::Written(_) => self.unwrite(inode, &drained, &mapping, last)?,
                State::Hole | State::Unwritten(_) => mapping.end().min(last),
            };
            // Not before: if the range cannot be zeroed, data that is only in memory must stay.
            self.truncation.discard_pages(inode, at, next);
            at = next;
        }
        self.context.writeback.write_back(inode, state)?;
        let size = if keep_size { None } else { Some(end) };
        self.fill_holes(inode, self.context.block_at(offset), self.context.block_from(end), size)?;
        self.touch_range(inode, size)
    }

    /// Makes written blocks unwritten; returns the block behind them.
    fn unwrite(
        &self,
        inode: &Inode,
        _drained: &ExclusiveGuard<'_>,
        mapping: &Mapping,
        last: FileBlock,
    ) -> Result<FileBlock> {
        let len = mapping.len.min(last.get() - mapping.first.get()).min(MAX_UNWRITTEN_LEN);
        let State::Written(start) = mapping.state else { return Ok(mapping.end()) };
        let mut nodes = NodeAllocations::for_edits(inode, &[mapping.first], NodeSource::Pool)?;
        self.context.journal().run(edit_credits(inode), |handle| {
            let new = Extent { first: mapping.first, len, start, unwritten: true };
            Edit::insert(new).apply(handle, inode, &mut nodes)?;
            inode.note_data_change(handle);
            Ok(())
        })?;
        Ok(mapping.first.plus(len))
    }

    /// Zeroes the partial blocks at the edges of a range, in memory. Returns the blocks that lie
    /// wholly inside it.
    fn zero_edges(&self, inode: &Inode, offset: u64, end: u64) -> Result<(FileBlock, FileBlock)> {
        let size = inode.size();
        let (first, last) = (self.context.block_from(offset), self.context.block_at(end));
        let (head, tail) = (offset % self.context.block_size(), end % self.context.block_size());
        let one_block = self.context.block_at(offset) == self.context.block_at(end);
        if head > 0 && offset < size {
            let to = if one_block { tail } else { self.context.block_size() };
            self.truncation.zero_in_block(inode, self.context.block_at(offset), head, to)?;
        }
        if tail > 0 && !(head > 0 && one_block) && end - tail < size {
            self.truncation.zero_in_block(inode, self.context.block_at(end), 0, tail)?;
        }
        Ok((first, last.max(first)))
    }
}
