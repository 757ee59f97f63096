//! Content of files that both sides map to the same blocks: the blocks of both devices, compared in
//! ascending order and in large reads.

use std::collections::HashSet;

use uext4::{BlockNo, Ino};

use super::Side;
use super::content::first_unequal;
use super::entry::Aspect;
use crate::failure::Why;
use crate::runs::Run;

/// Bytes read at a time from each device.
const WINDOW_BYTES: u64 = 1 << 20;
/// Blocks of other files between two pieces that are read with them rather than skipped.
const GAP_BLOCKS: u64 = 8;
/// Pieces that are compared together, at most, of files that begin before.
const PIECES_MAX: usize = 1 << 16;

/// A file that waits for its blocks to be compared.
pub(super) struct Pending {
    /// Its path.
    pub(super) below: Vec<u8>,
    /// Inode of each side.
    pub(super) inodes: [Ino; 2],
    /// It is encrypted, so that the first byte that differs is not that of its content.
    pub(super) is_encrypted: bool,
    /// What else differs.
    pub(super) aspects: Vec<Aspect>,
    /// The first byte found to differ.
    pub(super) first: Option<u64>,
}

/// Blocks of a file.
#[derive(Clone, Copy)]
struct Piece {
    /// First block of the device.
    block: u64,
    /// Bytes that belong to the file's content.
    bytes: u32,
    /// Which file.
    file: u32,
    /// Byte of the file.
    at: u64,
}

/// Files whose blocks are to be compared.
pub(super) struct Blocks {
    block_size: u64,
    files: Vec<Pending>,
    pieces: Vec<Piece>,
    buffers: [Vec<u8>; 2],
}

impl Blocks {
    /// Nothing to compare yet, of images with blocks of so many bytes.
    pub(super) fn new(block_size: u32) -> Self {
        let buffers = [Vec::new(), Vec::new()];
        Self { block_size: block_size.into(), files: Vec::new(), pieces: Vec::new(), buffers }
    }

    /// The blocks that are added next are of this file.
    pub(super) fn begin(&mut self, pending: Pending) {
        self.files.push(pending);
    }

    /// Adds blocks of the file that was begun last, up to its size.
    pub(super) fn add(&mut self, run: &Run, size: u64) {
        let step = WINDOW_BYTES / self.block_size;
        let mut done = 0;
        while done < run.len {
            let at = (run.logical + done) * self.block_size;
            if at >= size {
                return;
            }
            let blocks = step.min(run.len - done);
            // At most a window, so nothing is lost.
            let bytes = (blocks * self.block_size).min(size - at) as u32;
            let (block, file) = (run.physical + done, self.files.len() as u32 - 1);
            self.pieces.push(Piece { block, bytes, file, at });
            done += blocks;
        }
    }

    /// Whether it is time to compare.
    pub(super) fn is_full(&self) -> bool {
        self.pieces.len() >= PIECES_MAX || self.files.len() >= PIECES_MAX
    }

    /// Compares, and returns the files: those that are the same have no `first`.
    pub(super) fn run(
        &mut self,
        sides: &[Side; 2],
        mut fail: impl FnMut(&Pending, usize, Why),
    ) -> Vec<Pending> {
        self.pieces.sort_unstable_by_key(|piece| piece.block);
        let pieces = std::mem::take(&mut self.pieces);
        let mut failed = HashSet::new();
        let mut rest = &pieces[..];
        while let Some(first) = rest.first() {
            let (count, end) = self.window(rest);
            let (window, behind) = rest.split_at(count);
            rest = behind;
            if let Err((side, why)) = self.read(sides, first.block, end) {
                let text = why.to_string();
                for piece in window {
                    if failed.insert(piece.file) {
                        fail(&self.files[piece.file as usize], side, Why::new(text.clone()));
                    }
                }
                continue;
            }
            let [a, b] = &self.buffers;
            if a != b {
                compare(window, &self.buffers, self.block_size, &mut self.files);
            }
        }
        let files = std::mem::take(&mut self.files);
        let unknown = |(index, _): &(usize, Pending)| !failed.contains(&(*index as u32));
        files.into_iter().enumerate().filter(unknown).map(|(_, file)| file).collect()
    }

    /// How many of the pieces, which ascend, are read at once, and the block behind them.
    fn window(&self, pieces: &[Piece]) -> (usize, u64) {
        let start = pieces[0].block;
        let mut end = start;
        let mut count = 0;
        for piece in pieces {
            let piece_end = piece.block + u64::from(piece.bytes).div_ceil(self.block_size);
            let fits = (piece_end.max(end) - start) * self.block_size <= WINDOW_BYTES;
            if count > 0 && (!fits || piece.block > end + GAP_BLOCKS) {
                break;
            }
            end = end.max(piece_end);
            count += 1;
        }
        (count, end)
    }

    fn read(&mut self, sides: &[Side; 2], start: u64, end: u64) -> Result<(), (usize, Why)> {
        // At most a window, or one piece, which is no longer.
        let bytes = ((end - start) * self.block_size) as usize;
        for (index, (side, buffer)) in sides.iter().zip(&mut self.buffers).enumerate() {
            buffer.resize(bytes, 0);
            let read = side.volume.read_blocks(BlockNo(start), buffer);
            read.map_err(|error| (index, error.into()))?;
        }
        Ok(())
    }
}

/// Notes the first byte that differs of each file in a window.
fn compare(window: &[Piece], buffers: &[Vec<u8>; 2], block_size: u64, files: &mut [Pending]) {
    let start = window[0].block;
    for piece in window {
        let at = ((piece.block - start) * block_size) as usize;
        let range = at..at + piece.bytes as usize;
        let [a, b] = buffers;
        if let Some(inside) = first_unequal(&a[range.clone()], &b[range]) {
            let found = piece.at + inside as u64;
            let first = &mut files[piece.file as usize].first;
            *first = Some(first.map_or(found, |known| known.min(found)));
        }
    }
}
