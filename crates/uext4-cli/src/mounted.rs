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
    match is_dead(&error) {
        false => Why::from(error),
        true => {
            let why = Why::from(io::Error::from_raw_os_error(libc::ENOTCONN));
            let dir = dir.display();
            Why::new(format!("{why}: its daemon is gone; uext4 umount {dir}, then mount again"))
        }
    }
}

/// Whether a call failed because the daemon of the mount is gone. What was asked while it went is
/// aborted.
pub(crate) fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Refuses a file that is not on a mount of ours.
pub(crate) fn check(found: &Metadata) -> Result<(), Why> {
    match mountinfo::of_device(found.dev())? {
        Some(mount) if mount.is_ours() => Ok(()),
        _ => Err(Why::new(NOT_OURS)),
    }
}
