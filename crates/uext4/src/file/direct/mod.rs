//! Direct I/O: to and from the blocks of a file, past the page cache.
//!
//! What: [`Files::read_direct`] and [`Files::write_direct`] for one thread, `queue` for many
//! requests at a time. Reads of written blocks and overwrites of them go straight to the device
//! (`fast`), in several pieces if need be (`pieces`), and so do writes to unwritten blocks, which
//! are converted afterwards (`in_place`); all else takes the file's lock (here, and `gather` for
//! writes).
//! Invariants: the fast way is taken inside an [`crate::inode::Overwrites`] only, and meets no
//! cached page. What a direct write maps is on the device before the mapping exists, as with
//! buffered ones. A read that starts after a direct write has returned sees it, and a direct read
//! sees what a buffered write before it wrote. Files in DAX mode ([`super::dax`]) go the same ways
//! by their ordinary reads and writes. docs/direct-io.md has the rules and the arguments.
//! Locking: none on the fast way; else the file's lock, shared to read and exclusive to write, then
//! sweep locks.
//! Kernel counterpart: `ext4_file_read_iter`, `ext4_dio_write_iter`, `fs/iomap/direct-io.c`.

mod fast;
mod gather;
mod in_place;
mod known;
mod pieces;
mod queue;
mod requests;
mod starting;
mod stats;
mod worker;

pub use known::DirectFile;
pub use queue::{DirectDone, DirectOp, DirectOptions, DirectQueue, DirectRequest};
pub(super) use stats::DirectStats;

use super::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{State, lookup, written_leaf};
use crate::inode::{Inode, InodeRef, Overwrites};
use gather::Write;
use std::ops::Range;
use uext4_ondisk::{FileBlock, FileKind};

/// Offset and length of each direct request are multiples of this, in bytes: the sector that all
/// devices have.
pub const DIRECT_ALIGNMENT: u64 = 512;
/// A file whose pages nobody uses, but so many direct accesses meet, loses them.
const MISSES_MAX: u32 = 8;

