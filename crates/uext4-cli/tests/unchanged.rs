//! Every verb that reads, on images that may not be written: nothing of them changes.
//!
//! Fault model: a verb that opens an image for writing although it only reads, that replays a log
//! onto it, or fails where the image is read-only. The verbs are those of the command's own
//! definition: a new one needs a line here. Images: closed, and with a log to replay; by root and
//! by a user without rights; files of mode 0444.

#[macro_use]
mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::dirty::image_and_dirty;
use common::{Scratch, as_nobody, at, is_root, run, run_fails};

/// What a verb does with images.
enum Does {
    /// It reads: calls, in which `@` is the image and `@/path` a path in it, and after `=>` the
    /// exit status if that is not 0.
    Reads(&'static [&'static str]),
    /// It changes them. Calls that read all the same, by their options.
    Changes(&'static [&'static str]),
    /// It does nothing with images, or is tested by itself: why.
    Apart(&'static str),
}

use Does::{Apart, Changes, Reads};

/// Every verb.
const VERBS: &[(&str, Does)] = &[
    ("mkfs", Changes(&["mkfs -n -F @ 8M"])),
    ("mount", Apart("read-only mounts are in mount.rs, and change nothing")),
    ("umount", Apart("has no image")),
    ("sync", Apart("has no image")),
    ("trim", Changes(&[])),
    ("tune", Changes(&[])),
    ("label", Changes(&["label @", "label --json @"])),
    ("resize", Changes(&["resize -n @ 64M => 0 1"])),
    ("fsck", Reads(&["fsck @", "fsck -n @"])),
    ("info", Reads(&["info @", "info -h @", "info --json @"])),
    ("journal", Reads(&["journal @", "journal -bO @", "journal --json @"])),
    ("ls", Reads(&["ls -laR @/", "ls --json @/dir", "ls @/none => 1"])),
    ("tree", Reads(&["tree @", "tree --json @/dir"])),
    ("find", Reads(&["find @ -ls", "find @/dir -newer @/file"])),
    ("du", Reads(&["du -a @", "du --json @/dir"])),
    ("df", Reads(&["df @", "df -i --json @"])),
    ("cat", Reads(&["cat @/file", "cat @/dir => 1"])),
    ("stat", Reads(&["stat @/file @/link", "stat --json @/*"])),
    ("verity", Changes(&["verity @/file => 1"])),
    ("stats", Reads(&["stats @", "stats --json @"])),
    ("extents", Reads(&["extents @/file", "extents --json @/dir"])),
    ("frag", Reads(&["frag @", "frag @/file"])),
    ("quota", Changes(&["quota @ => 1"])),
    ("diff", Reads(&["diff @ @", "diff --json @ @"])),
    ("freefrag", Reads(&["freefrag @", "freefrag --json @"])),
    ("cp", Changes(&["cp @/file -", "cp -r @/dir OUT", "cp @/none OUT => 1"])),
    ("mkdir", Changes(&[])),
    ("ln", Changes(&[])),
    ("touch", Changes(&[])),
    ("truncate", Changes(&[])),
    ("chmod", Changes(&[])),
    ("chown", Changes(&[])),
    ("chgrp", Changes(&[])),
    ("chattr", Changes(&[])),
    (
        "xattr",
        Changes(&[
            "xattr list @/file",
            "xattr get @/file user.none => 1",
            "xattr dump -R @",
            "xattr dump --json @/dir",
        ]),
    ),
    ("encrypt", Changes(&[])),
    ("import", Changes(&[])),
    ("export", Reads(&["export @ -", "export --numeric @/dir -"])),
    ("overlay", Apart("its files are no images; mounts through them have tests of their own")),
    ("rm", Changes(&[])),
    ("mv", Changes(&[])),
    ("lab", Apart("makes its own images")),
    ("crashtest", Apart("makes its own images")),
    ("manual", Apart("has no image")),
    ("completions", Apart("has no image")),
];

/// The verbs of the command's definition, as the script for bash has them.
fn defined() -> Vec<String> {
    let script = common::run_ok(["completions", "bash"]);
    let script = String::from_utf8(script).unwrap();
    let mut verbs: Vec<String> = script
        .lines()
        .filter_map(|line| line.trim().strip_prefix("uext4,")?.strip_suffix(')'))
        .filter(|verb| *verb != "help")
        .map(str::to_owned)
        .collect();
    verbs.sort();
    verbs.dedup();
    verbs
}

