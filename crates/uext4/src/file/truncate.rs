//! Truncating files and punching holes, and the removal of blocks that both need.
//!
//! Invariants: if blocks or a tail remain to be dealt with, a shrinking file becomes an orphan in
//! the handle that sets its size, and ceases to be one in the handle that completes the work. So
//! orphan clean-up completes the work after a crash at any moment. The bytes behind the new end are
//! zero on the device before that last handle.
//! Locking: file lock exclusively, then the writeback lock.

use super::{Files, ORPHAN_CREDITS};
use crate::cache::Buffer;
use crate::error::Result;
use crate::extent::{Edit, Mapping, NodeAllocations, State, edit_credits, lookup};
use crate::injected_faults::Fault;
use crate::inode::{ExclusiveGuard, Inode, InodeRef, WritebackState};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Place};

/// Most extents that one handle removes.
const EXTENTS_PER_HANDLE: usize = 4;
/// Most metadata blocks (of a directory) that one handle frees, because each needs a revoke record.
const METADATA_BLOCKS_PER_HANDLE: u32 = 32;

impl Files {
    /// Sets the size of a regular file.
    ///
    /// # Errors
    /// `FileTooBig`, `ReadOnly`; a device failure.
    pub fn set_size(&self, inode: &InodeRef, size: u64) -> Result<()> {
        self.check_changeable(inode)?;
        self.check_not_append_only(inode)?;
        self.check_end(size)?;
        {
            let _exclusive = inode.lock().write();
            self.set_size_locked(inode, size)?;
        }
        self.honour_sync_flag(inode)
    }

