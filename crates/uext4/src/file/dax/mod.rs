//! Files in DAX mode: content is loaded and stored where it lies.
//!
//! What: ordinary reads and writes of files on a byte-addressable device, at any alignment. Reads
//! and overwrites of written blocks take the way without locks of direct I/O
//! ([`super::direct`]); all else takes the file's lock, and its machinery for writes that map.
//! [`Lease`] is a range that is looked up once.
//! Invariants: such a file has no page, ever. What a write maps is stored before it is mapped: the
//! caller's bytes and zeroes around them. Blocks that lose their mapping are loaded and stored by
//! nobody any more (`Excluded`). A sync flushes the device, nothing more.
//! Locking: as direct I/O.
//! Kernel counterpart: `fs/dax.c`, `ext4_dax_write_iter`.

mod lease;

pub use lease::Lease;

use super::Files;
use crate::config::DaxOverwrite;
use crate::error::{Error, Result};
use crate::extent::{State, lookup};
use crate::inode::{Inode, InodeRef};
use std::io;
use uext4_ondisk::FileBlock;

impl Files {
    /// Reads, if no lock is needed for it once the range is known. The caller holds no lock.
    pub(super) fn read_dax(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize>> {
        if let Some(read) = self.read_fast(inode, offset, buf) {
            return Some(read);
        }
        if let Err(error) = self.prepare_direct(inode, offset, buf.len()) {
            return Some(Err(error));
        }
        self.read_fast(inode, offset, buf)
    }

    /// Writes, if it is an overwrite of a file in DAX mode, of what is known to be written, and
    /// nothing fails. A `bool`, and to be asked before anything is set up: see docs/direct-io.md
    /// for what a result that is copied costs behind stores past the caches.
    #[inline]
    pub(crate) fn overwrite_dax(&self, inode: &Inode, offset: u64, buf: &[u8]) -> bool {
        inode.is_dax()
            && self.options.dax_overwrite == DaxOverwrite::Direct
            && matches!(self.overwrite(inode, offset, buf, false), Some(Ok(())))
    }

    /// Writes, if it is an overwrite of what is written. The caller holds no lock.
    pub(super) fn write_dax(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &[u8],
    ) -> Option<Result<usize>> {
        if self.options.dax_overwrite == DaxOverwrite::Journal
            && let Err(error) = self.start_handle_for(inode, offset, buf.len())
        {
            return Some(Err(error));
        }
        if let Some(written) = self.write_fast(inode, offset, buf, false) {
            return Some(written);
        }
        if let Err(error) = self.prepare_direct(inode, offset, buf.len()) {
            return Some(Err(error));
        }
        self.write_fast(inode, offset, buf, false)
    }

    /// Writes as much as there is space for. The caller holds the file exclusively.
    pub(super) fn write_dax_slowly(
        &self,
        inode: &InodeRef,
        offset: u64,
        buf: &[u8],
    ) -> Result<usize> {
        self.direct.dax_slow_writes.add(1);
        self.write_past_cache(inode, offset, buf)
    }

    /// What a write inside the file began with in kernels before 5.10: a handle, and the inode in
    /// it. Not inside the epoch, where nobody waits for a handle.
    fn start_handle_for(&self, inode: &Inode, offset: u64, len: usize) -> Result<()> {
        if offset.saturating_add(len as u64) > inode.size() || self.is_read_only() {
            return Ok(());
        }
        let _pin = inode.table_block()?;
        self.direct.dax_handles.add(1);
        self.space.journal().run(1, |handle| {
            inode.update(handle, |attributes| {
                attributes.touch_content();
            })
        })
    }

    /// Stores zeroes into bytes `from .. to` of one block, if it is written. The caller holds the
    /// file exclusively, and its sweep lock.
    pub(super) fn zero_dax(&self, inode: &Inode, at: FileBlock, from: u64, to: u64) -> Result<()> {
        let State::Written(start) = lookup(&self.space, inode, at)?.state else { return Ok(()) };
        let zeroes = &self.zeroes[..(to - from) as usize];
        self.store(inode, start.get() * self.block_size() + from, zeroes)
            .map_err(|e| Error::io(format!("zeroing a part of block {start}"), e))?;
        inode.note_written(self.space.journal().flush_gate().epoch());
        Ok(())
    }

    /// Reads bytes of the device that are a file's.
    pub(super) fn load(&self, inode: &Inode, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let device = self.cache().device();
        match device.dax() {
            Some(memory) if inode.is_dax() => memory.load(at, buf),
            _ => device.read_at(at, buf),
        }
    }

    /// Writes bytes of the device that are a file's.
    #[inline]
    pub(super) fn store(&self, inode: &Inode, at: u64, buf: &[u8]) -> io::Result<()> {
        let device = self.cache().device();
        match device.dax() {
            Some(memory) if inode.is_dax() => memory.store(at, buf),
            _ => device.write_at(at, buf),
        }
    }
}
