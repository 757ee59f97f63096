//! Directories that fold case (casefold): look-ups, collisions and spellings, on images and on a
//! mount. The kernel's driver may lack them; the judges are debugfs, e2fsck and mke2fs.
//!
//! Fault model: a table of another version of Unicode, or with a row that is wrong; marks in
//! another order; a name that is hashed as it is spelled; a spelling that is lost or not changed;
//! two names that differ by case side by side; a name that the kernel keeps after it was removed,
//! or as missing after it was made, by another spelling.

#[macro_use]
mod common;

use common::{Mounted, Scratch, assert_clean, at, has, no_mount, run, run_fails, run_ok, system};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use uext4_ondisk::casefold::fold;
use uext4_ondisk::hash::{DirHasher, HashVersion};

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn uext4(verb: &[&str], operands: &[OsString]) -> Vec<u8> {
    run_ok([&words(verb)[..], operands].concat())
}

/// An image by `uext4 mkfs` whose directory `/d` folds case.
fn image(scratch: &Scratch, encoding: &str) -> PathBuf {
    let image = scratch.path("image");
    let size = [image.clone().into(), "64M".into()];
    uext4(&["mkfs", "-q", "-b", "1024", "-E", encoding], &size);
    uext4(&["mkdir"], &[at(&image, "/d")]);
    uext4(&["chattr", "+F"], &[at(&image, "/d")]);
    image
}

/// Names by a seed: letters of many scripts, marks, what is ignored and what is unassigned.
struct Names(u64);

impl Names {
    fn draw(&mut self, below: u32) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as u32 % below
    }

    fn letter(&mut self) -> char {
        const RANGES: [(u32, u32); 14] = [
            (0x41, 0x5a),
            (0x61, 0x7a),
            (0xc0, 0x24f),
            (0x300, 0x36f),
            (0x370, 0x5ff),
            (0x900, 0xfff),
            (0x10a0, 0x1dff),
            (0x1e00, 0x20ff),
            (0x2c00, 0x2fff),
            (0xa640, 0xabff),
            (0xac00, 0xd7a3),
            (0xf900, 0xffff),
            (0x10400, 0x1f9ff),
            (0x2f800, 0xe01ff),
        ];
        loop {
            let (first, last) = RANGES[self.draw(RANGES.len() as u32) as usize];
            let code = first + self.draw(last - first + 1);
            if let Some(letter) = char::from_u32(code) {
                return letter;
            }
        }
    }

    fn name(&mut self) -> String {
        let len = 1 + self.draw(14);
        let mut name: String = (0..len).map(|_| self.letter()).collect();
        // Never empty when it is folded, which debugfs would take for a missing word.
        name.insert(0, if self.draw(2) == 0 { 'Q' } else { 'q' });
        name
    }
}

/// Hash and minor hash of `text`, as debugfs writes them.
fn hash_in(line: &str) -> Option<(u32, u32)> {
    let (_, rest) = line.rsplit_once(" is 0x")?;
    let (hash, minor) = rest.split_once(" (minor 0x")?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    Some((number(hash)?, number(minor.trim_end_matches(')'))?))
}

#[test]
fn hashes_are_those_of_debugfs() {
    const COUNT: usize = 12_000;
    if !has("debugfs") {
        skip!("no debugfs");
    }
    let scratch = Scratch::new();
    let image = image(&scratch, "encoding=utf8");
    let mut source = Names(7);
    let names: Vec<String> = (0..COUNT).map(|_| source.name()).collect();
    for (word, version) in [
        ("half_md4", HashVersion::HalfMd4),
        ("tea", HashVersion::Tea),
        ("legacy", HashVersion::Legacy),
    ] {
        let commands: String =
            names.iter().map(|name| format!("dx_hash -h {word} -c -e utf8 {name}\n")).collect();
        let script = scratch.path("script");
        fs::write(&script, commands).unwrap();
        let output = system("debugfs").arg("-f").arg(&script).arg(&image).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let found: Vec<_> = text.lines().filter_map(hash_in).collect();
        assert_eq!(found.len(), COUNT);
        let hasher = DirHasher { version, unsigned: false, seed: [0; 4], folds: true };
        for (name, want) in names.iter().zip(found) {
            assert_eq!(hasher.hash(name.as_bytes()), want, "{name:?}");
        }
    }
}

