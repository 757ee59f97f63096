//! A user's command: run by the shell, on a mount, for a limited time.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::leftovers::{self, Begun};
use crate::error::{Error, Result};

/// How often a wait looks whether the user has had enough.
const LOOK: Duration = Duration::from_millis(50);

/// A command to be run.
pub(super) struct Job<'a> {
    /// The command line.
    pub(super) line: &'a str,
    /// The mount, which is its working directory.
    pub(super) dir: &'a Path,
    /// Variables beside that of the mount.
    pub(super) variables: &'a [(&'a str, &'a Path)],
    /// Longest time.
    pub(super) limit: Duration,
    /// Set when everything is to end.
    pub(super) stop: &'a AtomicBool,
}

/// How a command ended.
pub(super) enum Ended {
    /// By itself, or by a signal of somebody else.
    With(ExitStatus),
    /// It took too long.
    TooLong,
}

impl Job<'_> {
    /// Runs it. Afterwards none of its processes is left.
    pub(super) fn run(&self, stdout: Stdio, stderr: Stdio) -> Result<Ended> {
        let mut command = Command::new("sh");
        command
            .args(["-c", self.line])
            .current_dir(self.dir)
            .env(leftovers::DIR, self.dir)
            .envs(self.variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0);
        let begun = Some(Begun::now());
        let child = command.spawn().map_err(|error| Error::new(format!("sh: {error}")))?;
        // It has the descriptors that the command was given.
        drop(command);
        let mut running = Running { child, dir: self.dir, begun };
        let ended = self.wait(&mut running);
        drop(running);
        ended
    }

    fn wait(&self, running: &mut Running<'_>) -> Result<Ended> {
        let child = &mut running.child;
        let failed = |error: rustix::io::Errno| Error::new(format!("waiting for sh: {error}"));
        let handle =
            rustix::process::pidfd_open(pid(child), PidfdFlags::empty()).map_err(failed)?;
        let until = Instant::now() + self.limit;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::new("interrupted"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if has_ended(handle.as_fd(), left.min(LOOK)).map_err(failed)? {
                // What it has started goes before its number can mean another process.
                kill_group(child);
                return Ok(Ended::With(child.wait()?));
            }
            if left.is_zero() {
                return Ok(Ended::TooLong);
            }
        }
    }
}

impl Ended {
    /// What is wrong with it, if something is.
    pub(super) fn failure(&self) -> Option<String> {
        match self {
            Self::With(status) if status.success() => None,
            Self::With(status) => Some(match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (None, Some(signal)) => format!("ended by signal {signal}"),
                (None, None) => "ended".to_owned(),
            }),
            Self::TooLong => Some("took too long and was killed".to_owned()),
        }
    }
}

/// A process group that is killed when this is dropped, with what has left it.
struct Running<'a> {
    child: Child,
    dir: &'a Path,
    begun: Option<Begun>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            kill_group(&self.child);
            let _ = self.child.wait();
        }
        self.begun = None;
        leftovers::kill(self.dir, Some(pid(&self.child)));
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn kill_group(child: &Child) {
    // An error: nobody is left in it.
    let _ = rustix::process::kill_process_group(pid(child), Signal::KILL);
}

/// Whether the process of a handle has ended, or ends within `time`.
fn has_ended(handle: BorrowedFd<'_>, time: Duration) -> rustix::io::Result<bool> {
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let mut files = [PollFd::new(&handle, PollFlags::IN)];
    match rustix::event::poll(&mut files, Some(&time)) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}
