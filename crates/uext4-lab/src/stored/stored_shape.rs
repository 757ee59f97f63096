//! Sizes of the load, its files, and where they lie.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use uext4::config::DaxMode;
use uext4::{MountOptions, OpenFile, Volume};
use uext4_device::{Access, DaxDevice};

use crate::bench::FilePlace;
use crate::bench::files::{FileSystem, Library};
use crate::check;
use crate::error::{Doing, Result};
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
pub(crate) struct StoredShape {
    pub(crate) file_bytes: u64,
}

impl StoredShape {
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

/// Where the files of the load lie.
pub(crate) fn places(volume: &Volume) -> Result<Vec<FilePlace>> {
    (0..FILES).map(|file| FilePlace::of(volume, &name(file))).collect()
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
pub(crate) fn make_image(stage: &Stage, shape: StoredShape) -> Result<PathBuf> {
    let image = stage.image("run");
    stage::format(&image, shape.image_bytes())?;
    let volume = open(&image, "")?;
    let files = Library(&volume);
    let files: &dyn FileSystem = &files;
    for file in 0..FILES {
        files.write_file(&name(file), shape.file_bytes, LAYOUT_BYTES, |_, data| data.fill(0x32))?;
    }
    volume.sync()?;
    volume.close()?;
    check::clean(&image)?.close()?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_blocks_and_fit() {
        for scale in [1.0, 0.3, 0.0001] {
            let shape = StoredShape::new(scale);
            assert_eq!(shape.blocks() as u64 * BLOCK as u64, shape.file_bytes);
            assert!(shape.image_bytes() > shape.file_bytes * FILES as u64);
        }
    }
}
