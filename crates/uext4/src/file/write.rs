//! Writing into the page cache.
//!
//! Invariants: a page over a hole holds a reservation of a block from the moment it is dirty, so
//! the data that a write has acknowledged can be written back. Bytes of a page past the end of the
//! file are zero.
//! Locking: the file's lock exclusively.

use super::Files;
use crate::error::{ErrorKind, Result};
use crate::extent::{State, lookup};
use crate::inode::{Inode, InodeRef};
use std::sync::Arc;
use uext4_ondisk::FileBlock;

/// Most bytes that are copied under one hold of the lock of the pages.
const WRITE_CHUNK_BYTES: u64 = 1 << 20;

/// A block that a write is about to touch for the first time.
#[derive(Clone, Copy)]
struct Fresh {
    at: FileBlock,
    state: State,
}

impl Files {
    /// Writes all of `buf` at byte `offset`. Returns fewer bytes only if an error came after the
    /// first.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooBig`, `ReadOnly`; a device failure, also one that keeps other files'
    /// data, which fills the cache, from being written back.
    pub fn write(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<usize> {
        if inode.is_dax()
            && let Some(written) = self.write_dax(inode, offset, buf)
        {
            return written;
        }
        self.check_changeable(inode)?;
        self.wait_below_limit(inode)?;
        let written = {
            let _exclusive = inode.lock().write();
            self.write_locked(inode, offset, buf)?
        };
        self.after_write(inode, written)?;
        Ok(written)
    }

    /// Appends `buf`; returns the byte where it begins.
    ///
    /// # Errors
    /// Those of [`Files::write`].
    pub fn append(&self, inode: &InodeRef, buf: &[u8]) -> Result<(u64, usize)> {
        self.check_changeable(inode)?;
        self.wait_below_limit(inode)?;
        let (offset, written) = {
            let _exclusive = inode.lock().write();
            let offset = inode.size();
            (offset, self.write_locked(inode, offset, buf)?)
        };
        self.after_write(inode, written)?;
        Ok((offset, written))
    }

    pub(super) fn write_locked(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<usize> {
        let end = offset.saturating_add(buf.len() as u64);
        self.check_end(end)?;
        self.check_append_only(inode, offset, buf)?;
        self.finish_truncate_before(inode, end)?;
        let journaled = self.is_journaled(inode);
        let leaves_dirt = !journaled && !inode.is_dax();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let in_chunk = WRITE_CHUNK_BYTES - at % WRITE_CHUNK_BYTES;
            let len = (buf.len() - done).min(in_chunk as usize);
            let written = if journaled {
                self.write_journaled(inode, at, &buf[done..])
            } else if inode.is_dax() {
                self.write_dax_slowly(inode, at, &buf[done..done + len])
            } else {
                self.write_chunk(inode, at, &buf[done..done + len]).map(|()| len)
            };
            match written {
                Ok(len) => {
                    done += len;
                    if done == buf.len() {
                        break;
                    }
                    let limited = self.limit_own_pages(inode, len);
                    if leaves_dirt && limited.is_err() {
                        self.watch_dropped(limited);
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                // The part before the error is written, and its length is returned.
                Err(error) => {
                    self.watch_dropped::<()>(Err(error));
                    break;
                }
            }
        }
        Ok(done)
    }

    /// Checks that a write to an append-only file changes no byte that is there. It may repeat
    /// them, because a cache above that appends to a page writes the whole page.
    pub(super) fn check_append_only(
        &self,
        inode: &InodeRef,
        offset: u64,
        buf: &[u8],
    ) -> Result<()> {
        let size = inode.size();
        if offset == size || self.check_not_append_only(inode).is_ok() {
            return Ok(());
        }
        let overlap = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let repeated = &buf[..overlap.min(buf.len())];
        let mut there = vec![0; repeated.len()];
        self.read_part(inode, offset, &mut there, size)?;
        if offset < size && there == repeated {
            return Ok(());
        }
        self.check_not_append_only(inode)
    }

    /// Paces a writer after its write, and keeps the cache within its budget.
    fn after_write(&self, inode: &InodeRef, written: usize) -> Result<()> {
        if !inode.is_dax() {
            // A failure is ignored: this write is complete, and the next one will be refused.
            let _ = self.pace_writer(written.min(WRITE_CHUNK_BYTES as usize));
            self.reclaim();
        }
        self.honour_sync_flag(inode)
    }

    fn write_chunk(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<()> {
        let end = offset + buf.len() as u64;
        let (first, last) = (self.block_at(offset), self.block_from(end));
        let size = inode.size();
        for at in self.partial_blocks(offset, end) {
            // Past the end of the file there are no bytes to keep.
            if u64::from(at.get()) * self.block_size() < size {
                self.load_page(inode, at)?;
            }
        }
        self.reserve_and_copy(inode, first, last, offset, buf)?;
        let mut attributes = inode.attributes();
        attributes.size = attributes.size.max(end);
        if attributes.touch_content_if_new() {
            inode.note_times(&mut attributes);
        }
        Ok(())
    }

    /// The first and the last block of a range, if the range covers them only in part.
    fn partial_blocks(&self, offset: u64, end: u64) -> impl Iterator<Item = FileBlock> {
        let head = !offset.is_multiple_of(self.block_size());
        let tail = !end.is_multiple_of(self.block_size());
        let (first, last) = (self.block_at(offset), self.block_at(end));
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
    ) -> Result<()> {
        inode.disable_direct_fast_path();
        let mut has_reclaimed = false;
        loop {
            let releases = self.space.releases();
            let copied = self
                .allocate_at_write(inode, first, last)
                .and_then(|()| self.fresh_blocks(inode, first, last))
                .and_then(|fresh| self.try_copy(inode, &fresh, first, last, offset, buf));
            match copied {
                Err(error) if *error.kind() == ErrorKind::NoSpace => {
                    // Preallocations may hold blocks. Reservations are worst cases, which writeback
                    // replaces by what is needed. Freed blocks come back with a commit.
                    if self.space.discard_preallocations() {
                    } else if !has_reclaimed {
                        self.reclaim_space();
                        has_reclaimed = true;
                    } else if !self.space.reclaim_blocks(releases)? {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
    }

    /// With `nodelalloc`, gives holes unwritten blocks before they are written to. Writeback then
    /// only converts them, as in ext4.
    fn allocate_at_write(&self, inode: &Inode, first: FileBlock, last: FileBlock) -> Result<()> {
        if self.options().delalloc {
            return Ok(());
        }
        let _writeback = inode.writeback();
        self.fill_holes(inode, first, last, None)
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
        for at in needs {
            let mapping = match known {
                Some(mapping) if at < mapping.end() => mapping,
                _ => lookup(inode, at)?,
            };
            known = Some(mapping);
            fresh.push(Fresh { at, state: mapping.state });
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
        let count = |is: fn(&State) -> bool| {
            u32::try_from(fresh.iter().filter(|f| is(&f.state)).count()).unwrap_or(u32::MAX)
        };
        let holes = count(|state| matches!(state, State::Hole));
        let unwritten = count(|state| matches!(state, State::Unwritten(_)));
        let mut pages = inode.pages();
        let (reserved, converting) = (pages.reserved, pages.converting);
        if holes + unwritten > 0 {
            pages.set_reservation(reserved + holes, converting + unwritten)?;
        }
        if pages.map.dirty() == 0 {
            pages.dirty_since_ms = self.clock_ms();
        }
        let mut fresh = fresh.iter().peekable();
        for block in first.get()..last.get() {
            let at = FileBlock(block);
            let here = fresh.next_if(|f| f.at == at);
            let page = if here.is_some() && pages.map.peek(at).is_none() {
                pages.map.insert_dirty(at, self.new_page(at, offset, buf))
            } else {
                pages.map.modify(at, |page| self.copy_in(at, page, offset, buf))
            };
            match here.map(|f| f.state) {
                Some(State::Hole) => page.reserved = true,
                Some(State::Unwritten(_)) => page.converting = true,
                Some(State::Written(_)) | None => {}
            }
        }
        Ok(())
    }

    /// A new page: zeroes around the bytes that are written.
    pub(super) fn new_page(&self, at: FileBlock, offset: u64, buf: &[u8]) -> Arc<[u8]> {
        let page_start = u64::from(at.get()) * self.block_size();
        let whole = page_start.checked_sub(offset).and_then(|from| {
            let from = usize::try_from(from).ok()?;
            buf.get(from..)?.get(..self.block_size() as usize)
        });
        if let Some(bytes) = whole {
            return self.table.budget().page_of(bytes);
        }
        let mut page = self.table.budget().zeroes(self.block_size() as usize);
        self.copy_in(at, Arc::make_mut(&mut page), offset, buf);
        page
    }

    pub(super) fn copy_in(&self, at: FileBlock, page: &mut [u8], offset: u64, buf: &[u8]) {
        let page_start = u64::from(at.get()) * self.block_size();
        let from = page_start.max(offset);
        let to = (page_start + self.block_size()).min(offset + buf.len() as u64);
        let source = &buf[(from - offset) as usize..(to - offset) as usize];
        page[(from - page_start) as usize..(to - page_start) as usize].copy_from_slice(source);
    }
}
