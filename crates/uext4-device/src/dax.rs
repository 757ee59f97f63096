//! A byte-addressable device.
//!
//! # What
//! A file on tmpfs, hugetlbfs or a file system with DAX on persistent memory, mapped once: reads
//! and writes are loads and stores, with no system call and no lock.
//!
//! # Storage
//! Touching a mapped hole makes the kernel allocate storage. If it cannot, it kills the program
//! (SIGBUS), so no hole is ever touched. [`Allocate::AtOpen`] allocates the whole file when it is
//! opened, and `ENOSPC` is an error of the opening. [`Allocate::AtWrite`] allocates chunks of 2 MiB
//! when they are first written, and `ENOSPC` is an error of that write. Holes are then read as
//! zeroes without being touched. hugetlbfs reports no holes, so there every chunk counts as a hole
//! until it is written. Storage is never deallocated while the device is open: `punch` and
//! `discard` return `Ok(false)`.
//!
//! # Durability
//! A complete write is durable after `flush`, which is `fdatasync`. On tmpfs that does nothing,
//! because there is nothing beyond the memory. If the file system has `MAP_SYNC`, each store leaves
//! the caches before it returns (see `dax_map`), so it is durable then and `flush` has nothing to
//! do.
//!
//! # Not covered
//! SIGBUS if another process ignores the image's lock and truncates the file, or if pages cannot be
//! read back (swap, poisoned memory). For a file whose owner is not trusted, use a
//! [`FileDevice`](crate::FileDevice).
//!
//! # Concurrency
//! Any number of threads. Overlapping requests give a mixture; `dax_copy` says why that is sound.
//! No unit of a request is atomic.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    AtFlags, FallocateFlags, StatxAttributes, StatxFlags, fallocate, fdatasync, fstatfs, statfs,
    statx,
};

use crate::dax_backing::{Backing, HUGETLBFS, allocate};
use crate::dax_map::Mapping;
use crate::dax_memory::DaxMemory;
use crate::device::{Device, check_read, check_write};
use crate::flush_latch::FlushLatch;
use crate::image_lock::{LockedImage, is_hole, open_locked, release};
use crate::open_error::OpenError;
use crate::options::Access;
use crate::sleep::about_to_sleep;

/// Magic number of tmpfs (linux/magic.h).
const TMPFS: u64 = 0x0102_1994;

/// The time when a sparse file gets its storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Allocate {
    /// All of it when the device is opened for writing.
    #[default]
    AtOpen,
    /// In chunks of 2 MiB (or a huge page of the store), when they are first written.
    AtWrite,
}

/// A mapped file, from an offset to its end or to a limit.
#[derive(Debug)]
pub struct DaxDevice {
    path: PathBuf,
    file: File,
    map: Mapping,
    /// `None` if the file has no holes.
    backing: Option<Backing>,
    /// Start of the device in the file, in bytes.
    start: u64,
    len: u64,
    read_only: bool,
    fresh: AtomicBool,
    flushes: FlushLatch,
}

impl Drop for DaxDevice {
    fn drop(&mut self) {
        release(&self.file);
    }
}

impl DaxDevice {
    /// Opens and maps an image, with storage for all of it. The device reaches from `offset`
    /// (bytes) to the end of the file. The lock covers the whole file, as that of a
    /// [`FileDevice`](crate::FileDevice) does.
    ///
    /// # Errors
    /// See [`OpenError`]: `NotByteAddressable` on any other store, `Io` with `ENOSPC` if there
    /// is not enough storage.
    pub fn open(path: &Path, offset: u64, access: Access) -> Result<DaxDevice, OpenError> {
        DaxDevice::open_with(path, offset, access, Allocate::AtOpen)
    }

    /// [`DaxDevice::open`] with a choice of the time when storage is allocated.
    ///
    /// # Errors
    /// Those of [`DaxDevice::open`].
    pub fn open_with(
        path: &Path,
        offset: u64,
        access: Access,
        when: Allocate,
    ) -> Result<DaxDevice, OpenError> {
        let writing = access == Access::ReadWrite;
        let fail = |action, error| OpenError::from_io(path, writing, action, error);
        let LockedImage { file, block_device, total } = open_locked(path, access, offset)?;
        if block_device {
            let (found, wanted) = ("block device", "a file that can be mapped");
            return Err(OpenError::WrongKind { path: path.to_path_buf(), found, wanted });
        }
        if !is_byte_addressable(&file).map_err(|error| fail("look at its store", error))? {
            return Err(OpenError::NotByteAddressable { path: path.to_path_buf() });
        }
        let is_empty = is_huge(&file).map_err(|error| fail("look at its store", error))?
            && file.metadata().is_ok_and(|found| found.blocks() == 0);
        let fresh = writing && (is_empty || is_hole(&file, offset..total));
        if writing && when == Allocate::AtOpen {
            allocate(&file, 0, total).map_err(|error| {
                // Unlike tmpfs, hugetlbfs keeps a partial allocation after a failure.
                if is_empty {
                    give_back(&file, total);
                }
                fail("allocate storage", error)
            })?;
        }
        let store_block =
            file.metadata().map_err(|error| fail("look at it", error))?.blksize().max(4096);
        let backing = if writing && when == Allocate::AtOpen {
            None
        } else {
            Backing::of(&file, total, store_block).map_err(|error| fail("find its holes", error))?
        };
        let map = Mapping::new(&file, total.next_multiple_of(store_block), writing)
            .map_err(|error| fail("map it", error))?;
        Ok(DaxDevice {
            path: path.to_path_buf(),
            file,
            map,
            backing,
            start: offset,
            len: total - offset,
            read_only: !writing,
            fresh: AtomicBool::new(fresh),
            flushes: FlushLatch::default(),
        })
    }

