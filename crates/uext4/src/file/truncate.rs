//! Truncating files.
//!
//! Invariants: if blocks or a tail remain to be dealt with, a shrinking file becomes an orphan in
//! the handle that sets its size, and ceases to be one in the handle that completes the work. So
//! orphan clean-up completes the work after a crash at any moment. The bytes behind the new end are
//! zero on the device before that last handle.
//! Locking: file lock exclusively, then the writeback lock.

use super::FileContext;
use super::inline::{self, InlineData};
use super::journaled::{JournaledData, show};
use super::read::PageReader;
use super::reserve::Need;
use crate::error::{Error, Result};
use crate::extent::{State, lookup};
use crate::injected_faults::Fault;
use crate::inode::{ExclusiveGuard, InlineState, Inode, InodeRef, WritebackState};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::{FileBlock, FileKind};

/// Truncates files, and removes blocks.
#[derive(Debug)]
pub(super) struct Truncation {
    pub(super) context: Arc<FileContext>,
    pub(super) journaled: Arc<JournaledData>,
    inline: Arc<InlineData>,
    reader: Arc<PageReader>,
}

impl Truncation {
    pub(super) fn new(
        context: &Arc<FileContext>,
        journaled: &Arc<JournaledData>,
        inline: &Arc<InlineData>,
        reader: &Arc<PageReader>,
    ) -> Self {
        let (context, journaled) = (Arc::clone(context), Arc::clone(journaled));
        let (inline, reader) = (Arc::clone(inline), Arc::clone(reader));
        Self { context, journaled, inline, reader }
    }

    /// Sets the size of a regular file.
    ///
    /// # Errors
    /// `FileTooBig`, `ReadOnly`; a device failure.
    pub(super) fn set_size(&self, inode: &InodeRef, size: u64) -> Result<()> {
        self.check_size(inode, size)?;
        self.context.check_end(inode, size)?;
        let _exclusive = inode.lock().write();
        self.context.check_not_sealed(inode)?;
        self.set_size_locked(inode, size)
    }

    /// Checks what can be checked without the file's lock. Changes nothing.
    ///
    /// # Errors
    /// `FileTooBig`, `NotPermitted`, `ReadOnly`.
    pub(super) fn check_size(&self, inode: &Inode, size: u64) -> Result<()> {
        self.context.check_content(inode)?;
        self.context.check_not_append_only(inode)?;
        self.context.check_fits(inode, size)
    }

