//! Directories of mounts that uext4 serves.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use uext4_fuse::mountinfo;

use crate::failure::Why;

/// What is wrong with a directory of another file system.
pub(crate) const NOT_OURS: &str = "not on a uext4 mount";

/// Refuses a file that is not on a mount of ours.
pub(crate) fn check(found: &Metadata) -> Result<(), Why> {
    match mountinfo::of_device(found.dev())? {
        Some(mount) if mount.is_ours() => Ok(()),
        _ => Err(Why::new(NOT_OURS)),
    }
}
