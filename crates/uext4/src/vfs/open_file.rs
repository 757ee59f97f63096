//! An open file.

use super::Vfs;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{AllocateMode, Files, Seek};
use crate::inode::{ErrorCursor, InodeRef};
use crate::sync::state::Ordering;
use crate::sync::time::Instant;
use std::sync::Arc;
use uext4_ondisk::FileKind;

/// An open file. It exists even after its last name has gone, and it reports each writeback failure
/// once.
#[derive(Debug)]
pub struct OpenFile {
    vfs: Arc<Vfs>,
    inode: InodeRef,
    errors: ErrorCursor,
}

impl OpenFile {
    /// Opens an inode in a call that began at `start`.
    pub(crate) fn new(vfs: Arc<Vfs>, inode: &InodeRef, start: Instant) -> Result<Self> {
        match inode.kind() {
            FileKind::Regular | FileKind::Directory => {}
            _ => return Err(Error::new(ErrorKind::InvalidArgument, "not a regular file")),
        }
        if inode.kind() == FileKind::Regular {
            inode.check_key()?;
        }
        let open = Self { errors: inode.errors.cursor(), inode: inode.clone(), vfs };
        open.inode.preallocation.open();
        open.vfs.calls.open.add_since(start);
        Ok(open)
    }

    /// The inode.
    #[must_use]
    pub fn inode(&self) -> &InodeRef {
        &self.inode
    }

