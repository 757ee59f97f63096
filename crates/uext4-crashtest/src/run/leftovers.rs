//! Processes that a command has left behind.
//!
//! What: this process is the parent of all that its commands leave ([`adopt`]): whatever a daemon
//! does to its session, directory, files and environment, it becomes a child of this process when
//! its parent ends. Those of a command's process group and those that have something of its mount
//! end with the command. Whose the others are cannot be told while commands run side by side; such
//! a process ends when all commands have that ran when it began. What has ended by itself is
//! reaped.
//!
//! Invariant: a child in this process's own process group is never touched. It is a helper, such as
//! fusermount3, and somebody here waits for it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

/// The variable of every command that names its mount.
pub(super) const DIR: &str = "UEXT4_CRASHTEST_DIR";

/// How long killed processes may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(1);

/// Commands that run. Its lock is held while processes are looked at and killed: no command begins
/// meanwhile, and nobody else reaps what was found.
static COMMANDS: Mutex<Commands> =
    Mutex::new(Commands { first: None, running: Vec::new(), tests: 0, was_parent: false });

/// When commands began, in ticks of the clock since the machine was started.
struct Commands {
    first: Option<u64>,
    running: Vec<u64>,
    /// How many have this process as the parent of what is left behind.
    tests: usize,
    /// It was that before the first of them.
    was_parent: bool,
}

/// A command that runs.
pub(super) struct Begun(u64);

impl Begun {
    /// One that is started now; before its process is.
    pub(super) fn now() -> Self {
        let mut commands = COMMANDS.lock();
        let now = now();
        commands.first.get_or_insert(now);
        commands.running.push(now);
        Self(now)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let running = &mut COMMANDS.lock().running;
        let own = running.iter().position(|begun| *begun == self.0);
        own.map(|own| running.swap_remove(own));
    }
}

impl Commands {
    /// A process that began then is of none that runs, and of one that did. As the first process of
    /// a container this one has children that are of no command.
    fn none_has(&self, began: u64) -> bool {
        std::process::id() != 1
            && self.first.is_some_and(|first| first <= began)
            && self.running.iter().all(|begun| began < *begun)
    }
}

/// A process as /proc/PID/stat shows it.
struct Process {
    pid: Pid,
    parent: Option<Pid>,
    group: Option<Pid>,
    /// In ticks.
    began: u64,
}

/// As long as this is held, this process is the parent of what its commands leave behind.
pub(super) struct Adopting(());

/// Makes this process that.
pub(super) fn adopt() -> Adopting {
    let mut commands = COMMANDS.lock();
    if commands.tests == 0 {
        commands.was_parent = matches!(rustix::process::child_subreaper(), Ok(Some(_)));
        // Without, such processes are found only where they descend from a command that is alive.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }
    commands.tests += 1;
    Adopting(())
}

impl Drop for Adopting {
    fn drop(&mut self) {
        let mut commands = COMMANDS.lock();
        commands.tests -= 1;
        if commands.tests == 0 && !commands.was_parent {
            let _ = rustix::process::set_child_subreaper(None);
        }
    }
}

/// Kills what the commands on `dir` have left, and the one with this process group above all, and
/// reaps it.
pub(super) fn kill(dir: &Path, group: Option<Pid>) {
    let until = Instant::now() + PATIENCE;
    // What the killed ones leave becomes ours in turn.
    while round(dir, group) && Instant::now() < until {
        thread::sleep(POLL);
    }
}

/// One look at all processes; whether another one is needed.
fn round(dir: &Path, group: Option<Pid>) -> bool {
    let commands = COMMANDS.lock();
    let (own, own_group) = (rustix::process::getpid(), rustix::process::getpgrp());
    let mut goes_on = false;
    for process in processes() {
        let is_of_group = group.is_some() && process.group == group;
        if process.parent != Some(own) || process.group == Some(own_group) {
            // Killed already, but its parent is still to end.
            goes_on |= is_of_group;
            continue;
        }
        if !is_of_group && !commands.none_has(process.began) && !is_of(process.pid, dir) {
            continue;
        }
        // One that may not be killed is no reason to wait.
        goes_on |= rustix::process::kill_process(process.pid, Signal::KILL) != Err(Errno::PERM);
        let _ = rustix::process::waitpid(Some(process.pid), WaitOptions::NOHANG);
    }
    goes_on
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(Pid::from_raw).filter_map(process).collect()
}

fn process(pid: Pid) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may have blanks and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    // proc_pid_stat(5): state, ppid, pgrp; starttime is the 22nd, and 20th from the state on.
    // One that is being reaped has the group -1.
    let number =
        |at: usize| words.get(at)?.parse().ok().filter(|it| *it > 0).and_then(Pid::from_raw);
    let began = words.get(19)?.parse().ok()?;
    Some(Process { pid, parent: number(1), group: number(2), began })
}

/// Ticks since the machine was started, by the clock that /proc/PID/stat has.
fn now() -> u64 {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let hundredths = uptime.split_whitespace().next().map(|seconds| seconds.replace('.', ""));
    let hundredths: u64 = hundredths.and_then(|it| it.parse().ok()).unwrap_or(0);
    hundredths * rustix::param::clock_ticks_per_second() / 100
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_takes_in_nobody_after_the_last_test() {
        let takes_in = || matches!(rustix::process::child_subreaper(), Ok(Some(_)));
        let before = takes_in();
        let (first, second) = (adopt(), adopt());
        drop(first);
        assert!(takes_in());
        drop(second);
        assert_eq!(takes_in(), before);
    }
}
