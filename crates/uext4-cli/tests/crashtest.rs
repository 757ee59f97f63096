//! `uext4 crashtest` on programs: those that lose data on ext4 are told so, others are not.
//!
//! Fault model: a mistake that is not found; a sound program that is blamed; a mount, a process or
//! a file that stays behind, after an interruption at any moment, too. The programs are in
//! `crashtest/`. Not covered: thousands of states, which `cargo xtask crashtest` tries.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{Scratch, UEXT4, has, is_root, no_mount};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/crashtest");

/// Debian's, which has the modules of Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// Where temporary folders are made, so that what is left in it is a test's own.
fn crashtest(folder: &Path) -> Command {
    let mut command = Command::new(UEXT4);
    command.arg("crashtest").env("TMPDIR", folder).env("MISTAKES", format!("{FOLDER}/mistakes.py"));
    command
}

/// Status, standard output and standard error of a test with these words.
fn run(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let output = crashtest(folder).args(words).output().expect("uext4 runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Whether a run finds a failure.
fn fails(words: &[&str]) -> bool {
    let scratch = Scratch::new();
    // Tests run side by side.
    let (status, text, error) = run(&scratch.path("."), &[words, &["-q", "--jobs", "2"]].concat());
    match status {
        Some(0) => false,
        Some(1) if text.starts_with("FAILED") => true,
        _ => panic!("{words:?}: {status:?}: {text}{error}"),
    }
}

/// Why programs in Python cannot be tested here.
fn why_not(module: &str) -> Option<String> {
    if let Some(why) = no_mount() {
        return Some(why.to_owned());
    }
    let found = Command::new(PYTHON).args(["-c", &format!("import {module}")]).output();
    let is_there = found.is_ok_and(|output| output.status.success());
    (!is_there).then(|| format!("no {PYTHON} with {module}"))
}

#[test]
fn classic_mistakes_are_found_and_their_mended_forms_are_sound() {
    if let Some(why) = why_not("zlib") {
        skip!("{why}");
    }
    let is_found = |name: &str, how: &str, options: &[&str], states: &str| {
        let script = |how: &str| format!("{PYTHON} {FOLDER}/mistakes.py {name} {how}");
        let (setup, run, check) = (script("setup"), script(how), script(&format!("check-{how}")));
        let words = ["--setup", &setup, "--run", &run, "--check", &check, "--states", states];
        fails(&[&words, options].concat())
    };
    let each = [
        ("new_name", &[][..]),
        ("old_name", &["-o", "noauto_da_alloc"]),
        ("announced", &[]),
        ("append", &[]),
    ];
    for (name, options) in each {
        assert!(is_found(name, "wrong", options, "1000"), "{name}");
        assert!(!is_found(name, "right", options, "40"), "{name}, mended");
    }
    // ext4 does for the program what it forgot. With dioread_nolock, the default, zeros may show.
    assert!(!is_found("old_name", "wrong", &["-o", "dioread_lock"], "40"));
}

#[test]
fn databases_of_sqlite_are_as_safe_as_their_settings() {
    if let Some(why) = why_not("sqlite3") {
        skip!("{why}");
    }
    if !has("sqlite3") {
        skip!("no sqlite3");
    }
    let is_found = |journal: &str, synchronous: &str, wanted: &str, states: &str| {
        let setup = format!("sh {FOLDER}/sqlite.sh setup {journal}");
        let run = format!("{PYTHON} {FOLDER}/sqlite.py {journal} {synchronous} 15");
        let check = format!("sh {FOLDER}/sqlite.sh check {wanted}");
        let words = ["--setup", &setup, "--run", &run, "--check", &check, "--states", states];
        fails(&words)
    };
    assert!(is_found("delete", "off", "consistent", "1000"));
    assert!(!is_found("wal", "full", "durable", "40"));
    assert!(!is_found("truncate", "full", "durable", "30"));
    // Without a sync of the directory the journal may be there again, and takes a commit back: its
    // manual names EXTRA for that.
    assert!(is_found("delete", "full", "durable", "1000"));
    assert!(!is_found("delete", "extra", "durable", "30"));
}

#[test]
fn writes_of_leveldb_are_durable_with_sync_alone() {
    if let Some(why) = why_not("plyvel") {
        skip!("{why}");
    }
    let is_found = |sync: &str, states: &str| {
        let run = format!("{PYTHON} {FOLDER}/leveldb.py {sync} 60");
        let check = format!("{PYTHON} {FOLDER}/leveldb.py check");
        fails(&["--run", &run, "--check", &check, "--states", states])
    };
    assert!(is_found("nosync", "1000"));
    assert!(!is_found("sync", "20"));
}

#[test]
fn postgresql_needs_fsync() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    if !Path::new("/usr/lib/postgresql").is_dir() || !has("psql") || !is_root() && has("su") {
        skip!("no PostgreSQL, or not root");
    }
    let is_found = |fsync: &str, states: &str| {
        let script = |words: &str| format!("sh {FOLDER}/postgres.sh {words}");
        let (setup, run) = (script("setup"), script(&format!("run {fsync} 60")));
        let (check, words) = (script("check"), ["--states", states]);
        fails(&[&["--setup", &setup, "--run", &run, "--check", &check], &words[..]].concat())
    };
    assert!(is_found("off", "100"));
    assert!(!is_found("on", "10"));
}

#[test]
fn an_ordinary_user_tests_a_program() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    if is_root() {
        if !has("fusermount3") {
            skip!("no fusermount3");
        }
        return common::as_nobody("an_ordinary_user_tests_a_program");
    }
    let program = "echo new > g; mv g f; echo done";
    let check = "[ ! -s \"$UEXT4_CRASHTEST_OUTPUT\" ] || [ \"$(cat f)\" = new ]";
    let words = |program| ["crashtest", "-q", "--run", program, "--check", check];
    let unsound = common::run(words(program));
    assert_eq!(unsound.status.code(), Some(1), "{unsound:?}");
    let sound = common::run(words("echo new > g; sync g; mv g f; sync .; echo done"));
    assert_eq!(sound.status.code(), Some(0), "{sound:?}");
}

