//! Writing into the page cache.
//!
//! Invariants: a page over a hole holds a reservation of a block from the moment it is dirty, so
//! the data that a write has acknowledged can be written back. Bytes of a page past the end of the
//! file are zero.
//! Locking: the file's lock exclusively.

use super::FileContext;
use super::allocate::RangeAllocation;
use super::clusters::OwnClusters;
use super::inline::{self, InlineData};
use super::journaled::JournaledData;
use super::read::PageReader;
use super::reclaim::Reclaim;
use super::sync::Syncs;
use super::truncate::Truncation;
use crate::error::{ErrorKind, Result};
use crate::extent::{State, lookup};
use crate::inode::{HolePage, InlineState, Inode, InodeRef};
use std::sync::Arc;
use uext4_ondisk::FileBlock;

/// Most bytes that are copied under one hold of the lock of the pages.
pub(super) const WRITE_CHUNK_BYTES: u64 = 1 << 20;

/// A block that a write is about to touch for the first time.
#[derive(Clone, Copy)]
struct Fresh {
    at: FileBlock,
    state: State,
    /// The file has blocks in its cluster, if that is more than a block.
    has_cluster: bool,
}

/// Writes into the page cache, or through the journal.
#[derive(Debug)]
pub(super) struct PageWriter {
    pub(super) context: Arc<FileContext>,
    pub(super) journaled: Arc<JournaledData>,
    pub(super) inline: Arc<InlineData>,
    pub(super) reclaim: Arc<Reclaim>,
    pub(super) reader: Arc<PageReader>,
    pub(super) truncation: Arc<Truncation>,
    pub(super) ranges: Arc<RangeAllocation>,
    pub(super) syncs: Arc<Syncs>,
}