    fn set_size_locked(&self, inode: &InodeRef, size: u64) -> Result<()> {
        let mut state = inode.writeback();
        self.finish_truncate(inode, &mut state)?;
        let old = inode.size();
        if size == 0 && old > 0 {
            inode.flush_on_close.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        if inode.is_inline() && self.inline.set_size(inode, size)? {
            return Ok(());
        }
        if size > old && inode.inline_state() != InlineState::No {
            self.inline.leave(inode, &mut state)?;
        }
        if size >= old {
            self.hide_tail_durably(inode, &mut state, old)?;
            let _pin = inode.table_block()?;
            return self.context.journal().run(1, |handle| change_size(handle, inode, size));
        }
        let drained = inode.drain_direct_io(self.context.block_at(size), FileBlock::END)?;
        self.shrink(inode, &drained, &mut state, size)
    }

    /// Truncates an inode to `size` bytes, which are fewer than it has, or frees the blocks behind
    /// its end.
    pub(super) fn shrink(
        &self,
        inode: &Arc<Inode>,
        drained: &ExclusiveGuard<'_>,
        state: &mut WritebackState,
        size: u64,
    ) -> Result<()> {
        if inode.attributes().is_inline() {
            return self.shrink_inline(inode, size);
        }
        let keep = self.context.block_from(size);
        self.write_back_beside(inode, state, keep, FileBlock::END)?;
        let _pin = inode.table_block()?;
        // Steps that can fail come before anything is lost, even in memory.
        let mut removal = self.plan_removal(inode, drained, keep, FileBlock::END)?;
        let (tail, patch) = match self.context.is_journaled(inode) {
            true => (false, self.journaled.plan_tail(inode, size)?),
            false => (self.zero_tail(inode, size)?, None),
        };
        let is_whole = removal.is_last && !tail;
        let was_unfinished = inode.has_unfinished_truncate();
        let orphan_credits = self.context.space.credits().orphan;
        let credits = 2 + orphan_credits + if is_whole { removal.credits } else { 0 };
        self.context.journal().run(credits, |handle| {
            inode.note_data_change(handle);
            if !is_whole {
                inode.set_unfinished_truncate(true);
                self.context.orphans.add(handle, inode)?;
            }
            inode.update(handle, |attributes| {
                // The completion of a truncate, which may come with a recovery, changes no content.
                // It keeps the times that were set since.
                let is_change = attributes.size != size;
                attributes.size = size;
                // Even if that raises it: data that was never written back reads as zeroes until it
                // is, and the pages that would have raised the size may be gone.
                attributes.disk_size = size;
                if is_change {
                    attributes.touch_content();
                }
            })?;
            patch.iter().try_for_each(|patch| patch.apply(handle))?;
            if !is_whole {
                return Ok(());
            }
            self.remove_planned(handle, inode, &mut removal)?;
            if was_unfinished { self.cease_to_be_orphan(handle, inode) } else { Ok(()) }
        })?;
        show(inode, patch);
        inode.preallocation.truncate(&self.context.space, keep.get());
        self.discard_pages(inode, keep, FileBlock::END);
        if is_whole {
            inode.set_unfinished_truncate(false);
            return Ok(());
        }
        self.remove_range(inode, drained, keep, FileBlock::END)?;
        if tail && inode.is_dax() {
            self.zero_dax(
                inode,
                self.context.block_at(size),
                size % self.context.block_size(),
                self.context.block_size(),
            )?;
        }
        self.context.writeback.write_back(inode, state)?;
        self.context
            .space
            .journal()
            .run(orphan_credits, |handle| self.cease_to_be_orphan(handle, inode))?;
        inode.set_unfinished_truncate(false);
        Ok(())
    }

    /// [`Truncation::shrink`] for a file whose data is in the inode: completes what an image was
    /// left with.
    fn shrink_inline(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        let _pin = inode.table_block()?;
        let was_unfinished = inode.has_unfinished_truncate();
        let credits = 1 + self.context.space.credits().orphan;
        self.context.journal().run(credits, |handle| {
            inode.note_data_change(handle);
            inode.update(handle, |attributes| {
                inline::shorten(inode, attributes, size)?;
                attributes.set_size(size);
                Ok::<_, Error>(())
            })??;
            if was_unfinished { self.cease_to_be_orphan(handle, inode) } else { Ok(()) }
        })?;
        inode.set_unfinished_truncate(false);
        Ok(())
    }

    /// Takes an inode off the orphans in the handle that completes a truncate. A file that was
    /// unlinked while open stays an orphan until it is deleted.
    fn cease_to_be_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let is_linked = inode.attributes().links > 0;
        if is_linked { self.context.orphans.remove(handle, inode) } else { Ok(()) }
    }

    /// Completes a truncate that failed after the size was set, because the old bytes behind the
    /// end must not come back when the file grows. The caller holds the file exclusively.
    ///
    /// # Errors
    /// Those of the truncate.
    pub(super) fn finish_truncate(
        &self,
        inode: &Arc<Inode>,
        state: &mut WritebackState,
    ) -> Result<()> {
        if !inode.has_unfinished_truncate() {
            return Ok(());
        }
        let size = inode.size();
        let drained = inode.drain_direct_io(self.context.block_at(size), FileBlock::END)?;
        self.shrink(inode, &drained, state, size)
    }

    /// Completes a truncate that failed, if a write up to byte `end` makes the file grow. The
    /// caller holds the file exclusively.
    pub(super) fn finish_truncate_before(&self, inode: &Arc<Inode>, end: u64) -> Result<()> {
        if inode.is_encrypted() && end > inode.size() {
            self.hide_tail(inode, inode.size())?;
        }
        if inode.has_unfinished_truncate() && end > inode.size() {
            return self.finish_truncate(inode, &mut inode.writeback());
        }
        Ok(())
    }

