//! Reading, and filling the page cache.
//!
//! Locking: the file's lock, shared; device reads happen under this lock alone. A missing page
//! cannot become dirty meanwhile, because writers hold the file exclusively. Therefore the device
//! holds the content of the file where pages are missing, and may be read past the cache. For
//! journaled data, newer block images are put over what the device returns.

use super::FileContext;
use super::far_reads::{FarReads, SLACK, WINDOW_MAX, WINDOW_MIN};
use super::inline;
use super::journaled::JournaledData;
use super::page_bytes::within;
use super::reclaim::Reclaim;
use super::verified_blocks::VerifiedBlocks;
use crate::error::{Error, Result};
use crate::extent::{State, lookup};
use crate::inode::Inode;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, FileBlock};

/// Read-ahead of a sequential reader, in bytes.
const READ_AHEAD_BYTES: u64 = 1 << 20;
/// Reads of this many bytes, and reads of whole files, go past the page cache where it has no page.
/// Such a reader would gain nothing from a second copy, and would pay for it and for its eviction.
const DIRECT_READ_BYTES: usize = 16 << 10;
/// Most bytes read into memory at a time.
pub(super) const READ_CHUNK_BYTES: u64 = 1 << 20;

/// Reads through the page cache.
#[derive(Debug)]
pub(crate) struct PageReader {
    pub(super) context: Arc<FileContext>,
    journaled: Arc<JournaledData>,
    pub(super) reclaim: Arc<Reclaim>,
    pub(super) verified: VerifiedBlocks,
    far_reads: FarReads,
}

impl PageReader {
    pub(super) fn new(
        context: &Arc<FileContext>,
        journaled: &Arc<JournaledData>,
        reclaim: &Arc<Reclaim>,
    ) -> Self {
        let (context, journaled) = (Arc::clone(context), Arc::clone(journaled));
        let verified = VerifiedBlocks::new();
        let far_reads = FarReads::new();
        Self { context, journaled, reclaim: Arc::clone(reclaim), verified, far_reads }
    }

