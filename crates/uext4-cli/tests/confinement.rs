//! The daemon of a mount has given up what it does not need, and its keeper unmounts for it.
//!
//! Fault model: a thread that answers requests, or one of the engine, and is not confined; a mount
//! that cannot be ended any more; a keeper that outlives its daemon. What a confined thread cannot
//! do is tried in `src/confine/tests.rs`. Landlock cannot be seen from outside: a thread gets it
//! together with the loss of rights that /proc shows.

#[macro_use]
mod common;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{
    Mounted, Scratch, UEXT4, as_nobody, assert_clean, has, is_mounted, is_root, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

/// `CAP_SYS_RAWIO` of capabilities(7).
const RAW_IO: u64 = 1 << 17;

/// The lines of each thread's status.
fn threads(pid: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
    // A thread may end meanwhile.
    tasks.filter_map(|task| status(task.unwrap()).ok()).collect()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.strip_prefix(':')).unwrap_or_default().trim()
}

/// Children of a process by their names.
fn child(of: i32, name: &str) -> Option<i32> {
    let mut found = None;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        if field(&status, "PPid") == of.to_string() && field(&status, "Name") == name {
            found = field(&status, "Pid").parse().ok();
        }
    }
    found
}

fn is_alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Whether this kernel filters system calls.
fn has_seccomp() -> bool {
    fs::read_to_string("/proc/self/status").unwrap().contains("\nSeccomp:")
}

fn assert_confined(pid: i32) {
    let threads = threads(pid);
    let names: Vec<&str> = threads.iter().map(|status| field(status, "Name")).collect();
    assert!(names.len() > 5, "{names:?}");
    for status in &threads {
        assert_eq!(field(status, "NoNewPrivs"), "1", "{status}");
        assert_eq!(field(status, "Seccomp"), "2", "{status}");
        let rights = u64::from_str_radix(field(status, "CapEff"), 16).unwrap();
        assert_eq!(rights & RAW_IO, 0, "{status}");
    }
}

#[test]
fn every_thread_is_confined_and_the_keeper_ends_the_mount() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    if !has_seccomp() {
        skip!("no seccomp");
    }
    let mount = Mounted::new(&image, &dir, "");
    // Every kind of thread there is: workers, writeback, commits.
    for n in 0..50 {
        fs::write(mount.path(n.to_string()), [7; 10_000]).unwrap();
    }
    File::open(&mount.dir).unwrap().sync_all().unwrap();
    let daemon = mount.daemon();
    assert_confined(daemon);
    // What is set when the threads are confined already.
    let device = rustix::fs::stat(&dir).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let suffix = if major == 0 { "" } else { "-fuseblk" };
    let read_ahead = format!("/sys/class/bdi/{major}:{minor}{suffix}/read_ahead_kb");
    let read_ahead = fs::read_to_string(read_ahead);
    assert!(!is_root() || read_ahead.is_ok_and(|kib| kib == "1024\n"));
    let keeper = child(daemon, "uext4-keeper").expect("a keeper");
    // A service manager signals both; the keeper must be there for the daemon.
    signal(keeper, Signal::TERM);
    signal(daemon, Signal::TERM);
    wait_until("unmounted", || !is_mounted(&dir));
    wait_until("both gone", || !is_alive(daemon) && !is_alive(keeper));
    mount.forget();
    assert_clean(&image);

    let mount = Mounted::new(&image, &dir, "no_sandbox");
    let daemon = mount.daemon();
    assert!(threads(daemon).iter().all(|status| field(status, "Seccomp") == "0"));
    assert_eq!(child(daemon, "uext4-keeper"), None);
    signal(daemon, Signal::TERM);
    wait_until("unmounted", || !is_mounted(&dir));
    wait_until("gone", || !is_alive(daemon));
    mount.forget();
    assert_clean(&image);
}

#[test]
fn a_daemon_and_its_keeper_may_lose_each_other() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    // A killed daemon takes its keeper along.
    let mount = Mounted::new(&image, &dir, "");
    let daemon = mount.daemon();
    let keeper = child(daemon, "uext4-keeper").expect("a keeper");
    signal(daemon, Signal::KILL);
    wait_until("the keeper is gone", || !is_alive(keeper));
    assert!(is_mounted(&dir), "a mount whose daemon was killed stays, to be seen");
    mount.end();
    // Without its keeper a daemon goes on, and is ended from outside.
    let mount = Mounted::new(&image, &dir, "");
    let daemon = mount.daemon();
    signal(child(daemon, "uext4-keeper").expect("a keeper"), Signal::KILL);
    signal(daemon, Signal::TERM);
    fs::write(mount.path("file"), b"x").unwrap();
    mount.end();
    assert_clean(&image);
    // Or, where it is told twice, ends and closes the volume; the kernel then knows no server.
    let mount = Mounted::new(&image, &dir, "");
    fs::write(mount.path("more"), b"x").unwrap();
    let daemon = mount.daemon();
    signal(child(daemon, "uext4-keeper").expect("a keeper"), Signal::KILL);
    signal(daemon, Signal::TERM);
    std::thread::sleep(std::time::Duration::from_millis(200));
    signal(daemon, Signal::TERM);
    wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
    mount.end();
    assert_clean(&image);
}

/// The keeper ends its own mount and no other that was made over it.
#[test]
fn what_was_mounted_over_a_mount_stays() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    if !is_root() {
        skip!("not root");
    }
    let mount = Mounted::new(&image, &dir, "");
    let daemon = mount.daemon();
    let tmpfs = common::system("mount").args(["-t", "tmpfs", "none"]).arg(&dir).status().unwrap();
    assert!(tmpfs.success());
    fs::write(dir.join("over"), b"").unwrap();
    signal(daemon, Signal::TERM);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let is_there = dir.join("over").exists();
    assert!(common::system("umount").arg(&dir).status().unwrap().success());
    assert!(is_there && is_alive(daemon));
    mount.end();
    assert_clean(&image);
}

/// An ordinary user's daemon cannot run fusermount3 any more; its keeper does.
#[test]
fn a_signal_ends_the_mount_of_an_ordinary_user() {
    if is_root() {
        if !has("fusermount3") {
            skip!("no fusermount3");
        }
        as_nobody("a_signal_ends_the_mount_of_an_ordinary_user");
        return;
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    for options in ["sandbox", "no_sandbox"] {
        let mount = Mounted::new(&image, &dir, options);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        let daemon = mount.daemon();
        if options == "sandbox" && has_seccomp() {
            assert_confined(daemon);
        }
        signal(daemon, Signal::TERM);
        wait_until("unmounted", || !is_mounted(&dir));
        wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
        mount.forget();
    }
    assert_clean(&image);
}

/// Only a daemon starts a keeper that does something.
#[test]
fn a_keeper_by_hand_does_nothing() {
    use std::os::unix::process::CommandExt;
    let scratch = Scratch::new();
    for dir in [scratch.path("nowhere"), scratch.dir.path().to_owned()] {
        let keeper =
            Command::new(UEXT4).arg0("uext4-keeper").arg(dir).stdin(Stdio::null()).output();
        assert_eq!(keeper.unwrap().stdout, b"");
    }
}