    /// Shortens the device to at most `len` bytes, for a partition of a disk image. Nothing behind
    /// its end can be read or written.
    #[must_use]
    pub fn limited_to(mut self, len: u64) -> DaxDevice {
        self.len = self.len.min(len);
        self
    }

    /// Whether files can be written only through a mapping, because hugetlbfs has no write(2).
    #[must_use]
    pub fn is_only_way(path: &Path) -> bool {
        statfs(path).is_ok_and(|found| found.f_type as u64 == HUGETLBFS)
    }

    /// The path by which the device was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a write is durable when it returns (`MAP_SYNC`).
    #[must_use]
    pub fn stores_are_durable(&self) -> bool {
        self.map.is_sync()
    }

    /// Copies out of a file that has holes.
    fn load_around_holes(&self, backing: &Backing, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let from = at + done as u64;
            let (backed, count) = backing.look(from, (buf.len() - done) as u64);
            let part = &mut buf[done..done + count as usize];
            if backed {
                self.map.load(from, part);
            } else {
                self.file.read_exact_at(part, from)?;
            }
            done += count as usize;
        }
        Ok(())
    }

    /// Allocates storage for all chunks of a range. Out of line, because most devices have no
    /// holes.
    #[inline(never)]
    fn back(&self, backing: &Backing, at: u64, len: u64) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let (backed, count) = backing.look(at + done, len - done);
            if !backed {
                backing.grow(&self.file, at + done)?;
            }
            done += count;
        }
        Ok(())
    }
}

impl DaxMemory for DaxDevice {
    fn load(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len, offset, buf.len())?;
        let at = self.start + offset;
        match &self.backing {
            None => self.map.load(at, buf),
            Some(backing) => self.load_around_holes(backing, at, buf)?,
        }
        Ok(())
    }

    fn store(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_write(self.len, self.read_only, offset, buf.len() as u64)?;
        // Read first, because writers on many cores would bounce the cache line.
        if self.fresh.load(Ordering::Relaxed) {
            self.fresh.store(false, Ordering::Relaxed);
        }
        let at = self.start + offset;
        if let Some(backing) = &self.backing {
            self.back(backing, at, buf.len() as u64)?;
        }
        self.map.store(at, buf);
        Ok(())
    }

    fn persist(&self) -> io::Result<()> {
        if self.read_only || self.map.is_sync() {
            return Ok(());
        }
        about_to_sleep();
        self.flushes.flush(|| Ok(rustix::io::retry_on_intr(|| fdatasync(&self.file))?))
    }
}

impl Device for DaxDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.load(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.store(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        // The whole request is checked first, so that one that reaches past the end changes
        // nothing.
        let total = crate::device::total_len(bufs) as u64;
        check_write(self.len, self.read_only, offset, total)?;
        let mut at = offset;
        for buf in bufs {
            self.store(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.persist()
    }

    /// Always `Ok(false)`, because deallocated storage might not be available again.
    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len, self.read_only, offset, len)?;
        Ok(false)
    }

    fn fresh_zeroes(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
    }

    fn dax(&self) -> Option<&dyn DaxMemory> {
        Some(self)
    }
}

/// Whether a mapping of the file is the storage itself, and not a cached copy of it.
fn is_byte_addressable(file: &File) -> io::Result<bool> {
    if is_huge(file)? || fstatfs(file)?.f_type as u64 == TMPFS {
        return Ok(true);
    }
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
    Ok(found.stx_attributes.contains(StatxAttributes::DAX))
}

fn is_huge(file: &File) -> io::Result<bool> {
    Ok(fstatfs(file)?.f_type as u64 == HUGETLBFS)
}

/// Deallocates all storage of a file.
fn give_back(file: &File, len: u64) {
    // The caller reports an earlier error.
    let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len);
}

#[cfg(test)]
mod tests;
