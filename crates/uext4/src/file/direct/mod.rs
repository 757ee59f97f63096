//! Direct I/O: reads and writes of file blocks past the page cache.
//!
//! What: [`DirectIo::read`] and [`DirectIo::write`] do one request; `queue` has many in
//! flight. Reads of written blocks and overwrites of them go straight to the device (`fast`), in
//! several pieces if necessary (`pieces`). So do writes to unwritten blocks, which are converted
//! afterwards (`in_place`). All other requests take the slow path, with the file's lock (reads
//! here, writes in `gather`).
//! Invariants: the fast path is taken only in a read-side critical section of
//! [`crate::inode::DirectIoState`], and meets no cached page. The data of a direct write is on the
//! device before its mapping exists, as in writeback. A read that starts after a direct write has
//! returned sees it, and a direct read sees the data of buffered writes before it. Files in DAX
//! mode ([`super::dax`]) take the same paths with their ordinary reads and writes.
//! docs/direct-io.md has the rules and the arguments.
//! Locking: none on the fast path; else the file's lock, shared to read and exclusive to write,
//! then writeback locks.
//! Kernel counterpart: `ext4_file_read_iter`, `ext4_dio_write_iter`, `fs/iomap/direct-io.c`.

mod dax;
mod fast;
mod gather;
mod in_place;
mod pieces;
mod queue;
mod registered_files;
mod requests;
mod starting;
mod stats;

pub use queue::{DirectDone, DirectOp, DirectOptions, DirectQueue, DirectRequest};
pub use registered_files::DirectFile;
pub(super) use requests::end_write;
pub(super) use stats::DirectStats;

use super::FileContext;
use super::inline;
use super::read::PageReader;
use super::sync::Syncs;
use super::truncate::Truncation;
use super::write::PageWriter;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{State, lookup, written_leaf};
use crate::inode::{DirectIoState, Inode, InodeRef};
use gather::GatheredWrite;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::{FileBlock, FileKind};

/// Offset and length of each direct request are multiples of this, in bytes: the sector size that
/// all devices support.
pub const DIRECT_ALIGNMENT: u64 = 512;
/// If so many direct accesses meet cached pages of a file, and none of the pages is used meanwhile,
/// they are dropped.
const MISSES_MAX: u32 = 8;

/// Reads and writes past the page cache.
#[derive(Debug)]
pub(crate) struct DirectIo {
    pub(super) context: Arc<FileContext>,
    reader: Arc<PageReader>,
    truncation: Arc<Truncation>,
    syncs: Arc<Syncs>,
    writer: Arc<PageWriter>,
    pub(crate) stats: DirectStats,
}

impl DirectIo {
    pub(super) fn new(writer: &Arc<PageWriter>) -> Self {
        Self {
            context: Arc::clone(&writer.context),
            reader: Arc::clone(&writer.reader),
            truncation: Arc::clone(&writer.truncation),
            syncs: Arc::clone(&writer.syncs),
            writer: Arc::clone(writer),
            stats: DirectStats::default(),
        }
    }

    /// Reads from byte `offset` into `buf`, past the page cache. Returns the number of bytes, which
    /// is smaller than asked only at the end of the file.
    ///
    /// # Errors
    /// `InvalidArgument` unless offset and length are multiples of [`DIRECT_ALIGNMENT`]; a corrupt
    /// tree; a device failure.
    pub(crate) fn read(&self, inode: &InodeRef, offset: u64, buf: &mut [u8]) -> Result<usize> {
        check_alignment(offset, buf.len())?;
        if buf.is_empty() {
            return Ok(0);
        }
        if let Some(read) = self.read_fast(inode, offset, buf) {
            return read;
        }
        self.prepare_direct(inode, offset, buf.len())?;
        match self.read_fast(inode, offset, buf) {
            Some(read) => read,
            None => self.read_slowly(inode, offset, buf),
        }
    }

    /// Writes all of `buf` at byte `offset`, past the page cache; fewer bytes only if there was no
    /// space for more. The data is durable after a sync, or at once with `durable`.
    ///
    /// # Errors
    /// `InvalidArgument` unless offset and length are multiples of [`DIRECT_ALIGNMENT`]; else those
    /// of [`PageWriter::write`].
    pub(crate) fn write(
        &self,
        inode: &InodeRef,
        offset: u64,
        buf: &[u8],
        durable: bool,
    ) -> Result<usize> {
        check_alignment(offset, buf.len())?;
        if buf.is_empty() {
            return Ok(0);
        }
        if let Some(written) = self.write_fast(inode, offset, buf, durable) {
            return written;
        }
        if let Some(written) = self.write_in_place(inode, offset, buf, durable) {
            return written;
        }
        self.prepare(inode, offset, buf.len(), true)?;
        if let Some(written) = self.write_fast(inode, offset, buf, durable) {
            return written;
        }
        if let Some(written) = self.write_in_place(inode, offset, buf, durable) {
            return written;
        }
        let mut writes = [GatheredWrite::new(inode, offset, buf, durable)];
        self.write_gathered(&mut writes);
        let [write] = writes;
        write.into_result()
    }