impl Files {
    /// Reads from byte `offset` into `buf`, past the page cache; returns how many bytes, fewer only
    /// at the end of the file.
    ///
    /// # Errors
    /// `InvalidArgument` unless offset and length are multiples of [`DIRECT_ALIGNMENT`]; a corrupt
    /// tree; a device failure.
    pub fn read_direct(&self, inode: &InodeRef, offset: u64, buf: &mut [u8]) -> Result<usize> {
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
    /// space for more. What is complete is durable only after a sync, or with `durable`.
    ///
    /// # Errors
    /// `InvalidArgument` unless offset and length are multiples of [`DIRECT_ALIGNMENT`]; else as
    /// [`Files::write`].
    pub fn write_direct(
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
        let mut writes = [Write::new(inode, offset, buf, durable)];
        self.write_gathered(&mut writes);
        let [write] = writes;
        write.into_result()
    }

    /// Reads under the file's lock: pages where there are some, the device where there are none,
    /// zeroes where nothing is written. Leaves no page behind.
    pub(super) fn read_slowly(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.direct.slow_reads.add(1);
        let _shared = inode.lock().read();
        let size = inode.size();
        let wanted = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buf.len().min(wanted);
        if count == 0 {
            return Ok(0);
        }
        self.note_access(inode, false);
        self.read_around(inode, offset, &mut buf[..count])?;
        Ok(count)
    }

    /// Makes the fast way possible for a range, if it can be: writes back and drops pages that only
    /// stand in the way, and learns which blocks are written. The caller holds no lock.
    pub(in crate::file) fn prepare_direct(
        &self,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<()> {
        self.prepare(inode, offset, len, false)
    }

    /// Likewise; with `writes` also for writes to unwritten blocks.
    fn prepare(&self, inode: &Inode, offset: u64, len: usize, writes: bool) -> Result<()> {
        let is_plain = inode.kind() == FileKind::Regular && inode.has_extent_tree();
        if !is_plain || self.is_journaled(inode) {
            return Ok(());
        }
        let overwrites = inode.overwrites_to_be();
        let end = offset.saturating_add(len as u64);
        if !overwrites.is_cached() {
            let _shared = inode.lock().read();
            return self.learn(inode, overwrites, offset..end, writes);
        }
        let is_empty = inode.pages().map.is_empty();
        if !is_empty && overwrites.miss() < MISSES_MAX {
            return Ok(());
        }
        let _exclusive = inode.lock().write();
        self.drop_all_pages(inode)?;
        self.learn(inode, overwrites, offset..end, writes)
    }

    /// Writes all dirty pages back and drops all.
    ///
    /// # Errors
    /// As of a sweep; the pages stay then.
    pub(crate) fn drop_cached(&self, inode: &Inode) -> Result<()> {
        let _exclusive = inode.lock().write();
        self.drop_all_pages(inode)
    }

    /// Likewise. The caller holds the file exclusively.
    fn drop_all_pages(&self, inode: &Inode) -> Result<()> {
        self.drop_pages(inode, FileBlock(0), FileBlock::END)?;
        if let Some(overwrites) = inode.overwrites()
            && inode.pages().map.is_empty()
        {
            overwrites.note_uncached();
        }
        Ok(())
    }

    /// Writes all dirty pages back and drops those of `first .. end`. The caller holds the file
    /// exclusively.
    fn drop_pages(&self, inode: &Inode, first: FileBlock, end: FileBlock) -> Result<()> {
        if inode.pages().map.is_empty() {
            return Ok(());
        }
        let mut sweep = inode.sweep();
        self.sweep_locked(inode, &mut sweep)?;
        if inode.pages().map.dirty() == 0 {
            self.discard_pages(inode, first, end);
        }
        Ok(())
    }

    /// Learns leaf by leaf which blocks of a range are written, or, for one who `writes`, have a
    /// place, as far as all do. The caller holds the file, shared at least.
    fn learn(
        &self,
        inode: &Inode,
        overwrites: &Overwrites,
        range: Range<u64>,
        writes: bool,
    ) -> Result<()> {
        let version = overwrites.version();
        let size = inode.size();
        overwrites.learn(version, None, size);
        let (mut at, last) = (self.block_at(range.start), self.block_from(range.end.min(size)));
        while at < last {
            if let Some((_, len)) = overwrites.find(at) {
                at = at.plus(len);
                continue;
            }
            let is_written = match lookup(&self.space, inode, at)?.state {
                State::Written(_) => true,
                State::Unwritten(_) if writes && !inode.is_dax() => false,
                _ => return Ok(()),
            };
            if !is_written && !overwrites.allows_in_place() {
                let _sweep = inode.sweep();
                overwrites.allow_in_place();
            }
            let skip = || overwrites.find_unwritten(at).filter(|_| !is_written);
            if skip().is_none() {
                let leaf = written_leaf(&self.space, inode, at)?;
                overwrites.learn(version, leaf, size);
            }
            match overwrites.find(at).or_else(skip) {
                Some((_, len)) => at = at.plus(len),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// As [`Files::fold_direct_times`] by a reader. Beside the end of the volume that end does it
    /// alone: a reader that had taken the time of a write, and not put it into the attributes yet,
    /// would keep it from the image.
    pub(crate) fn show_direct_times(&self, inode: &Inode) {
        if !inode.is_direct_late() {
            return;
        }
        let inside = self.enter_if_open();
        if inside.is_some() || self.is_read_only() {
            self.fold_direct_times(inode);
        }
    }

    /// Brings the times of direct accesses into the attributes. The caller is inside the volume, or
    /// ends it.
    pub(crate) fn fold_direct_times(&self, inode: &Inode) {
        if inode.fold_direct_times() {
            self.set_access_time(inode, || Some(()));
        }
    }
}

/// # Errors
/// `InvalidArgument`.
fn check_alignment(offset: u64, len: usize) -> Result<()> {
    if offset.is_multiple_of(DIRECT_ALIGNMENT) && (len as u64).is_multiple_of(DIRECT_ALIGNMENT) {
        return Ok(());
    }
    let context = format!("direct I/O of {len} bytes at {offset}, not in sectors of 512");
    Err(Error::new(ErrorKind::InvalidArgument, context))
}
