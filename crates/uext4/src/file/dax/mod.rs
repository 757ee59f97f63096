//! Files in DAX mode: content is loaded and stored in place.
//!
//! What: ordinary reads and writes of files on a byte-addressable device, at any alignment. Reads
//! and overwrites of written blocks take the fast path of direct I/O ([`super::direct`]), without
//! locks. All other accesses take the file's lock; writes that map use the code of direct writes.
//! Invariants: such a file never has a page. Blocks that a write maps are stored before they are
//! mapped: the caller's bytes and zeroes around them. Once a block has lost its mapping no thread
//! loads or stores it any more (`ExclusiveGuard`). A sync flushes the device and does nothing else.
//! Locking: that of direct I/O.
//! Kernel counterpart: `fs/dax.c`, `ext4_dax_write_iter`.

use super::Files;
use crate::error::{Error, Result};
use crate::extent::{State, lookup};
use crate::inode::{Inode, InodeRef};
use std::io;
use uext4_ondisk::FileBlock;

impl Files {
    /// Reads a range if that needs no lock once the range is known. The caller holds no lock.
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

    /// Writes if this is an overwrite of known written blocks of a file in DAX mode. False if it is
    /// not, or has failed. The answer is a `bool`, and callers ask before they set anything up,
    /// because of what a copied result costs behind stores past the caches (docs/direct-io.md).
    #[inline]
    pub(crate) fn overwrite_dax(&self, inode: &Inode, offset: u64, buf: &[u8]) -> bool {
        inode.is_dax()
            && !self.ablations.journals_dax()
            && matches!(self.overwrite(inode, offset, buf, false), Some(Ok(())))
    }

    /// Writes a range if it is an overwrite of written blocks. The caller holds no lock.
    pub(super) fn write_dax(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &[u8],
    ) -> Option<Result<usize>> {
        if let Err(error) = self.ablations.before_dax_overwrite(self, inode, offset, buf.len()) {
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

    /// Writes as much as there is space for, on the slow path. The caller holds the file
    /// exclusively.
    pub(super) fn write_dax_slowly(
        &self,
        inode: &InodeRef,
        offset: u64,
        buf: &[u8],
    ) -> Result<usize> {
        self.direct.dax_slow_writes.add(1);
        self.write_past_cache(inode, offset, buf)
    }

    /// Stores zeroes into bytes `from .. to` of one block, if it is written. The caller holds the
    /// file exclusively, and its writeback lock.
    pub(super) fn zero_dax(&self, inode: &Inode, at: FileBlock, from: u64, to: u64) -> Result<()> {
        let State::Written(start) = lookup(inode, at)?.state else { return Ok(()) };
        let zeroes = &self.zeroes[..(to - from) as usize];
        self.store(inode, start.get() * self.block_size() + from, zeroes)
            .map_err(|e| Error::io(format!("zeroing a part of block {start}"), e))?;
        inode.note_written(self.space.journal().flush_gate().epoch());
        Ok(())
    }

    /// Reads bytes of the device that belong to a file.
    pub(super) fn load(&self, inode: &Inode, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let device = self.cache().device();
        match device.dax() {
            Some(memory) if inode.is_dax() => memory.load(at, buf),
            _ => device.read_at(at, buf),
        }
    }

    /// Writes bytes of the device that belong to a file.
    #[inline]
    pub(super) fn store(&self, inode: &Inode, at: u64, buf: &[u8]) -> io::Result<()> {
        let device = self.cache().device();
        match device.dax() {
            Some(memory) if inode.is_dax() => memory.store(at, buf),
            _ => device.write_at(at, buf),
        }
    }
}
