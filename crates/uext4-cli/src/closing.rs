//! Images that are about to be closed.
//!
//! umount(8) and `fusermount3 -u` return when the kernel has let go; the daemon may still be
//! writing back. The next mount of the image waits for it and says so, but does not wait for a
//! mount that is in use. For an image of Ceph the wait is `uext4_rbd`'s.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use uext4_fuse::mountinfo;

use crate::spec::Image;
use crate::verbosity::remark;

/// Longest wait: a device that takes longer for what a cache holds has a holder of its own time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a reader that ends with the pipe it wrote to.
const END_OF_PIPE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Returns when `image` can be taken, when a mount that can be seen has it, or after a while. What
/// else is wrong with it shows when it is opened.
pub(crate) fn wait(verb: &str, image: &Image, writing: bool) {
    let start = Instant::now();
    let mut is_told = false;
    while matches!(is_held(&image.path, writing), Ok(true))
        && !is_mounted(image)
        && start.elapsed() < PATIENCE
    {
        if !std::mem::replace(&mut is_told, true) {
            let seconds = PATIENCE.as_secs();
            remark(&format!(
                "{verb}: {image}: in use: waiting up to {seconds} s until it is closed"
            ));
        }
        thread::sleep(PAUSE);
    }
}

/// Returns when `image` can be written, or after a moment: a reader whose pipe has come to its end
/// is about to close it.
pub(crate) fn wait_for_end_of_pipe(image: &Image) {
    let start = Instant::now();
    while matches!(is_held(&image.path, true), Ok(true)) && start.elapsed() < END_OF_PIPE {
        thread::sleep(PAUSE);
    }
}

/// Whether another process holds it, as opening it would find out.
fn is_held(path: &Path, writing: bool) -> io::Result<bool> {
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        // Opening a fifo would wait, and opening a terminal do something.
        return Ok(false);
    }
    let exclusive = if kind.is_block_device() && writing { libc::O_EXCL } else { 0 };
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | exclusive);
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(true),
        other => other?,
    };
    let how = match writing {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match rustix::fs::flock(&file, how) {
        Err(Errno::WOULDBLOCK) => Ok(true),
        other => Ok(other.map(|()| false)?),
    }
}

/// Whether a mount that can be seen has it: one of ours, or one that the kernel made of the device.
pub(crate) fn is_mounted(image: &Image) -> bool {
    let device = fs::metadata(&image.path).ok().filter(|found| found.file_type().is_block_device());
    if let Some(device) = device
        && mountinfo::of_device(device.rdev()).is_ok_and(|mount| mount.is_some())
    {
        return true;
    }
    let path = |image: &Image| image.absolute().map(|absolute| absolute.path);
    let Ok(wanted) = path(image) else { return false };
    let is_ours = |source: &OsStr| path(&Image::parse(source)).is_ok_and(|path| path == wanted);
    mountinfo::find_source(is_ours).is_ok_and(|mount| mount.is_some())
}
