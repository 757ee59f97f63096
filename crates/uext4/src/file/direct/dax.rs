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

use super::DirectIo;
use crate::error::Result;
use crate::file::write::first_chunk;
use crate::inode::{Inode, InodeRef};

impl DirectIo {
    /// Reads a range if that needs no lock once the range is known. The caller holds no lock.
    pub(in crate::file) fn read_dax(
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
            && !self.context.ablations.journals_dax()
            && matches!(self.overwrite(inode, offset, buf, false), Some(Ok(())))
    }

    /// Writes a range if it is an overwrite of written blocks. The caller holds no lock.
    pub(in crate::file) fn write_dax(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &[u8],
    ) -> Option<Result<usize>> {
        if let Err(error) =
            self.context.ablations.before_dax_overwrite(self, inode, offset, buf.len())
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

    /// Writes as much of `buf` as there is space for, on the slow path. The caller holds the file
    /// exclusively.
    pub(in crate::file) fn write_dax_locked(
        &self,
        inode: &InodeRef,
        offset: u64,
        buf: &[u8],
    ) -> Result<usize> {
        self.writer.check_write(inode, offset, buf)?;
        let mut done = 0;
        while done < buf.len() {
            self.stats.dax_slow_writes.add(1);
            let at = offset + done as u64;
            match self.write_past_cache(inode, at, first_chunk(at, &buf[done..])) {
                Ok(len) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    self.context.watch_dropped::<()>(Err(error));
                    break;
                }
            }
        }
        Ok(done)
    }
}
