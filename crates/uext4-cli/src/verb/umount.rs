//! `uext4 umount`: unmounts, and returns when the image is closed.
//!
//! umount(8) on a FUSE mount returns when the kernel has let go; the daemon may still be writing
//! back and closing. This verb asks the mount for its daemon first ([`PID_XATTR`] of its root: no
//! run-time file that could be stale), unmounts, and waits for that process to end. The process is
//! held by a pidfd, so that a reused number cannot mislead. Where the mount does not answer (the
//! daemon was killed, or the mount is another user's) it waits for the image's lock instead.
//!
//! Nothing ends a process that waits for the answer of a mount, and an answer may wait for room on
//! the host. So another process unmounts, in a group of its own that Ctrl-C does not reach; the
//! command waits for it, says after a while what for, and can be ended at any time.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use signal_hook::consts::{SIGINT, SIGTERM};
use uext4_device::FileOptions;
use uext4_fuse::attach::{self, Detach};
use uext4_fuse::mountinfo::{self, MountPoint};
use uext4_fuse::{FuseOptions, PID_XATTR};
use uext4_ondisk::Incompat;

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Outcome, Result, Why, say};
use crate::host;
use crate::image::{self, Access};
use crate::inspect::Inspected;
use crate::mount_table;
use crate::progress::Progress;
use crate::spec::Image;
use crate::users;
use crate::verb::stats;
use crate::verbosity::{self, remark};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 umount /mnt", "unmount; the image is closed when this returns"),
    ("uext4 umount -l /mnt", "out of sight now, closed when its last user ends"),
    ("uext4 umount -f /mnt", "cut it off from the programs that use it"),
];

/// Unmount; returns when the image is closed
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Take the mount out of sight now, even if programs use it, and do not wait
    #[arg(short, long)]
    lazy: bool,
    /// Cut the connection, so that programs that use the mount get errors, and do not wait
    #[arg(short, long)]
    force: bool,
    /// Where the mount is busy, make it read-only
    #[arg(short, long)]
    read_only: bool,
    /// The process that does it
    #[arg(long, hide = true)]
    detached: bool,
    /// Directory it is mounted on
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
}

impl Args {
    /// What a helper of umount(8) is asked for.
    pub(crate) fn new(dir: PathBuf, lazy: bool, force: bool, read_only: bool) -> Self {
        Self { lazy, force, read_only, detached: false, dirs: vec![dir] }
    }
}

/// How long the command waits in silence.
const SILENCE: Duration = Duration::from_secs(3);
/// How often it looks whether it was told to end.
const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// A host with less room than this is as good as full.
const FULL: u64 = 1 << 20;

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    // One for all directories: a signal between two of them counts.
    let signal = Arc::new(AtomicUsize::new(0));
    if !args.detached && !args.lazy && !args.force {
        for number in [SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
                .at("umount", "signals")?;
        }
    }
    for dir in &args.dirs {
        match unmount(args, dir, &signal).at("umount", dir.display()) {
            Ok(None) => {}
            Ok(Some(failure @ Failure::Status(_))) => return Err(failure),
            Ok(Some(failure)) | Err(failure) => outcome.note(failure),
        }
    }
    outcome.finish()
}

