//! An image file or block device.
//!
//! # What
//! Positional reads and writes (`pread`, `pwritev`) need no shared position, so any number of
//! threads use the device. They go through the kernel's page cache or bypass it (see `direct`). If
//! the caller wants it, the writes of one call are submitted together by io_uring (see `rings`).
//! `flush` is `fdatasync`; callers that wait for one share the next.
//!
//! # Invariants
//! - A writer has the image alone: it holds `flock(LOCK_EX)`, on block devices also `O_EXCL`, and
//!   refuses an image that backs a loop device. A reader holds `flock(LOCK_SH)`, so no uext4 writes
//!   while it reads. Locks belong to the open file: they survive a fork and end with the process.
//! - After a failure to make bytes durable every later attempt fails (see `flush_latch`).
//! - If the caller wants it, a write for which the store has no room is held (see `room`).
//!
//! # Locking
//! Only the locks of `direct` and `rings` are held over I/O. Writes that must be durable on return
//! use open files of their own (see `durable`).

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, fdatasync};
use rustix::io::Errno;

mod durable;
mod opening;
mod undo;

use crate::device::{Device, WriteRun, check_read, check_write, total_len};
use crate::direct::{Alignment, Direct};
use crate::flush_latch::FlushLatch;
use crate::image_lock::release;
use crate::options::Submission;
use crate::piece::Pieces;
use crate::queue::{DeviceQueue, QueueOptions};
use crate::rings::Rings;
use crate::room::{Room, is_full};
use crate::sleep::about_to_sleep;
use crate::uring_queue::UringQueue;
use crate::vectored::{read_all_vectored, write_all_vectored};
use durable::DurableFiles;
use opening::{reopen, uring_reason};
use undo::Before;
pub use undo::Undo;

/// A regular file or block device, from an offset to its end or for a length.
#[derive(Debug)]
pub struct FileDevice {
    path: PathBuf,
    file: File,
    /// What was at that path before this device made or lengthened the file.
    before: Before,
    /// `None` if read-only, for block devices, or without `/proc`. Then a flush follows the write.
    durable: Option<DurableFiles>,
    /// Start of the device in the file, in bytes.
    start: u64,
    len: u64,
    block_device: bool,
    /// Smallest deallocation in bytes: a block of the file system that holds the file, or a page.
    discard_unit: u64,
    read_only: bool,
    fresh: AtomicBool,
    flushes: FlushLatch,
    room: Room,
    direct: Option<Direct>,
    /// For reads past the page cache of a device that is not direct, once there was one.
    uncached: OnceLock<Option<(File, Direct)>>,
    rings: Option<Rings>,
    submission: Submission,
    /// For tests: the errno with which the system refuses io_uring.
    uring_refused: Option<i32>,
    notice: Option<String>,
    /// The reason why queues have no ring, once one was requested.
    queue_notice: OnceLock<String>,
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // No request is in flight, because queues hold a reference to the device.
        release(&self.file);
    }
}

impl FileDevice {
    /// The path by which the device was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is a block device and not a file.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// Whether requests bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Whether the writes of one call are submitted together by io_uring.
    #[must_use]
    pub fn uses_uring(&self) -> bool {
        self.rings.is_some()
    }