impl PageWriter {
    /// Writes as much of `buf` as it can. An error that came after the first part is not reported.
    /// The caller holds the file exclusively.
    pub(super) fn write_locked(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<usize> {
        self.check_write(inode, offset, buf)?;
        if inode.inline_state() != InlineState::No && !buf.is_empty() {
            if self.inline.write(inode, offset, buf)? {
                return Ok(buf.len());
            }
            self.leave_inode(inode)?;
        }
        let journaled = self.context.is_journaled(inode);
        let mut done = 0;
        while done < buf.len() {
            let (at, rest) = (offset + done as u64, &buf[done..]);
            let chunk = first_chunk(at, rest);
            let written = match journaled {
                true => self.write_journaled(inode, at, rest),
                false => self.write_chunk(inode, at, chunk),
            };
            match written {
                Ok(len) => {
                    done += len;
                    // There was no room for more.
                    let is_short = !journaled && len < chunk.len();
                    if done == buf.len() || is_short {
                        break;
                    }
                    let limited = self.reclaim.limit_own_pages(inode, len);
                    if !journaled && limited.is_err() {
                        self.context.watch_dropped(limited);
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    self.context.watch_dropped::<()>(Err(error));
                    break;
                }
            }
        }
        Ok(done)
    }

    /// Moves data that is in the inode to a block. The caller holds the file exclusively.
    pub(super) fn leave_inode(&self, inode: &InodeRef) -> Result<()> {
        let mut has_reclaimed = false;
        while inode.inline_state() != InlineState::No {
            let releases = self.context.space.releases();
            let left = self.inline.leave(inode, &mut inode.writeback());
            match left {
                Err(error) if *error.kind() == ErrorKind::NoSpace => {
                    if !self.syncs.make_room(&mut has_reclaimed, releases)? {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
        Ok(())
    }

    /// Checks that a range can be written, and completes a truncate that stands in its way. The
    /// caller holds the file exclusively.
    pub(super) fn check_write(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<()> {
        self.check_range(inode, offset, buf)?;
        if buf.is_empty() {
            return Ok(());
        }
        let end = offset.saturating_add(buf.len() as u64);
        self.context.check_end(inode, end)?;
        self.truncation.finish_truncate_before(inode, end)
    }

    /// Checks that a range can be written. Changes nothing. No byte can be written anywhere. The
    /// caller holds the file exclusively.
    pub(super) fn check_range(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<()> {
        // Again, because the file may have been sealed before it was locked.
        self.context.check_not_sealed(inode)?;
        if buf.is_empty() {
            return Ok(());
        }
        self.context.check_fits(inode, offset.saturating_add(buf.len() as u64))?;
        self.check_append_only(inode, offset, buf)
    }

    /// Such a write is whole or fails.
    fn write_journaled(&self, inode: &Inode, offset: u64, buf: &[u8]) -> Result<usize> {
        match self.journaled.write(inode, offset, buf) {
            Err(error) if *error.kind() == ErrorKind::NoSpace => {
                self.syncs.reclaim_space();
                self.journaled.write(inode, offset, buf)
            }
            other => other,
        }
    }

    /// Checks that a write to an append-only file changes no byte that is there. It may repeat
    /// them, because a cache above that appends to a page writes the whole page.
    fn check_append_only(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<()> {
        let size = inode.size();
        if offset == size || self.context.check_not_append_only(inode).is_ok() {
            return Ok(());
        }
        let overlap = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let repeated = &buf[..overlap.min(buf.len())];
        let mut there = vec![0; repeated.len()];
        match inode.is_inline() {
            true if offset < size => inline::read(inode, offset, &mut there)?,
            true => {}
            false => self.reader.read_part(inode, offset, &mut there, size)?,
        }
        if offset < size && there == repeated {
            return Ok(());
        }
        self.context.check_not_append_only(inode)
    }

    /// Writes a chunk into the page cache, or as much of its front as there is room for.
    /// It is halved until it fits; only before the first half space is reclaimed.
    fn write_chunk(&self, inode: &InodeRef, offset: u64, mut buf: &[u8]) -> Result<usize> {
        let mut has_reclaimed = false;
        loop {
            match self.write_whole_chunk(inode, offset, buf, &mut has_reclaimed) {
                Err(error) if error.is_lack_of_room() => {
                    buf = front_half(offset, buf, self.context.block_size()).ok_or(error)?;
                }
                other => return other,
            }
        }
    }

    fn write_whole_chunk(
        &self,
        inode: &InodeRef,
        offset: u64,
        buf: &[u8],
        has_reclaimed: &mut bool,
    ) -> Result<usize> {
        let end = offset + buf.len() as u64;
        let (first, last) = self.context.blocks_of(offset, end);
        let size = inode.size();
        for at in self.partial_blocks(offset, end) {
            // Past the end of the file there are no bytes to keep.
            if self.context.offset_of(at) < size {
                self.reader.load_page(inode, at)?;
            }
        }
        self.reserve_and_copy(inode, first, last, offset, buf, has_reclaimed)?;
        let mut attributes = inode.attributes();
        attributes.size = attributes.size.max(end);
        if attributes.touch_content_if_new() {
            inode.note_times(&mut attributes);
        }
        Ok(buf.len())
    }

    /// The first and the last block of a range, if the range covers them only in part.
    fn partial_blocks(&self, offset: u64, end: u64) -> impl Iterator<Item = FileBlock> {
        let head = !offset.is_multiple_of(self.context.block_size());
        let tail = !end.is_multiple_of(self.context.block_size());
        let (first, last) = (self.context.block_at(offset), self.context.block_at(end));
        let tail = tail.then_some(last).filter(|&at| !(head && at == first));
        head.then_some(first).into_iter().chain(tail)
    }

    fn reserve_and_copy(
        &self,
        inode: &InodeRef,
        first: FileBlock,
        last: FileBlock,
        offset: u64,
        buf: &[u8],
        has_reclaimed: &mut bool,
    ) -> Result<()> {
        inode.disable_direct_fast_path();
        loop {
            let releases = self.context.space.releases();
            let copied = self
                .allocate_at_write(inode, first, last)
                .and_then(|()| self.fresh_blocks(inode, first, last))
                .and_then(|fresh| self.try_copy(inode, &fresh, first, last, offset, buf));
            match copied {
                Err(error) if *error.kind() == ErrorKind::NoSpace => {
                    if !self.syncs.make_room(has_reclaimed, releases)? {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
    }

    /// With `nodelalloc`, gives holes unwritten blocks before they are written to. Writeback then
    /// only converts them, as in ext4. A block map has no unwritten blocks, and its holes get
    /// blocks at writeback all the same.
    fn allocate_at_write(&self, inode: &Inode, first: FileBlock, last: FileBlock) -> Result<()> {
        if self.context.options.delalloc || !inode.has_extent_tree() {
            return Ok(());
        }
        let _writeback = inode.writeback();
        self.ranges.fill_holes(inode, first, last, None)
    }

    /// The blocks of the range that have no dirty page and no page under writeback.
    fn fresh_blocks(&self, inode: &Inode, first: FileBlock, last: FileBlock) -> Result<Vec<Fresh>> {
        let needs: Vec<FileBlock> = {
            let pages = inode.pages();
            let mut present = pages.map.range(first, last).peekable();
            let mut needs = Vec::new();
            for block in first.get()..last.get() {
                let at = FileBlock(block);
                let page = present.next_if(|(there, _)| *there == at);
                if page.is_none_or(|(_, page)| !page.dirty && !page.writeback) {
                    needs.push(at);
                }
            }
            needs
        };
        let mut fresh = Vec::with_capacity(needs.len());
        let mut known: Option<crate::extent::Mapping> = None;
        let mut clusters = OwnClusters::default();
        let has_clusters = self.context.space.layout().has_clusters();
        for at in needs {
            let mapping = match known {
                Some(mapping) if at < mapping.end() => mapping,
                _ => lookup(inode, at)?,
            };
            known = Some(mapping);
            let is_hole = mapping.state == State::Hole;
            let has_cluster = has_clusters && is_hole && clusters.has(inode, at)?;
            fresh.push(Fresh { at, state: mapping.state, has_cluster });
        }
        Ok(fresh)
    }

    /// Reserves space for the fresh blocks and copies, or does neither.
    fn try_copy(
        &self,
        inode: &Inode,
        fresh: &[Fresh],
        first: FileBlock,
        last: FileBlock,
        offset: u64,
        buf: &[u8],
    ) -> Result<()> {
        let (mut holes, mut unwritten) = (0, 0);
        for f in fresh {
            holes += u32::from(matches!(f.state, State::Hole));
            unwritten += u32::from(matches!(f.state, State::Unwritten(_)));
        }
        if holes > 0 && inode.is_charged() {
            inode.load_usage()?;
        }
        let mut pages = inode.pages();
        if holes + unwritten > 0 {
            let in_holes = fresh.iter().filter(|f| matches!(f.state, State::Hole));
            let in_holes = in_holes.map(|f| HolePage { at: f.at, has_cluster: f.has_cluster });
            pages.reserve_pages(in_holes, holes, unwritten, last)?;
        }
        if pages.map.dirty() == 0 {
            pages.dirty_since_ms = self.context.clock_ms();
        }
        let mut fresh = fresh.iter().peekable();
        for block in first.get()..last.get() {
            let at = FileBlock(block);
            let here = fresh.next_if(|f| f.at == at);
            let page = if here.is_some() && pages.map.peek(at).is_none() {
                pages.map.insert_dirty(at, self.context.new_page(at, offset, buf))
            } else {
                pages.map.modify(at, |page| self.context.copy_in(at, page, offset, buf))
            };
            match here.map(|f| f.state) {
                Some(State::Hole) => page.reserved = true,
                Some(State::Unwritten(_)) => page.converting = true,
                Some(State::Written(_)) | None => {}
            }
        }
        Ok(())
    }
}

/// The front half of `buf`, which is for byte `offset`, up to the begin of a block; at least what
/// is in its first block. `None` if it is in one block.
pub(super) fn front_half(offset: u64, buf: &[u8], block_size: u64) -> Option<&[u8]> {
    let half = offset + buf.len() as u64 / 2;
    let first_end = offset - offset % block_size + block_size;
    let end = (half - half % block_size).max(first_end);
    let len = usize::try_from(end - offset).ok()?;
    buf.get(..len).filter(|front| front.len() < buf.len())
}

/// The part of `buf`, which is for byte `offset`, that is copied under one hold of the pages' lock.
pub(super) fn first_chunk(offset: u64, buf: &[u8]) -> &[u8] {
    let most = WRITE_CHUNK_BYTES - offset % WRITE_CHUNK_BYTES;
    &buf[..buf.len().min(most as usize)]
}