#[test]
fn every_verb_has_a_mark() {
    let defined = defined();
    assert!(defined.len() > 30, "{defined:?}");
    let is_marked = |verb: &&String| VERBS.iter().any(|(marked, _)| marked == verb);
    let bare: Vec<&String> = defined.iter().filter(|verb| !is_marked(verb)).collect();
    assert!(bare.is_empty(), "verbs without a mark in this test: {bare:?}");
    for (verb, does) in VERBS {
        if let Apart(why) = does {
            assert!(!why.is_empty(), "{verb}");
        }
    }
}

/// Words of a call on an image, and the statuses that it may have.
fn call(text: &str, image: &Path, out: &Path) -> (Vec<OsString>, Vec<i32>) {
    let (words, statuses) = text.split_once(" => ").unwrap_or((text, "0"));
    let word = |word: &str| match word.strip_prefix('@') {
        Some("") => image.into(),
        Some(path) => at(image, path),
        None if word == "OUT" => out.into(),
        None => word.into(),
    };
    let statuses = statuses.split(' ').map(|status| status.parse().unwrap());
    (words.split(' ').map(word).collect(), statuses.collect())
}

/// All calls that read, on one image; its bytes stay, and its times of change.
fn nothing_changes(image: &Path, out: &Path) {
    let stamp = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (fs::read(path).unwrap(), found.modified().unwrap(), found.len())
    };
    let before = stamp(image);
    let defined = defined();
    for (verb, does) in VERBS.iter().filter(|(verb, _)| defined.iter().any(|it| it == verb)) {
        let (Reads(calls) | Changes(calls)) = does else { continue };
        for text in *calls {
            let (words, statuses) = call(text, image, out);
            assert_eq!(words[0], *verb, "{text}");
            let output = run(&words);
            let status = output.status.code().unwrap();
            assert!(statuses.contains(&status), "{text} of {}: {output:?}", image.display());
            assert!(stamp(image) == before, "{text} has changed {}", image.display());
        }
    }
}

/// Both images by the user that runs the test. Root may write what is 0444, which makes it the
/// harder case; the other one is refused what would write.
fn by_this_user() {
    let scratch = Scratch::new();
    let (clean, dirty) = image_and_dirty(&scratch, &[]);
    for image in [&clean, &dirty] {
        fs::set_permissions(image, Permissions::from_mode(0o444)).unwrap();
        nothing_changes(image, &scratch.path(format!("out-{}", image.display().to_string().len())));
    }
    // The log was there, and it is read: a file that it alone has is seen.
    let listed = common::run_ok(["ls".into(), at(&dirty, "/dir")]);
    assert_eq!(listed, b"new\n");
    let said = common::run_ok(["journal".as_ref(), dirty.as_os_str()]);
    assert!(String::from_utf8(said).unwrap().contains("Recovery: replays "));
    if !is_root() {
        let before = fs::read(&dirty).unwrap();
        run_fails(["touch".into(), at(&dirty, "/file")], "no permission to write");
        assert!(fs::read(&dirty).unwrap() == before);
    }
}

#[test]
fn reading_leaves_the_bytes() {
    by_this_user();
}

#[test]
fn an_ordinary_user_reads_too() {
    if !is_root() {
        skip!("this is the ordinary user");
    }
    as_nobody("reading_leaves_the_bytes");
}

/// What the table calls a change is one: without it, the calls above would show nothing.
#[test]
fn the_hash_sees_changes() {
    let scratch = Scratch::new();
    let (clean, dirty) = image_and_dirty(&scratch, &[]);
    let calls: BTreeMap<&str, &str> = BTreeMap::from([("touch", "/file"), ("rm", "/file")]);
    for image in [&clean, &dirty] {
        for (verb, path) in &calls {
            let before = fs::read(image).unwrap();
            common::run_ok([OsString::from(verb), at(image, path)]);
            assert!(fs::read(image).unwrap() != before, "{verb}");
        }
    }
}
