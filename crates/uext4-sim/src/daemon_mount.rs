//! Mounts whose server is a daemon, as users have them, by either transport.
//!
//! # Invariants
//! The kernel offers io_uring to a new mount while `enable_uring` is `Y`. It is `Y` only from
//! before a mount starts until the mount answers, or has failed, and then what it was. The
//! parameter's file is locked meanwhile (flock(2)), so that programs that do so take turns.
//! A daemon whose value is dropped is killed before its mount is taken away: a program that waits
//! for it gets an error then.

use crate::mount::unmount_by_force;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a mount, an unmount, or the end of a daemon.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Whether new mounts are offered io_uring.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By read(2) and write(2) of `/dev/fuse`.
    DevFuse,
    /// By a ring for each processor.
    IoUring,
}

impl Transport {
    /// Both.
    pub const ALL: [Transport; 2] = [Transport::DevFuse, Transport::IoUring];

    /// One by a seed: even by `/dev/fuse`, odd by io_uring.
    #[must_use]
    pub fn of(seed: u64) -> Transport {
        if seed.is_multiple_of(2) { Transport::DevFuse } else { Transport::IoUring }
    }

    /// Name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::DevFuse => "/dev/fuse",
            Transport::IoUring => "io_uring",
        }
    }

    /// The mount option that asks for it, and takes nothing else.
    #[must_use]
    pub fn option(self) -> &'static str {
        match self {
            Transport::DevFuse => "io_uring=off",
            Transport::IoUring => "io_uring=on",
        }
    }

    /// Why it cannot be had here, or `None` if it can.
    #[must_use]
    pub fn why_not(self) -> Option<&'static str> {
        if self == Transport::DevFuse {
            return None;
        }
        let forbidden = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        if forbidden.is_ok_and(|text| text.trim() != "0") {
            return Some("kernel.io_uring_disabled");
        }
        if !Path::new(PARAMETER).exists() {
            return Some("needs Linux 6.14");
        }
        File::options().write(true).open(PARAMETER).is_err().then_some("needs root")
    }

    /// Has the kernel offer it until the value is dropped.
    fn offer(self) -> Result<Option<Offer>, String> {
        if self == Transport::DevFuse {
            return Ok(None);
        }
        let failed = |error: std::io::Error| format!("{PARAMETER}: {error}");
        let file = File::open(PARAMETER).map_err(failed)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let before = fs::read_to_string(PARAMETER).map_err(failed)?;
        let offer = Offer { before, _turn: file };
        fs::write(PARAMETER, "Y").map_err(failed)?;
        Ok(Some(offer))
    }
}

/// io_uring is offered to new mounts.
struct Offer {
    before: String,
    /// Holds the lock.
    _turn: File,
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Err(error) = fs::write(PARAMETER, &self.before) {
            eprintln!("{PARAMETER} is not as it was: {error}");
        }
    }
}

/// A mount served by a daemon.
#[derive(Debug)]
pub struct DaemonMount {
    image: PathBuf,
    point: PathBuf,
    daemon: Pid,
    /// The daemon itself (pidfd_open(2)): its number can be another's when it has ended.
    process: OwnedFd,
    is_ended: bool,
}

impl DaemonMount {
    /// Mounts `image` on `point`, which is made if it is missing, with words of `-o` besides that
    /// of the transport.
    ///
    /// # Errors
    /// What the command said; it does not end.
    pub fn start(
        binary: &Path,
        image: &Path,
        point: &Path,
        transport: Transport,
        options: &str,
    ) -> Result<DaemonMount, String> {
        fs::create_dir_all(point).map_err(|error| format!("{}: {error}", point.display()))?;
        let comma = if options.is_empty() { "" } else { "," };
        let options = format!("{}{comma}{options}", transport.option());
        let offer = transport.offer()?;
        let mut command = within(PATIENCE, binary);
        output(command.args(["mount", "-o", &options]).arg(image).arg(point))?;
        // It answers: the command has returned, and so does this.
        let asked = daemon_of(point);
        drop(offer);
        match asked {
            Ok((daemon, process)) => Ok(DaemonMount {
                image: image.to_owned(),
                point: point.to_owned(),
                daemon,
                process,
                is_ended: false,
            }),
            Err(why) => {
                unmount_by_force(point);
                Err(why)
            }
        }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The process that serves it.
    #[must_use]
    pub fn daemon(&self) -> Pid {
        self.daemon
    }

    /// Sends the daemon a signal.
    ///
    /// # Errors
    /// There is no such process.
    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        pidfd_send_signal(&self.process, signal).map_err(|error| format!("the daemon: {error}"))
    }