    /// Reads from byte `offset`. Returns fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    /// `IsADirectory`; a corrupt tree; a device failure.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.expect_file()?;
        let _call = self.vfs.calls.read.begin();
        if let Some(queue) = self.vfs.walk_queue().filter(|_| offset == 0) {
            queue.reads(self.inode.ino());
        }
        self.watch(|files| files.read(&self.inode, offset, buf))
    }

    /// Writes at byte `offset`. Returns fewer bytes than given only if an error came after the
    /// first.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooBig`, `ReadOnly`; a device failure.
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        self.expect_file()?;
        let _call = self.vfs.calls.write.begin();
        self.before_write(buf, |files| files.check_write(&self.inode, offset, buf))?;
        if self.vfs.files.direct.overwrite_dax(&self.inode, offset, buf) {
            return Ok(buf.len());
        }
        self.change(|files| files.write(&self.inode, offset, buf))
    }

    /// Appends. Returns the byte where the data begins and the number of bytes written.
    ///
    /// # Errors
    /// Those of [`OpenFile::write_at`].
    pub fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        let check = |files: &Files| files.check_write(&self.inode, self.inode.size(), buf);
        self.write(buf, check, |files| files.append(&self.inode, buf))
    }

    /// Writes back the dirty pages of the file, and drops all of its pages from the cache, so that
    /// the next read asks the device.
    ///
    /// # Errors
    /// `IsADirectory`; a failure of writeback, which leaves the pages in the cache.
    pub fn drop_cached(&self) -> Result<()> {
        self.expect_file()?;
        self.change(|files| files.direct.drop_cached(&self.inode))
    }

    /// Reads from byte `offset`, past the page cache. Offset and length are multiples of 512.
    /// Returns fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    /// `InvalidArgument` for another offset or length; `IsADirectory`; a corrupt tree; a device
    /// failure.
    pub fn read_direct_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.expect_file()?;
        let _call = self.vfs.calls.read.begin();
        self.watch(|files| files.direct.read(&self.inode, offset, buf))
    }

    /// Writes at byte `offset`, past the page cache. Offset and length are multiples of 512.
    /// Returns fewer bytes than given only if there was no space for more. The data is not durable
    /// before a sync.
    ///
    /// # Errors
    /// `InvalidArgument` for another offset or length; those of [`OpenFile::write_at`].
    pub fn write_direct_at(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        self.write_direct(offset, buf, false)
    }

    /// [`OpenFile::write_direct_at`] followed by `sync(true)`; only these bytes are synced if that
    /// is enough.
    ///
    /// # Errors
    /// Those of both; it is not known then what is durable.
    pub fn write_direct_durably_at(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        self.write_direct(offset, buf, true)
    }

    fn write_direct(&self, offset: u64, buf: &[u8], durable: bool) -> Result<usize> {
        let check = |files: &Files| files.check_direct(&self.inode, offset, buf);
        self.write(buf, check, |files| files.direct.write(&self.inode, offset, buf, durable))
    }

    /// Makes the file durable. With `data_only`, only what is needed to read its data back.
    ///
    /// # Errors
    /// A writeback failure that this open file has not reported yet; a failed flush; an aborted
    /// journal.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        let start = Instant::now();
        let files = &self.vfs.files;
        let Some(_call) = files.context.begin_sync_call()? else {
            return self.inode.errors.check(&self.errors).map_or(Ok(()), Err);
        };
        let synced = files.context.watch(files.syncs.sync(&self.inode, data_only));
        self.vfs.calls.fsync.add_since(start);
        match self.inode.errors.check(&self.errors) {
            Some(error) => Err(error),
            None => synced,
        }
    }

    /// fallocate(2): allocates, punches, zeroes, collapses or inserts a range of bytes.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooBig`, `InvalidArgument`, `NotPermitted`, `Unsupported`, `ReadOnly`; a
    /// device failure.
    pub fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        self.expect_file()?;
        self.vfs.before_change(&self.inode, |files| {
            files.check_allocate(&self.inode, mode, offset, len).map(|()| true)
        })?;
        self.change(|files| files.allocate(&self.inode, mode, offset, len))
    }

    /// The first byte at or after `offset` that may hold data.
    ///
    /// # Errors
    /// `NoData` if there is none; a corrupt tree; a device failure.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.expect_file()?;
        self.watch(|files| files.reader.seek(&self.inode, offset, Seek::Data))
    }

    /// The first byte at or after `offset` that is in a hole, or the end of the file.
    ///
    /// # Errors
    /// `NoData` past the end; a corrupt tree; a device failure.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.expect_file()?;
        self.watch(|files| files.reader.seek(&self.inode, offset, Seek::Hole))
    }

    /// The work of close(2): a file that was truncated to nothing and written again is written back
    /// (`auto_da_alloc`), and a writeback failure is reported.
    ///
    /// # Errors
    /// A writeback failure that this open file has not reported yet.
    pub fn flush(&self) -> Result<()> {
        if self.inode.flush_on_close.swap(false, Ordering::Relaxed)
            && self.vfs.files.context.options.auto_da_alloc
        {
            // A failure is recorded with the inode, and so reported below. Closing the volume
            // writes the file back as well.
            let _ = self.change(|files| files.syncs.write_back(&self.inode));
        }
        self.inode.errors.check(&self.errors).map_or(Ok(()), Err)
    }

    /// Runs a write of `buf`, which `check` lets pass.
    fn write<T>(
        &self,
        buf: &[u8],
        check: impl FnOnce(&Files) -> Result<()>,
        operation: impl FnOnce(&Files) -> Result<T>,
    ) -> Result<T> {
        self.expect_file()?;
        let _call = self.vfs.calls.write.begin();
        self.before_write(buf, check)?;
        self.change(operation)
    }

    /// What comes before a write of `buf`, which `check` lets pass.
    #[inline]
    fn before_write(&self, buf: &[u8], check: impl FnOnce(&Files) -> Result<()>) -> Result<()> {
        self.vfs.before_change(&self.inode, |files| match buf.is_empty() {
            true => Ok(false),
            false => check(files).map(|()| true),
        })
    }

    /// Runs an operation that may change the volume, unless that is being closed. Damage that it
    /// meets has the consequences of `errors=`.
    fn change<T>(&self, operation: impl FnOnce(&Files) -> Result<T>) -> Result<T> {
        let _call = self.vfs.files.context.begin_call()?;
        self.watch(operation)
    }

    /// Runs an operation. Damage that it meets has the consequences of `errors=`.
    fn watch<T>(&self, operation: impl FnOnce(&Files) -> Result<T>) -> Result<T> {
        let files = &self.vfs.files;
        files.context.watch(operation(files))
    }

    fn expect_file(&self) -> Result<()> {
        if self.inode.kind() == FileKind::Regular {
            return Ok(());
        }
        Err(ErrorKind::IsADirectory.into())
    }
}

impl Drop for OpenFile {
    /// The last close of a file releases its preallocation. No lock of the engine is held, because
    /// allocations are dropped.
    fn drop(&mut self) {
        self.inode.preallocation.close(&self.vfs.files.context.space);
    }
}
