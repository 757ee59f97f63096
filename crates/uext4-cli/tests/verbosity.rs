//! What a verb says besides its results: `-q`, `-v`, colours, and words that were meant otherwise.
//!
//! Fault model: a remark or progress with `-q` or in a pipe, a failure that `-q` hides, `-v` that
//! says nothing, `-v` on standard output, colours where nobody sees them or wants them,
//! an unknown word without a hint.

#[macro_use]
mod common;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use common::{Scratch, UEXT4, at, has, run};

fn image(scratch: &Scratch) -> PathBuf {
    let path = scratch.path("image");
    let made = run(["mkfs".as_ref(), "-q".as_ref(), path.as_os_str(), "16M".as_ref()]);
    assert!(made.status.success() && made.stdout.is_empty() && made.stderr.is_empty(), "{made:?}");
    path
}

/// The letter of a verb that has a use of its own for it tells nothing of images.
#[test]
fn a_verb_keeps_its_own_letter() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    for words in [&["extents", "-v"][..], &["frag", "--verbose"]] {
        let words = words.iter().map(OsString::from).chain([at(&image, "/")]);
        assert_eq!(said(&words.collect::<Vec<_>>()).1, "");
    }
}

/// Standard output and standard error of a call that succeeds.
fn said(words: &[OsString]) -> (String, String) {
    let output = run(words);
    assert!(output.status.success(), "{output:?}");
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn quiet_and_verbose_may_stand_on_both_sides_of_a_verb() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let call = |before: &[&str], after: &[&str]| {
        let words = before.iter().chain(&["ls"]).chain(after).map(OsString::from);
        said(&words.chain([at(&image, "/")]).collect::<Vec<_>>())
    };
    let (plain, nothing) = call(&[], &[]);
    assert_eq!(nothing, "");
    let opened = format!("uext4: ls: {}: opened for reading\n", image.display());
    for (before, after, want) in [
        (&["-v"][..], &[][..], opened.as_str()),
        (&[], &["--verbose"], &opened),
        (&["-q"], &["-v"], ""),
        (&[], &["-q"], ""),
    ] {
        let (listed, told) = call(before, after);
        assert_eq!(
            (listed.as_str(), told.as_str()),
            (plain.as_str(), want),
            "{before:?} {after:?}"
        );
    }
}

#[test]
fn quiet_hides_remarks_and_no_failure() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let missing = at(&image, "/missing");
    let output = run(["-q".into(), OsString::from("cat"), missing]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && line.lines().count() == 1, "{line}");
    // A remark of mkfs: a file system that is too small for a journal.
    let name = scratch.path("small").into_os_string();
    let make = |option: &[&str]| {
        let words = ["mkfs", "-F"].iter().chain(option).map(OsString::from);
        said(&words.chain([name.clone(), "1M".into()]).collect::<Vec<_>>())
    };
    let (_, told) = make(&[]);
    let (out, quiet) = make(&["-q"]);
    assert_eq!((out.as_str(), quiet.as_str()), ("", ""));
    assert!(told.contains("warning"), "{told}");
}

/// What a program writes to a terminal of somebody at work: a runner of tests sets `CI`, which asks
/// for colours whatever the terminal says.
fn on_a_terminal(command: &str, environment: &[(&str, &str)]) -> Vec<u8> {
    let mut script = Command::new("script");
    script.args(["-qec", command, "/dev/null"]).env("TERM", "xterm");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        script.env_remove(name);
    }
    script.envs(environment.iter().copied()).output().unwrap().stdout
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    if !has("script") {
        skip!("no script(1)");
    }
    let command = format!("{UEXT4} --help");
    let is_coloured = |bytes: &[u8]| bytes.contains(&0x1b);
    assert!(is_coloured(&on_a_terminal(&command, &[])));
    for unwanted in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
        assert!(!is_coloured(&on_a_terminal(&command, &[unwanted])), "{unwanted:?}");
    }
    assert!(!is_coloured(&run(["--help"]).stdout));
    let forced = Command::new(UEXT4).arg("--help").env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(is_coloured(&forced.stdout));
}

#[test]
fn a_word_that_was_meant_is_named_in_one_line() {
    for (words, status, want) in [
        (&["sl", "x:/"][..], 2, "verb 'sl': unknown; did you mean 'ls'?"),
        (&["help", "mkfz"], 2, "verb 'mkfz': unknown; did you mean 'mkfs'?"),
        (&["ls", "--recrusive", "x:/"], 2, "a similar argument exists: '--recursive'"),
        (&["mount", "-o", "noatme", "/dev/null", "/"], 1, "did you mean 'noatime'?"),
    ] {
        let output = run(words);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{line}");
        assert!(line.lines().count() == 1 && line.contains(want), "{words:?}: {line}");
    }
}
