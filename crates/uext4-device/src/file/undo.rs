//! What making a file system changes in a folder of the host, and how it is put back.
//!
//! Invariants: only what was made or lengthened here is touched, known by its inode and not by its
//! path, to which another file may have been renamed meanwhile.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::image_lock::release;

/// What was at the path of a device that [`FileDevice::create`](super::FileDevice::create) or one
/// of its like has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// What is there now, of the same length.
    Same,
    /// Nothing.
    Nothing,
    /// A hole of so many bytes.
    Hole(u64),
    /// A file of so many bytes, which is longer now.
    Shorter(u64),
}

/// Puts back what was there, for a caller that could not put into a file what it was made or
/// lengthened for. It does not keep the file locked.
#[derive(Debug)]
pub struct Undo {
    path: PathBuf,
    file: File,
    before: Before,
}

impl Undo {
    pub(super) fn new(path: &Path, file: File, before: Before) -> Undo {
        Undo { path: path.to_path_buf(), file, before }
    }

    /// Removes the file, or gives it the length that it had. Best effort, because the caller has a
    /// failure to tell.
    pub fn run(&self) {
        put_back(&self.path, &self.file, self.before);
    }

    /// The same, unless another process has the file by now, for a caller that has not locked it.
    pub fn run_if_unused(&self) {
        if self.file.try_lock().is_ok() {
            self.run();
            release(&self.file);
        }
    }

    /// Whether the file did not exist.
    #[must_use]
    pub fn is_created(&self) -> bool {
        self.before == Before::Nothing
    }

    /// Whether the path leads to this file still, for a caller that opens it again.
    #[must_use]
    pub fn is_at_path(&self) -> bool {
        is_same(self.file.metadata(), std::fs::metadata(&self.path))
    }
}

/// See [`Undo::run`].
pub(super) fn put_back(path: &Path, file: &File, before: Before) {
    let _ = match before {
        Before::Same => Ok(()),
        Before::Nothing if is_same(file.metadata(), std::fs::symlink_metadata(path)) => {
            std::fs::remove_file(path)
        }
        Before::Nothing => Ok(()),
        // What was written meanwhile goes as well.
        Before::Hole(len) => file.set_len(0).and_then(|()| file.set_len(len)),
        Before::Shorter(len) => file.set_len(len),
    };
}

fn is_same(one: std::io::Result<Metadata>, other: std::io::Result<Metadata>) -> bool {
    let id = |found: Metadata| (found.dev(), found.ino());
    matches!((one.map(id), other.map(id)), (Ok(one), Ok(other)) if one == other)
}
