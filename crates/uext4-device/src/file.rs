//! An image file or block device.
//!
//! # What
//! Positional reads and writes through the page cache (`pread`, `pwritev`): no shared position, so
//! any number of threads. `flush` is `fdatasync`, shared by callers that arrive together.
//!
//! # Invariants
//! - A writer holds the image alone: `flock(LOCK_EX)`, on block devices `O_EXCL` as well, and never
//!   an image that backs a loop device. A reader holds `flock(LOCK_SH)`, so it never reads under
//!   a writer of ours. Locks belong to the open file: they survive a fork and end with the process.
//! - A failure to make bytes durable is repeated for ever (see `group_flush`).
//!
//! # Locking
//! `fua` serialises the writes that must be durable on return; I/O happens under it. They go
//! through an open file of their own, because the kernel reports a writeback error once per open
//! file and a concurrent `fdatasync` must not miss it.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, fdatasync, flock};
use rustix::io::{Errno, preadv, pwritev};

use crate::device::{Device, check_read, check_write, total_len};
use crate::group_flush::GroupFlush;
use crate::loop_backing::loop_device_of;
use crate::open_error::OpenError;

/// What the caller wants to do with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only; shares the image with other readers.
    ReadOnly,
    /// Read and write; alone.
    ReadWrite,
}

/// A regular file or block device, from an offset to its end.
#[derive(Debug)]
pub struct FileDevice {
    path: PathBuf,
    file: File,
    /// Second open file with `O_DSYNC`; none when read-only or where `/proc` is missing.
    fua: Option<Mutex<File>>,
    /// Where byte 0 of the device lies in the file, in bytes.
    start: u64,
    len: u64,
    block_device: bool,
    read_only: bool,
    fresh: AtomicBool,
    flushes: GroupFlush,
}

/// Buffers a system call takes at once (`IOV_MAX`).
const VECTOR_MAX: usize = 1024;
/// How often the lock of a block device is tried: udev holds it for moments while it probes.
const BLOCK_LOCK_TRIES: u32 = 10;
const BLOCK_LOCK_WAIT: Duration = Duration::from_millis(50);

impl FileDevice {
    /// Opens an image. The device is what lies from `offset` (bytes) to the end of the file; the
    /// lock covers the whole file.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, access: Access, offset: u64) -> Result<FileDevice, OpenError> {
        let writing = access == Access::ReadWrite;
        let fail = |action, error| OpenError::from_io(path, writing, action, error);
        let before = std::fs::metadata(path).map_err(|error| fail("look at it", error))?;
        check_kind(path, &before)?;
        let block_device = before.file_type().is_block_device();

        let mut flags = libc::O_NOCTTY;
        if block_device && writing {
            flags |= libc::O_EXCL;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(writing)
            .custom_flags(flags)
            .open(path)
            .map_err(|error| fail("open it", error))?;
        let found = file.metadata().map_err(|error| fail("look at it", error))?;
        check_kind(path, &found)?;
        lock(path, &file, writing, block_device)?;
        if writing {
            refuse_loop_backing(path, &found)?;
        }
        // Only the end of a block device tells its size; nothing uses the position afterwards.
        let total = file.seek(SeekFrom::End(0)).map_err(|error| fail("find its size", error))?;
        if total == 0 {
            return Err(OpenError::Empty { path: path.to_path_buf() });
        }
        if offset >= total {
            return Err(OpenError::OffsetPastEnd { path: path.to_path_buf(), offset, len: total });
        }
        let fresh = writing && !block_device && is_hole_from(&file, offset);
        Ok(FileDevice::assemble(path, file, !writing, block_device, offset, total - offset, fresh))
    }

