//! What a run of the lab leaves when it is ended before its time.
//!
//! Fault model: any signal at any moment, those that cannot be caught among them; a daemon or fio
//! that is killed while the load runs. Nothing of the run may be left then: no folder, mount, loop
//! device or process. Not covered: the process that cleans up is killed, too.
//!
//! `UEXT4_LAB_MOMENTS` is the number of moments, 20 for a long run; `UEXT4_LAB_LOADS` the loads.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Scratch, UEXT4};
use rustix::process::{Pid, Signal, kill_process};

/// How long a killed run may take to be gone: far more than it needs.
const PATIENCE: Duration = Duration::from_secs(60);
const LOADS: &str = "E3,M4,M6";

/// A run whose images lie in `folder`. It lasts until it is ended.
fn start(folder: &Path) -> Child {
    let loads = std::env::var("UEXT4_LAB_LOADS").unwrap_or_else(|_| LOADS.to_owned());
    let words = "--scale 0.01 --seconds 0.3 --rounds 1000 --peer kernel,fuse2fs,raw --json";
    let run = Command::new(UEXT4)
        .args(["lab", "run", &loads])
        .args(words.split(' '))
        .arg("--folder")
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    run.expect("uext4 runs")
}

/// Files below a directory of the system that name this, as `what` finds it.
fn naming(top: &str, file: &str, name: &str) -> Vec<String> {
    let entries = fs::read_dir(top).into_iter().flatten().filter_map(Result::ok);
    let texts = entries.filter_map(|entry| {
        let text = fs::read(entry.path().join(file)).ok()?;
        Some(format!("{}: {}", entry.path().display(), String::from_utf8_lossy(&text)))
    });
    texts.filter(|text| text.contains(name)).collect()
}

/// What there is of the run of that process.
fn left(folder: &Path, pid: u32) -> Vec<String> {
    let name = format!("uext4-lab-{pid}-");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let mounts = mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned);
    let mut left: Vec<String> = mounts.collect();
    left.extend(naming("/sys/block", "loop/backing_file", &name));
    left.extend(naming("/proc", "cmdline", &name));
    left.extend(naming("/proc", "environ", &format!("UEXT4_LAB_RUN={pid}-")));
    for dir in [folder, Path::new("/dev/shm")] {
        let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        let names = entries.map(|entry| entry.path().display().to_string());
        left.extend(names.filter(|path| path.contains(&name)));
    }
    left
}

fn assert_gone(folder: &Path, pid: u32, how: &str) {
    let begin = Instant::now();
    loop {
        let left = left(folder, pid);
        if left.is_empty() {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "after {how}: {left:#?}");
        sleep(Duration::from_millis(20));
    }
}

