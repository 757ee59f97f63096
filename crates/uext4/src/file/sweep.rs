//! Writeback: dirty pages of one inode to the device, then their mapping.
//!
//! Invariants: pages are written before the handle that makes them reachable starts. The size
//! that a handle sets is one that was read before the pages were taken, so all data below it is on
//! the device. Under its sweep lock an inode's tree changes by nobody else.
//! Locking: sweep lock; no file lock, so callers go on writing meanwhile (pages are copied).

use super::Files;
use crate::alloc::Claim;
use crate::error::{Error, Result};
use crate::extent::{Edit, NodeClaims, State, edit_credits, lookup};
use crate::inode::{Inode, InodeRef, SweepState};
use crate::plant::{self, Fault};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4_ondisk::extent::{Extent, MAX_UNWRITTEN_LEN};
use uext4_ondisk::{BlockNo, FileBlock};

/// Most pages that are taken at a time.
const BATCH_PAGES: usize = 2048;
/// Most buffers in one device write.
const IO_PAGES: usize = 512;
/// Most extents that one handle inserts; fewer where the journal is small or the tree deep.
const EDITS_PER_HANDLE: u32 = 8;

/// Pages on their way to the device.
struct Batch {
    pages: Vec<(FileBlock, Arc<[u8]>)>,
    /// Size of the file before the pages were taken.
    size: u64,
    /// No dirty page is left.
    is_last: bool,
}

/// A mapping to be made when the data is on the device.
struct Pending {
    first: FileBlock,
    len: u32,
    blocks: PendingBlocks,
}

enum PendingBlocks {
    Claimed(Claim),
    Unwritten(BlockNo),
}

impl Files {
    /// Writes back everything of an inode that is dirty now. A failure is recorded for those who
    /// sync.
    ///
    /// # Errors
    /// A device failure; no space; an aborted journal. The pages stay dirty.
    pub fn sweep(&self, inode: &InodeRef) -> Result<()> {
        let mut state = inode.sweep();
        self.sweep_locked(inode, &mut state)
    }

    /// As [`Files::sweep`], but returns at once if a sweep that began after this call has ended
    /// meanwhile: it has taken everything that was dirty at the call.
    pub(super) fn sweep_shared(&self, inode: &InodeRef) -> Result<()> {
        let seen = inode.sweeps_started.load(Ordering::Acquire);
        let mut state = inode.sweep();
        if state.started > seen && !state.failed {
            return Ok(());
        }
        self.sweep_locked(inode, &mut state)
    }

    pub(super) fn sweep_locked(&self, inode: &Inode, state: &mut SweepState) -> Result<()> {
        state.started += 1;
        state.failed = false;
        inode.sweeps_started.store(state.started, Ordering::Release);
        let mut from = FileBlock(0);
        loop {
            let batch = self.take_batch(inode, from);
            let Some(&(last, _)) = batch.pages.last() else {
                return self.catch_up_size(inode, batch.size);
            };
            let written = self.write_batch(inode, &batch);
            let mut pages = inode.pages();
            for (at, _) in &batch.pages {
                pages.map.end_writeback(*at, written.is_ok());
            }
            drop(pages);
            if let Err(error) = written {
                state.failed = true;
                inode.errors.record(error.clone());
                return Err(error);
            }
            self.recount_reservation(inode, &batch);
            if batch.is_last {
                return Ok(());
            }
            from = last.plus(1);
        }
    }

    /// Nothing is dirty below `size`: a size that waited for pages which were punched out since
    /// waits no longer.
    fn catch_up_size(&self, inode: &Inode, size: u64) -> Result<()> {
        if inode.attributes().disk_size >= size {
            return Ok(());
        }
        let _pin = inode.table_block()?;
        self.space.journal().run(1, |handle| self.set_disk_size(inode, handle, size))
    }

    /// Takes dirty pages from `from` to the end of the file. Those behind it belong to a write that
    /// has not set its size yet: mapped now, they would stand behind the end if we crashed.
    fn take_batch(&self, inode: &Inode, from: FileBlock) -> Batch {
        let size = inode.size();
        let mut pages = inode.pages();
        if pages.map.dirty() == 0 {
            return Batch { pages: Vec::new(), size, is_last: true };
        }
        let mut dirty: Vec<FileBlock> = pages
            .map
            .range(from, self.block_from(size))
            .filter(|(_, page)| page.dirty)
            .map(|(at, _)| at)
            .take(BATCH_PAGES + 1)
            .collect();
        let is_last = dirty.len() <= BATCH_PAGES;
        dirty.truncate(BATCH_PAGES);
        let taken = dirty
            .into_iter()
            .filter_map(|at| pages.map.begin_writeback(at).map(|data| (at, data)))
            .collect();
        Batch { pages: taken, size, is_last }
    }