    /// Reads on the slow path, under the file's lock: from pages where there are some, else from
    /// the device, and zeroes where nothing is written. Puts no page in.
    pub(super) fn read_slowly(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.stats.slow_reads.add(1);
        let _shared = inode.lock().read();
        let size = inode.size();
        let wanted = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buf.len().min(wanted);
        if count == 0 {
            return Ok(0);
        }
        self.context.note_access(inode, false);
        match inode.is_inline() {
            true => inline::read(inode, offset, &mut buf[..count])?,
            false => self.reader.read_around(inode, offset, &mut buf[..count])?,
        }
        Ok(count)
    }

    /// Prepares the fast path for a range, if possible: drops cached pages that are no longer used,
    /// and learns which blocks are written. The caller holds no lock.
    pub(in crate::file) fn prepare_direct(
        &self,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<()> {
        self.prepare(inode, offset, len, false)
    }

    /// As [`DirectIo::prepare_direct`]; with `writes` also for writes to unwritten blocks.
    fn prepare(&self, inode: &Inode, offset: u64, len: usize, writes: bool) -> Result<()> {
        let is_regular = inode.kind() == FileKind::Regular;
        if !is_regular || self.context.is_paged(inode) || inode.is_verity() {
            return Ok(());
        }
        let direct_io = inode.direct_io_or_init();
        let end = offset.saturating_add(len as u64);
        if !direct_io.is_cached() {
            let _shared = inode.lock().read();
            return self.learn(inode, direct_io, offset..end, writes);
        }
        let is_empty = inode.pages().map.is_empty();
        if !is_empty && direct_io.miss() < MISSES_MAX {
            return Ok(());
        }
        let _exclusive = inode.lock().write();
        self.drop_all_pages(inode)?;
        self.learn(inode, direct_io, offset..end, writes)
    }

    /// Writes all dirty pages back and drops all pages.
    ///
    /// # Errors
    /// Those of writeback; the pages stay then.
    pub(crate) fn drop_cached(&self, inode: &Inode) -> Result<()> {
        let _exclusive = inode.lock().write();
        self.drop_all_pages(inode)
    }

    /// Writes all dirty pages back, drops all pages, and enables the fast path. The caller holds
    /// the file exclusively.
    fn drop_all_pages(&self, inode: &Inode) -> Result<()> {
        self.drop_pages(inode, FileBlock(0), FileBlock::END)?;
        if let Some(direct_io) = inode.direct_io()
            && inode.pages().map.is_empty()
        {
            direct_io.enable_without_pages();
        }
        Ok(())
    }

    /// Writes all dirty pages back and drops those of `first .. end`. The caller holds the file
    /// exclusively.
    fn drop_pages(&self, inode: &Inode, first: FileBlock, end: FileBlock) -> Result<()> {
        if inode.pages().map.is_empty() {
            return Ok(());
        }
        let mut state = inode.writeback();
        self.context.writeback.write_back(inode, &mut state)?;
        if inode.pages().map.dirty() == 0 {
            self.truncation.discard_pages(inode, first, end);
        }
        Ok(())
    }

    /// Learns, leaf by leaf, which blocks of a range are written or, if it `writes`, allocated.
    /// Stops at the first block that is not. The caller holds the file, shared at least.
    fn learn(
        &self,
        inode: &Inode,
        direct_io: &DirectIoState,
        range: Range<u64>,
        writes: bool,
    ) -> Result<()> {
        // It may have been sealed since the caller looked without the lock.
        if inode.is_verity() {
            return Ok(());
        }
        let version = direct_io.version();
        let size = inode.size();
        direct_io.learn(version, None, size);
        let (mut at, last) = self.context.blocks_of(range.start, range.end.min(size));
        while at < last {
            if let Some((_, len)) = direct_io.find(at) {
                at = at.plus(len);
                continue;
            }
            let is_written = match lookup(inode, at)?.state {
                State::Written(_) => true,
                State::Unwritten(_) if writes && !inode.is_dax() => false,
                _ => return Ok(()),
            };
            if !is_written && !direct_io.allows_in_place() {
                let _writeback = inode.writeback();
                direct_io.allow_in_place();
            }
            let skip = || direct_io.find_unwritten(at).filter(|_| !is_written);
            if skip().is_none() {
                let leaf = written_leaf(inode, at)?;
                direct_io.learn(version, leaf, size);
            }
            match direct_io.find(at).or_else(skip) {
                Some((_, len)) => at = at.plus(len),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

/// # Errors
/// `InvalidArgument`.
pub(super) fn check_alignment(offset: u64, len: usize) -> Result<()> {
    if offset.is_multiple_of(DIRECT_ALIGNMENT) && (len as u64).is_multiple_of(DIRECT_ALIGNMENT) {
        return Ok(());
    }
    let context = format!("direct I/O of {len} bytes at {offset}, not in sectors of 512");
    Err(Error::new(ErrorKind::InvalidArgument, context))
}
