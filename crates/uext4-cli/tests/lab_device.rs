//! `uext4 lab run --device` and `lab fio --device`: every target on one block device.
//!
//! Fault model: a device that is somebody else's: mounted, with something on it, not a device at
//! all, too small. Nothing of it may be written then. A loop device stands for the disk. Not
//! covered: swap and parts of a RAID, which are refused as mounts are, by the exclusive open.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Scratch, UEXT4, has, is_root};

/// A loop device over a sparse file.
struct Disk {
    file: PathBuf,
    device: String,
}

impl Disk {
    fn new(scratch: &Scratch, megabytes: u64) -> Self {
        let file = scratch.path("disk");
        File::create(&file).and_then(|file| file.set_len(megabytes << 20)).expect("a file");
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let made = made.expect("losetup runs");
        assert!(made.status.success(), "{made:?}");
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        Self { file, device }
    }

    fn head(&self) -> Vec<u8> {
        let mut head = vec![0; 1 << 20];
        let file = File::open(&self.file).expect("the file");
        file.read_exact_at(&mut head, 0).expect("its begin");
        head
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

/// Why this machine cannot have such a disk.
fn obstacle() -> Option<&'static str> {
    if !is_root() {
        return Some("a loop device needs root");
    }
    if !Path::new("/dev/loop-control").exists() || !has("losetup") {
        return Some("no loop devices");
    }
    None
}

fn lab(device: &str, words: &str) -> (Option<i32>, String) {
    let mut command = Command::new(UEXT4);
    command.args(["lab", "run"]).args(words.split_whitespace()).args(["--device", device]);
    let run = command.output().expect("uext4 runs");
    (run.status.code(), String::from_utf8_lossy(&run.stderr).into_owned())
}

fn refused(device: &str, words: &str, why: &str) {
    let (status, line) = lab(device, words);
    assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.contains(why), "{line}");
}

const SMALL: &str = "E3 --own uext4 --peer none --seconds 0.1 --rounds 1";

#[test]
fn what_is_no_device_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.path("file");
    fs::write(&file, "text").expect("a file");
    refused(&file.to_string_lossy(), SMALL, "not a block device");
    refused("/dev/null", SMALL, "not a block device");
    refused("/dev/no-such-device", SMALL, "No such file");
    assert_eq!(fs::read(&file).expect("the file"), b"text");
}

#[test]
fn all_targets_run_on_a_device_and_leave_nothing_on_it() {
    if let Some(reason) = obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 512);
    let out = scratch.path("out");
    let words = "E3,E4,M4,M7 --own uext4 --peer kernel,raw --seconds 0.1 --rounds 1 --scale 0.01 \
                 --threads 1 --bs 4096 --no-aa --out";
    let (status, said) = lab(&disk.device, &format!("{words} {}", out.display()));
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("M7: uext4 is left out"), "{said}");
    let figures = fs::read_to_string(out.join("raw.jsonl")).expect("figures");
    for (id, target) in [("E3", "uext4"), ("E3", "kernel"), ("E3", "raw"), ("M4", "kernel")] {
        let key = format!(r#""experiment":"{id}","target":"{target}""#);
        assert!(figures.lines().any(|line| line.contains(&key)), "{key}: {figures}");
    }
    assert!(figures.lines().all(|line| line.contains(r#""store":"device""#)), "{figures}");
    let environment = fs::read_to_string(out.join("env.json")).expect("env.json");
    let environment: serde_json::Value = serde_json::from_str(&environment).expect("JSON");
    assert_eq!(environment["device"]["path"], disk.device.as_str());
    assert_eq!(environment["device"]["bytes"], 512u64 << 20);
    assert!(disk.head().iter().all(|byte| *byte == 0), "something is left on the device");
}

#[test]
fn a_device_of_somebody_else_stays_as_it_is() {
    if let Some(reason) = obstacle() {
        eprintln!("skipped: {reason}");
        return;
    }
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 64);
    refused(&disk.device, "E4 --own uext4 --peer none", "E4 needs ");
    common::run_ok(["mkfs", &disk.device]);
    let before = disk.head();
    refused(&disk.device, SMALL, "not empty (");
    // What writes nothing to the device changes nothing on it.
    lab(&disk.device, "M7 --force --rounds 1");
    assert!(before == disk.head(), "the device was written to");
    let dir = scratch.path("mnt");
    fs::create_dir(&dir).expect("a folder");
    let mount = Command::new("mount").args(["-o", "ro", &disk.device]).arg(&dir).status();
    assert!(mount.expect("mount runs").success());
    let words = format!("{SMALL} --force");
    let (status, line) = lab(&disk.device, &words);
    Command::new("umount").arg(&dir).status().expect("umount runs");
    assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.contains("in use: mounted on "), "{line}");
    assert!(before == disk.head(), "the device was written to");
}

/// Fault model: a job file goes to a device that loads are not run on.
#[test]
fn a_job_file_runs_on_a_device_with_the_same_refusals() {
    let no_fio = || (!has("fio")).then_some("fio is not installed");
    if let Some(reason) = obstacle().or_else(no_fio) {
        eprintln!("skipped: {reason}");
        return;
    }
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 64);
    let job = scratch.path("job.fio");
    fs::write(&job, "[x]\nrw=write\nbs=4k\nsize=1m\nend_fsync=1\n").expect("a file");
    let fio = |words: &str| {
        let mut command = Command::new(UEXT4);
        command.args(["lab", "fio", "--rounds", "1", "--targets", "kernel", "--json", "--device"]);
        let run = command.arg(&disk.device).args(words.split_whitespace()).arg(&job).output();
        let run = run.expect("uext4 runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (run.status.code(), text(&run.stdout), text(&run.stderr))
    };
    let refused = |words: &str, why: &str| {
        let (status, _, line) = fio(words);
        assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(why), "{line}");
    };
    refused("--image-size 128M", "needs 128 MiB, it has 64: use --image-size");
    refused("--image-size 32M --store slow", "--device has its own flushes");
    let (status, figures, said) = fio("--image-size 32M");
    assert_eq!(status, Some(0), "{said}");
    let is_there = |line: &str| line.contains(r#""store":"device""#) && line.contains("\"iops\"");
    assert!(figures.lines().any(is_there), "{figures}");
    assert!(disk.head().iter().all(|byte| *byte == 0), "something is left on the device");
    common::run_ok(["mkfs", &disk.device]);
    let before = disk.head();
    refused("--image-size 32M", "not empty (");
    assert!(before == disk.head(), "the device was written to");
}