    /// Makes a sparse file of `len` bytes, all zero, and opens it for writing. A file that exists
    /// is emptied first, under the same lock and checks as [`FileDevice::open`].
    ///
    /// # Errors
    /// See [`OpenError`]. A file that this call made is removed when it fails.
    pub fn create(path: &Path, len: u64) -> Result<FileDevice, OpenError> {
        let fail = |action, error| OpenError::from_io(path, true, action, error);
        if len == 0 {
            return Err(OpenError::Empty { path: path.to_path_buf() });
        }
        let existed = match std::fs::metadata(path) {
            Ok(found) => {
                check_kind(path, &found)?;
                if found.file_type().is_block_device() {
                    return Err(OpenError::WrongKind {
                        path: path.to_path_buf(),
                        found: "block device",
                        wanted: "a file",
                    });
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(fail("look at it", error)),
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NOCTTY)
            .open(path)
            .map_err(|error| fail("create it", error))?;
        lock(path, &file, true, false)?;
        let found = file.metadata().map_err(|error| fail("look at it", error))?;
        check_kind(path, &found)?;
        refuse_loop_backing(path, &found)?;
        if let Err(error) = file.set_len(0).and_then(|()| file.set_len(len)) {
            if !existed {
                // Best effort: the error below is what the caller must see.
                let _ = std::fs::remove_file(path);
            }
            return Err(fail("give it its size", error));
        }
        Ok(FileDevice::assemble(path, file, false, false, 0, len, true))
    }

    /// The path that the device was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is a block device and not a file.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    fn assemble(
        path: &Path,
        file: File,
        read_only: bool,
        block_device: bool,
        start: u64,
        len: u64,
        fresh: bool,
    ) -> FileDevice {
        let fua = if read_only { None } else { reopen_dsync(&file).map(Mutex::new) };
        FileDevice {
            path: path.to_path_buf(),
            file,
            fua,
            start,
            len,
            block_device,
            read_only,
            fresh: AtomicBool::new(fresh),
            flushes: GroupFlush::default(),
        }
    }

    fn check_change(&self, offset: u64, count: u64) -> io::Result<()> {
        check_write(self.len, self.read_only, offset, count)?;
        // Read first: writers on many cores must not pass one cache line around.
        if self.fresh.load(Ordering::Relaxed) {
            self.fresh.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len, offset, buf.len())?;
        self.file.read_exact_at(buf, self.start + offset)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_change(offset, buf.len() as u64)?;
        self.file.write_all_at(buf, self.start + offset)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.check_change(offset, total_len(bufs) as u64)?;
        let mut slices: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
        let mut rest = &mut slices[..];
        let mut at = self.start + offset;
        // Zero bytes move past empty buffers, so that what is left always has something to write.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match pwritev(&self.file, &rest[..rest.len().min(VECTOR_MAX)], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    at += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        let total = bufs.iter().map(|buf| buf.len()).sum();
        check_read(self.len, offset, total)?;
        let mut slices: Vec<IoSliceMut<'_>> =
            bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        let mut rest = &mut slices[..];
        let mut at = self.start + offset;
        IoSliceMut::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let count = rest.len().min(VECTOR_MAX);
            match preadv(&self.file, &mut rest[..count], at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    at += count as u64;
                    IoSliceMut::advance_slices(&mut rest, count);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.flushes.flush(|| Ok(rustix::io::retry_on_intr(|| fdatasync(&self.file))?))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let Some(fua) = &self.fua else {
            self.write_at(offset, buf)?;
            return self.flush();
        };
        self.check_change(offset, buf.len() as u64)?;
        let file = fua.lock();
        self.flushes.check()?;
        let result = file.write_all_at(buf, self.start + offset);
        if let Err(error) = &result {
            self.flushes.latch(error);
        }
        result
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len, self.read_only, offset, len)?;
        if len == 0 {
            return Ok(true);
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::io::retry_on_intr(|| fallocate(&self.file, mode, self.start + offset, len)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            // A block device refuses a range that its sectors do not divide.
            Err(Errno::INVAL) if self.block_device => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn fresh_zeroes(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
    }
}

/// Refuses what can be no image.
fn check_kind(path: &Path, found: &Metadata) -> Result<(), OpenError> {
    let path = || path.to_path_buf();
    let kind = found.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    if kind.is_dir() {
        return Err(OpenError::IsDirectory { path: path() });
    }
    let found = if kind.is_fifo() {
        "fifo"
    } else if kind.is_socket() {
        "socket"
    } else {
        "character device"
    };
    Err(OpenError::WrongKind { path: path(), found, wanted: "an image file or block device" })
}

/// Takes the advisory lock: alone for a writer, shared for a reader. Never waits long.
fn lock(path: &Path, file: &File, writing: bool, block_device: bool) -> Result<(), OpenError> {
    let operation = if writing {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    let mut tries = if block_device { BLOCK_LOCK_TRIES } else { 1 };
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                tries -= 1;
                if tries == 0 {
                    return Err(OpenError::InUse { path: path.to_path_buf() });
                }
                std::thread::sleep(BLOCK_LOCK_WAIT);
            }
            // A file system without locks: a reader does no harm, a writer must be sure.
            Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) if !writing => return Ok(()),
            Err(errno) => return Err(OpenError::from_io(path, writing, "lock it", errno.into())),
        }
    }
}

fn refuse_loop_backing(path: &Path, found: &Metadata) -> Result<(), OpenError> {
    match loop_device_of(Path::new("/sys/block"), found.dev(), found.ino()) {
        Some(device) => Err(OpenError::BacksLoop { path: path.to_path_buf(), device }),
        None => Ok(()),
    }
}

/// Whether a file has no data from `offset` (bytes) to its end, so that it reads as zeroes there.
fn is_hole_from(file: &File, offset: u64) -> bool {
    rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) == Err(Errno::NXIO)
}

/// Opens the same file again, with a writeback error report of its own. The path may by now name
/// another file; the entry under `/proc` cannot.
fn reopen_dsync(file: &File) -> Option<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DSYNC | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .ok()
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
