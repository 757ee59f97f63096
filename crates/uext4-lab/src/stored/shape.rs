//! Sizes of the load, its files, and where they lie.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use uext4::config::DaxMode;
use uext4::{Device, FileBlock, FileKind, MountOptions, NewInode, OpenFile, Owner, Volume};
use uext4_device::{Access, DaxDevice};

use crate::check;
use crate::error::{Doing, Error, Result};
use crate::stage::{self, Stage};
use crate::target;

/// Files that threads write to, all of them to all.
pub(crate) const FILES: usize = 32;
/// Bytes of a write.
pub(crate) const BLOCK: usize = 4096;

/// A file at full size.
const FILE_BYTES: u64 = 16 << 20;
/// Of smaller ones: some blocks for each of 64 threads.
const FILE_BYTES_MIN: u64 = 1 << 20;
/// Journal and tables beside the files.
const OVERHEAD_BYTES: u64 = 128 << 20;
const LAYOUT_BYTES: usize = 1 << 20;

/// How large things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) file_bytes: u64,
}

impl Shape {
    pub(crate) fn new(scale: f64) -> Self {
        let bytes = (FILE_BYTES as f64 * scale) as u64;
        Self { file_bytes: bytes.max(FILE_BYTES_MIN).next_multiple_of(LAYOUT_BYTES as u64) }
    }

    /// Blocks of a file.
    pub(crate) fn blocks(self) -> usize {
        (self.file_bytes / BLOCK as u64) as usize
    }

    pub(crate) fn image_bytes(self) -> u64 {
        let data = self.file_bytes * FILES as u64;
        (data + data / 32 + OVERHEAD_BYTES).next_multiple_of(1 << 20)
    }
}

/// Where the blocks of each file lie: byte of the device, by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places(pub(crate) Vec<Vec<u64>>);

impl Places {
    pub(crate) fn of(volume: &Volume, shape: Shape) -> Result<Self> {
        let root = volume.root()?;
        let all = (0..FILES).map(|file| {
            let inode = volume.lookup(&root, name(file).as_bytes())?;
            let mut places = Vec::with_capacity(shape.blocks());
            volume.extents(&inode, FileBlock(0), &mut |extent| {
                let blocks = extent.start.get()..extent.start.get() + u64::from(extent.len);
                let is_next = extent.first.get() as usize == places.len() && !extent.unwritten;
                places.extend(blocks.filter(|_| is_next).map(|block| block * BLOCK as u64));
                true
            })?;
            match places.len() == shape.blocks() {
                true => Ok(places),
                false => Err(Error::new(format!("{} is not written in full", name(file)))),
            }
        });
        all.collect::<Result<_>>().map(Self)
    }
}

/// The same, as somebody keeps it who knows that files lie in few pieces: a table of all blocks
/// would not fit into the processor's caches beside what is measured.
#[derive(Debug)]
pub(crate) struct Pieces(Vec<Vec<Piece>>);

/// From a block on, and where it lies.
#[derive(Clone, Copy, Debug)]
struct Piece {
    first: usize,
    place: u64,
}

impl Pieces {
    pub(crate) fn of(places: &Places) -> Self {
        let pieces = |places: &Vec<u64>| {
            let follows = |block: usize| places[block] == places[block - 1] + BLOCK as u64;
            let firsts = (0..places.len()).filter(|&block| block == 0 || !follows(block));
            firsts.map(|first| Piece { first, place: places[first] }).collect()
        };
        Self(places.0.iter().map(pieces).collect())
    }

    /// Byte of the device of a block.
    pub(crate) fn place(&self, file: usize, block: usize) -> u64 {
        let pieces = &self.0[file];
        let piece = pieces[pieces.partition_point(|piece| piece.first <= block) - 1];
        piece.place + ((block - piece.first) * BLOCK) as u64
    }
}

pub(crate) fn name(file: usize) -> String {
    format!("dax-{file}")
}

/// The image, mapped.
pub(crate) fn map(image: &Path) -> Result<DaxDevice> {
    DaxDevice::open(image, 0, Access::ReadWrite).doing("mapping the image")
}

/// The file system of a mapped image, its files in DAX mode.
pub(crate) fn open(image: &Path, options: &str) -> Result<Volume> {
    let (options, _) = target::parse_options(options)?;
    let options = MountOptions { dax: DaxMode::Always, dax_given: true, ..options };
    Ok(Volume::open(Arc::new(map(image)?), options)?)
}

/// The files of the load.
pub(crate) fn files(volume: &Volume) -> Result<Vec<OpenFile>> {
    let root = volume.root()?;
    let open = |file| Ok(volume.open_file(&volume.lookup(&root, name(file).as_bytes())?)?);
    (0..FILES).map(open).collect()
}

/// Makes the image with the files in it.
pub(crate) fn make_image(stage: &Stage, shape: Shape) -> Result<PathBuf> {
    let image = stage.image("turn");
    stage::format(&image, shape.image_bytes())?;
    let volume = open(&image, "")?;
    let (kind, owner, rdev) = (FileKind::Regular, Owner::default(), Device::default());
    let new = NewInode { kind, mode: 0o644, owner, rdev };
    let (root, data) = (volume.root()?, vec![0x32; LAYOUT_BYTES]);
    for file in 0..FILES {
        let file = volume.open_file(&volume.create(&root, name(file).as_bytes(), &new)?)?;
        for offset in (0..shape.file_bytes).step_by(LAYOUT_BYTES) {
            file.write_at(offset, &data)?;
        }
    }
    drop(root);
    volume.sync()?;
    volume.close()?;
    check::clean(&image)?.close()?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_say_what_the_table_says() {
        let block = BLOCK as u64;
        let places = Places(vec![vec![7 * block, 8 * block, 20 * block, 9 * block], vec![0]]);
        let pieces = Pieces::of(&places);
        assert_eq!(pieces.0.iter().map(Vec::len).collect::<Vec<_>>(), [3, 1]);
        for (file, blocks) in places.0.iter().enumerate() {
            for (block, place) in blocks.iter().enumerate() {
                assert_eq!(pieces.place(file, block), *place);
            }
        }
    }

    #[test]
    fn files_are_whole_blocks_and_fit() {
        for scale in [1.0, 0.3, 0.0001] {
            let shape = Shape::new(scale);
            assert_eq!(shape.blocks() as u64 * BLOCK as u64, shape.file_bytes);
            assert!(shape.image_bytes() > shape.file_bytes * FILES as u64);
        }
    }
}