/// A folder with files of these names, each with its name as content.
fn files(folder: &Path, names: impl IntoIterator<Item = String>) -> Vec<String> {
    fs::create_dir_all(folder).unwrap();
    let mut folded = BTreeSet::new();
    names
        .into_iter()
        .filter(|name| folded.insert(fold(name.as_bytes()).into_owned()))
        .inspect(|name| fs::write(folder.join(name), name).unwrap())
        .collect()
}

/// The names of a directory as they are spelled.
fn listed(image: &Path, dir: &str) -> BTreeSet<String> {
    let text = uext4(&["ls"], &[at(image, dir)]);
    String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_directory_of_many_names_is_clean_and_found_by_other_spellings() {
    let scratch = Scratch::new();
    let image = image(&scratch, "encoding=utf8,encoding_flags=strict");
    let mut source = Names(8);
    let names = files(&scratch.path("files"), (0..5000).map(|_| source.name()));
    assert!(names.len() > 4900);
    uext4(&["cp", "-r"], &[scratch.path("files/.").into(), at(&image, "/d")]);
    assert_clean(&image);
    uext4(&["fsck", "-n"], &[image.clone().into()]);
    for name in names.iter().step_by(97) {
        let other = String::from_utf8(fold(name.as_bytes()).into_owned()).unwrap();
        assert_eq!(uext4(&["cat"], &[at(&image, &format!("/d/{other}"))]), name.as_bytes());
    }
    let back = scratch.path("back");
    uext4(&["cp", "-r"], &[at(&image, "/d"), back.clone().into()]);
    for name in &names {
        assert_eq!(fs::read(back.join(name)).unwrap(), name.as_bytes(), "{name:?}");
    }
}

/// What e2fsck has indexed is found here.
#[test]
fn a_tree_of_e2fsck_is_read() {
    let scratch = Scratch::new();
    let mut source = Names(9);
    let folder = scratch.path("tree/d");
    let names = files(&folder, (0..1500).map(|_| source.name()));
    let from = scratch.path("tree");
    let options = ["-b", "1024", "-E", "encoding=utf8", "-d", from.to_str().unwrap()];
    let Some(image) = scratch.image("image", 32, &options) else { skip!("no mke2fs") };
    let set = "set_inode_field /d flags 0x40080000";
    let set = system("debugfs").args(["-w", "-R", set]).arg(&image).output().unwrap();
    assert!(set.status.success());
    system("e2fsck").args(["-fyD"]).arg(&image).output().unwrap();
    let dump = system("debugfs").args(["-R", "htree_dump /d"]).arg(&image).output().unwrap();
    assert!(String::from_utf8_lossy(&dump.stdout).contains("Number of entries"), "no tree");
    uext4(&["fsck", "-n"], &[image.clone().into()]);
    for name in names.iter().step_by(31) {
        let other = String::from_utf8(fold(name.as_bytes()).into_owned()).unwrap();
        assert_eq!(uext4(&["cat"], &[at(&image, &format!("/d/{other}"))]), name.as_bytes());
    }
    // More of them, in the same tree.
    let more = files(&scratch.path("more"), (0..300).map(|n| format!("More of them {n}")));
    uext4(&["cp", "-r"], &[scratch.path("more/.").into(), at(&image, "/d")]);
    assert_clean(&image);
    assert_eq!(listed(&image, "/d").len(), names.len() + more.len());
}

#[test]
fn names_keep_their_spelling_and_collide_by_any() {
    let scratch = Scratch::new();
    let image = image(&scratch, "encoding=utf8,encoding_flags=strict");
    let inside = |path: &str| at(&image, path);
    let file = scratch.path("file");
    fs::write(&file, "one").unwrap();
    uext4(&["cp"], &[file.clone().into(), inside("/d/Stra\u{df}e")]);
    uext4(&["mkdir"], &[inside("/d/Sub")]);
    run_fails([&words(&["mkdir"])[..], &[inside("/d/STRASSE")]].concat(), "exists");
    assert_eq!(uext4(&["cat"], &[inside("/d/sTRASSe")]), b"one");
    let spelled = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(listed(&image, "/d"), spelled(&["Stra\u{df}e", "Sub"]));
    // A directory inherits the flag, and loses it only when it is empty.
    uext4(&["mkdir"], &[inside("/d/sub/A")]);
    run_fails([&words(&["mkdir"])[..], &[inside("/d/SUB/a")]].concat(), "exists");
    run_fails([&words(&["chattr", "-F"])[..], &[inside("/d/sub")]].concat(), "not empty");
    uext4(&["rm", "-r"], &[inside("/d/SUB")]);
    assert_eq!(listed(&image, "/d"), spelled(&["Stra\u{df}e"]));
    // The root does not fold.
    run_fails([&words(&["ls"])[..], &[inside("/D")]].concat(), "not found");
    run_fails([&words(&["chattr", "+F"])[..], &[inside("/")]].concat(), "not empty");
    run_fails([&words(&["chattr", "+F"])[..], &[inside("/d/strasse")]].concat(), "type");
    let mut bad = inside("/d/A");
    bad.push(OsStr::from_bytes(b"\xff"));
    run_fails([&words(&["mkdir"])[..], &[bad]].concat(), "not UTF-8");
    assert_clean(&image);
    uext4(&["fsck", "-n"], &[image.clone().into()]);
}

/// Names that are not UTF-8, where they are allowed: equal to themselves alone.
#[test]
fn bytes_that_are_no_text_are_names() {
    let scratch = Scratch::new();
    let image = image(&scratch, "encoding=utf8");
    let folder = scratch.path("files");
    fs::create_dir(&folder).unwrap();
    // Few: e2fsck 1.47.0 has no hash of such a name, and calls every tree of them damaged.
    for n in 0..15 {
        for prefix in [b"Name", b"nAME"] {
            let name = [&prefix[..], format!("{n}").as_bytes(), b"\xff\xc0\x80"].concat();
            fs::write(folder.join(OsStr::from_bytes(&name)), &name).unwrap();
        }
    }
    uext4(&["cp", "-r"], &[scratch.path("files/.").into(), at(&image, "/d")]);
    assert_clean(&image);
    uext4(&["fsck", "-n"], &[image.clone().into()]);
    let back = scratch.path("back");
    uext4(&["cp", "-r"], &[at(&image, "/d"), back.clone().into()]);
    assert_eq!(fs::read_dir(back).unwrap().count(), 30);
}

#[test]
fn a_rename_changes_the_spelling() {
    let scratch = Scratch::new();
    let image = image(&scratch, "encoding=utf8");
    let inside = |path: &str| at(&image, path);
    uext4(&["mkdir"], &[inside("/d/name"), inside("/d/name/below")]);
    for (from, to) in [("name", "NAME"), ("name", "Na\u{200b}me"), ("NaMe", "name")] {
        uext4(&["mv"], &[inside(&format!("/d/{from}")), inside(&format!("/d/{to}"))]);
        assert_eq!(listed(&image, "/d"), [to.to_owned()].into());
        assert_clean(&image);
    }
    assert_eq!(listed(&image, "/d/nAME"), ["below".to_owned()].into());
    // What folds to `..` is no name, and not the parent.
    let dots = inside("/d/name/..\u{200b}");
    for verb in [&["rm", "-r"][..], &["mkdir"]] {
        run_fails([&words(verb)[..], std::slice::from_ref(&dots)].concat(), "dots");
    }
    run_fails([&words(&["mv"])[..], &[dots.clone(), inside("/d/x")]].concat(), "dots");
    assert_clean(&image);
}

#[test]
fn an_encoding_that_is_unknown_is_refused() {
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &["-O", "casefold"]) else { skip!("no mke2fs") };
    let info = String::from_utf8(uext4(&["info"], &[image.clone().into()])).unwrap();
    assert!(info.contains("Character encoding:") && info.contains("utf8-12.1"), "{info}");
    system("debugfs").args(["-w", "-R", "ssv encoding 7"]).arg(&image).output().unwrap();
    run_fails([&words(&["ls"])[..], &[at(&image, "/")]].concat(), "s_encoding");
    assert!(!run([&words(&["fsck", "-n"])[..], &[image.into()]].concat()).status.success());
}