/// Waits until the run has something mounted: what only a process of its own can take away.
fn wait_for_mount(pid: u32) {
    let (begin, name) = (Instant::now(), format!("uext4-lab-{pid}-"));
    while !fs::read_to_string("/proc/self/mountinfo").expect("mounts").contains(&name) {
        assert!(begin.elapsed() < PATIENCE, "nothing is mounted");
        sleep(Duration::from_millis(1));
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    let _ = kill_process(pid, signal);
}

#[test]
fn nothing_is_left_of_a_run_that_was_ended_at_any_moment() {
    let moments = std::env::var("UEXT4_LAB_MOMENTS").ok().and_then(|text| text.parse().ok());
    let signals = [Signal::KILL, Signal::INT, Signal::TERM, Signal::HUP];
    let mut random = u64::from(std::process::id());
    for number in 0..moments.unwrap_or(4) {
        let scratch = Scratch::new();
        let folder = scratch.path("images");
        fs::create_dir(&folder).expect("a folder");
        let mut run = start(&folder);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let moment = Duration::from_millis((random >> 33) % 3000);
        sleep(moment);
        if number == 0 && Path::new("/dev/fuse").exists() {
            wait_for_mount(run.id());
        }
        let sent = signals[number % signals.len()];
        signal(run.id(), sent);
        let status = run.wait().expect("the run ends");
        // What a shell tells as 128 and the number.
        assert_eq!(status.signal(), Some(sent.as_raw()), "{status}");
        assert_gone(&folder, run.id(), &format!("{sent:?} at {moment:?}"));
    }
}

/// Fault model: a run that is killed while perf looks at it. perf would record for ever, into a
/// folder that nobody knows.
#[test]
fn nothing_is_left_of_what_looks_at_a_run() {
    use std::os::unix::fs::PermissionsExt;

    let scratch = Scratch::new();
    let [folder, temporary, programs] = ["images", "tmp", "bin"].map(|name| scratch.path(name));
    for dir in [&folder, &temporary, &programs] {
        fs::create_dir(dir).expect("a folder");
    }
    // Says where it is going to record, and never begins: the run waits for that.
    let (perf, begun) = (programs.join("perf"), scratch.path("begun"));
    let script = "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\n\
                  echo \"$2\" > \"$BEGUN\"; exec sleep 1000\n";
    fs::write(&perf, script).expect("a program");
    fs::set_permissions(&perf, fs::Permissions::from_mode(0o755)).expect("a program");
    let path = std::env::var("PATH").unwrap_or_default();
    let words = "lab run E3 --own uext4 --peer none --threads 1 --scale 0.01 --seconds 0.1 \
                 --rounds 1 --no-aa --explain";
    let mut run = Command::new(UEXT4)
        .args(words.split_whitespace())
        .args([Path::new("--folder"), &folder, Path::new("--out"), &scratch.path("out")])
        .env("PATH", format!("{}:{path}", programs.display()))
        .envs([("TMPDIR", &temporary), ("BEGUN", &begun)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("uext4 runs");
    let begin = Instant::now();
    while !begun.exists() {
        assert!(begin.elapsed() < 3 * PATIENCE, "nobody looks");
        assert_eq!(run.try_wait().expect("a status"), None, "the run has ended");
        sleep(Duration::from_millis(5));
    }
    signal(run.id(), Signal::KILL);
    run.wait().expect("the run ends");
    assert_gone(&folder, run.id(), "killed while perf looked");
    assert_eq!(fs::read_dir(&temporary).expect("the folder").count(), 0, "temporary files");
    // perf, too; what cleans up may take a moment to end itself.
    let begin = Instant::now();
    while let still = naming("/proc", "environ", &begun.display().to_string())
        && !still.is_empty()
    {
        assert!(begin.elapsed() < PATIENCE, "{still:#?}");
        sleep(Duration::from_millis(20));
    }
}

/// A side that is killed has no figure, and the others go on.
#[test]
fn nothing_is_left_of_a_side_that_was_killed() {
    let scratch = Scratch::new();
    let folder = scratch.path("images");
    fs::create_dir(&folder).expect("a folder");
    let mut run = start(&folder);
    let name = format!("uext4-lab-{}-", run.id());
    let begin = Instant::now();
    let mut killed = 0;
    while killed < 3 && begin.elapsed() < PATIENCE {
        assert_eq!(run.try_wait().expect("a status"), None, "the run has ended");
        for side in naming("/proc", "cmdline", &name) {
            let words: Vec<_> = side.split(['\0', ' ']).collect();
            let is_side = ["mount", "-f"].iter().any(|word| words.contains(word))
                || words.iter().any(|word| word.ends_with("/fio"));
            let pid = side.strip_prefix("/proc/").and_then(|rest| rest.split(':').next());
            if let Some(pid) = pid.filter(|_| is_side).and_then(|pid| pid.parse().ok()) {
                signal(pid, Signal::KILL);
                killed += 1;
                sleep(Duration::from_millis(300));
            }
        }
        sleep(Duration::from_millis(5));
    }
    signal(run.id(), Signal::TERM);
    let status = run.wait().expect("the run ends");
    // Sides that have failed do not hide it.
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    assert_gone(&folder, run.id(), "killed sides");
    assert!(killed > 0 || !Path::new("/dev/fuse").exists(), "no side was seen");
}