    fn write_batch(&self, inode: &Inode, batch: &Batch) -> Result<()> {
        let mut pending = Vec::new();
        let mut late = Vec::new();
        let mut rest = &batch.pages[..];
        while let Some(&(first, _)) = rest.first() {
            let run = contiguous(rest).min(IO_PAGES);
            let mapping = lookup(&self.space, inode, first)?;
            let len = run.min(mapping.len as usize);
            let (start, len) = match mapping.state {
                State::Written(block) => (block, len),
                State::Unwritten(block) => {
                    let blocks = PendingBlocks::Unwritten(block);
                    pending.push(Pending { first, len: len as u32, blocks });
                    (block, len)
                }
                State::Hole => {
                    let want = (len as u32).min(MAX_UNWRITTEN_LEN);
                    let claim =
                        self.space.claim_reserved(self.goal(inode, first, &pending)?, want)?;
                    let (start, len) = (claim.start(), claim.len());
                    let blocks = PendingBlocks::Claimed(claim);
                    pending.push(Pending { first, len, blocks });
                    (start, len as usize)
                }
            };
            if plant::is(Fault::MappingBeforeData) {
                late.push((start, &rest[..len]));
            } else {
                self.write_pages(start, &rest[..len])?;
            }
            rest = &rest[len..];
        }
        inode.note_written(self.space.journal().flush_gate().epoch());
        let swept_to = match (batch.is_last, batch.pages.last()) {
            (false, Some((last, _))) => (u64::from(last.get()) + 1) * self.block_size(),
            _ => u64::MAX,
        };
        self.map_pending(inode, pending, batch.size.min(swept_to))?;
        if plant::is(Fault::MappingBeforeData) {
            self.space.journal().commit_all()?;
        }
        late.into_iter().try_for_each(|(start, pages)| self.write_pages(start, pages))
    }

    fn write_pages(&self, start: BlockNo, pages: &[(FileBlock, Arc<[u8]>)]) -> Result<()> {
        let views: Vec<&[u8]> = pages.iter().map(|(_, data)| &**data).collect();
        self.space
            .cache()
            .device()
            .write_vectored_at(start.get() * self.block_size(), &views)
            .or_else(|e| if plant::is(Fault::SwallowedError) { Ok(()) } else { Err(e) })
            .map_err(|e| Error::io(format!("writing block {start}"), e))
    }

    /// Where the blocks of a hole would best be: behind the block before it.
    pub(super) fn next_to(&self, inode: &Inode, first: FileBlock) -> Result<BlockNo> {
        let Some(before) = first.get().checked_sub(1) else { return Ok(inode.goal()) };
        match lookup(&self.space, inode, FileBlock(before))?.state {
            State::Written(block) | State::Unwritten(block) => Ok(block.plus(1)),
            State::Hole => Ok(inode.goal().plus(u64::from(before))),
        }
    }

    fn goal(&self, inode: &Inode, first: FileBlock, pending: &[Pending]) -> Result<BlockNo> {
        match pending.last() {
            Some(Pending { first: f, len, blocks: PendingBlocks::Claimed(claim) })
                if f.plus(*len) == first =>
            {
                Ok(claim.start().plus(u64::from(claim.len())))
            }
            _ => self.next_to(inode, first),
        }
    }

    /// Inserts the mappings of data that is on the device, and the size it reaches.
    fn map_pending(&self, inode: &Inode, mut pending: Vec<Pending>, size: u64) -> Result<()> {
        while !pending.is_empty() {
            let each = 2 + edit_credits(inode);
            let most = (self.space.journal().credits_max() / 2 / each).clamp(1, EDITS_PER_HANDLE);
            let rest = pending.split_off(pending.len().min(most as usize));
            let places: Vec<FileBlock> = pending.iter().map(|p| p.first).collect();
            let mut nodes = NodeClaims::for_edits(&self.space, inode, &places, true)?;
            let credits = 1 + each * places.len() as u32;
            // Data has no place behind the size at any commit: the size follows each handle.
            let reached = match (rest.is_empty(), pending.last()) {
                (false, Some(last)) => {
                    size.min(u64::from(last.first.plus(last.len).get()) * self.block_size())
                }
                _ => size,
            };
            self.space.journal().run(credits, |handle| {
                for run in &mut pending {
                    let new = match &mut run.blocks {
                        PendingBlocks::Claimed(claim) => self.space.take(handle, claim, run.len)?,
                        PendingBlocks::Unwritten(block) => *block,
                    };
                    let new =
                        Extent { first: run.first, len: run.len, start: new, unwritten: false };
                    let edit = Edit { first: run.first, end: new.end(), new: Some(new) };
                    edit.apply(&self.space, handle, inode, &mut nodes)?;
                }
                self.set_disk_size(inode, handle, reached)
            })?;
            pending = rest;
        }
        self.catch_up_size(inode, size)
    }

    fn set_disk_size(
        &self,
        inode: &Inode,
        handle: &mut crate::journal::Handle<'_>,
        size: u64,
    ) -> Result<()> {
        inode.note_data_change(handle);
        inode.update(handle, |attributes| {
            // The file may have been cut by a caller that waits for this sweep to end.
            attributes.disk_size = attributes.disk_size.max(size.min(attributes.size));
        })
    }

    /// Pages that were written hold no promise any more, unless they became dirty over a new
    /// hole since.
    fn recount_reservation(&self, inode: &Inode, _batch: &Batch) {
        let mut pages = inode.pages();
        let (mut reserved, mut converting) = (0, 0);
        if pages.map.dirty() > 0 {
            for (_, page) in pages.map.range(FileBlock(0), FileBlock::END) {
                reserved += u32::from(page.reserved);
                converting += u32::from(page.converting);
            }
        }
        // A smaller promise cannot fail.
        let smaller = self.set_reservation(&mut pages, reserved, converting);
        debug_assert!(smaller.is_ok(), "a promise grew by writeback");
    }
}

/// Pages at the start of `pages` that follow each other.
fn contiguous(pages: &[(FileBlock, Arc<[u8]>)]) -> usize {
    let first = pages[0].0.get();
    pages.iter().zip(first..).take_while(|((at, _), want)| at.get() == *want).count()
}