/// Unmounts a directory. A failure that is returned as a value has been told.
fn unmount(
    args: &Args,
    dir: &Path,
    signal: &AtomicUsize,
) -> std::result::Result<Option<Failure>, Why> {
    let dir = mountinfo::absolute(dir)?;
    let mount = match mountinfo::find(&dir)? {
        Some(mount) if mount.is_ours() => mount,
        Some(mount) => {
            let why = format!("is {}, not a mount of uext4; use umount(8)", mount.fs_type);
            return Err(Why::new(why));
        }
        // A symbolic link to the mount, perhaps.
        None => match dir.canonicalize().ok().filter(|real| *real != dir) {
            Some(real) => return unmount(args, &real, signal),
            None => return Err(Why::new("not mounted")),
        },
    };
    if args.force {
        attach::force(&dir)?;
        mount_table::remove(&dir);
        return Ok(None);
    }
    if args.lazy {
        attach::detach(&dir, Detach::Lazy)?;
        mount_table::remove(&dir);
        return Ok(None);
    }
    if !args.detached {
        return unmount_elsewhere(args, &dir, &mount, signal);
    }
    let daemon = daemon_of(&dir);
    // The kernel hands its dirty pages over: what can be lost is all with the daemon then.
    let handed_over = attach::hand_over(&dir);
    let is_unsynced = handed_over.as_ref().ok().and_then(|_| stats::level(&dir, "unsynced"));
    // What could not be written is told to us here, and to nobody when the daemon closes.
    let synced = handed_over.and_then(|dir| dir.sync_all());
    let synced = synced.map_err(|error| {
        let reason = stats::read_only_reason(&dir);
        NotSynced { error, reason, is_unsynced }
    });
    match attach::detach(&dir, Detach::WhenIdle) {
        Err(error) if args.read_only && error.raw_os_error() == Some(libc::EBUSY) => {
            attach::remount(&dir, &read_only(&mount))?;
            remark(&format!("umount: {}: busy: made read-only", dir.display()));
            return Ok(None);
        }
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let (why, users) = (Why::from(error), users::told(&dir));
            let colon = if users.is_empty() { "" } else { ": " };
            return Err(Why::new(format!("{why}{colon}{users}")));
        }
        other => other?,
    }
    mount_table::remove(&dir);
    match daemon {
        Some(daemon) => {
            wait_for_process(&daemon)?;
            if !mount.read_only {
                check_closed(&mount.source, synced)?;
            }
        }
        None => {
            wait_for_lock(&mount.source)?;
            if synced.is_err_and(|failed| failed.is_daemon_gone()) && is_open(&mount.source) {
                remark(&format!(
                    "umount: {}: its daemon had been killed; what was not synced is lost, and \
                     the next opening replays the journal",
                    dir.display()
                ));
            }
        }
    }
    Ok(None)
}

/// The flags of a mount, and read-only.
fn read_only(mount: &MountPoint) -> FuseOptions {
    let mut options = FuseOptions { suid: true, dev: true, ..FuseOptions::default() };
    for word in mount.flags.split(',') {
        // Other flags are no concern of a remount.
        let _ = options.parse(word);
    }
    FuseOptions { read_only: true, ..options }
}

/// Has another process unmount `dir`, and waits for it.
fn unmount_elsewhere(
    args: &Args,
    dir: &Path,
    mount: &MountPoint,
    signal: &AtomicUsize,
) -> std::result::Result<Option<Failure>, Why> {
    let child = Command::new("/proc/self/exe")
        .arg0("uext4")
        .args(verbosity::words())
        .args(["umount", "--detached"])
        .args(args.read_only.then_some("--read-only"))
        .arg("--")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let process = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let image = Image::parse(&mount.source);
    let waiting = format!("waiting until {image} is closed");
    let progress = Progress::wait("umount", waiting.clone());
    let start = Instant::now();
    let mut is_told = false;
    while !has_ended(&process)? {
        let number = signal.load(Ordering::SeqCst);
        if number != 0 {
            drop(progress);
            let dir = dir.display();
            say(&format!("umount: {dir}: interrupted; unmounting goes on in the background"));
            return Ok(Some(Failure::Status(u8::try_from(128 + number).unwrap_or(1))));
        }
        if start.elapsed() >= SILENCE && !std::mem::replace(&mut is_told, true) {
            let is_full = host::room(&image.path).is_some_and(|room| room < FULL);
            let why = if is_full { ": writes wait for room where it is stored" } else { "" };
            let (major, minor) = mount.device;
            let other = mountinfo::of_device(rustix::fs::makedev(major, minor)).ok().flatten();
            let place = other.filter(|other| other.dir != dir).map_or_else(String::new, |other| {
                format!(": it is mounted on {}, too", other.dir.display())
            });
            progress.tell(&format!("umount: {}: {waiting}{why}{place}", dir.display()));
        }
    }
    drop(progress);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().for_each(|line| say(line.strip_prefix("uext4: ").unwrap_or(line)));
    if output.status.success() {
        return Ok(None);
    }
    if said.is_empty() {
        return Err(Why::new(format!("ended early ({})", output.status)));
    }
    Ok(Some(Failure::Reported))
}

