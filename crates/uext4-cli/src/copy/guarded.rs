//! The files of the host that a command's images and its journal are in.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::copy::Id;
use crate::spec::Image;

/// What a command neither copies nor replaces.
#[derive(Default)]
pub(crate) struct Guarded {
    files: Vec<Id>,
    /// Numbers of block devices: one device may have several nodes.
    devices: Vec<u64>,
}

impl Guarded {
    /// The files of some images, and of the journal that `--journal-device` names.
    pub(crate) fn of<'p>(images: impl IntoIterator<Item = &'p Path>) -> Self {
        let mut guarded = Self::default();
        let journal = crate::journal::given().map(|path| Image::parse(path.as_os_str()).path);
        let images = images.into_iter().map(PathBuf::from).chain(journal);
        for found in images.filter_map(|path| path.metadata().ok()) {
            guarded.files.push((found.dev(), found.ino()));
            if found.file_type().is_block_device() {
                guarded.devices.push(found.rdev());
            }
        }
        guarded
    }

    /// Names of these files. A further node of a device is not among them: it may be replaced.
    pub(crate) fn files(&self) -> &[Id] {
        &self.files
    }

    /// Whether what is written into an open file, or into what a path leads to, is written into
    /// one of them.
    pub(crate) fn has(&self, found: &Metadata) -> bool {
        let is_device = found.file_type().is_block_device();
        self.files.contains(&(found.dev(), found.ino()))
            || is_device && self.devices.contains(&found.rdev())
    }
}
