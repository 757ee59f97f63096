//! Content of files: reading, writing, writeback, truncation, space.
//!
//! What: [`Files`] has one owner for each kind of operation. An owner uses only those before it in
//! this list: [`FileContext`], `JournaledData`, `InlineData`, `Reclaim`, `PageReader`,
//! `Truncation`, `Deletion`, `RangeAllocation`, `Syncs`, `PageWriter`, `DirectIo`. Data is cached
//! in pages and written back with delayed allocation; journaled data, and data in the inode, is
//! never dirty.
//! Invariants: **data is on the device before its mapping exists**: writeback allocates blocks in
//! memory, writes the data, and only then inserts written extents and the new size in one handle
//! (`ablation` has the other orders). **Space is reserved before a write is acknowledged.** An
//! operation that removes blocks holds the file exclusively and its writeback lock, so no write to
//! them is under way.
//! Locking: file lock, writeback lock, then handles; the pages have a leaf lock for short copies.
//! No lock but the first two is held over data I/O.
//! Kernel counterpart: `fs/ext4/inode.c`, `mm/filemap.c`, `fs/fs-writeback.c`.

mod ablation;
mod access_times;
mod allocate;
mod clusters;
mod context;
mod conversion;
mod damage;
mod delete;
mod direct;
mod encrypted;
mod expiry;
mod far_reads;
mod gate;
mod group_writeback;
mod inline;
mod journaled;
mod large_file;
mod locality;
mod orphan;
mod page_bytes;
mod passes;
mod placement;
mod quota;
mod read;
mod reclaim;
mod removal;
mod reserve;
mod sealing;
mod seek;
mod shift;
mod small_ahead;
mod sync;
mod truncate;
mod verified_blocks;
mod verity;
mod write;
mod writeback;

pub use access_times::without_access_times;
pub use allocate::AllocateMode;
pub use context::FileContext;
pub use damage::{Damage, PanicHook, Trouble, TroubleHook};
pub use delete::Unlinked;
pub use direct::{
    DIRECT_ALIGNMENT, DirectDone, DirectFile, DirectOp, DirectOptions, DirectQueue, DirectRequest,
};
pub(crate) use expiry::PERIOD_MAX;
pub use orphan::{FoundOrphans, Orphans};
pub(crate) use quota::{list_entries, open as open_quota};
pub use seek::Seek;

use crate::alloc::Space;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Inode, InodeRef};
use allocate::RangeAllocation;
use delete::Deletion;
use direct::DirectIo;
use inline::InlineData;
use journaled::JournaledData;
use read::PageReader;
use reclaim::Reclaim;
use sealing::Sealing;
use std::sync::Arc;
use sync::Syncs;
use truncate::Truncation;
use uext4_ondisk::FileBlock;
use write::PageWriter;

/// The operations on file content, by their owners.
#[derive(Debug)]
pub struct Files {
    pub(crate) context: Arc<FileContext>,
    reclaim: Arc<Reclaim>,
    pub(crate) reader: Arc<PageReader>,
    truncation: Arc<Truncation>,
    pub(crate) deletion: Arc<Deletion>,
    ranges: Arc<RangeAllocation>,
    pub(crate) syncs: Arc<Syncs>,
    writer: Arc<PageWriter>,
    pub(crate) direct: Arc<DirectIo>,
    pub(crate) sealing: Arc<Sealing>,
}

impl Files {
    /// Operations over the inodes of the context's table.
    #[must_use]
    pub fn new(context: FileContext) -> Self {
        let context = Arc::new(context);
        let journaled = Arc::new(JournaledData::new(&context));
        let inline = Arc::new(InlineData::new(&context, &journaled));
        let reclaim = Arc::new(Reclaim::new(&context));
        let reader = Arc::new(PageReader::new(&context, &journaled, &reclaim));
        let truncation = Arc::new(Truncation::new(&context, &journaled, &inline, &reader));
        let deletion = Arc::new(Deletion::new(&context, &truncation));
        let ranges = Arc::new(RangeAllocation::new(&context, &inline, &truncation));
        let syncs = Arc::new(Syncs::new(&context, &deletion));
        let writer = Arc::new(PageWriter {
            context: Arc::clone(&context),
            journaled,
            inline,
            reclaim: Arc::clone(&reclaim),
            reader: Arc::clone(&reader),
            truncation: Arc::clone(&truncation),
            ranges: Arc::clone(&ranges),
            syncs: Arc::clone(&syncs),
        });
        let direct = Arc::new(DirectIo::new(&writer));
        let sealing = Arc::new(Sealing {
            context: Arc::clone(&context),
            reader: Arc::clone(&reader),
            truncation: Arc::clone(&truncation),
            ranges: Arc::clone(&ranges),
            syncs: Arc::clone(&syncs),
        });
        Self {
            sealing,
            context,
            reclaim,
            reader,
            truncation,
            deletion,
            ranges,
            syncs,
            writer,
            direct,
        }
    }

