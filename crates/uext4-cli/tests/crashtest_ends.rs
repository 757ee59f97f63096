//! How `uext4 crashtest` ends when something goes wrong in it, or the user has had enough.
//!
//! Fault model: a fault of the machine or the harness taken for a verdict; a failure that was found
//! and is not told; a check that depends on more than the state. Each check counts its calls.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use common::{Scratch, UEXT4, no_mount};

/// A program whose rename may be lost.
const PROGRAM: &str = "echo new > g; mv g f; echo done";

/// A check of it. `BAD` is what it does with a state that is not sound, as the `$n`th call on one;
/// `GOOD` with any other, as the `$n`th call at all.
fn check(folder: &Path, bad: &str, good: &str) -> String {
    let folder = folder.display();
    let count = |name: &str| {
        format!(
            "n=$(($(cat {folder}/{name} 2>/dev/null || echo 0) + 1)); echo $n > {folder}/{name}"
        )
    };
    format!(
        "if [ -s \"$UEXT4_CRASHTEST_OUTPUT\" ] && [ \"$(cat f)\" != new ]; then {}; {bad}; \
         else {}; {good}; fi",
        count("bad"),
        count("good")
    )
}

fn test(scratch: &Scratch, bad: &str, good: &str) -> (Output, String, String) {
    let output = Command::new(UEXT4)
        .args(["crashtest", "-q", "--jobs", "1", "--run", PROGRAM, "--check"])
        .arg(check(&scratch.path("."), bad, good))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    (output, out, error)
}

/// The next check cannot be given what the program has printed.
const BREAK: &str = "rm -f $UEXT4_CRASHTEST_OUTPUT; mkdir $UEXT4_CRASHTEST_OUTPUT";

#[test]
fn a_failure_is_told_whatever_happens_after_it() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let interrupt = "[ $n != 2 ] || kill -INT $PPID; exit 1".to_owned();
    let spoil = format!("[ $n != 2 ] || {{ {BREAK}; }}; exit 1");
    for (bad, wanted) in [(interrupt, "interrupted"), (spoil, "directory")] {
        let (output, text, error) = test(&Scratch::new(), &bad, "true");
        assert_eq!(output.status.code(), Some(1), "{wanted}: {text}{error}");
        assert!(text.starts_with("FAILED"), "{text}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(wanted), "no '{wanted}' in: {error}");
    }
}

#[test]
fn an_interruption_tells_what_was_found_and_ends_by_its_signal() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let good = "[ $n != 3 ] || kill -TERM $PPID";
    let (output, text, error) = test(&Scratch::new(), "true", good);
    assert_eq!(output.status.signal(), Some(15), "{text}{error}");
    assert!(text.starts_with("INTERRUPTED: no state failed so far"), "{text}");
    assert!(error.contains("crashtest: interrupted"), "{error}");
}

#[test]
fn a_check_that_depends_on_more_than_the_state_is_told() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    for (bad, wanted) in [
        ("[ $n -gt 1 ] || exit 1", "fails 0 of 3 times"),
        // Neither smaller states nor all repeats fail.
        ("case $n in 1|2) exit 1;; esac", "fails 0 of 3 times"),
    ] {
        let (output, text, error) = test(&Scratch::new(), bad, "true");
        assert_eq!(output.status.code(), Some(1), "{text}{error}");
        assert!(text.contains(wanted), "no '{wanted}' in: {text}");
    }
    let (output, text, _) = test(&Scratch::new(), "exit 1", "true");
    assert_eq!(output.status.code(), Some(1));
    assert!(!text.contains(" times"), "{text}");
}

#[test]
fn a_fault_of_the_machine_is_no_verdict() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let spoil = format!("[ $n != 2 ] || {{ {BREAK}; }}");
    for (bad, good, wanted) in [
        // From some call on everything fails.
        ("exit 1", "[ $n = 1 ]", "after a clean end of the program, and did not before"),
        ("true", &spoil, "directory"),
        // The kernel does so for want of memory, with the check or a process of it.
        ("true", "[ $n != 2 ] || kill -9 $$", "no verdict"),
        ("true", "[ $n != 2 ] || sh -c 'kill -9 $$'", "no verdict"),
    ] {
        let (output, text, error) = test(&Scratch::new(), bad, good);
        assert_eq!(output.status.code(), Some(2), "{text}{error}");
        assert_eq!((text.as_str(), error.lines().count()), ("", 1), "{error}");
        assert!(error.contains(wanted), "no '{wanted}' in: {error}");
    }
}

/// Ctrl-C while some command runs that has a daemon, in every part of a test.
#[test]
fn an_interruption_leaves_nothing_behind_in_any_part_of_a_test() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let stop = "setsid sleep 765432 > held & kill -INT $PPID; exec sleep 765432";
    // The checks are of the clean end, of three states, and of the clean end.
    let check = |at: usize| format!("[ $n != {at} ] || {{ {stop}; }}");
    let bad = format!("{}; exit 1", check(2));
    let safe = "echo new > g; sync g; mv g f; sync .; echo done";
    for (part, [setup, run, bad, good], is_kept) in [
        ("setup", [stop, safe, "true", "true"], false),
        ("run", ["true", stop, "true", "true"], false),
        ("first check", ["true", safe, "true", &check(1)], false),
        ("states", ["true", safe, "true", &check(3)], true),
        ("shrinking", ["true", PROGRAM, &bad, "true"], true),
        ("last check", ["true", safe, "true", &check(5)], true),
    ] {
        let (scratch, temporary) = (Scratch::new(), Scratch::new());
        let out = scratch.path("out");
        let judge = self::check(&scratch.path("."), bad, good);
        let output = Command::new(UEXT4)
            .args(["crashtest", "-q", "--jobs", "1", "--states", "3", "--setup", setup])
            .args(["--run", run, "--check", &judge, "--out"])
            .arg(&out)
            .env("TMPDIR", temporary.path("."))
            .output()
            .unwrap();
        let ended = (output.status.signal(), output.status.code());
        let wanted = if part == "shrinking" { (None, Some(1)) } else { (Some(2), None) };
        assert_eq!(ended, wanted, "{part}: {output:?}");
        assert_eq!(out.join("crash.json").exists(), is_kept, "{part}");
        assert_eq!(out.exists(), is_kept, "{part}");
        assert_eq!(std::fs::read_dir(temporary.path(".")).unwrap().count(), 0, "{part}");
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        assert!(!mounts.contains(temporary.dir.path().to_str().unwrap()), "{part}: {mounts}");
        let sleepers = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            line.starts_with(b"sleep\x00765432")
        });
        assert_eq!(sleepers.count(), 0, "{part}");
    }
}

#[test]
fn a_temporary_folder_behind_a_link_is_as_good() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let folder = scratch.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let link = scratch.path("link");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    let notes = |place: &Path| {
        let output = Command::new(UEXT4)
            .args(["crashtest", "-q", "--run", "echo > f", "--check", "true"])
            .env("TMPDIR", place)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter(|line| line.starts_with("Note")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(notes(&link), notes(&folder));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}
