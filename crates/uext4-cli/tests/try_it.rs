//! What the README tells a newcomer to type, typed as it stands: as root, and as an ordinary user.
//!
//! Fault model: a step that fails, or complains, for a reader who does only what is written there.
//! Not covered: `cargo build` itself, which made the command under test.

#[macro_use]
mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use common::{Scratch, has, is_root};

const NOBODY: u32 = 65_534;

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The lines of the step by step part, without that which builds the command.
fn steps() -> String {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, after) = readme.split_once("Or step by step:\n").expect("the README has the part");
    let lines = after.trim_start_matches('\n').lines().take_while(|line| line.starts_with("    "));
    let (build, steps): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains("cargo build"));
    assert!(build.len() == 1 && steps.len() > 6, "{steps:?}");
    // `sh -e` alone goes on after the first half of `a && b`.
    steps.iter().map(|line| format!("{{ {}\n}} || exit 1\n", line.trim())).collect()
}

/// A folder with what the steps use: the command, and two folders of the repository.
fn workplace() -> Scratch {
    let scratch = Scratch::new();
    let dir = scratch.dir.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(dir.join("bin")).unwrap();
    common::copy_program(std::path::Path::new(common::UEXT4), &dir.join("bin/uext4"));
    for name in ["docs", "crates"] {
        let copied = Command::new("cp").arg("-r").arg(repository().join(name)).arg(dir).status();
        assert!(copied.unwrap().success());
    }
    let open = Command::new("chmod").args(["-R", "a+rX", "."]).current_dir(dir).status();
    assert!(open.unwrap().success());
    scratch
}

/// Runs the steps by a shell that `prefix` starts; each must succeed, and say no word of complaint.
fn follow(scratch: &Scratch, prefix: &[&str]) {
    let dir = scratch.dir.path();
    fs::write(dir.join("steps"), steps()).unwrap();
    // A step that fails must not leave a mount behind.
    let script = "export PATH=$PWD/bin:$PATH:/sbin:/usr/sbin; trap 'uext4 umount mnt' EXIT
        . ./steps
        trap - EXIT";
    let words = [prefix, &["sh", "-exc", script]].concat();
    let output = Command::new(words[0]).args(&words[1..]).current_dir(dir).output().unwrap();
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
    follow(&workplace(), &[]);
}

/// With a FUSE device that everybody may open, as udev makes it, seen by this test alone.
#[test]
fn the_readme_works_for_an_ordinary_user() {
    if !is_root() {
        skip!("the other test runs as an ordinary user already");
    }
    if common::no_mount().is_some() || !["setpriv", "fusermount3", "e2fsck"].into_iter().all(has) {
        skip!("needs /dev/fuse, setpriv, fusermount3 and e2fsck");
    }
    let scratch = workplace();
    chown(scratch.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let open = "mknod fuse-device c 10 229; chmod 666 fuse-device
        mount --bind fuse-device /dev/fuse
        exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
    follow(&scratch, &["unshare", "-m", "sh", "-ec", open, "sh"]);
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
