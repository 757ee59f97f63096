//! `uext4 lab run --store slow`: flushes that take the time that was asked for, for every target.
//!
//! Fault model: one side whose flushes are faster than those of another; a mount or a loop device
//! that is left. Only the least time is looked at: a loaded machine may take any time more.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{UEXT4, is_root, wait_until};
use rustix::process::{Pid, Signal, kill_process};

fn obstacle() -> Option<&'static str> {
    if !is_root() {
        return Some("a loop device needs root");
    }
    let there = |path| std::path::Path::new(path).exists();
    (!there("/dev/loop-control") || !there("/dev/fuse")).then_some("no loop devices or no FUSE")
}

/// The run's mounts.
fn mounts(pid: u32) -> Vec<String> {
    let name = format!("uext4-lab-{pid}-");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned).collect()
}

/// What tells the file below the run's loop device over a slow file.
fn slow_device(pid: u32) -> Option<PathBuf> {
    let name = format!("uext4-lab-{pid}-");
    let devices = fs::read_dir("/sys/block").expect("devices").filter_map(Result::ok);
    let mut files = devices.map(|device| device.path().join("loop/backing_file"));
    files.find(|file| {
        let backing = fs::read_to_string(file).unwrap_or_default();
        backing.contains(&name) && backing.trim_end().ends_with(".slow")
    })
}

#[test]
fn every_target_waits_for_a_slow_flush() {
    if let Some(reason) = obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    const FLUSH_US: f64 = 20_000.0;
    let words = "lab run S1 --own uext4 --peer kernel,raw --store slow=20000 --scale 0.01 \
                 --rounds 1 --threads 1 --seconds 0.3 --json";
    let run = Command::new(UEXT4).args(words.split_whitespace()).output().expect("uext4 runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
    let figures = String::from_utf8_lossy(&run.stdout).into_owned();
    for target in ["uext4", "kernel", "raw"] {
        let figures = figures.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let latency: Vec<f64> = figures
            .filter(|f: &serde_json::Value| f["target"] == target && f["store"] == "slow")
            .filter(|f| f["metric"] == "latency_p50_us")
            .filter_map(|f| f["value"].as_f64())
            .collect();
        assert!(latency.iter().all(|us| *us >= FLUSH_US), "{target}: {latency:?}");
        assert_eq!(latency.len(), 1, "{target}: {said}");
    }
}

#[test]
fn nothing_is_left_of_slow_images_of_a_run_that_was_killed() {
    if let Some(reason) = obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    let words = "lab run M4 --own uext4-mount --peer kernel --store slow=100 --scale 0.01 \
                 --rounds 1000 --json";
    let mut command = Command::new(UEXT4);
    command.args(words.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = command.spawn().expect("uext4 runs");
    let pid = run.id();
    let mut device = None;
    wait_until("a loop device over the slow file", || {
        device = slow_device(pid);
        device.is_some()
    });
    let device = device.expect("a device");
    let process = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(process, Signal::KILL).expect("a signal");
    run.wait().expect("the run ends");
    wait_until("no mount to be left", || mounts(pid).is_empty());
    // Without its mount the file is `/`. Another run may take the device at once.
    let is_ours = || {
        let backing = fs::read_to_string(&device).unwrap_or_default();
        backing.trim_end() == "/" || backing.contains(&format!("uext4-lab-{pid}-"))
    };
    wait_until("no loop device to be left", || !is_ours());
}

#[test]
fn a_flush_has_a_time_that_makes_sense() {
    for store in ["slow=0", "slow=", "slow=fast", "slow=99999999999", "slower"] {
        let run = Command::new(UEXT4).args(["lab", "run", "S1", "--store", store]).output();
        let run = run.expect("uext4 runs");
        let line = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!((run.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    }
}
