//! Writes, cut into requests so small that a ring has many of them in flight.

use std::io::IoSlice;
use std::ops::Range;

use crate::device::WriteRun;
use crate::direct::Alignment;
use crate::vectored::VECTOR_MAX;

/// Most bytes of one request: large enough for the medium, small enough that a long run becomes
/// several concurrent requests. A multiple of every unit of direct I/O.
pub(crate) const PIECE_MAX: usize = 256 * 1024;

/// One request.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Position in the file, in bytes.
    pub(crate) at: u64,
    /// Bytes; never 0.
    pub(crate) len: usize,
    /// Whether its buffers must be copied to aligned memory first.
    pub(crate) copied: bool,
    slices: Range<usize>,
}

/// The requests of one call.
#[derive(Debug, Default)]
pub(crate) struct Pieces<'a> {
    pieces: Vec<Piece>,
    slices: Vec<IoSlice<'a>>,
}

impl<'a> Pieces<'a> {
    /// Adds a write at `at` (bytes in the file). The range fits `align`, which the file requires.
    pub(crate) fn add(&mut self, at: u64, run: &WriteRun<'a>, align: Option<Alignment>) {
        let mut at = at;
        let (mut first, mut len) = (self.slices.len(), 0);
        for buf in run.bufs {
            let mut rest = *buf;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(PIECE_MAX - len));
                self.slices.push(IoSlice::new(now));
                len += now.len();
                rest = later;
                // A direct request must end at a unit, so it is not cut because of the number of
                // its buffers. Too many buffers are copied into one.
                let full = align.is_none() && self.slices.len() - first == VECTOR_MAX;
                if len == PIECE_MAX || full {
                    self.close(at, len, first, align);
                    at += len as u64;
                    (first, len) = (self.slices.len(), 0);
                }
            }
        }
        if len > 0 {
            self.close(at, len, first, align);
        }
    }

    fn close(&mut self, at: u64, len: usize, first: usize, align: Option<Alignment>) {
        let slices = first..self.slices.len();
        let copied = align.is_some_and(|align| {
            slices.len() > VECTOR_MAX
                || !self.slices[slices.clone()].iter().all(|buf| align.fits_memory(buf))
        });
        self.pieces.push(Piece { at, len, copied, slices });
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn get(&self, index: usize) -> &Piece {
        &self.pieces[index]
    }

    /// The buffers of a request.
    pub(crate) fn slices(&self, index: usize) -> &[IoSlice<'a>] {
        &self.slices[self.pieces[index].slices.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(pieces: &Pieces<'_>) -> Vec<(u64, usize, usize)> {
        (0..pieces.len())
            .map(|index| {
                let piece = pieces.get(index);
                let slices = pieces.slices(index);
                assert_eq!(piece.len, slices.iter().map(|slice| slice.len()).sum::<usize>());
                (piece.at, piece.len, slices.len())
            })
            .collect()
    }

    #[test]
    fn long_runs_are_cut_and_empty_ones_vanish() {
        let long = vec![0; PIECE_MAX + 10];
        let bufs: [&[u8]; 4] = [b"", &long[..7], &long, b""];
        let mut pieces = Pieces::default();
        pieces.add(5, &WriteRun { offset: 0, bufs: &bufs }, None);
        pieces.add(9, &WriteRun { offset: 0, bufs: &[b""] }, None);
        pieces.add(8, &WriteRun { offset: 0, bufs: &[b"x"] }, None);
        let end = 5 + PIECE_MAX as u64;
        assert_eq!(shape(&pieces), [(5, PIECE_MAX, 2), (end, 17, 1), (8, 1, 1)]);
    }

    #[test]
    fn many_small_buffers_are_cut_or_copied() {
        let bufs = vec![&[0_u8; 16][..]; 2048];
        let run = WriteRun { offset: 0, bufs: &bufs };
        let mut pieces = Pieces::default();
        pieces.add(0, &run, None);
        assert_eq!(shape(&pieces), [(0, 16384, 1024), (16384, 16384, 1024)]);
        assert!(!pieces.get(0).copied);
        let mut pieces = Pieces::default();
        pieces.add(0, &run, Some(Alignment { unit: 512, memory: 1 }));
        assert_eq!(shape(&pieces), [(0, 32768, 2048)]);
        assert!(pieces.get(0).copied);
    }
}
