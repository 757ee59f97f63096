//! The store `slow`: an image whose flushes take as long as those of a cheap disk.
//!
//! What: a FUSE server of our own shows one file, the image, at a mount point that is a file, too.
//! Reads and writes go through; an fsync is answered only after a time. A loop device over that
//! file makes an fsync of each flush that a file system sends down, so every target, in this
//! process or in the kernel, waits for the same flushes on the same kind of device. The `delay`
//! target of device-mapper does that without FUSE, where a kernel has it; many have not.
//!
//! Invariants: a flush takes the time that was asked for, with what the image's own store takes
//! being a part of it, and never less. Flushes of one file wait beside each other, as the block
//! layer sends one at a time anyway.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::MountFlags;
use uext4_device::about_to_sleep;
use uext4_fuse_server::abi::{Attr, AttrOut, FallocateIn, OpenOut, ReadIn, StatfsOut, WriteIn};
use uext4_fuse_server::{Answer, Caller, Config, Errno, Handler, Notifier, Offer, Session, Wanted};

use crate::error::{Doing, Error, Result};
use crate::mount::Mount;
use crate::plan::Plan;

/// Most bytes of a request.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
const BACKGROUND: u16 = 64;
/// How long the kernel may keep the attributes, in seconds: nobody else changes the file.
const VALID_S: u64 = 3600;
/// The kernel's unit of sizes on disk.
const SECTOR_BYTES: u64 = 512;

/// Shows `image` at a file beside it, by a process of its own; the mount's place is that file.
pub(crate) fn show(plan: &Plan, image: &Path, flush: Duration) -> Result<Mount> {
    let program = plan.command.as_ref();
    let program = program.ok_or_else(|| Error::new("the uext4 command is not at hand"))?;
    let (place, log) = (image.with_extension("slow"), image.with_extension("log"));
    File::create(&place).doing("making the mount point")?;
    let mut command = Command::new(program);
    command.args(["lab", "worker", "slow"]).args([image, &place]);
    command.arg(flush.as_micros().to_string());
    Mount::fuse(command, &place, &log)
}

/// The server, until its file is unmounted. `args` are those after `lab worker slow`.
///
/// # Errors
/// Wrong arguments; no image; no FUSE.
pub(crate) fn serve(args: &[OsString]) -> Result<()> {
    let wrong = || Error::new("slow: wrong arguments");
    let [image, place, flush] = args else { return Err(wrong()) };
    let flush = flush.to_str().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let image = OpenOptions::new().read(true).write(true).open(image).doing("slow: the image")?;
    let handler = SlowFile { image, flush: Duration::from_micros(flush) };
    let connection = attach(Path::new(place)).doing("slow: mounting")?;
    let session = Session::start(connection, Arc::new(handler), &Config::default());
    session.and_then(|session| session.join()).doing("slow")
}

/// Mounts on a file, which only root can.
fn attach(place: &Path) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    // A regular file as the root of the mount.
    let data = format!("fd={},rootmode=100600,user_id=0,group_id=0", device.as_raw_fd());
    let (data, flags) = (CString::new(data)?, MountFlags::NOSUID | MountFlags::NODEV);
    rustix::mount::mount("uext4-slow", place, "fuse", flags, Some(data.as_c_str()))?;
    Ok(OwnedFd::from(device))
}

struct SlowFile {
    image: File,
    flush: Duration,
}

impl SlowFile {
    fn attributes(&self) -> Answer<Attr> {
        let found = self.image.metadata().map_err(number)?;
        Ok(Attr {
            ino: 1,
            size: found.len(),
            blocks: found.len() / SECTOR_BYTES,
            mode: found.mode(),
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        })
    }
}

fn number(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Handler for SlowFile {
    fn init(&self, offer: &Offer, _notifier: &Notifier) -> Wanted {
        Wanted {
            flags: Default::default(),
            max_write: REQUEST_BYTES_MAX,
            max_readahead: offer.max_readahead,
            max_background: BACKGROUND,
            time_gran: 1,
        }
    }

    fn getattr(&self, _caller: Caller, _node: u64) -> Answer<AttrOut> {
        Ok(AttrOut { attr_valid: VALID_S, attr: self.attributes()?, ..AttrOut::default() })
    }

    fn open(&self, _caller: Caller, _node: u64, _flags: u32) -> Answer<OpenOut> {
        Ok(OpenOut::default())
    }

    fn read(&self, _caller: Caller, _node: u64, read: &ReadIn, out: &mut [u8]) -> Answer<usize> {
        self.image.read_at(out, read.offset).map_err(number)
    }

    fn write(&self, _caller: Caller, _node: u64, write: &WriteIn, data: &[u8]) -> Answer<u32> {
        self.image.write_all_at(data, write.offset).map_err(number)?;
        u32::try_from(data.len()).map_err(|_| Errno::INVAL)
    }

    fn fsync(&self, _caller: Caller, _node: u64, _handle: u64, _data_only: bool) -> Answer<()> {
        let began = Instant::now();
        about_to_sleep();
        self.image.sync_data().map_err(number)?;
        thread::sleep(self.flush.saturating_sub(began.elapsed()));
        Ok(())
    }

    fn fallocate(&self, _caller: Caller, _node: u64, range: &FallocateIn) -> Answer<()> {
        let mode = FallocateFlags::from_bits_retain(range.mode);
        fallocate(&self.image, mode, range.offset, range.length)
    }

    fn statfs(&self, _caller: Caller, _node: u64) -> Answer<StatfsOut> {
        Ok(StatfsOut::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Caller = Caller { uid: 0, gid: 0, pid: 0 };

    /// Fault model: a flush that is faster than was asked for makes one side look good.
    #[test]
    fn a_flush_takes_its_time_and_nothing_else_does() {
        let image = tempfile::tempfile().unwrap();
        image.set_len(8192).unwrap();
        let slow = SlowFile { image, flush: Duration::from_millis(20) };
        let write = WriteIn { offset: 4096, ..WriteIn::default() };
        assert_eq!(slow.write(NOBODY, 1, &write, &[7; 16]), Ok(16));
        let began = Instant::now();
        slow.fsync(NOBODY, 1, 0, true).unwrap();
        assert!(began.elapsed() >= slow.flush);
        let (read, mut out) = (ReadIn { offset: 4096, ..ReadIn::default() }, [0; 16]);
        assert_eq!((slow.read(NOBODY, 1, &read, &mut out), out), (Ok(16), [7; 16]));
        assert_eq!(slow.getattr(NOBODY, 1).unwrap().attr.size, 8192);
    }
}
