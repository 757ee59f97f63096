//! Exclusive access to an image.
//!
//! # What
//! The checks and locks when a device on a file is opened: it is the right kind of file, a writer
//! has it alone, and it does not back a loop device.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::loop_backing::loop_device_of;
use crate::open_error::OpenError;
use crate::options::Access;

/// Attempts to lock a block device, because udev holds the lock for moments while it probes.
const BLOCK_LOCK_TRIES: u32 = 10;
const BLOCK_LOCK_WAIT: Duration = Duration::from_millis(50);
/// Time between two checks of a loop device that is being detached.
const LOOP_WAIT: Duration = Duration::from_millis(25);

/// An image that is open and locked.
pub(crate) struct LockedImage {
    pub(crate) file: File,
    pub(crate) block_device: bool,
    /// Length of the whole file, in bytes.
    pub(crate) total: u64,
}

/// Opens an image and locks it, exclusively for a writer. `offset` (bytes) must be inside it.
pub(crate) fn open_locked(
    path: &Path,
    access: Access,
    offset: u64,
) -> Result<LockedImage, OpenError> {
    let writing = access == Access::ReadWrite;
    let fail = |action, error| OpenError::from_io(path, writing, action, error);
    let before = std::fs::metadata(path).map_err(|error| fail("look at it", error))?;
    check_kind(path, &before)?;
    let block_device = before.file_type().is_block_device();

    let mut flags = libc::O_NOCTTY;
    if block_device && writing {
        flags |= libc::O_EXCL;
    }
    let mut file = OpenOptions::new()
        .read(true)
        .write(writing)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| fail("open it", error))?;
    let found = file.metadata().map_err(|error| fail("look at it", error))?;
    check_kind(path, &found)?;
    lock(path, &file, writing, block_device)?;
    if writing {
        refuse_loop_backing(path, &found)?;
    }
    // The size of a block device is known only by a seek to its end. The position is not used.
    let total = file.seek(SeekFrom::End(0)).map_err(|error| fail("find its size", error))?;
    if total == 0 {
        return Err(OpenError::Empty { path: path.to_path_buf() });
    }
    if offset >= total {
        return Err(OpenError::OffsetPastEnd { path: path.to_path_buf(), offset, len: total });
    }
    Ok(LockedImage { file, block_device, total })
}

/// Unlocks an image that is about to be closed. Closing alone is not enough, because others may
/// hold the open file a moment longer: rings until the kernel has closed them, and a child of this
/// process between fork and exec.
pub(crate) fn release(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}

/// Whether a file has no data in a range of bytes, so that it reads as zeroes there.
pub(crate) fn is_hole(file: &File, range: Range<u64>) -> bool {
    if range.is_empty() {
        return true;
    }
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(range.start)) {
        Ok(data) => data >= range.end,
        Err(errno) => errno == Errno::NXIO,
    }
}

/// Refuses anything that cannot be an image.
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

/// Takes the advisory lock: exclusive for a writer, shared for a reader. Never waits long.
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
            // The file system has no locks. A reader does no harm, but a writer must be alone.
            Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) if !writing => return Ok(()),
            Err(errno) => return Err(OpenError::from_io(path, writing, "lock it", errno.into())),
        }
    }
}

/// Refuses a file that the kernel may write to through a loop device.
pub(crate) fn refuse_loop_backing(path: &Path, found: &Metadata) -> Result<(), OpenError> {
    let pause = || std::thread::sleep(LOOP_WAIT);
    match loop_device_of(Path::new("/sys/block"), found.dev(), found.ino(), pause) {
        Some(device) => Err(OpenError::BacksLoop { path: path.to_path_buf(), device }),
        None => Ok(()),
    }
}