    /// One line about a requested option that the device does without, and the reason.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref().or_else(|| self.queue_notice.get().map(String::as_str))
    }

    /// Makes the file empty, durably, and closes it.
    ///
    /// # Errors
    /// Those of the system; the file is as it was, or empty and perhaps not durably so.
    pub fn empty(self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.sync_all()
    }

    /// Another open file of the same image for rings, with the flags of the device's writes.
    pub(crate) fn reopened(&self) -> Option<File> {
        let direct_flag = if self.direct.is_some() { libc::O_DIRECT } else { 0 };
        reopen(&self.file, !self.read_only, direct_flag)
    }

    /// Start of the device in the file, in bytes.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Alignments of direct requests, if requests are direct.
    pub(crate) fn alignment(&self) -> Option<Alignment> {
        self.direct.as_ref().map(Direct::alignment)
    }

    /// The flushes, for a queue of this device.
    pub(crate) fn flushes(&self) -> &FlushLatch {
        &self.flushes
    }

    /// Writes at a position in the file (bytes), and waits for room if there is none.
    fn write_slices(&self, file: &File, at: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        about_to_sleep();
        self.room.hold(|| match (&self.direct, slices) {
            (Some(direct), _) => direct.write(file, at, slices),
            (None, [slice]) => file.write_all_at(slice, at),
            (None, _) => write_all_vectored(file, at, &mut slices.to_vec()),
        })
    }

    /// Executes several writes on a ring, and those that the ring cannot do one after the other.
    fn write_by_ring(&self, rings: &Rings, writes: &[WriteRun<'_>]) -> io::Result<()> {
        let align = self.direct.as_ref().map(Direct::alignment);
        let mut pieces = Pieces::default();
        for run in writes {
            let at = self.start + run.offset;
            if align.is_some_and(|align| !align.fits(at, total_len(run.bufs))) {
                self.write_vectored_at(run.offset, run.bufs)?;
            } else {
                pieces.add(at, run, align);
            }
        }
        let mut left = 0..pieces.len();
        let by_ring;
        let left: &mut dyn Iterator<Item = usize> = if pieces.len() > 1 {
            let _units = self.direct.as_ref().map(Direct::share_units);
            by_ring = rings.write(&pieces)?;
            &mut by_ring.into_iter()
        } else {
            // A single request is cheaper without a ring.
            &mut left
        };
        for index in left {
            self.write_slices(&self.file, pieces.get(index).at, pieces.slices(index))?;
        }
        Ok(())
    }

    /// Checks a change before it is made. From then on the device may not be all zeroes.
    pub(crate) fn check_change(&self, offset: u64, count: u64) -> io::Result<()> {
        check_write(self.len, self.read_only, offset, count)?;
        // Read first, because writers on many cores would bounce the cache line.
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
        about_to_sleep();
        match &self.direct {
            Some(direct) => direct.read(&self.file, self.start + offset, &mut [buf]),
            None => self.file.read_exact_at(buf, self.start + offset),
        }
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len, offset, buf.len())?;
        if self.direct.is_some() {
            return self.read_at(offset, buf);
        }
        let own = self.uncached.get_or_init(|| {
            let file = reopen(&self.file, false, 0)?;
            let direct = Direct::start(&file, self.start, self.len, true).ok()?;
            Some((file, direct))
        });
        about_to_sleep();
        match own {
            Some((file, direct)) => direct.read(file, self.start + offset, &mut [buf]),
            None => {
                self.drop_cached();
                self.read_at(offset, buf)
            }
        }
    }

    fn drop_cached(&self) {
        // Best effort: a store without it has no cache of this host, or one that is never stale.
        let _ = fadvise(&self.file, self.start, NonZeroU64::new(self.len), Advice::DontNeed);
    }

    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_change(offset, buf.len() as u64)?;
        self.write_slices(&self.file, self.start + offset, &[IoSlice::new(buf)])
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.check_change(offset, total_len(bufs) as u64)?;
        let slices: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
        self.write_slices(&self.file, self.start + offset, &slices)
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        let Some(rings) = &self.rings else {
            return writes.iter().try_for_each(|run| self.write_vectored_at(run.offset, run.bufs));
        };
        for run in writes {
            self.check_change(run.offset, total_len(run.bufs) as u64)?;
        }
        about_to_sleep();
        self.write_by_ring(rings, writes)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        let total = bufs.iter().map(|buf| buf.len()).sum();
        check_read(self.len, offset, total)?;
        let at = self.start + offset;
        about_to_sleep();
        match &self.direct {
            Some(direct) => direct.read(&self.file, at, bufs),
            None => {
                let mut slices: Vec<IoSliceMut<'_>> =
                    bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
                read_all_vectored(&self.file, at, &mut slices)
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        about_to_sleep();
        self.flushes.flush(|| Ok(rustix::io::retry_on_intr(|| fdatasync(&self.file))?))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_change(offset, buf.len() as u64)?;
        self.flushes.check()?;
        let (at, slices) = (self.start + offset, [IoSlice::new(buf)]);
        let own = self.durable.as_ref().and_then(|files| Some((files, files.take(&self.file)?)));
        let Some((files, own)) = own else {
            self.write_slices(&self.file, at, &slices)?;
            return self.flush();
        };
        let result = self.write_slices(&own, at, &slices);
        files.put(own);
        // A caller that finds no room gets the error and has lost only these bytes.
        if let Err(error) = &result
            && !is_full(error)
        {
            self.flushes.latch(error);
        }
        result
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len, self.read_only, offset, len)?;
        if len == 0 {
            return Ok(true);
        }
        about_to_sleep();
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::io::retry_on_intr(|| fallocate(&self.file, mode, self.start + offset, len)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            // A block device refuses a range that is not a multiple of its sectors.
            Err(Errno::INVAL) if self.block_device => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len, self.read_only, offset, len)?;
        // A part of a unit of the store cannot be deallocated. Zeroing it instead would bring the
        // unit into the page cache, beside data that direct writes may just be storing.
        let (from, to) = (self.start + offset, self.start + offset + len);
        let (from, to) = (from.next_multiple_of(self.discard_unit), to - to % self.discard_unit);
        if from >= to {
            return Ok(true);
        }
        if !self.block_device {
            return self.punch(from - self.start, to - from);
        }
        about_to_sleep();
        match crate::ioctl::discard_blocks(&self.file, from, to - from) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY) => Ok(false),
                _ => Err(error),
            },
        }
    }

    fn fresh_zeroes(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
    }

    fn room(&self) -> Option<&Room> {
        Some(&self.room)
    }

    /// A queue with a ring, unless the device was opened without rings (`io=pread`). If the system
    /// refuses one, requests are executed one by one, and the device's notice says so.
    fn own_queue(
        self: Arc<Self>,
        options: &QueueOptions,
    ) -> io::Result<Option<Box<dyn DeviceQueue>>> {
        if self.submission == Submission::Pread {
            return Ok(None);
        }
        let opened = match self.uring_refused {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => UringQueue::open(Arc::clone(&self), options),
        };
        match opened {
            Ok(queue) => Ok(Some(Box::new(queue))),
            Err(error) => {
                let why = uring_reason(&error);
                self.queue_notice.get_or_init(|| format!("no io_uring: {why}; queues do without"));
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests;
