//! What the README tells a newcomer to type, typed as it stands: as root, and as an ordinary user.
//!
//! Fault model: a step that fails, or complains, for a reader who does only what is written there.
//! Not covered: `cargo build` itself, which made the command under test.

#[macro_use]
mod common;

use std::fs;
use std::process::Command;

use common::document::{self, User};
use common::{Scratch, has, is_root};

/// The lines of the step by step part, without that which builds the command.
fn steps() -> String {
    let readme = document::read("README.md");
    let lines = document::indented_after(&readme, "Or step by step:").into_iter();
    let (build, steps): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains("cargo build"));
    assert!(build.len() == 1 && steps.len() > 6, "{steps:?}");
    // `sh -e` alone goes on after the first half of `a && b`.
    steps.iter().map(|line| format!("{{ {line}\n}} || exit 1\n")).collect()
}

/// A folder with what the steps use: the command, and two folders of the repository.
fn workplace() -> Scratch {
    let scratch = document::workplace();
    let dir = scratch.dir.path();
    for name in ["docs", "crates"] {
        let from = document::repository().join(name);
        let copied = Command::new("cp").arg("-r").arg(from).arg(dir).status();
        assert!(copied.unwrap().success());
    }
    let open = Command::new("chmod").args(["-R", "a+rX", "."]).current_dir(dir).status();
    assert!(open.unwrap().success());
    scratch
}

/// Runs the steps by a user's shell; each must succeed, and say no word of complaint.
fn follow(scratch: &Scratch, user: User) {
    // A step that fails must not leave a mount behind.
    let script = format!("set -ex; trap 'uext4 umount mnt' EXIT\n{}trap - EXIT\n", steps());
    let output = user.run(scratch, &script);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let complaints: Vec<&str> = said.lines().filter(|line| line.starts_with("uext4:")).collect();
    assert!(complaints.is_empty(), "{said}");
    let listed = String::from_utf8_lossy(&output.stdout);
    assert!(listed.contains("mount.md") && listed.contains("# Mounting"), "{listed}");
}

#[test]
fn the_readme_works_as_it_stands() {
    if let Some(why) = common::no_mount() {
        skip!("{why}");
    }
    if !has("e2fsck") {
        skip!("no e2fsck");
    }
    follow(&workplace(), User::Caller);
}

/// With a FUSE device that everybody may open, as udev makes it, seen by this test alone.
#[test]
fn the_readme_works_for_an_ordinary_user() {
    if !is_root() {
        skip!("the other test runs as an ordinary user already");
    }
    if let Some(why) = User::OrdinaryWithFuse.missing() {
        skip!("{why}");
    }
    if !has("e2fsck") {
        skip!("no e2fsck");
    }
    follow(&workplace(), User::OrdinaryWithFuse);
}

/// An ordinary user whose new image belongs to root is told how to own one.
#[test]
fn mkfs_tells_an_ordinary_user_of_root_owner() {
    if is_root() {
        return common::as_nobody("mkfs_tells_an_ordinary_user_of_root_owner");
    }
    let scratch = Scratch::new();
    let made = |words: &[&str]| {
        let image = scratch.path("image");
        let _ = fs::remove_file(&image);
        let words = std::iter::once("mkfs").chain(words.iter().copied()).map(Into::into);
        let said = common::run_ok(words.chain([image.into_os_string(), "16M".into()]));
        String::from_utf8(said).unwrap()
    };
    let told = made(&[]);
    let lines: Vec<&str> = told.lines().filter(|line| line.contains("-E root_owner")).collect();
    assert_eq!(lines, ["Its top directory is root's: with -E root_owner it is yours"]);
    let empty = scratch.path("empty");
    fs::create_dir(&empty).unwrap();
    let empty = empty.to_str().unwrap();
    for words in [&["-E", "root_owner"][..], &["-q"], &["-d", empty]] {
        assert!(!made(words).contains("root_owner"), "{words:?}");
    }
}