#[test]
fn a_mount_forgets_other_spellings() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let size = [image.clone().into(), "64M".into()];
    uext4(&["mkfs", "-q", "-O", "casefold"], &size);
    let mount = Mounted::new(&image, &scratch.path("mnt"), "");
    let dir = mount.path("d");
    fs::create_dir(&dir).unwrap();
    // The kernel has asked for a name before the directory folds case.
    assert!(fs::metadata(dir.join("FOO")).is_err());
    common::shell("chattr +F d", &mount.dir);
    let ino = |name: &str| fs::metadata(dir.join(name)).ok().map(|found| found.ino());
    for round in 0..2 {
        fs::write(dir.join("foo"), "content").unwrap();
        assert!(ino("foo").is_some());
        assert_eq!((ino("FOO"), ino("Foo")), (ino("foo"), ino("foo")), "round {round}");
        // Through a listing, which brings attributes along.
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert!(fs::File::create_new(dir.join("fOO")).is_err());
        fs::remove_file(dir.join("FoO")).unwrap();
        assert_eq!((ino("FOO"), ino("Foo"), ino("foo"), ino("FoO")), (None, None, None, None));
        // Every spelling is known to be missing now; the next round makes one.
    }
    // Directories, of which the kernel keeps one name.
    fs::create_dir_all(dir.join("Sub/Below")).unwrap();
    assert_eq!(ino("SUB/below"), ino("sub/BELOW"));
    fs::rename(dir.join("sub/below"), dir.join("Moved")).unwrap();
    assert_eq!(ino("SUB/below"), None);
    assert_eq!(ino("MOVED"), ino("moved"));
    fs::remove_dir(dir.join("SUB")).unwrap();
    assert_eq!(ino("Sub"), None);
    // A name that was moved in, and goes by another spelling.
    fs::create_dir(mount.path("plain")).unwrap();
    fs::write(mount.path("plain/Foo"), "content").unwrap();
    fs::rename(mount.path("plain/Foo"), dir.join("Foo")).unwrap();
    fs::remove_file(dir.join("foo")).unwrap();
    assert_eq!(ino("Foo"), None);
    // Names that fold to dots are none.
    for name in [".\u{200b}", "..\u{200b}"] {
        assert_eq!(ino(name), None);
        assert!(fs::create_dir(dir.join(name)).is_err());
    }
    mount.end();
    assert_clean(&image);
    assert_eq!(listed(&image, "/d"), ["Moved".to_owned()].into());
}

