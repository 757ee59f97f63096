//! Taking an image for oneself.
//!
//! # What
//! Checks and locks of [`FileDevice`](crate::FileDevice) at open: the right kind of file, alone
//! for a writer, not behind a loop device.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::loop_backing::loop_device_of;
use crate::open_error::OpenError;

/// How often the lock of a block device is tried: udev holds it for moments while it probes.
const BLOCK_LOCK_TRIES: u32 = 10;
const BLOCK_LOCK_WAIT: Duration = Duration::from_millis(50);

/// Refuses what can be no image.
pub(crate) fn check_kind(path: &Path, found: &Metadata) -> Result<(), OpenError> {
    let path = || path.to_path_buf();
    let kind = found.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    if kind.is_dir() {
        return Err(OpenError::IsDirectory { path: path() });
    }
    let found = if kind.is_fifo() {
        "fifo"
    } else if kind.is_socket() {
        "socket"
    } else {
        "character device"
    };
    Err(OpenError::WrongKind { path: path(), found, wanted: "an image file or block device" })
}

/// Takes the advisory lock: alone for a writer, shared for a reader. Never waits long.
pub(crate) fn lock(
    path: &Path,
    file: &File,
    writing: bool,
    block_device: bool,
) -> Result<(), OpenError> {
    let operation = if writing {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    let mut tries = if block_device { BLOCK_LOCK_TRIES } else { 1 };
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                tries -= 1;
                if tries == 0 {
                    return Err(OpenError::InUse { path: path.to_path_buf() });
                }
                std::thread::sleep(BLOCK_LOCK_WAIT);
            }
            // A file system without locks: a reader does no harm, a writer must be sure.
            Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) if !writing => return Ok(()),
            Err(errno) => return Err(OpenError::from_io(path, writing, "lock it", errno.into())),
        }
    }
}

/// Refuses a file that the kernel may write to through a loop device.
pub(crate) fn refuse_loop_backing(path: &Path, found: &Metadata) -> Result<(), OpenError> {
    match loop_device_of(Path::new("/sys/block"), found.dev(), found.ino()) {
        Some(device) => Err(OpenError::BacksLoop { path: path.to_path_buf(), device }),
        None => Ok(()),
    }
}