    /// With clusters, before blocks `first .. end` are removed: writes back the pages that go into
    /// clusters which have blocks there, because these may be the last ones.
    pub(super) fn write_back_beside(
        &self,
        inode: &Inode,
        state: &mut WritebackState,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<()> {
        if self.context.space.layout().has_clusters()
            && inode.pages().clusters.are_beside(first, end)
        {
            self.context.writeback.write_back(inode, state)?;
        }
        Ok(())
    }

    /// Drops cached pages and their reservations. The caller holds the file lock and the writeback
    /// lock.
    pub(super) fn discard_pages(&self, inode: &Inode, first: FileBlock, end: FileBlock) {
        let mut pages = inode.pages();
        let pages = &mut *pages;
        let converting = pages.map.range(first, end).filter(|(_, page)| page.converting).count();
        let mut gone = Need { conversions: converting as u32, ..Need::default() };
        pages.map.discard(first, end, &mut |at| {
            gone.units += pages.clusters.remove(at, false);
            gone.pages += 1;
        });
        pages.unreserve(gone);
    }

    /// Zeroes the bytes behind `size` in its block, in memory. True if the block must be written.
    /// For a file in DAX mode nothing is zeroed: true if the caller has to do it after the size is
    /// set.
    fn zero_tail(&self, inode: &Inode, size: u64) -> Result<bool> {
        let within = size % self.context.block_size();
        let injected = Fault::UnzeroedTail.is_injected();
        // Without its key the tail stays, and is hidden when the block is decrypted.
        let is_closed = inode.is_encrypted() && inode.lacks_key();
        if within == 0 || inode.kind() != FileKind::Regular || injected || is_closed {
            return Ok(false);
        }
        if inode.is_dax() {
            let state = lookup(inode, self.context.block_at(size))?.state;
            return Ok(matches!(state, State::Written(_)));
        }
        self.zero_in_block(inode, self.context.block_at(size), within, self.context.block_size())
    }

    /// Zeroes what a truncate without the key has left behind the end of an encrypted file, before
    /// the file grows.
    pub(super) fn hide_tail(&self, inode: &Inode, size: u64) -> Result<()> {
        let within = size % self.context.block_size();
        if within == 0 {
            return Ok(());
        }
        let at = self.context.block_at(size);
        self.zero_in_block(inode, at, within, self.context.block_size()).map(|_| ())
    }

    /// [`Truncation::hide_tail`] for a file whose size is to grow from `size` on by itself, without
    /// a write: on the device before the size, because a crash must not show the tail either.
    pub(super) fn hide_tail_durably(
        &self,
        inode: &Inode,
        state: &mut WritebackState,
        size: u64,
    ) -> Result<()> {
        if !inode.is_encrypted() {
            return Ok(());
        }
        self.hide_tail(inode, size)?;
        self.context.writeback.write_back(inode, state).map(drop)
    }

    /// Zeroes bytes `from .. to` of one block in memory, if it has data. True if the block must be
    /// written. Journaled data is in a transaction on return.
    pub(super) fn zero_in_block(
        &self,
        inode: &Inode,
        at: FileBlock,
        from: u64,
        to: u64,
    ) -> Result<bool> {
        if self.context.is_journaled(inode) {
            self.journaled.zero(inode, at, from, to)?;
            return Ok(false);
        }
        if inode.is_dax() {
            self.zero_dax(inode, at, from, to)?;
            return Ok(false);
        }
        let is_dirty = inode.pages().map.peek(at).is_some_and(|page| page.dirty || page.writeback);
        if !is_dirty {
            match lookup(inode, at)?.state {
                State::Written(_) => self.reader.load_page(inode, at)?,
                // These read as zeroes already. A clean page over one must not become dirty,
                // because no block is reserved for it.
                State::Hole | State::Unwritten(_) => return Ok(false),
            }
        }
        let mut pages = inode.pages();
        let page = pages.map.modify(at, |bytes| bytes[from as usize..to as usize].fill(0));
        Ok(!page.reserved)
    }

    /// Stores zeroes into bytes `from .. to` of one block, if it is written. The caller holds the
    /// file exclusively, and its writeback lock.
    pub(super) fn zero_dax(&self, inode: &Inode, at: FileBlock, from: u64, to: u64) -> Result<()> {
        let State::Written(start) = lookup(inode, at)?.state else { return Ok(()) };
        let zeroes = &self.context.zeroes[..(to - from) as usize];
        self.context
            .store(inode, start.get() * self.context.block_size() + from, zeroes)
            .map_err(|e| Error::io(format!("zeroing a part of block {start}"), e))?;
        inode.note_written(self.context.journal().flush_gate().epoch());
        Ok(())
    }
}

/// Sets the size of a file whose content changes.
pub(super) fn change_size(handle: &mut Handle<'_>, inode: &Inode, size: u64) -> Result<()> {
    inode.note_data_change(handle);
    inode.update(handle, |attributes| {
        attributes.set_size(size);
        attributes.touch_content();
    })
}
