//! `uext4 stats` of mounts and images.
//!
//! Fault model: figures that do not agree with what was done; a question that waits behind those
//! it asks about; a reader that changes an image; the wrong user. Not covered: the truth of times
//! (the engine's own tests), kernels older than the one that runs.

#[macro_use]
mod common;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Mounted, Scratch, UEXT4, assert_clean, run_fails, run_ok, wait_until};
use serde_json::Value;
use uext4::{MountOptions, Volume};
use uext4_device::{Access, FileDevice, Gate, HookedDevice, SharedDevice};
use uext4_fuse::{FuseOptions, STATS_XATTR, Session};

fn stats(place: &Path) -> Value {
    let json = run_ok([OsStr::new("stats"), OsStr::new("--json"), place.as_os_str()]);
    serde_json::from_slice(&json).expect("JSON")
}

fn number(stats: &Value, path: &str) -> u64 {
    let value = stats.pointer(path).unwrap_or_else(|| panic!("no {path} in {stats:#}"));
    value.as_u64().unwrap_or_else(|| panic!("{path} is {value}"))
}

#[test]
fn figures_agree_with_what_was_done() {
    const ROUNDS: u64 = 20;
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    // One client that does one thing after the other; no timer commits in between.
    let mount = Mounted::new(&image, &dir, "commit=900");
    let before = stats(&dir);
    let mut file = File::create(mount.path("file")).unwrap();
    for round in 0..ROUNDS {
        file.write_all(&[round as u8; 8192]).unwrap();
        file.sync_all().unwrap();
    }
    let after = stats(&dir);
    // Each round's blocks were searched for, and the groups that they came from have lines.
    let got = |path| number(&after, path) - number(&before, path);
    assert!(got("/mb_stats/reqs") >= 1 && got("/mb_stats/success") == got("/mb_stats/reqs"));
    assert!(number(&after, "/mb_groups/0/free") > 0, "{after:#}");
    let grown = |path: &str| number(&after, path) - number(&before, path);
    assert_eq!(grown("/histograms/fsync/calls"), ROUNDS);
    assert_eq!(grown("/histograms/fsync/timed"), ROUNDS);
    assert_eq!(grown("/histograms/write/calls"), ROUNDS);
    assert_eq!(grown("/histograms/open/calls"), 1);
    assert_eq!(grown("/counters/transactions"), ROUNDS, "each sync was a commit");
    // The creation, and for each round at least the mapping of what was written.
    assert!(grown("/counters/handles") > ROUNDS, "{after:#}");
    assert!(grown("/counters/handles") <= 6 * ROUNDS, "{after:#}");
    assert!(grown("/counters/blocks_logged") >= 2 * ROUNDS, "{after:#}");
    assert_eq!(number(&after, "/jbd2/transactions"), number(&after, "/counters/transactions"));
    assert!(number(&after, "/log/used") > 0);
    assert_eq!(after["blocked"], Value::Array(Vec::new()));
    let text = String::from_utf8(run_ok([OsStr::new("stats"), dir.as_os_str()])).unwrap();
    let first = format!("{} transactions (", number(&after, "/jbd2/transactions"));
    assert!(text.starts_with(&first), "{text}");
    for word in ["us average transaction commit time\n", "\nfsync: 20 times, mean "] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    // Any directory of the mount will do, and an image on the mount is an image.
    fs::create_dir(mount.path("below")).unwrap();
    assert!(number(&stats(&mount.path("below")), "/jbd2/transactions") >= ROUNDS);
    run_fails([OsString::from("stats"), mount.path("file").into()], "ext4");
    let mut names = [0; 100];
    assert_eq!(rustix::fs::listxattr(&dir, &mut names[..]), Ok(0), "the attribute is in no list");
    drop(file);
    mount.end();
    run_fails([OsStr::new("stats"), dir.as_os_str()], "not on a uext4 mount");
    assert_clean(&image);
}

