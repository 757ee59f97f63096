//! Where a file lies on its device.

use uext4::{FileBlock, Volume};

use crate::error::{Error, Result};

/// A part of the file that lies in one piece on the device. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    first: u64,
    len: u64,
    start: u64,
}

/// Where a file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    pieces: Vec<Piece>,
}

impl FilePlace {
    /// Of a file in the root, which must be written in full.
    pub(crate) fn of(volume: &Volume, name: &str) -> Result<Self> {
        let inode = volume.lookup(&volume.root()?, name.as_bytes())?;
        let block = u64::from(volume.layout().block_size);
        let (mut pieces, mut unwritten) = (Vec::<Piece>::new(), false);
        volume.extents(&inode, FileBlock(0), &mut |extent| {
            unwritten |= extent.unwritten;
            let (first, start) = (u64::from(extent.first.get()), extent.start.get());
            let len = u64::from(extent.len) * block;
            let (first, start) = (first * block, start * block);
            match pieces.last_mut() {
                Some(last) if last.first + last.len == first && last.start + last.len == start => {
                    last.len += len;
                }
                _ => pieces.push(Piece { first, len, start }),
            }
            true
        })?;
        let mapped: u64 = pieces.iter().map(|piece| piece.len).sum();
        if unwritten || mapped < volume.attr(&inode).size {
            return Err(Error::new(format!("{name} is not written in full")));
        }
        Ok(Self { pieces })
    }

    /// Of a file that is a device by itself.
    pub(crate) fn identity(bytes: u64) -> Self {
        Self { pieces: vec![Piece { first: 0, len: bytes, start: 0 }] }
    }

    /// Where `len` bytes from byte `offset` of the file are on the device; `None` if in pieces.
    pub(crate) fn find(&self, offset: u64, len: u64) -> Option<u64> {
        let after = self.pieces.partition_point(|piece| piece.first <= offset);
        let piece = self.pieces.get(after.checked_sub(1)?)?;
        let inside = offset - piece.first;
        (inside + len <= piece.len).then_some(piece.start + inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_pieces_is_not_found() {
        let piece = |first, len, start| Piece { first, len, start };
        let place = FilePlace { pieces: vec![piece(0, 8192, 40960), piece(8192, 4096, 4096)] };
        assert_eq!(place.find(4096, 4096), Some(45056));
        assert_eq!(place.find(8192, 4096), Some(4096));
        assert_eq!((place.find(4096, 8192), place.find(12288, 4096)), (None, None));
        assert_eq!(FilePlace::identity(8192).find(4096, 4096), Some(4096));
    }
}
