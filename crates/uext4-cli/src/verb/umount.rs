//! `uext4 umount`: unmounts, and returns when the image is closed.
//!
//! umount(8) on a FUSE mount returns when the kernel has let go; the daemon may still be writing
//! back and closing. This verb asks the mount for its daemon first ([`PID_XATTR`] of its root: no
//! run-time file that could be stale), unmounts, and waits for that process to end. The process is
//! held by a pidfd, so that a reused number cannot mislead. Where the mount does not answer (the
//! daemon was killed, or the mount is another user's) it waits for the image's lock instead.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use uext4_fuse::attach::{self, Detach};
use uext4_fuse::{PID_XATTR, mountinfo};
use uext4_ondisk::Incompat;

use crate::failure::{At, Result, Why};
use crate::image::{self, Access};
use crate::inspect::Inspected;
use crate::progress::Progress;
use crate::spec::Image;
use crate::verb::stats;

/// Unmount; returns when the image is closed
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Take the mount out of sight now, even if programs use it, and do not wait
    #[arg(short, long)]
    lazy: bool,
    /// Directory it is mounted on
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = crate::failure::Outcome::default();
    for dir in &args.dirs {
        if let Err(failure) = unmount(args, dir).at("umount", dir.display()) {
            outcome.note(failure);
        }
    }
    outcome.finish()
}

fn unmount(args: &Args, dir: &Path) -> std::result::Result<(), Why> {
    let dir = mountinfo::absolute(dir)?;
    let mount = match mountinfo::find(&dir)? {
        Some(mount) if mount.fs_type == mountinfo::FS_TYPE => mount,
        Some(mount) => return Err(Why::new(format!("is a {} mount, not ours", mount.fs_type))),
        // A symbolic link to the mount, perhaps.
        None => match dir.canonicalize().ok().filter(|real| *real != dir) {
            Some(real) => return unmount(args, &real),
            None => return Err(Why::new("not mounted")),
        },
    };
    if args.lazy {
        return Ok(attach::detach(&dir, Detach::Lazy)?);
    }
    let daemon = daemon_of(&dir);
    let waiting = format!("waiting until {} is closed", mount.source.to_string_lossy());
    let _progress = Progress::wait("umount", waiting);
    // The kernel hands its dirty pages over: what can be lost is all with the daemon then.
    let handed_over = attach::hand_over(&dir);
    let is_unsynced = handed_over.as_ref().ok().and_then(|_| stats::level(&dir, "unsynced"));
    // What could not be written is told to us here, and to nobody when the daemon closes.
    let synced = handed_over.and_then(|dir| dir.sync_all());
    let synced = synced.map_err(|error| NotSynced { error, is_unsynced });
    attach::detach(&dir, Detach::WhenIdle)?;
    match daemon {
        Some(daemon) => {
            wait_for_process(&daemon)?;
            if mount.read_only { Ok(()) } else { check_closed(&mount.source, synced) }
        }
        None => wait_for_lock(&mount.source),
    }
}

/// A volume that could not be made durable.
struct NotSynced {
    error: io::Error,
    /// Whether anything waited to be, if the mount told: 1 or 0.
    is_unsynced: Option<u64>,
}

impl NotSynced {
    fn what_is_lost(self) -> String {
        let error = Why::from(self.error);
        match self.is_unsynced {
            Some(0) => format!("nothing waited to be written, so nothing is lost ({error})"),
            _ => format!("what was not synced is lost ({error})"),
        }
    }
}

/// Whether the daemon could close the volume: it is not our child, so that its exit status cannot
/// be had, but a volume that was closed has an empty journal. Silent where the image cannot be
/// read. `synced`: whether all was durable just before.
fn check_closed(
    source: &OsStr,
    synced: std::result::Result<(), NotSynced>,
) -> std::result::Result<(), Why> {
    let image = Image::parse(source);
    let Ok(device) = image::device("umount", &image, Access::Read) else { return Ok(()) };
    let Ok(inspected) = Inspected::read(device) else { return Ok(()) };
    if inspected.layout.features.incompat.contains(Incompat::RECOVER) {
        let rest = match synced {
            Ok(()) => "its journal holds the rest".to_owned(),
            Err(failed) => failed.what_is_lost(),
        };
        return Err(Why::new(format!("unmounted, but {image} could not be closed; {rest}")));
    }
    Ok(())
}

/// The process that serves the mount, as the mount itself says.
fn daemon_of(dir: &Path) -> Option<OwnedFd> {
    let mut value = [0u8; 16];
    let len = rustix::fs::getxattr(dir, PID_XATTR, &mut value[..]).ok()?;
    let pid = std::str::from_utf8(&value[..len]).ok()?.parse().ok()?;
    rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// A pidfd becomes readable when its process has ended: all its files are closed then.
fn wait_for_process(process: &OwnedFd) -> std::result::Result<(), Errno> {
    loop {
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until nobody holds the image's lock; returns at once where it cannot be opened.
fn wait_for_lock(source: &OsStr) -> std::result::Result<(), Why> {
    let Ok(file) = File::open(Image::parse(source).path) else { return Ok(()) };
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.into()),
        }
    }
}