/// Whether a process has ended, after a moment at most.
fn has_ended(process: &OwnedFd) -> std::result::Result<bool, Errno> {
    match rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&PERIOD)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A volume that could not be made durable.
struct NotSynced {
    error: io::Error,
    /// Why the volume was read-only, if it was.
    reason: Option<String>,
    /// Whether anything waited to be, if the mount told: 1 or 0.
    is_unsynced: Option<u64>,
}

impl NotSynced {
    /// What the kernel says of a mount whose daemon has ended.
    fn is_daemon_gone(&self) -> bool {
        self.error.raw_os_error() == Some(libc::ENOTCONN)
    }

    /// Whether the mount had changes that it could not make durable. One that could not be asked
    /// had some if its device fails; others are not ours, have ended, or tell of a file that is
    /// gone.
    fn had_changes(&self) -> bool {
        let has_failed = matches!(self.error.raw_os_error(), Some(libc::EIO | libc::EROFS));
        self.is_unsynced.map_or(has_failed, |waits| waits > 0)
    }

    fn what_is_lost(self) -> String {
        let mut error = Why::from(self.error).to_string();
        if let Some(reason) = self.reason {
            error = format!("{error}; read-only: {reason}");
        }
        match self.is_unsynced {
            Some(0) => format!("nothing waited to be written, so nothing is lost ({error})"),
            _ => format!("what was not synced is lost ({error})"),
        }
    }
}

/// Whether the daemon could close the volume: it is not our child, so that its exit status cannot
/// be had, but a volume that was closed has an empty journal. Silent where the image cannot be
/// read, unless its server is gone. `synced`: whether all was durable just before; a mount that
/// still held changes has lost them, even if the image is clean: another host may have it by now.
fn check_closed(
    source: &OsStr,
    synced: std::result::Result<(), NotSynced>,
) -> std::result::Result<(), Why> {
    let image = Image::parse(source);
    match inspected(&image) {
        None if image.uri().is_none() || synced.is_ok() => return Ok(()),
        Some(found)
            if !needs_replay(&found) && !synced.as_ref().is_err_and(NotSynced::had_changes) =>
        {
            return Ok(());
        }
        _ => {}
    }
    let rest = match synced {
        Ok(()) => "its journal holds the rest".to_owned(),
        Err(failed) => failed.what_is_lost(),
    };
    Err(Why::new(format!("unmounted, but {image} could not be closed; {rest}")))
}

/// Whether the journal of an image has something to replay; no, where the image cannot be read.
fn is_open(source: &OsStr) -> bool {
    inspected(&Image::parse(source)).is_some_and(|found| needs_replay(&found))
}

fn needs_replay(found: &Inspected) -> bool {
    found.layout.features.incompat.contains(Incompat::RECOVER)
}

/// How long the server of an image is tried, that a mount may just have given up.
const SERVER: Duration = Duration::from_secs(2);

/// What is on an image, if it can be read.
fn inspected(image: &Image) -> Option<Inspected> {
    let mut options = FileOptions::new(Access::Read.into());
    options.nbd_timeout = SERVER;
    let device = image::device_with("umount", image, &options).ok()?;
    Inspected::read(device).ok()
}

/// What the daemon is called (proc_pid_comm(5)).
const DAEMON: &[u8] = b"uext4\n";

/// The process that serves the mount, as the mount itself says; `None` also where the number is one
/// of another namespace, as that of a daemon in a container.
fn daemon_of(dir: &Path) -> Option<OwnedFd> {
    let pid = String::from_utf8(uext4_fuse::ask(dir, PID_XATTR).ok()?).ok()?.parse().ok()?;
    let process = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    (name == DAEMON).then_some(process)
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
