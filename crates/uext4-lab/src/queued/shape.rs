//! Sizes of the load, its file, and where that lies.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use uext4::{Device, FileBlock, FileKind, NewInode, Owner, Volume};

use crate::bench::{self, format};
use crate::error::{Doing, Error, Result};
use crate::plan::Plan;
use crate::queued::content::stamp;
use crate::stage::Stage;
use crate::target::Side;

/// The file's name in the root.
pub(crate) const NAME: &str = "aio-dio";
/// Requests in flight.
pub(crate) const DEPTH: usize = 64;

/// The file at full size.
const FILE_BYTES: u64 = 2 << 30;
/// Of smaller ones: room for more places than requests in flight.
const FILE_BYTES_MIN: u64 = 24 << 20;
/// A multiple of all sizes of requests: 4, 8, 12 and 16 KiB.
const FILE_UNIT: u64 = 48 << 10;
/// Journal and tables beside the file.
const OVERHEAD_BYTES: u64 = 192 << 20;
const LAYOUT_BYTES: usize = 1 << 20;
/// Number of the write that laid the file out.
const LAID_OUT: u64 = 0;

/// How large things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) file_bytes: u64,
}

impl Shape {
    pub(crate) fn new(scale: f64) -> Self {
        let bytes = (FILE_BYTES as f64 * scale) as u64;
        Self { file_bytes: bytes.max(FILE_BYTES_MIN).next_multiple_of(FILE_UNIT) }
    }

    pub(crate) fn image_bytes(self) -> u64 {
        (self.file_bytes + self.file_bytes / 32 + OVERHEAD_BYTES).next_multiple_of(1 << 20)
    }
}

/// A part of the file that lies in one piece on the device. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    first: u64,
    len: u64,
    start: u64,
}

/// Where the file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    pieces: Vec<Piece>,
}

impl Map {
    /// Of the load's file.
    pub(crate) fn of(volume: &Volume) -> Result<Self> {
        let inode = volume.lookup(&volume.root()?, NAME.as_bytes())?;
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
            return Err(Error::new(format!("{NAME} is not written in full")));
        }
        Ok(Self { pieces })
    }

    /// A map of a file that is a device by itself.
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

/// Makes the image with the file in it.
pub(crate) fn make_image(plan: &Plan, stage: &Stage, shape: Shape) -> Result<PathBuf> {
    let image = stage.image("turn");
    format(&image, shape.image_bytes())?;
    bench::lay_out(plan, stage, &image, |side| match side {
        Side::Library(volume) => lay_out(volume, shape),
        Side::Mount(mount) => lay_out_on_host(mount.dir(), shape),
    })?;
    Ok(image)
}

fn lay_out(volume: &Volume, shape: Shape) -> Result<()> {
    let (kind, owner, rdev) = (FileKind::Regular, Owner::default(), Device::default());
    let new = NewInode { kind, mode: 0o644, owner, rdev };
    let file = volume.open_file(&volume.create(&volume.root()?, NAME.as_bytes(), &new)?)?;
    written(shape, |offset, data| {
        file.write_at(offset, data)?;
        Ok(())
    })?;
    Ok(file.sync(false)?)
}

fn lay_out_on_host(dir: &Path, shape: Shape) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(dir.join(NAME));
    let file = file.doing("laying the file out")?;
    written(shape, |offset, data| file.write_all_at(data, offset).doing("laying the file out"))?;
    file.sync_all().doing("laying the file out")
}

fn written(shape: Shape, mut write: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let mut data = vec![0x34; LAYOUT_BYTES];
    for offset in (0..shape.file_bytes).step_by(LAYOUT_BYTES) {
        let len = usize::try_from(shape.file_bytes - offset).unwrap_or(usize::MAX);
        let part = &mut data[..len.min(LAYOUT_BYTES)];
        stamp(part, offset, LAID_OUT);
        write(offset, part)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_requests_of_every_size() {
        for scale in [1.0, 0.3, 0.0001] {
            let shape = Shape::new(scale);
            assert!([4, 8, 12, 16].iter().all(|kib| shape.file_bytes.is_multiple_of(kib << 10)));
            assert!(shape.image_bytes() > shape.file_bytes);
        }
    }

    #[test]
    fn what_lies_in_pieces_is_not_found() {
        let piece = |first, len, start| Piece { first, len, start };
        let map = Map { pieces: vec![piece(0, 8192, 40960), piece(8192, 4096, 4096)] };
        assert_eq!(map.find(4096, 4096), Some(45056));
        assert_eq!(map.find(8192, 4096), Some(4096));
        assert_eq!((map.find(4096, 8192), map.find(12288, 4096)), (None, None));
        assert_eq!(Map::identity(8192).find(4096, 4096), Some(4096));
    }
}