#[test]
fn differences_are_printed_until_the_mount_is_gone() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let mount = Mounted::new(&image, &dir, "");
    let mut child = Command::new(UEXT4)
        .args(["stats", "--json", "--interval", "0.2"])
        .arg(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    next();
    let mut file = File::create(mount.path("file")).unwrap();
    file.write_all(b"x").unwrap();
    file.sync_all().unwrap();
    drop(file);
    let seen: u64 = (0..5).map(|_| number(&next(), "/histograms/fsync/calls")).sum();
    assert_eq!(seen, 1, "a sync is in one difference only");
    mount.end();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.lines().count() == 1 && stderr.contains("not on a uext4 mount"), "{stderr}");
}

#[test]
fn an_image_tells_what_waits_for_a_replay() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let clean = stats(&image);
    assert_eq!(number(&clean, "/transactions"), 0);
    assert_eq!(number(&clean, "/log_used"), 0);
    assert_eq!(clean["needs_recovery"], Value::Bool(false));
    let mount = Mounted::new(&image, &dir, "");
    for round in 0..5 {
        fs::create_dir(mount.path(format!("dir{round}"))).unwrap();
        File::open(&mount.dir).unwrap().sync_all().unwrap();
    }
    run_fails([OsStr::new("stats"), image.as_os_str()], "in use");
    let live = stats(&dir);
    let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    wait_until("lock free", || File::open(&image).unwrap().try_lock().is_ok());
    run_fails([OsStr::new("stats"), dir.as_os_str()], "not connected");
    mount.end();
    let before = fs::read(&image).unwrap();
    let dirty = stats(&image);
    assert!(before == fs::read(&image).unwrap(), "reading changed the image");
    assert_eq!(dirty["needs_recovery"], Value::Bool(true));
    assert_eq!(number(&dirty, "/log_used"), number(&live, "/log/used"));
    assert_eq!(number(&dirty, "/sequence"), number(&live, "/log/tail_tid"));
    let text = String::from_utf8(run_ok([OsStr::new("stats"), image.as_os_str()])).unwrap();
    let waiting = format!("Transactions to replay:   {}\n", number(&dirty, "/transactions"));
    assert!(text.contains(&waiting), "{text}");
    let device: SharedDevice =
        Arc::new(FileDevice::open(&image, Access::ReadWrite, 0).expect("the image"));
    let volume = Volume::open(device, MountOptions::default()).unwrap();
    assert_eq!(u64::from(volume.recovery().transactions), number(&dirty, "/transactions"));
    assert_eq!(volume.recovery().blocks as u64, number(&dirty, "/blocks"));
    volume.close().unwrap();
    assert_clean(&image);
}

#[test]
fn what_is_no_mount_and_no_image_is_said_in_one_line() {
    let scratch = Scratch::new();
    run_fails([OsStr::new("stats"), scratch.dir.path().as_os_str()], "not on a uext4 mount");
    run_fails([OsString::from("stats"), scratch.path("missing").into()], "No such file");
    fs::write(scratch.path("garbage"), vec![7; 1 << 20]).unwrap();
    run_fails([OsString::from("stats"), scratch.path("garbage").into()], "garbage");
    let interval = ["stats".into(), "--interval=1".into(), scratch.path("garbage").into()];
    run_fails::<OsString>(interval, "not mounted");
    let Some(image) = scratch.image("none", 8, &["-O", "^has_journal"]) else {
        skip!("no mke2fs");
    };
    run_fails([OsString::from("stats"), image.into()], "no journal");
}