/// Changes an image by requests to debugfs.
fn debugfs(scratch: &Scratch, image: &Path, requests: &[&[u8]]) {
    let script = scratch.path("script");
    fs::write(&script, requests.join(&b"\n"[..])).unwrap();
    let output = system("debugfs").arg("-w").arg("-f").arg(&script).arg(image).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_is_wrong_is_found() {
    // What is done, and the code of the finding. e2fsck finds each, too.
    type Case<'a> = (&'a [&'a [u8]], &'a str);
    let cases: [Case<'_>; 5] = [
        (&[b"mkdir d/A", b"mkdir d/a"], "entry.duplicate"),
        (&[b"mkdir d/Stra\xc3\x9fe", b"mkdir d/STRASSE"], "entry.duplicate"),
        (&[b"mkdir d/A\xff"], "entry.name"),
        (&[b"mknod f p", b"set_inode_field f flags 0x40000000"], "inode.flags"),
        (&[b"feature ^casefold"], "inode.flags"),
    ];
    if !has("debugfs") || !has("e2fsck") {
        skip!("no e2fsprogs");
    }
    for (requests, code) in cases {
        let scratch = Scratch::new();
        let image = image(&scratch, "encoding=utf8,encoding_flags=strict");
        debugfs(&scratch, &image, requests);
        let output = run([&words(&["fsck", "-n"])[..], &[image.clone().into()]].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(&format!("[{code}]")), "{requests:?}: {said}");
        let judge = system("e2fsck").arg("-fn").arg(&image).output().unwrap();
        assert!(!judge.status.success(), "{requests:?}: {judge:?}");
    }
}

/// A hash tree in the order of the names as they are spelled.
#[test]
fn a_tree_of_other_hashes_is_found() {
    let scratch = Scratch::new();
    let folder = scratch.path("files");
    files(&folder, (0..400).map(|n| format!("Name {n}")));
    let image = scratch.path("image");
    let size = [image.clone().into(), "64M".into()];
    uext4(&["mkfs", "-q", "-b", "1024", "-O", "casefold"], &size);
    uext4(&["cp", "-r"], &[folder.into(), at(&image, "/d")]);
    if !has("debugfs") {
        skip!("no debugfs");
    }
    debugfs(&scratch, &image, &[b"set_inode_field d flags 0x40081000"]);
    let output = run([&words(&["fsck", "-n"])[..], &[image.clone().into()]].concat());
    assert!(String::from_utf8_lossy(&output.stdout).contains("[htree.hash]"));
    assert!(!system("e2fsck").arg("-fn").arg(&image).status().unwrap().success());
}
