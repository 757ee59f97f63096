//! The fast path: reads of written blocks, and overwrites of them, without locks.
//!
//! What: a range takes the fast path if all of its blocks are known to be written, it ends inside
//! the file, and the file has no cached page. Then nothing changes but the bytes themselves.
//! Invariants: the I/O is done in a read-side critical section ([`DirectIoState::read_lock`] or
//! [`DirectIoState::read_lock_counted`]), so no mapping is removed meanwhile. There is no
//! allocation, no lock, no handle, and no write to memory that other threads write to. A call that
//! does its I/O itself executes no locked instruction. The time of the last write changes at most
//! once in a tick of the clock.

use super::DirectIo;
use crate::config::Atime;
use crate::error::{Error, Result};
use crate::file::access_times::leaves_no_trace;
use crate::inode::{DirectIoState, Inode};
use std::io;
use std::ops::Range;
use uext4_ondisk::{BlockNo, FileBlock};

impl DirectIo {
    /// Reads a range, if all of it can be read on the fast path.
    pub(in crate::file) fn read_fast(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize>> {
        let direct_io = inode.direct_io()?;
        let _reading = direct_io.read_lock()?;
        let (place, first) = self.find_inside(direct_io, offset, buf.len())?;
        let result = if first == buf.len() {
            self.context.load(inode, place, buf)
        } else {
            self.for_pieces(direct_io, offset, buf.len(), first, |place, range| {
                self.context.load(inode, place, &mut buf[range])
            })?
        };
        if self.keeps_access_times() && !leaves_no_trace() {
            inode.note_direct_read(direct_io);
        }
        let stats = &self.stats;
        if inode.is_dax() { &stats.dax_reads } else { &stats.reads }.add(1);
        let error = |e| Error::io(format!("reading {} bytes of {}", buf.len(), inode.ino()), e);
        Some(result.map(|()| buf.len()).map_err(error))
    }

    /// Writes a range, if all of it is an overwrite. With `durable` also only if its mapping is
    /// durable.
    pub(in crate::file) fn write_fast(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &[u8],
        durable: bool,
    ) -> Option<Result<usize>> {
        let result = self.overwrite(inode, offset, buf, durable)?;
        let error = |e| Error::io(format!("writing {} bytes of {}", buf.len(), inode.ino()), e);
        Some(result.map(|()| buf.len()).map_err(error))
    }

    /// The part of [`DirectIo::write_fast`] that every overwrite executes. Behind stores past the
    /// caches a processor continues only until its store queue is full, or until one load needs the
    /// bytes of two stores. So this has as few stores as possible, and no copied result
    /// (docs/direct-io.md).
    #[inline]
    pub(in crate::file) fn overwrite(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &[u8],
        durable: bool,
    ) -> Option<io::Result<()>> {
        let direct_io = inode.direct_io()?;
        let _reading = direct_io.read_lock()?;
        if !self.may_overwrite(inode, direct_io, durable) {
            return None;
        }
        let (place, first) = self.find_inside(direct_io, offset, buf.len())?;
        let result = if first == buf.len() {
            self.put(inode, place, buf, durable)
        } else {
            self.for_pieces(direct_io, offset, buf.len(), first, |place, range| {
                self.put(inode, place, &buf[range], durable)
            })?
        };
        // A failed write may also have changed bytes.
        inode.note_direct_write(direct_io);
        if inode.is_dax() {
            self.stats.dax_overwrites.add(1);
        } else {
            self.stats.overwrites.add(1);
            self.stats.inline.add(1);
        }
        Some(result)
    }

    #[inline]
    fn put(&self, inode: &Inode, at: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        match durable && self.context.options.barrier {
            true => self.context.cache().device().write_fua(at, bytes),
            false => self.context.store(inode, at, bytes),
        }
    }

    pub(in crate::file) fn keeps_access_times(&self) -> bool {
        self.context.options.atime != Atime::None && !self.context.is_read_only()
    }

    /// Whether an overwrite changes nothing but bytes. If it is to be `durable`, the mapping has to
    /// be durable already. Asked in a read-side critical section, because closing the volume waits
    /// for those.
    #[inline]
    pub(super) fn may_overwrite(
        &self,
        inode: &Inode,
        direct_io: &DirectIoState,
        durable: bool,
    ) -> bool {
        let is_mapping_durable = || {
            let tid = inode.sync_tid(true);
            tid.is_none_or(|tid| self.context.journal().is_durable(tid))
        };
        direct_io.is_overwritable()
            && !self.context.is_read_only()
            && !self.context.is_closing()
            && (!durable || is_mapping_durable())
    }

    /// Calls `work` for each piece of a range, of which `first` bytes are the first piece, with the
    /// byte of the device and the bytes of the range that lie there. `None`, in most cases before
    /// any `work`, unless every block is known to be written. For a caller in a read-side critical
    /// section.
    #[inline(never)]
    fn for_pieces(
        &self,
        direct_io: &DirectIoState,
        offset: u64,
        len: usize,
        first: usize,
        mut work: impl FnMut(u64, Range<usize>) -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        let piece = |done| self.find_piece(direct_io, offset + done as u64, len - done);
        let mut done = first;
        while done < len {
            done += piece(done)?.1;
        }
        done = 0;
        while done < len {
            // A thread that is about to drain this section may have made it forget a piece. Then
            // the caller does all of it again.
            let (place, count) = piece(done)?;
            if let Err(error) = work(place, done..done + count) {
                return Some(Err(error));
            }
            done += count;
        }
        Some(Ok(()))
    }

    /// The first piece of a range, which must end inside the file.
    #[inline]
    fn find_inside(
        &self,
        direct_io: &DirectIoState,
        offset: u64,
        len: usize,
    ) -> Option<(u64, usize)> {
        let end = offset.checked_add(len as u64)?;
        if end > direct_io.size() || len == 0 {
            return None;
        }
        self.find_piece(direct_io, offset, len)
    }

    /// The byte of the device at which `offset` lies, and how many of `len` bytes follow each other
    /// there, if they are known to be written.
    #[inline]
    pub(super) fn find_piece(
        &self,
        direct_io: &DirectIoState,
        offset: u64,
        len: usize,
    ) -> Option<(u64, usize)> {
        self.piece_of(offset, len, |block| direct_io.find(block))
    }

    /// The byte of the device at which `offset` lies, and how many of `len` bytes follow each other
    /// there, if they were unwritten when they were learnt.
    pub(super) fn find_unwritten_piece(
        &self,
        direct_io: &DirectIoState,
        offset: u64,
        len: usize,
    ) -> Option<(u64, usize)> {
        self.piece_of(offset, len, |block| direct_io.find_unwritten(block))
    }

    #[inline]
    fn piece_of(
        &self,
        offset: u64,
        len: usize,
        find: impl Fn(FileBlock) -> Option<(BlockNo, u32)>,
    ) -> Option<(u64, usize)> {
        let block_size = self.context.block_size();
        // Shifts, because a division would take longer than everything else here.
        let shift = block_size.trailing_zeros();
        let block = FileBlock(u32::try_from(offset >> shift).ok()?);
        let (start, blocks) = find(block)?;
        let within = offset & (block_size - 1);
        let bytes = (u64::from(blocks) << shift) - within;
        let len = len.min(usize::try_from(bytes).unwrap_or(usize::MAX));
        Some(((start.get() << shift) + within, len))
    }
}