    /// Reads from byte `offset` into `buf`; returns how many bytes, fewer only at the end of the
    /// file.
    ///
    /// # Errors
    /// A corrupt tree; a device failure.
    pub(crate) fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _shared = inode.lock().read();
        let size = inode.size();
        let wanted = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buf.len().min(wanted);
        if count == 0 {
            return Ok(0);
        }
        self.context.note_access(inode, false);
        if inode.is_inline() {
            inline::read(inode, offset, &mut buf[..count])?;
            return Ok(count);
        }
        let mut done = 0;
        for part in buf[..count].chunks_mut(READ_CHUNK_BYTES as usize) {
            self.read_part(inode, offset + done, part, size)?;
            done += part.len() as u64;
            self.reclaim.evict();
        }
        Ok(count)
    }

    pub(super) fn read_part(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
        size: u64,
    ) -> Result<()> {
        let end = offset + buf.len() as u64;
        let first = self.context.block_at(offset);
        let last = self.context.block_from(end);
        let ahead = self.read_ahead(inode, offset, end, size);
        let mut at = first;
        while at < last {
            let missing = self.copy_present(inode, &mut at, last, offset, buf);
            if missing && inode.is_verity() {
                self.read_verified(inode, at, ahead.max(last))?;
            } else if missing {
                at = self.fill(inode, at, last, ahead, offset, buf)?;
            }
        }
        Ok(())
    }

    /// Reads a range that ends inside the file, from pages and from the device, and puts no page
    /// in. The caller holds the file.
    pub(super) fn read_around(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        if inode.is_verity() {
            return self.read_part(inode, offset, buf, inode.size());
        }
        let last = self.context.block_from(offset + buf.len() as u64);
        let mut at = self.context.block_at(offset);
        while at < last {
            if self.copy_present(inode, &mut at, last, offset, buf) {
                let present = inode.pages().map.range(at, last).next().map(|(block, _)| block);
                if present == Some(at) {
                    // Another reader has put the page in.
                    continue;
                }
                let mapping = lookup(inode, at)?;
                let run_end = mapping.end().min(present.unwrap_or(last));
                match mapping.state {
                    State::Written(start) => {
                        self.read_past(inode, at, run_end, start, offset, buf)?;
                    }
                    State::Hole | State::Unwritten(_) => {
                        self.context.zero_out(at, run_end, offset, buf)
                    }
                }
                at = run_end;
            }
        }
        Ok(())
    }

    /// Copies pages from memory, from `at` on, until one is missing. True if one was missing.
    fn copy_present(
        &self,
        inode: &Inode,
        at: &mut FileBlock,
        last: FileBlock,
        offset: u64,
        buf: &mut [u8],
    ) -> bool {
        let mut pages = inode.pages();
        while *at < last {
            let Some(page) = pages.map.get(*at) else { return true };
            self.context.copy_out(*at, &page.data, offset, buf);
            *at = at.plus(1);
        }
        false
    }

    /// Reads the run of missing pages that begins at `at`, up to `ahead`, and copies the requested
    /// part. Returns the block after the run.
    fn fill(
        &self,
        inode: &Inode,
        at: FileBlock,
        last: FileBlock,
        ahead: FileBlock,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<FileBlock> {
        // The pages are looked up before the tree: where there is no page now, the tree is
        // complete.
        let until = ahead.max(last);
        let present = inode.pages().map.range(at, until).next().map(|(block, _)| block);
        if present == Some(at) {
            return Ok(at);
        }
        let mapping = lookup(inode, at)?;
        let run_end = mapping.end().min(present.unwrap_or(until));
        let State::Written(block) = mapping.state else {
            let run_end = run_end.min(last);
            self.context.zero_out(at, run_end, offset, buf);
            return Ok(run_end);
        };
        let is_far = self.context.cache().is_far();
        // A reader that asks for much at a time needs no pages that nobody reads again.
        let asks_little = buf.len() < READ_CHUNK_BYTES as usize;
        let reads_ahead = is_far && asks_little && ahead > last && !inode.is_dax();
        let turn = if reads_ahead { self.far_reads.turn(inode.ino()) } else { None };
        // Another reader may have put the page in, before this one's turn as well.
        if reads_ahead && (turn.is_none() || inode.pages().map.peek(at).is_some()) {
            return Ok(at);
        }
        let is_whole = offset == 0 && offset + buf.len() as u64 >= inode.size();
        let is_large = buf.len() >= DIRECT_READ_BYTES && !reads_ahead;
        if is_whole || is_large || inode.is_dax() {
            let run_end = run_end.min(last);
            self.read_past(inode, at, run_end, block, offset, buf)?;
            return Ok(run_end);
        }
        inode.disable_direct_fast_path();
        let chunk = if is_far { WINDOW_MAX.into() } else { READ_CHUNK_BYTES };
        let most = u32::try_from(chunk / self.context.block_size()).unwrap_or(1);
        let run_end = run_end.min(at.plus(most));
        let images = self.read_blocks(inode, at, block, run_end.get() - at.get())?;
        let mut pages = inode.pages();
        let mut next = at;
        for image in images {
            if next < last {
                self.context.copy_out(next, &image, offset, buf);
            }
            pages.map.insert_clean(next, image);
            next = next.plus(1);
        }
        Ok(run_end)
    }

    /// Reads blocks `first .. end` of the file, which begin at block `start` of the device, into
    /// their part of `buf`.
    fn read_past(
        &self,
        inode: &Inode,
        first: FileBlock,
        end: FileBlock,
        start: BlockNo,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        if inode.is_encrypted() {
            return self.read_past_encrypted(inode, first, end, start, offset, buf);
        }
        let bytes = self.context.overlap(first, end, offset, buf);
        let count = end.get() - first.get();
        let newer = self.journaled.newer_images(inode, start, count);
        if newer.len() < count as usize {
            let at = start.get() * self.context.block_size() + bytes.start
                - self.context.offset_of(first);
            let into = &mut buf[within(&bytes, offset)];
            self.context
                .cache()
                .device()
                .read_at(at, into)
                .map_err(|e| Error::io(format!("reading block {start}"), e))?;
        }
        for (at, image) in newer {
            self.context.copy_out(first.plus(at), &image, offset, buf);
        }
        Ok(())
    }

    /// As [`PageReader::read_past`]: blocks are decrypted as a whole, and a few at a time, because
    /// they are copied on the way.
    fn read_past_encrypted(
        &self,
        inode: &Inode,
        first: FileBlock,
        end: FileBlock,
        start: BlockNo,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let most = u32::try_from(READ_CHUNK_BYTES / self.context.block_size()).unwrap_or(1);
        let (mut first, mut start) = (first, start);
        while first < end {
            let count = most.min(end.get() - first.get());
            let images = self.read_blocks(inode, first, start, count)?;
            for (at, image) in (first.get()..).map(FileBlock).zip(images) {
                self.context.copy_out(at, &image, offset, buf);
            }
            (first, start) = (first.plus(count), start.plus(u64::from(count)));
        }
        Ok(())
    }

    /// Reads `count` blocks from block `start` of the device, which are those from `first` on of
    /// the file.
    pub(super) fn read_blocks(
        &self,
        inode: &Inode,
        first: FileBlock,
        start: BlockNo,
        count: u32,
    ) -> Result<Vec<Arc<[u8]>>> {
        let block_size = self.context.block_size() as usize;
        let newer = self.journaled.newer_images(inode, start, count);
        if newer.len() == count as usize {
            return Ok(newer.into_iter().map(|(_, image)| image).collect());
        }
        let mut bytes = vec![0; block_size * count as usize];
        self.context
            .cache()
            .device()
            .read_at(start.get() * self.context.block_size(), &mut bytes)
            .map_err(|e| Error::io(format!("reading block {start}"), e))?;
        if inode.is_encrypted() {
            self.context.decrypt(inode, first, &mut bytes)?;
        }
        let (budget, chunks) = (self.context.table.budget(), bytes.chunks_exact(block_size));
        let mut images: Vec<Arc<[u8]>> = chunks.map(|page| budget.spare.page_of(page)).collect();
        for (at, image) in newer {
            images[at as usize] = image;
        }
        Ok(images)
    }

    /// Puts the page at `at` in, so that a part of it can be changed: its block, or zeroes if that
    /// is not written.
    pub(super) fn load_page(&self, inode: &Inode, at: FileBlock) -> Result<()> {
        if inode.pages().map.peek(at).is_some() {
            return Ok(());
        }
        inode.disable_direct_fast_path();
        let image = match lookup(inode, at)?.state {
            State::Written(block) => self.read_blocks(inode, at, block, 1)?.remove(0),
            State::Hole | State::Unwritten(_) => {
                self.context.table.budget().spare.zeroes(self.context.block_size() as usize)
            }
        };
        inode.pages().map.insert_clean(at, image);
        Ok(())
    }

    /// The block to read up to: the end of the read-ahead for a sequential reader, else the end of
    /// the request.
    fn read_ahead(&self, inode: &Inode, offset: u64, end: u64, size: u64) -> FileBlock {
        let mut pages = inode.pages();
        let is_far = self.context.cache().is_far();
        let slack = if is_far { SLACK } else { 0 };
        let skipped = offset.checked_sub(pages.read_ahead_at);
        let sequential = offset == 0 || skipped.is_some_and(|skipped| skipped <= slack);
        pages.read_ahead_at = end;
        let window = match sequential && is_far {
            true => pages.next_window(WINDOW_MIN..=WINDOW_MAX, offset == 0),
            false => READ_AHEAD_BYTES,
        };
        let until = if sequential { end.saturating_add(window).min(size) } else { end };
        self.context.block_from(until)
    }
}