#[test]
fn only_root_and_the_mounting_user_may_look() {
    if !common::is_root() || !common::has("setpriv") {
        skip!("needs root and setpriv");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    fs::set_permissions(scratch.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = scratch.path("uext4");
    common::copy_program(std::path::Path::new(UEXT4), &program);
    let mount = Mounted::new(&image, &dir, "allow_other");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .arg("stats")
        .arg(&dir)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("only root and who mounted it"), "{stderr}");
    mount.end();
}

/// Would hang, but for the limit of `run`, if the last worker at the queue waited as the others do.
#[test]
fn a_mount_answers_while_all_its_workers_wait() {
    const CLIENTS: usize = 40;
    const WORKERS: usize = 4;
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    fs::create_dir(&dir).unwrap();
    let file = FileDevice::open(&image, Access::ReadWrite, 0).expect("the image");
    let gate = Arc::new(Gate::default());
    let at_flush = Arc::clone(&gate);
    let device: SharedDevice = Arc::new(HookedDevice::new(Arc::new(file), move |request| {
        if request.is_durable() {
            at_flush.pass();
        }
    }));
    let volume = Volume::open(Arc::clone(&device), MountOptions::default()).unwrap();
    let options = FuseOptions { threads: Some(WORKERS), ..FuseOptions::default() };
    let session = Session::start(volume.clone(), &dir, &options).unwrap();
    let stopper = session.stopper();
    let files: Vec<File> =
        (0..CLIENTS).map(|n| File::create(dir.join(n.to_string())).unwrap()).collect();
    std::thread::scope(|scope| {
        let opened = gate.close();
        for mut file in files {
            scope.spawn(move || {
                file.write_all(&[1; 10_000]).unwrap();
                file.sync_all().unwrap();
            });
        }
        let blocked = |stats: &Value| {
            let blocked = stats["blocked"].as_array().expect("a list");
            // A sync that came while others ran a pass waits for the commit of its group's leader.
            let waits = |thread: &Value| {
                thread["wait_for"] == "commit" || thread["wait_for"] == "writeback"
            };
            blocked.iter().filter(|thread| waits(thread)).count()
        };
        let mut seen = Value::Null;
        wait_until("all clients wait for the commit", || {
            seen = stats(&dir);
            blocked(&seen) == CLIENTS
        });
        // Others are served meanwhile, too.
        assert_eq!(fs::read_dir(&dir).unwrap().count(), CLIENTS + 1);
        let waited = |stats: &Value| number(stats, "/blocked/0/waited_ns");
        std::thread::sleep(Duration::from_millis(50));
        let later = stats(&dir);
        assert!(waited(&later) >= waited(&seen) + 50_000_000, "{later:#}");
        let mut value = vec![0; 65_536];
        let len = rustix::fs::getxattr(&dir, STATS_XATTR, &mut value[..]).unwrap();
        serde_json::from_slice::<Value>(&value[..len]).expect("JSON");
        let text = String::from_utf8(run_ok([OsStr::new("stats"), dir.as_os_str()])).unwrap();
        assert!(text.contains(&format!("\nblocked threads: {CLIENTS}\n")), "{text}");
        drop(opened);
    });
    let after = stats(&dir);
    assert_eq!(number(&after, "/histograms/fsync/calls"), CLIENTS as u64);
    assert_eq!(after["blocked"], Value::Array(Vec::new()));
    stopper.unmount().unwrap();
    session.join().unwrap();
    volume.close().unwrap();
    drop(device);
    assert_clean(&image);
}

/// The kernel may know many more names than the engine has inodes in memory, and gives them back in
/// batches. Fault model: an inode that stays in memory for each name that the kernel keeps.
#[test]
fn names_that_the_kernel_keeps_hold_no_inodes() {
    const NAMES: u64 = 12_000;
    if !common::is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 128);
    let mount = Mounted::new(&image, &dir, "");
    for n in 0..NAMES {
        File::create(mount.path(n.to_string())).unwrap();
    }
    mount.end();
    // Room for about 2,000 inodes.
    let mount = Mounted::new(&image, &dir, "cache=8M");
    for n in 0..NAMES {
        mount.path(n.to_string()).metadata().unwrap();
    }
    let seen = stats(&dir);
    assert!(number(&seen, "/levels/fuse_nodes") >= NAMES);
    let inodes = number(&seen, "/levels/inodes");
    assert!(inodes < NAMES / 4, "{inodes} inodes in memory for {NAMES} names");
    // All of them can be used still.
    for n in (0..NAMES).step_by(997) {
        assert_eq!(fs::read(mount.path(n.to_string())).unwrap(), b"");
    }
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    wait_until("most names are forgotten", || {
        number(&stats(&dir), "/levels/fuse_nodes") < NAMES / 4
    });
    mount.end();
    assert_clean(&image);
}
