//! The way without locks: reads of written blocks, and overwrites of them.
//!
//! What: a range goes this way if all of its blocks are known to be written, it ends inside the
//! file, and no page may be cached. Then there is nothing to change but the bytes themselves.
//! Invariants: between [`Overwrites::visit`] or [`Overwrites::enter`] and the end of the I/O nobody
//! removes the mapping. No allocation, no lock, no handle, and no write to memory that other
//! threads write to; a call that does its I/O itself has no locked instruction either. The time of
//! the last write changes once in a tick of the clock.

use super::super::Files;
use crate::config::Atime;
use crate::error::{Error, Result};
use crate::inode::{Access, Inode, Overwrites};
use std::io;
use std::ops::Range;
use uext4_ondisk::{BlockNo, FileBlock};

/// Where a range of a file lies in one piece, and the right to go there.
pub(super) struct Place<'a> {
    pub(super) access: Access<'a>,
    /// Byte of the device.
    pub(super) at: u64,
}

impl Files {
    /// Reads, if the whole range can be read this way.
    pub(in crate::file) fn read_fast(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize>> {
        let overwrites = inode.overwrites()?;
        let _visit = overwrites.visit()?;
        let (place, first) = self.find_inside(overwrites, offset, buf.len())?;
        let result = if first == buf.len() {
            self.load(inode, place, buf)
        } else {
            self.for_pieces(overwrites, offset, buf.len(), first, |place, range| {
                self.load(inode, place, &mut buf[range])
            })?
        };
        if self.keeps_access_times() {
            inode.note_direct_read(overwrites);
        }
        let stats = &self.direct;
        if inode.is_dax() { &stats.dax_reads } else { &stats.reads }.add(1);
        let error = |e| Error::io(format!("reading {} bytes of {}", buf.len(), inode.ino()), e);
        Some(result.map(|()| buf.len()).map_err(error))
    }

    /// Writes, if the whole range is an overwrite, and the result need be no more `durable` than
    /// the device makes it.
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

    /// What of [`Files::write_fast`] each overwrite goes through. Behind stores past the caches a
    /// processor goes on only until its queue of stores is full, or until it loads at once what two
    /// stores wrote: so this has as few stores as can be, and no result that is copied
    /// (docs/direct-io.md).
    #[inline]
    pub(in crate::file) fn overwrite(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &[u8],
        durable: bool,
    ) -> Option<io::Result<()>> {
        let overwrites = inode.overwrites()?;
        let _visit = overwrites.visit()?;
        if !self.may_overwrite(inode, overwrites, durable) {
            return None;
        }
        let (place, first) = self.find_inside(overwrites, offset, buf.len())?;
        let result = if first == buf.len() {
            self.put(inode, place, buf, durable)
        } else {
            self.for_pieces(overwrites, offset, buf.len(), first, |place, range| {
                self.put(inode, place, &buf[range], durable)
            })?
        };
        // A failed write may have changed something, too.
        inode.note_direct_write(overwrites);
        if inode.is_dax() {
            self.direct.dax_overwrites.add(1);
        } else {
            self.direct.overwrites.add(1);
            self.direct.inline.add(1);
        }
        Some(result)
    }

    #[inline]
    fn put(&self, inode: &Inode, at: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        match durable && self.options.barrier {
            true => self.cache().device().write_fua(at, bytes),
            false => self.store(inode, at, bytes),
        }
    }

    /// Where a range to be read lies, if in one piece that can be read this way.
    pub(super) fn place_to_read<'a>(
        &self,
        inode: &'a Inode,
        offset: u64,
        len: usize,
    ) -> Option<Place<'a>> {
        let overwrites = inode.overwrites()?;
        let access = overwrites.enter()?;
        let (at, found) = self.find_inside(overwrites, offset, len)?;
        (found == len).then_some(Place { access, at })
    }

    /// Where a range to be overwritten lies, likewise.
    pub(super) fn place_to_write<'a>(
        &self,
        inode: &'a Inode,
        offset: u64,
        len: usize,
        durable: bool,
    ) -> Option<Place<'a>> {
        let place = self.place_to_read(inode, offset, len)?;
        self.may_overwrite(inode, inode.overwrites()?, durable).then_some(place)
    }

    pub(in crate::file) fn keeps_access_times(&self) -> bool {
        self.options.atime != Atime::None && !self.is_read_only()
    }

    /// Whether nothing but bytes changes by an overwrite. The mapping of what must be durable must
    /// be durable itself. To be asked inside: the end of the volume waits for those who are.
    #[inline]
    pub(super) fn may_overwrite(
        &self,
        inode: &Inode,
        overwrites: &Overwrites,
        durable: bool,
    ) -> bool {
        let is_mapping_durable = || {
            let tid = inode.sync_tid(true);
            tid.is_none_or(|tid| self.space.journal().is_durable(tid))
        };
        overwrites.is_overwritable()
            && !self.is_read_only()
            && !self.is_closing()
            && (!durable || is_mapping_durable())
    }

    /// Gives `work` each piece of a range of which `first` bytes are the first piece: byte of the
    /// device, and which bytes of the range lie there. `None`, and nothing done as a rule, unless
    /// every block of it is known to be written. To be called inside.
    #[inline(never)]
    fn for_pieces(
        &self,
        overwrites: &Overwrites,
        offset: u64,
        len: usize,
        first: usize,
        mut work: impl FnMut(u64, Range<usize>) -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        let piece = |done| self.find_piece(overwrites, offset + done as u64, len - done);
        let mut done = first;
        while done < len {
            done += piece(done)?.1;
        }
        done = 0;
        while done < len {
            // Somebody who excludes us may have retired what was there: all is done again then.
            let (place, count) = piece(done)?;
            if let Err(error) = work(place, done..done + count) {
                return Some(Err(error));
            }
            done += count;
        }
        Some(Ok(()))
    }

    /// The first piece of a range that must end inside the file.
    #[inline]
    fn find_inside(
        &self,
        overwrites: &Overwrites,
        offset: u64,
        len: usize,
    ) -> Option<(u64, usize)> {
        let end = offset.checked_add(len as u64)?;
        if end > overwrites.size() || len == 0 {
            return None;
        }
        self.find_piece(overwrites, offset, len)
    }

    /// Byte of the device of `offset`, and for how many of `len` bytes the file goes on there.
    #[inline]
    pub(super) fn find_piece(
        &self,
        overwrites: &Overwrites,
        offset: u64,
        len: usize,
    ) -> Option<(u64, usize)> {
        self.piece_of(offset, len, |block| overwrites.find(block))
    }

    /// Likewise, of what is known to be unwritten, or to have been when that was learnt.
    pub(super) fn find_unwritten_piece(
        &self,
        overwrites: &Overwrites,
        offset: u64,
        len: usize,
    ) -> Option<(u64, usize)> {
        self.piece_of(offset, len, |block| overwrites.find_unwritten(block))
    }

    #[inline]
    fn piece_of(
        &self,
        offset: u64,
        len: usize,
        find: impl Fn(FileBlock) -> Option<(BlockNo, u32)>,
    ) -> Option<(u64, usize)> {
        let block_size = self.block_size();
        // A division would take longer than all else here.
        let shift = block_size.trailing_zeros();
        let block = FileBlock(u32::try_from(offset >> shift).ok()?);
        let (start, blocks) = find(block)?;
        let within = offset & (block_size - 1);
        let bytes = (u64::from(blocks) << shift) - within;
        let len = len.min(usize::try_from(bytes).unwrap_or(usize::MAX));
        Some(((start.get() << shift) + within, len))
    }
}
