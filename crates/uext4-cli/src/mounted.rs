//! Directories of mounts that uext4 serves.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use uext4_fuse::mountinfo;

use crate::failure::Why;

/// What is wrong with a directory of another file system.
pub(crate) const NOT_OURS: &str = "not on a uext4 mount";

/// Why a call on a directory of a mount failed. Of a mount whose daemon is gone it says what ends
/// it.
pub(crate) fn why(error: io::Error, dir: &Path) -> Why {
    let is_dead = error.raw_os_error() == Some(libc::ENOTCONN);
    let why = Why::from(error);
    match is_dead {
        false => why,
        true => {
            let dir = dir.display();
            Why::new(format!("{why}: its daemon is gone; uext4 umount {dir}, then mount again"))
        }
    }
}

/// Refuses a file that is not on a mount of ours.
pub(crate) fn check(found: &Metadata) -> Result<(), Why> {
    match mountinfo::of_device(found.dev())? {
        Some(mount) if mount.is_ours() => Ok(()),
        _ => Err(Why::new(NOT_OURS)),
    }
}
