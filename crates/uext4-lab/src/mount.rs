//! A file system mounted for a run.
//!
//! Invariants: [`Mount::end`] returns when the file system is gone and its daemon, if it has one,
//! has ended; so does dropping it, which is for failures: the daemon is killed then if it does not
//! end by itself.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::geteuid;

use crate::command;
use crate::error::{Doing, Error, Result};
use crate::leftovers;

/// How long a daemon may take to mount, or a busy mount to become idle.
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(1);

/// Where the kernel takes requests for FUSE mounts.
const FUSE: &str = "/dev/fuse";

/// Why this process cannot mount by FUSE; `None` if it can.
pub(crate) fn fuse_obstacle() -> Option<String> {
    device_obstacle(Path::new(FUSE)).or_else(|| {
        let helped = geteuid().is_root() || command::find("fusermount3").is_some();
        (!helped).then(|| "without root FUSE needs fusermount3 (Debian: fuse3)".to_owned())
    })
}

/// Nothing is asked of the device: it does nothing before it is mounted.
fn device_obstacle(device: &Path) -> Option<String> {
    match File::options().read(true).write(true).open(device) {
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some(format!("this system has no {}", device.display()))
        }
        Err(error) => Some(format!("{}: {error}", device.display())),
    }
}

/// A mounted file system.
#[derive(Debug)]
pub(crate) struct Mount {
    dir: PathBuf,
    mounted: bool,
    daemon: Option<Child>,
    /// What the daemon serves from: unmounted after it.
    below: Option<Box<Self>>,
}

impl Mount {
    /// Mounts `device` by the kernel's ext4 with these options, separated by commas.
    pub(crate) fn kernel(device: &Path, dir: &Path, options: &str) -> Result<Self> {
        let options = if options.is_empty() { "defaults" } else { options };
        let args: [&OsStr; 6] = [
            "-t".as_ref(),
            "ext4".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            device.as_os_str(),
            dir.as_os_str(),
        ];
        command::run("mount", &args)?;
        Ok(Self { dir: dir.to_path_buf(), mounted: true, daemon: None, below: None })
    }

    /// A directory that somebody else has mounted, and will unmount.
    pub(crate) fn there(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), mounted: false, daemon: None, below: None }
    }

    /// Mounts by a FUSE server, which `command` starts in the foreground. It may write to `log`.
    pub(crate) fn fuse(mut command: Command, dir: &Path, log: &Path) -> Result<Self> {
        let output = File::create(log).doing("making a log")?;
        let errors = output.try_clone().doing("making a log")?;
        let name = command.get_program().to_string_lossy().into_owned();
        let daemon = leftovers::mark(&mut command)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .doing(format_args!("starting {name}"))?;
        let mut mount =
            Self { dir: dir.to_path_buf(), mounted: false, daemon: Some(daemon), below: None };
        let deadline = Instant::now() + PATIENCE;
        while !is_mounted(dir).doing("reading the mount table")? {
            let ended = mount.daemon.as_mut().map(Child::try_wait).transpose().doing("waiting")?;
            if let Some(Some(status)) = ended {
                mount.daemon = None;
                let said = fs::read_to_string(log).unwrap_or_default();
                let last = said.lines().last().unwrap_or("no message").to_owned();
                return Err(Error::new(format!("{name} ended with {status}: {last}")));
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("{name} does not mount")));
            }
            thread::sleep(STEP);
        }
        mount.mounted = true;
        // Until this is answered the server may still be starting.
        fs::metadata(dir).doing("first look at the mount")?;
        Ok(mount)
    }

    /// This, served from another mount, which ends after it.
    pub(crate) fn over(mut self, below: Self) -> Self {
        self.below = Some(Box::new(below));
        self
    }

    /// Where it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The process of the daemon.
    pub(crate) fn daemon(&self) -> Option<i32> {
        self.daemon.as_ref().map(|daemon| daemon.id().cast_signed())
    }

    /// The processes of its daemon and of those below it.
    pub(crate) fn daemons(&self) -> Vec<i32> {
        let own = self.daemon();
        let below = self.below.as_ref().map(|below| below.daemons()).unwrap_or_default();
        own.into_iter().chain(below).collect()
    }

    /// Most memory that the daemon has used so far, in KiB.
    pub(crate) fn peak_rss_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.as_ref()?.id()));
        let status = status.ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    /// Unmounts; on return the daemon has ended.
    pub(crate) fn end(mut self) -> Result<()> {
        self.unmount()?;
        if let Some(mut daemon) = self.daemon.take() {
            let status = daemon.wait().doing("waiting for the daemon")?;
            if !status.success() {
                return Err(Error::new(format!("the daemon ended with {status}")));
            }
        }
        self.below.take().map_or(Ok(()), |below| below.end())
    }

    fn unmount(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.mounted {
            match detach(&self.dir) {
                Ok(()) => self.mounted = false,
                // Another program may look into new mounts: a desktop does.
                Err(error)
                    if error.raw_os_error() == Some(Errno::BUSY.raw_os_error())
                        && Instant::now() < deadline =>
                {
                    thread::sleep(STEP);
                }
                Err(error) => {
                    return Err(error).doing(format_args!("umount {}", self.dir.display()));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted && self.unmount().is_err() {
            // Out of sight at least; the daemon below ends it for good.
            let _ = unmount(&self.dir, UnmountFlags::DETACH);
        }
        let Some(mut daemon) = self.daemon.take() else { return };
        let deadline = Instant::now() + PATIENCE;
        while let Ok(None) = daemon.try_wait() {
            if Instant::now() > deadline {
                let _ = daemon.kill();
            }
            thread::sleep(STEP);
        }
    }
}

fn detach(dir: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(unmount(dir, UnmountFlags::empty())?);
    }
    command::run("fusermount3", &["-u".as_ref(), dir.as_os_str()])
        .map(|_| ())
        .map_err(|error| io::Error::other(error.to_string()))
}

fn is_mounted(dir: &Path) -> io::Result<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let dir = dir.to_string_lossy();
    Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(&dir)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a device that this user may not open is found out by each run anew.
    #[test]
    fn a_device_that_cannot_be_opened_is_named_with_its_reason() {
        let missing = device_obstacle(Path::new("/dev/no-such-device"));
        assert_eq!(missing.as_deref(), Some("this system has no /dev/no-such-device"));
        let folder = device_obstacle(Path::new("/dev"));
        assert!(folder.is_some_and(|why| why.starts_with("/dev: ")), "opened for writing");
        assert_eq!(device_obstacle(Path::new("/dev/null")), None);
    }
}