#[test]
fn a_failing_state_is_kept_with_its_timeline() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let out = scratch.path("report");
    let words = ["--setup", "echo old > f", "--run", "echo text > new; mv new g; echo done"];
    let check = ["--check", "test ! -e g || test -s g", "--out", out.to_str().unwrap()];
    let (status, text, error) = run(&scratch.path("."), &[words, check].concat());
    assert_eq!(status, Some(1), "{text}{error}");
    assert!(error.contains("done"), "what it prints is shown: {error}");
    for wanted in ["rename(/new, /g)", "/g, 5 bytes at 0", "failing.img"] {
        assert!(text.contains(wanted), "no '{wanted}' in: {text}");
    }
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("crash.json")).unwrap()).unwrap();
    assert!(report["timeline"].as_array().unwrap().len() >= 4);
    assert_eq!(report["failure"]["description"]["losses"][0]["path"], "/g");
    let image = out.join("failing.img");
    common::assert_clean(&image);
    let cat = |path: &str| Command::new(UEXT4).arg("cat").arg(common::at(&image, path)).output();
    assert_eq!(cat("/f").unwrap().stdout, b"old\n");
    assert_eq!(cat("/g").unwrap().stdout, b"");
    // What is there is not overwritten.
    let (status, _, error) = run(&scratch.path("."), &[words, check].concat());
    assert_eq!((status, error.lines().count()), (Some(2), 1), "{error}");
}

#[test]
fn what_cannot_be_tested_is_one_line() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let all = ["--run", "true", "--check", "true"];
    let each: [(&[&str], &str); 11] = [
        (&["--run", "true", "--check", "true", "-o", "sync"], "every call would be a sync"),
        (&["--run", "true", "--check", "true", "-o", "dirsync"], "not modelled"),
        (&["--run", "true", "--check", "echo bad; false"], "after a clean end of the program"),
        (&["--run", "exit 7", "--check", "true"], "run: exit status 7"),
        (&["--setup", "kill -9 $$", "--run", "true", "--check", "true"], "ended by signal 9"),
        (&["--run", "sleep 60", "--check", "true", "--timeout", "1"], "run: took too long"),
        (&[&all[..], &["--mode", "order"]].concat(), "`order`"),
        (&[&all[..], &["-o", "nobarrier"]].concat(), "nobarrier"),
        (&[&all[..], &["-o", "nosuchword"]].concat(), "nosuchword"),
        (&[&all[..], &["--image-size", "12Q"]].concat(), "12Q"),
        (&[&all[..], &["--image-size", "4K"]].concat(), "4096 bytes"),
    ];
    for (words, wanted) in each {
        let (status, text, error) = run(&scratch.path("."), words);
        assert_eq!((status, error.lines().count()), (Some(2), 1), "{words:?}: {text}{error}");
        assert!(error.contains(wanted), "no '{wanted}' in: {error}");
        assert_eq!(left(scratch.dir.path()), Vec::<PathBuf>::new(), "{words:?}");
    }
}

#[test]
fn an_interruption_leaves_nothing_behind() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    // Moments in the setup, in the program and among the checks, whose daemons outlive them.
    for milliseconds in [30, 150, 280, 400, 700] {
        let scratch = Scratch::new();
        let daemon = "setsid sh -c 'exec sleep 876543 > held' & sleep 0.1; date >> f; sync f";
        let mut child = crashtest(scratch.dir.path())
            .args(["--setup", daemon, "--run", daemon, "--check", &format!("{daemon}; true")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(milliseconds));
        let pid = rustix::process::Pid::from_child(&child);
        // It may have ended before.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        child.wait().unwrap();
        assert_eq!(left(scratch.dir.path()), Vec::<PathBuf>::new(), "{milliseconds}");
        let sleepers = fs::read_dir("/proc").unwrap().flatten().filter(|process| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            line.starts_with(b"sleep\0876543")
        });
        assert_eq!(sleepers.count(), 0, "{milliseconds}");
    }
}

/// Files below a folder of temporary ones, and mounts there.
fn left(folder: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
    fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect()
}