    /// Reads from byte `offset` into `buf`; returns how many bytes, fewer only at the end of the
    /// file.
    ///
    /// # Errors
    /// A corrupt tree; a device failure.
    pub fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if inode.is_dax()
            && let Some(read) = self.direct.read_dax(inode, offset, buf)
        {
            return read;
        }
        self.reader.read(inode, offset, buf)
    }

    /// Writes all of `buf` at byte `offset`. Returns fewer bytes only if an error came after the
    /// first.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooBig`, `ReadOnly`; a device failure, also one that keeps other files'
    /// data, which fills the cache, from being written back.
    pub fn write(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<usize> {
        if inode.is_dax()
            && let Some(written) = self.direct.write_dax(inode, offset, buf)
        {
            return written;
        }
        let (_, written) = self.write_at(inode, || offset, buf)?;
        Ok(written)
    }

    /// Checks what [`Files::write`] checks before its first change. Changes nothing.
    ///
    /// # Errors
    /// `FileTooBig`, `NotPermitted`, `ReadOnly`; a file without its key.
    pub(crate) fn check_write(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<()> {
        self.context.check_content(inode)?;
        inode.check_key()?;
        let _exclusive = inode.lock().write();
        self.writer.check_range(inode, offset, buf)
    }

    /// The same of a write past the page cache.
    ///
    /// # Errors
    /// Those of [`Files::check_write`]; `InvalidArgument` for another offset or length.
    pub(crate) fn check_direct(&self, inode: &InodeRef, offset: u64, buf: &[u8]) -> Result<()> {
        direct::check_alignment(offset, buf.len())?;
        self.check_write(inode, offset, buf)
    }

    /// Appends `buf`; returns the byte where it begins.
    ///
    /// # Errors
    /// Those of [`Files::write`].
    pub fn append(&self, inode: &InodeRef, buf: &[u8]) -> Result<(u64, usize)> {
        self.write_at(inode, || inode.size(), buf)
    }

    /// Writes `buf` at the byte that `offset` says under the file's lock.
    fn write_at(
        &self,
        inode: &InodeRef,
        offset: impl FnOnce() -> u64,
        buf: &[u8],
    ) -> Result<(u64, usize)> {
        self.context.check_content(inode)?;
        inode.check_key()?;
        self.reclaim.wait_below_limit(inode)?;
        let (offset, written) = {
            let _exclusive = inode.lock().write();
            let offset = offset();
            let written = match inode.is_dax() {
                true => self.direct.write_dax_locked(inode, offset, buf)?,
                false => self.writer.write_locked(inode, offset, buf)?,
            };
            (offset, written)
        };
        if !inode.is_dax() {
            self.reclaim.after_write(written);
        }
        self.syncs.honour_sync_flag(inode)?;
        Ok((offset, written))
    }

    /// Sets the size of a regular file.
    ///
    /// # Errors
    /// `FileTooBig`, `ReadOnly`; a device failure.
    pub fn set_size(&self, inode: &InodeRef, size: u64) -> Result<()> {
        inode.check_key()?;
        self.truncation.set_size(inode, size)?;
        self.syncs.honour_sync_flag(inode)
    }

    /// Checks what [`Files::set_size`] checks before its first change. Changes nothing.
    ///
    /// # Errors
    /// `FileTooBig`, `NotPermitted`, `ReadOnly`; a file without its key.
    pub(crate) fn check_size(&self, inode: &InodeRef, size: u64) -> Result<()> {
        inode.check_key()?;
        self.truncation.check_size(inode, size)
    }

    /// Applies `mode` to `len` bytes from byte `offset` of a regular file.
    ///
    /// # Errors
    /// `NoSpace` (blocks that were allocated by then stay), `FileTooBig`, `InvalidArgument`,
    /// `ReadOnly`; `NotPermitted` for immutable files, and for append-only files unless the mode
    /// allocates; `Unsupported` for files that have a block map; a device failure.
    pub fn allocate(
        &self,
        inode: &InodeRef,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        check_shift(inode, mode)?;
        self.ranges.allocate(inode, mode, offset, len)?;
        self.syncs.honour_sync_flag(inode)
    }

    /// Checks what [`Files::allocate`] checks before its first change. Changes nothing.
    ///
    /// # Errors
    /// Those of [`Files::allocate`] but `NoSpace` and device failures.
    pub(crate) fn check_allocate(
        &self,
        inode: &InodeRef,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        check_shift(inode, mode)?;
        let end = self.ranges.check(inode, mode, offset, len)?;
        match mode {
            AllocateMode::CollapseRange => self.ranges.check_collapse(inode, offset, end).map(drop),
            AllocateMode::InsertRange => self.ranges.check_insert(inode, offset, end).map(drop),
            _ => Ok(()),
        }
    }
}

/// Checks that the blocks of a file can be read, and moved if the mode does that.
fn check_shift(inode: &Inode, mode: AllocateMode) -> Result<()> {
    inode.check_key()?;
    let shifts = matches!(mode, AllocateMode::CollapseRange | AllocateMode::InsertRange);
    if shifts && inode.is_encrypted() {
        let why = "an encrypted file, whose blocks are encrypted for their place";
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    Ok(())
}

fn block_size(space: &Space) -> u64 {
    u64::from(space.layout().block_size)
}

/// The first block that begins at or after byte `offset`.
fn block_from(space: &Space, offset: u64) -> FileBlock {
    FileBlock(u32::try_from(offset.div_ceil(block_size(space))).unwrap_or(u32::MAX))
}
