//! Ranges that lie in several pieces on the device: their places, and requests of a queue that are
//! split.
//!
//! What: [`DirectIo::places_to_read`] and [`DirectIo::places_to_write`] find a range that lies in
//! up to [`PIECES_MAX`] pieces, and tell whether blocks have to be converted after writing it
//! (`in_place`). A [`Split`] keeps the pieces of a request that have come back until all have.
//! Invariants: pieces are in the order of the file and cover the range. One read-side critical
//! section covers all pieces of a request, from before the look-up of the first to the end of the
//! last. There is no allocation.

use super::DirectIo;
use crate::inode::{CountedReadGuard, DirectIoState, Inode, Version};
use smallvec::SmallVec;
use std::io;
use uext4_device::IoBuf;

/// Ranges in more pieces are not read or written through the queue of the device.
pub(super) const PIECES_MAX: usize = 8;

/// A run of bytes on the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Piece {
    /// Byte of the device.
    pub(super) at: u64,
    pub(super) len: usize,
}

/// The pieces of a range, without allocation.
pub(super) type Pieces = SmallVec<[Piece; PIECES_MAX]>;

/// Adds a piece, or lengthens the last one. False if there are too many.
fn push(pieces: &mut Pieces, at: u64, len: usize) -> bool {
    let is_full = pieces.len() == PIECES_MAX;
    match pieces.last_mut() {
        Some(last) if last.at + last.len as u64 == at => last.len += len,
        _ if is_full => return false,
        _ => pieces.push(Piece { at, len }),
    }
    true
}

/// The places of a range, and the right to access them.
#[derive(Debug)]
pub(super) struct Places<'a> {
    pub(super) guard: CountedReadGuard<'a>,
    pub(super) pieces: Pieces,
    /// Some blocks are unwritten and have to be converted after the write, unless mappings have
    /// been removed since this version.
    pub(super) converts: Option<Version>,
}

impl DirectIo {
    /// The places of a range to be read, if all of it is known to be written.
    pub(super) fn places_to_read<'a>(
        &self,
        inode: &'a Inode,
        offset: u64,
        len: usize,
    ) -> Option<Places<'a>> {
        let direct_io = inode.direct_io()?;
        let guard = direct_io.read_lock_counted()?;
        let (pieces, is_written) = self.find_pieces(direct_io, offset, len)?;
        is_written.then_some(Places { guard, pieces, converts: None })
    }

    /// The places of a range to be written, if all of it is known to be allocated and unwritten
    /// blocks are written as a whole.
    pub(super) fn places_to_write<'a>(
        &self,
        inode: &'a Inode,
        offset: u64,
        len: usize,
        durable: bool,
    ) -> Option<Places<'a>> {
        let direct_io = inode.direct_io()?;
        // Taken before the critical section, so that it also detects an exclusion that begins and
        // ends before the look-up.
        let version = direct_io.version();
        let guard = direct_io.read_lock_counted()?;
        let (pieces, is_written) = self.find_pieces(direct_io, offset, len)?;
        let is_whole = |at: u64| at.is_multiple_of(self.context.block_size());
        let may = match is_written {
            true => self.may_overwrite(inode, direct_io, durable),
            false => {
                self.may_overwrite(inode, direct_io, false)
                    && direct_io.allows_in_place()
                    && is_whole(offset)
                    && is_whole(len as u64)
            }
        };
        may.then_some(Places { guard, pieces, converts: (!is_written).then_some(version) })
    }

    /// The pieces of a range that ends inside the file, and whether all of them are written.
    fn find_pieces(
        &self,
        direct_io: &DirectIoState,
        offset: u64,
        len: usize,
    ) -> Option<(Pieces, bool)> {
        let end = offset.checked_add(len as u64)?;
        if end > direct_io.size() || len == 0 {
            return None;
        }
        let mut pieces = Pieces::default();
        let (mut done, mut is_written) = (0, true);
        while done < len {
            let (offset, left) = (offset + done as u64, len - done);
            let (at, count) = match self.find_piece(direct_io, offset, left) {
                Some(found) => found,
                None => {
                    is_written = false;
                    self.find_unwritten_piece(direct_io, offset, left)?
                }
            };
            if !push(&mut pieces, at, count) {
                return None;
            }
            done += count;
        }
        Some((pieces, is_written))
    }
}

/// A request that is on the device in several pieces.
#[derive(Debug)]
pub(super) struct Split {
    parts: [IoBuf; PIECES_MAX],
    count: usize,
    left: usize,
    /// The first error that came.
    error: Option<io::Error>,
}

impl Split {
    pub(super) fn new() -> Self {
        Self { parts: [const { IoBuf::empty() }; PIECES_MAX], count: 0, left: 0, error: None }
    }

    pub(super) fn begin(&mut self, count: usize) {
        (self.count, self.left, self.error) = (count, count, None);
    }

    /// Ends a piece. Returns the whole request if it was the last piece.
    pub(super) fn end(
        &mut self,
        piece: usize,
        buf: IoBuf,
        result: io::Result<()>,
    ) -> Option<(IoBuf, io::Result<()>)> {
        self.parts[piece] = buf;
        self.left -= 1;
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
        if self.left > 0 {
            return None;
        }
        let mut parts = self.parts[..self.count].iter_mut().map(std::mem::take);
        let mut whole = parts.next().unwrap_or_default();
        parts.for_each(|part| whole.join(part).expect("it was split off there"));
        Some((whole, self.error.take().map_or(Ok(()), Err)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In whatever order they come back. The first failure is reported.
    #[test]
    fn pieces_become_the_request_again() {
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let mut buf = IoBuf::new(3 * 512).unwrap();
            (0..3).for_each(|n| buf[n * 512..][..512].fill(n as u8));
            buf.set_len(3 * 512 - 100);
            let mut split = Split::new();
            split.begin(3);
            let first = buf.split_to(512);
            let second = buf.split_to(512);
            let mut parts = [Some(first), Some(second), Some(buf)];
            let mut ended = None;
            for (n, piece) in order.into_iter().enumerate() {
                assert!(ended.is_none());
                let result = if n == 0 { Ok(()) } else { Err(io::Error::other(format!("{n}"))) };
                ended = split.end(piece, parts[piece].take().unwrap(), result);
            }
            let (whole, result) = ended.unwrap();
            assert_eq!((whole.len(), whole.capacity()), (3 * 512 - 100, 3 * 512));
            assert!(whole.chunks(512).zip(0..).all(|(part, n)| part.iter().all(|b| *b == n)));
            assert_eq!(result.unwrap_err().to_string(), "1");
        }
    }

    #[test]
    fn ranges_that_touch_on_the_device_are_one_piece() {
        let mut pieces = Pieces::default();
        let mut push = |at, len| push(&mut pieces, at, len);
        assert!(push(100, 10) && push(110, 10) && push(130, 10));
        assert!((3..=PIECES_MAX as u64).all(|n| push(1000 * n, 1)));
        assert!(!push(1, 1) && push(8001, 1));
        assert_eq!((pieces.len(), pieces[0].len, pieces[7].len), (8, 20, 2));
    }
}