    /// Takes a mount away whose daemon was killed, and waits until nothing holds the image.
    ///
    /// # Errors
    /// It is in use, or cannot be taken away; the image is still held.
    pub fn bury(mut self, binary: &Path) -> Result<(), String> {
        self.is_ended = true;
        unmount(binary, &self.point)?;
        self.wait_for_image()
    }

    /// The mount has been taken out of the name space (`umount -l`): waits until its last user is
    /// gone, and nothing holds the image.
    ///
    /// # Errors
    /// The image is still held.
    pub fn detached(mut self) -> Result<(), String> {
        self.wait_for_image()?;
        self.is_ended = true;
        Ok(())
    }

    fn wait_for_image(&self) -> Result<(), String> {
        if !self.image.exists() {
            return self.wait_for_daemon();
        }
        let file = File::open(&self.image).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + PATIENCE;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > deadline {
                return Err("the image is held, though its mount is gone".into());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// The same of an image without a lock, on a network block device.
    fn wait_for_daemon(&self) -> Result<(), String> {
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        // It becomes readable when the process has ended: all its files are closed then.
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        match rustix::io::retry_on_intr(|| poll(&mut ended, Some(&patience))) {
            Ok(0) => Err("the daemon is there, though its mount is gone".into()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the daemon: {error}")),
        }
    }

    /// Unmounts; the image is closed on return.
    ///
    /// # Errors
    /// What `uext4 umount` said; it does not end.
    pub fn unmount(mut self, binary: &Path) -> Result<(), String> {
        unmount(binary, &self.point)?;
        self.is_ended = true;
        Ok(())
    }
}

impl Drop for DaemonMount {
    fn drop(&mut self) {
        if !self.is_ended {
            let _ = self.signal(Signal::KILL);
            unmount_by_force(&self.point);
        }
    }
}

/// `uext4 umount`. A process that another thread is just making has our files open until it runs
/// its program, so that a busy mount is tried again.
fn unmount(binary: &Path, point: &Path) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match output(within(PATIENCE, binary).arg("umount").arg(point)) {
            Err(why) if why.contains("busy") && Instant::now() < deadline => {
                std::thread::sleep(POLL);
            }
            other => return other.map(drop),
        }
    }
}

fn daemon_of(point: &Path) -> Result<(Pid, OwnedFd), String> {
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(point, "uext4.pid", &mut value[..])
        .map_err(|error| format!("{}: which daemon: {error}", point.display()))?;
    let text = String::from_utf8_lossy(&value[..len]).into_owned();
    let number = text.parse().ok().and_then(Pid::from_raw);
    let number = number.ok_or_else(|| format!("the daemon's number is {text:?}"))?;
    let process = pidfd_open(number, PidfdFlags::empty());
    Ok((number, process.map_err(|error| format!("the daemon {text}: {error}"))?))
}

/// A command that timeout(1) ends, with SIGTERM and 5 s later with SIGKILL.
#[must_use]
pub fn within(time: Duration, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", &time.as_secs().max(1).to_string()]).arg(program);
    command.stdin(Stdio::null());
    command
}

/// Runs a command of [`within`]; what it printed. An error has the end of what it said.
///
/// # Errors
/// It cannot be run, fails, or was ended.
pub fn output(command: &mut Command) -> Result<String, String> {
    let words: Vec<_> = command.get_args().skip(3).map(|word| word.to_string_lossy()).collect();
    let words = words.join(" ");
    let output = command.output().map_err(|error| format!("{words}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<_> = said.lines().rev().take(20).collect();
    let end: Vec<_> = lines.into_iter().rev().collect();
    let why = match output.status.code() {
        Some(124 | 137) => "did not end in time".to_owned(),
        _ => output.status.to_string(),
    };
    Err(format!("{words}: {why}: {}", end.join("\n")))
}
