//! Processes that a command has left behind.
//!
//! Those of its process group are killed with it. A process that has left the group, as daemons do,
//! becomes a child of this process when its parent ends ([`adopt`]), and is known by its directory,
//! its files or its environment.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{Pid, Signal, WaitOptions};

/// The variable of every command that names its mount.
pub(super) const DIR: &str = "UEXT4_CRASHTEST_DIR";

/// Makes this process the parent of what its commands leave behind.
pub(super) fn adopt() {
    // Without, such processes are found only where they descend from a command that is alive.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Kills the processes that `dir`'s commands have left, and waits for their end.
pub(super) fn kill(dir: &Path) {
    // What they leave becomes ours in turn.
    for _ in 0..16 {
        let found = left(dir);
        if found.is_empty() {
            return;
        }
        for pid in &found {
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
        for pid in found {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

fn left(dir: &Path) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let own = rustix::process::getpid();
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pids = numbers.filter_map(Pid::from_raw);
    pids.filter(|pid| parent(*pid) == Some(own) && is_of(*pid, dir)).collect()
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may have blanks and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    Pid::from_raw(rest.split_whitespace().nth(1)?.parse().ok()?)
}

fn is_of(pid: Pid, dir: &Path) -> bool {
    let folder = format!("/proc/{pid}");
    let is_below = |link: &Path| fs::read_link(link).is_ok_and(|path| path.starts_with(dir));
    let link = |name: &str| Path::new(&folder).join(name);
    if is_below(&link("cwd")) || is_below(&link("root")) {
        return true;
    }
    let wanted = [DIR.as_bytes(), b"=", dir.as_os_str().as_bytes()].concat();
    let environment = fs::read(link("environ")).unwrap_or_default();
    if environment.split(|byte| *byte == 0).any(|variable| variable == wanted) {
        return true;
    }
    let files = fs::read_dir(link("fd"));
    files.is_ok_and(|files| files.flatten().any(|file| is_below(&file.path())))
}
