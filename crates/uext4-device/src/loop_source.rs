//! A loop device that is nothing but a name.
//!
//! # What
//! File systems of type `fuseblk` are mounted from a block device. The kernel claims it and reads
//! nothing from it. So that an image file can be mounted that way, and a partition in it, and a
//! block device that another open file has claimed, a loop device over a page of memory stands for
//! it: whatever is written to that does not reach the image. The memory is named as the image, and
//! `/sys/dev/block/7:N/loop/backing_file` tells the name ([`LoopSource::name_of`]).
//!
//! # Invariants
//! - The device disappears when nobody has it open (`LO_FLAGS_AUTOCLEAR`): neither the one that set
//!   it up, nor a mount, nor a program that probes it. A process that is killed leaves none.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::MemfdFlags;

use crate::ioctl::{LoopConfig, loop_configure, loop_get_free};

const CONTROL: &str = "/dev/loop-control";
/// One block of it, the smallest that any block size of a mount fits in.
const BYTES: u64 = 4096;
/// Attempts to take a device that is free. Others may be faster.
const TRIES: u32 = 16;
/// What the kernel writes before and behind the name of memory.
const BEFORE: &[u8] = b"/memfd:";
const BEHIND: &[u8] = b" (deleted)";

/// A loop device over memory that has a name.
#[derive(Debug)]
pub struct LoopSource {
    path: PathBuf,
    /// Keeps the device until something else has it open.
    _file: File,
}

impl LoopSource {
    /// Sets up a device with a name of at most 249 bytes.
    ///
    /// # Errors
    /// No loop devices on this system, not allowed to have one, or the name is too long.
    pub fn new(name: &str) -> io::Result<Self> {
        let memory = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
        memory.set_len(BYTES)?;
        let config = LoopConfig::autoclear(memory.as_raw_fd());
        let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
        let mut tries = TRIES;
        loop {
            let path = PathBuf::from(format!("/dev/loop{}", loop_get_free(&control)?));
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            match loop_configure(&file, &config) {
                Ok(()) => return Ok(Self { path, _file: file }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries > 1 => tries -= 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The device, as in `/dev/loop0`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the device with this number, if it is a loop device over memory.
    #[must_use]
    pub fn name_of((major, minor): (u32, u32)) -> Option<OsString> {
        let file = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
        Some(name_in(&fs::read(file).ok()?)?.to_owned())
    }
}

fn name_in(text: &[u8]) -> Option<&OsStr> {
    let name = text.strip_suffix(b"\n").unwrap_or(text);
    let name = name.strip_prefix(BEFORE)?.strip_suffix(BEHIND)?;
    Some(OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_memory_has_a_name() {
        assert_eq!(name_in(b"/memfd:/a b\n@p1 (deleted)\n"), Some(OsStr::new("/a b\n@p1")));
        assert_eq!(name_in(b"/memfd:x (deleted) (deleted)\n"), Some(OsStr::new("x (deleted)")));
        for text in [&b"/image\n"[..], b"/memfd:x", b"/tmp/x (deleted)\n", b""] {
            assert_eq!(name_in(text), None);
        }
        assert_eq!(LoopSource::name_of((0, 0)), None);
    }

    /// Fault model: a device that is left behind, or that has another's name.
    #[test]
    fn a_device_has_its_name_and_goes_with_its_last_user() {
        let name = "/images/a \\ name\n@p1";
        let source = match LoopSource::new(name) {
            Ok(source) => source,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let number = source.path().metadata().unwrap().rdev();
        let number = (rustix::fs::major(number), rustix::fs::minor(number));
        assert_eq!(LoopSource::name_of(number), Some(name.into()));
        assert_eq!(fs::read(source.path()).unwrap().len() as u64, BYTES);
        let other = LoopSource::new("other").unwrap();
        assert_ne!(other.path(), source.path());
        drop(source);
        // udev may look at it a moment longer.
        let gone = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            LoopSource::name_of(number).is_none_or(|left| left != name)
        });
        assert!(gone);
        assert!(LoopSource::new(&"x".repeat(300)).is_err());
    }
}
