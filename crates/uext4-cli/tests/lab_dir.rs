//! `uext4 lab run --dir` and `lab fio --dir`: a directory that is mounted already, as a target.
//!
//! Fault model: what a load made is left in somebody's directory, also when the run is killed; a
//! directory that cannot take the load. Not covered: what the file system below makes of it.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use common::{Scratch, UEXT4, wait_until};
use rustix::process::{Pid, Signal, kill_process};

fn lab(dir: &Path, words: &str) -> (Option<i32>, String) {
    let mut command = Command::new(UEXT4);
    command.args(["lab", "run"]).args(words.split_whitespace()).arg("--dir").arg(dir);
    let run = command.output().expect("uext4 runs");
    (run.status.code(), String::from_utf8_lossy(&run.stderr).into_owned())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory").filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_directory_is_a_target_and_is_left_as_it_was() {
    let scratch = Scratch::new();
    let (dir, out) = (scratch.path("there"), scratch.path("out"));
    fs::create_dir(&dir).expect("a folder");
    fs::write(dir.join("mine"), "text").expect("a file");
    let words = "E1a,E1b,E3,S1,M1,M3,M4,M5,M6 --own uext4 --peer kernel --scale 0.01 --seconds 0.1 \
                 --rounds 1 --threads 1 --no-aa --out";
    let (status, said) = lab(&dir, &format!("{words} {}", out.display()));
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("nothing is formatted, mounted or checked by e2fsck"), "{said}");
    let figures = fs::read_to_string(out.join("raw.jsonl")).expect("figures");
    for id in ["E1a", "E1b", "E3", "S1", "M1", "M3", "M4", "M5", "M6"] {
        let key = format!(r#""experiment":"{id}","target":"dir""#);
        assert!(figures.lines().any(|line| line.contains(&key)), "{key}: {figures}");
    }
    assert!(!figures.contains(r#""target":"kernel""#), "{figures}");
    let environment = fs::read_to_string(out.join("env.json")).expect("env.json");
    let environment: serde_json::Value = serde_json::from_str(&environment).expect("JSON");
    assert!(environment["dir"]["file_system"].is_string(), "{environment}");
    assert_eq!(names(&dir), ["mine"]);
}

#[test]
fn nothing_is_left_in_the_directory_of_a_run_that_was_killed() {
    let scratch = Scratch::new();
    let dir = scratch.path("there");
    fs::create_dir(&dir).expect("a folder");
    for signal in [Signal::KILL, Signal::TERM] {
        let words = "M4 --own none --peer dir --scale 0.1 --rounds 1000 --json --threads 1";
        let mut command = Command::new(UEXT4);
        command.args(["lab", "run"]).args(words.split_whitespace()).arg("--dir").arg(&dir);
        let run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut run = run.expect("uext4 runs");
        wait_until("a folder of the run", || !names(&dir).is_empty());
        sleep(Duration::from_millis(20));
        let pid = Pid::from_raw(run.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("a signal");
        run.wait().expect("the run ends");
        wait_until("nothing to be left", || names(&dir).is_empty());
    }
}

#[test]
fn a_directory_that_cannot_take_the_load_is_refused() {
    let scratch = Scratch::new();
    let dir = scratch.path("there");
    fs::create_dir(&dir).expect("a folder");
    let refused = |dir: &Path, words: &str, why: &str| {
        let (status, line) = lab(dir, words);
        assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(why), "{line}");
    };
    let small = "M4 --own none --peer dir --scale 0.01 --rounds 1";
    refused(&scratch.path("missing"), small, "No such file");
    let file = scratch.path("file");
    fs::write(&file, "").expect("a file");
    refused(&file, small, "not a directory");
    refused(Path::new("/proc"), small, "/proc");
    if !common::is_root() {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o500)).expect("permissions");
        refused(&dir, small, "Permission denied");
    }
    let words = ["lab", "run", "M4", "--own", "none", "--peer", "dir"];
    let run = Command::new(UEXT4).args(words).output().expect("uext4 runs");
    let line = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!((run.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    assert!(line.contains("no directory is given: --dir"), "{line}");
}

/// Fault model: files of a job are left in somebody's directory; a job that writes nothing there,
/// told as a very fast one.
#[test]
fn a_job_file_runs_in_a_directory() {
    if !common::has("fio") {
        eprintln!("skipped: fio is not installed");
        return;
    }
    let scratch = Scratch::new();
    let (dir, job) = (scratch.path("there"), scratch.path("job.fio"));
    fs::create_dir(&dir).expect("a folder");
    fs::write(dir.join("mine"), "text").expect("a file");
    let fio = |text: &str, words: &[&str]| {
        fs::write(&job, text).expect("a file");
        let mut command = Command::new(UEXT4);
        command.args(["lab", "fio", "--rounds", "1", "--json", "--image-size", "16M"]);
        if !words.contains(&"--targets") {
            command.args(["--targets", "kernel"]);
        }
        command.arg(&job).args(words);
        let run = command.output().expect("uext4 runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (run.status.code(), text(&run.stdout), text(&run.stderr))
    };
    let there = dir.display().to_string();
    // In the place of the kernel; files that are gone in the end were there.
    let writes = "[x]\nrw=write\nbs=4k\nsize=1m\nunlink=1\n";
    let (status, figures, said) = fio(writes, &["--dir", &there]);
    assert_eq!(status, Some(0), "{said}");
    assert!(figures.contains(r#""experiment":"fio:job","target":"dir""#), "{figures}");
    assert_eq!(names(&dir), ["mine"]);
    let nothing = "[x]\nioengine=null\nrw=write\nbs=4k\nsize=1m\n";
    let (status, figures, said) = fio(nothing, &["--dir", &there]);
    assert_eq!((status, &*figures), (Some(1), ""), "{said}");
    assert!(said.contains("as empty as before"), "{said}");
    let missing = scratch.path("missing").display().to_string();
    let wrong: [(&[&str], &str); 3] = [
        (&["--dir", &missing], "No such file"),
        (&["--dir", &there, "--store", "slow"], "--dir has its own flushes"),
        (&["--targets", "dir"], "no directory is given: --dir"),
    ];
    for (words, why) in wrong {
        let (status, _, line) = fio(writes, words);
        assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(why), "{line}");
    }
    assert_eq!(names(&dir), ["mine"]);
}