    fn set_size_locked(&self, inode: &InodeRef, size: u64) -> Result<()> {
        let mut state = inode.writeback();
        self.finish_truncate(inode, &mut state)?;
        let old = inode.size();
        if size == 0 && old > 0 {
            inode.flush_on_close.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        if size >= old {
            let _pin = inode.table_block()?;
            return self.space.journal().run(1, |handle| Self::change_size(handle, inode, size));
        }
        let drained = inode.drain_direct_io(self.block_at(size), FileBlock::END)?;
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
        let keep = self.block_from(size);
        let _pin = inode.table_block()?;
        // Steps that can fail come before anything is lost, even in memory.
        let mut removal = self.plan_removal(inode, drained, keep, FileBlock::END)?;
        let (tail, patch) = match self.is_journaled(inode) {
            true => (false, self.plan_tail(inode, size)?),
            false => (self.zero_tail(inode, size)?, None),
        };
        let is_whole = removal.is_last && !tail;
        let was_unfinished = inode.has_unfinished_truncate();
        let credits = 2 + ORPHAN_CREDITS + if is_whole { removal.credits } else { 0 };
        self.space.journal().run(credits, |handle| {
            inode.note_data_change(handle);
            if !is_whole {
                inode.set_unfinished_truncate(true);
                self.orphans.add(handle, inode)?;
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
        Self::show(inode, patch);
        inode.preallocation.truncate(&self.space, keep.get());
        self.discard_pages(inode, keep, FileBlock::END);
        if is_whole {
            inode.set_unfinished_truncate(false);
            return Ok(());
        }
        self.remove_range(inode, drained, keep, FileBlock::END)?;
        if tail && inode.is_dax() {
            self.zero_dax(inode, self.block_at(size), size % self.block_size(), self.block_size())?;
        }
        self.writeback.write_back(inode, state)?;
        self.space
            .journal()
            .run(ORPHAN_CREDITS, |handle| self.cease_to_be_orphan(handle, inode))?;
        inode.set_unfinished_truncate(false);
        Ok(())
    }

    /// Takes an inode off the orphans in the handle that completes a truncate. A file that was
    /// unlinked while open stays an orphan until it is deleted.
    fn cease_to_be_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let is_linked = inode.attributes().links > 0;
        if is_linked { self.orphans.remove(handle, inode) } else { Ok(()) }
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
        let drained = inode.drain_direct_io(self.block_at(size), FileBlock::END)?;
        self.shrink(inode, &drained, state, size)
    }

    /// Completes a truncate that failed, if a write up to byte `end` makes the file grow. The
    /// caller holds the file exclusively.
    pub(super) fn finish_truncate_before(&self, inode: &Arc<Inode>, end: u64) -> Result<()> {
        if inode.has_unfinished_truncate() && end > inode.size() {
            return self.finish_truncate(inode, &mut inode.writeback());
        }
        Ok(())
    }

    /// Drops cached pages and their reservations. The caller holds the file lock and the writeback
    /// lock.
    pub(super) fn discard_pages(&self, inode: &Inode, first: FileBlock, end: FileBlock) {
        let mut pages = inode.pages();
        let converting =
            pages.map.range(first, end).filter(|(_, page)| page.converting).count() as u32;
        let reserved = pages.map.discard(first, end);
        let (reserved, converting) =
            (pages.reserved.saturating_sub(reserved), pages.converting.saturating_sub(converting));
        // A smaller reservation cannot fail.
        let smaller = pages.set_reservation(reserved, converting);
        debug_assert!(smaller.is_ok(), "a reservation grew by discarding pages");
    }

    /// Zeroes the bytes behind `size` in its block, in memory. True if the block must be written.
    /// For a file in DAX mode nothing is zeroed: true if the caller has to do it after the size is
    /// set.
    fn zero_tail(&self, inode: &Inode, size: u64) -> Result<bool> {
        let within = size % self.block_size();
        let injected = Fault::UnzeroedTail.is_injected();
        if within == 0 || inode.kind() != FileKind::Regular || injected {
            return Ok(false);
        }
        if inode.is_dax() {
            let state = lookup(inode, self.block_at(size))?.state;
            return Ok(matches!(state, State::Written(_)));
        }
        self.zero_in_block(inode, self.block_at(size), within, self.block_size())
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
        if self.is_journaled(inode) {
            self.zero_journaled(inode, at, from, to)?;
            return Ok(false);
        }
        if inode.is_dax() {
            self.zero_dax(inode, at, from, to)?;
            return Ok(false);
        }
        let is_dirty = inode.pages().map.peek(at).is_some_and(|page| page.dirty || page.writeback);
        if !is_dirty {
            match lookup(inode, at)?.state {
                State::Written(_) => self.load_page(inode, at)?,
                // These read as zeroes already. A clean page over one must not become dirty,
                // because no block is reserved for it.
                State::Hole | State::Unwritten(_) => return Ok(false),
            }
        }
        let mut pages = inode.pages();
        let page = pages.map.modify(at, |bytes| bytes[from as usize..to as usize].fill(0));
        Ok(!page.reserved)
    }

    /// Removes the mappings of `first .. end` in as many handles as it takes, and frees the blocks.
    /// Pages go together with the blocks that they lie over, so a removal that fails leaves the
    /// rest of the file, including data that is only in memory.
    pub(super) fn remove_range(
        &self,
        inode: &Inode,
        drained: &ExclusiveGuard<'_>,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<()> {
        let mut at = first;
        loop {
            let mut removal = self.plan_removal(inode, drained, at, end)?;
            if !removal.runs.is_empty() {
                self.space.journal().run(removal.credits, |handle| {
                    inode.note_data_change(handle);
                    self.remove_planned(handle, inode, &mut removal)
                })?;
            }
            // A run that was shortened was removed from its end.
            for run in &removal.runs {
                self.discard_pages(inode, run.first, run.end());
            }
            if removal.is_last {
                self.discard_pages(inode, at, end);
                return Ok(());
            }
            self.discard_pages(inode, at, removal.next);
            at = removal.next;
        }
    }

    /// Plans the removal of the next extents in one handle. The caller keeps direct I/O out until
    /// that handle has ended.
    pub(super) fn plan_removal(
        &self,
        inode: &Inode,
        _drained: &ExclusiveGuard<'_>,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<Removal> {
        let mut removal = self.choose_removal(inode, first, end)?;
        self.check_disjoint(inode, &removal.runs)?;
        let places: Vec<FileBlock> = removal.runs.iter().map(|run| run.first).collect();
        // Splitting an extent in two adds an entry.
        let splits = end != FileBlock::END;
        removal.nodes = NodeAllocations::for_removal(inode, &places, splits)?;
        for run in &removal.runs {
            if let State::Written(start) | State::Unwritten(start) = run.state {
                removal.pins.extend(self.space.pin_run(start, run.len)?);
            }
        }
        Ok(removal)
    }

    /// Checks that `runs` map no block twice: to free it a second time would fail in the middle of
    /// the handle and abort the journal.
    fn check_disjoint(&self, inode: &Inode, runs: &[Mapping]) -> Result<()> {
        let place = |run: &Mapping| match run.state {
            State::Written(start) | State::Unwritten(start) => {
                Some((start.get(), start.get() + u64::from(run.len)))
            }
            State::Hole => None,
        };
        let mut places: Vec<_> = runs.iter().filter_map(place).collect();
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            let kind = CorruptKind::Rule { what: "extent tree", why: "maps a block twice" };
            return Err(kind.at(Place::Inode(inode.ino())).into());
        }
        Ok(())
    }

    fn choose_removal(&self, inode: &Inode, first: FileBlock, end: FileBlock) -> Result<Removal> {
        let mut removal = Removal { credits: 1, next: first, is_last: false, ..Removal::nothing() };
        let is_metadata = inode.kind() != FileKind::Regular;
        let mut blocks_left = METADATA_BLOCKS_PER_HANDLE;
        let mut revokes_left = self.revokes_per_handle();
        let edit = edit_credits(inode);
        let most = self.space.journal().credits_max() / 2;
        let mut at = first;
        while at < end {
            let mut mapping = lookup(inode, at)?;
            mapping.len = mapping.len.min(end.get() - at.get());
            at = mapping.end();
            if mapping.state == State::Hole {
                continue;
            }
            if removal.runs.len() == EXTENTS_PER_HANDLE || blocks_left == 0 {
                return Ok(removal);
            }
            if is_metadata {
                mapping.len = mapping.len.min(blocks_left);
                blocks_left -= mapping.len;
                removal.credits += mapping.len;
            }
            // A run through many small groups is shortened to what a handle can change.
            let per_group = self.space.layout().blocks_per_group;
            let groups_max = most.saturating_sub(removal.credits + edit) / 2;
            if groups_max < 3 && !removal.runs.is_empty() {
                return Ok(removal);
            }
            let most_blocks = (groups_max.max(3) - 2).saturating_mul(per_group);
            let mut is_whole = mapping.len <= most_blocks;
            if !is_whole {
                // From its end, because the rest of the extent is then one piece and needs no new
                // entry.
                mapping = mapping.last_part(most_blocks);
            }
            if !is_metadata {
                let Some(revokes) = self.limit_to_revokes(&mut mapping, revokes_left) else {
                    return Ok(removal);
                };
                revokes_left -= revokes.count;
                removal.credits += revokes.count;
                is_whole &= !revokes.was_shortened;
            }
            removal.credits += edit + 2 * (mapping.len / per_group + 2);
            removal.runs.push(mapping);
            if !is_whole {
                return Ok(removal);
            }
            at = mapping.end();
            removal.next = at;
        }
        removal.is_last = true;
        Ok(removal)
    }

    pub(super) fn remove_planned(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        removal: &mut Removal,
    ) -> Result<()> {
        let is_metadata = inode.kind() != FileKind::Regular;
        for run in &removal.runs {
            let edit = Edit { first: run.first, end: run.end(), new: None };
            let removed = edit.apply(handle, inode, &mut removal.nodes)?;
            let mut at = run.first;
            for (start, len) in removed.runs {
                let mut is_logged = is_metadata;
                if is_metadata {
                    for i in 0..u64::from(len) {
                        handle.forget(start.plus(i))?;
                    }
                } else {
                    for block in self.space.journal().logged_data(start, len) {
                        handle.forget(block)?;
                        is_logged = true;
                    }
                }
                if is_logged || !self.ablations.recycles_blocks() {
                    self.space.free(handle, start, len)?;
                } else {
                    self.space.free_or_recycle(handle, &inode.preallocation, at, (start, len))?;
                }
                at = at.plus(len);
            }
        }
        Ok(())
    }
}

/// The extents that one handle removes.
pub(super) struct Removal {
    pub(super) runs: Vec<Mapping>,
    pub(super) credits: u32,
    /// Where the next removal continues.
    pub(super) next: FileBlock,
    /// There is nothing left to remove behind these.
    pub(super) is_last: bool,
    /// Tree nodes for the removal.
    nodes: NodeAllocations,
    /// The bitmaps in which the blocks are freed.
    pins: Vec<Arc<Buffer>>,
}

impl Removal {
    pub(super) fn nothing() -> Self {
        Self {
            runs: Vec::new(),
            credits: 0,
            next: FileBlock::END,
            is_last: true,
            nodes: NodeAllocations::default(),
            pins: Vec::new(),
        }
    }
}
