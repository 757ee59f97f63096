//! `uext4 export`: a directory of an image becomes an archive that tar(1) finds to be what went
//! in, or a directory of the host, and nothing that a hostile image holds leaves that directory.
//!
//! Fault model: an attribute, a link or a hole that is lost, an archive that is not well formed, a
//! target that is the image itself, a name or a link that leads out.

#[macro_use]
mod common;
#[path = "common/tree.rs"]
mod tree;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Scratch, as_nobody, assert_clean, at, is_root, run, run_fails, run_ok};

fn image(scratch: &Scratch) -> PathBuf {
    let path = scratch.path("image");
    run_ok(["mkfs".as_ref(), "-q".as_ref(), path.as_os_str(), "96M".as_ref()]);
    path
}

fn tar(dir: &Path, words: &[&OsStr]) -> Output {
    let mut tar = Command::new("tar");
    tar.env("LC_ALL", "C").arg("-C").arg(dir).args(words);
    tar.output().unwrap()
}

/// What tar says that differs between an archive and a directory: nothing.
fn assert_compares(archive: &Path, dir: &Path) {
    let options = ["--numeric-owner", "--acls", "--xattrs", "--compare", "--file"];
    let mut words: Vec<&OsStr> = options.map(OsStr::new).into();
    words.push(archive.as_os_str());
    let output = tar(dir, &words);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn an_archive_is_what_went_in() {
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), image(&scratch));
    tree::make(&source);
    // A map of ranges of its own, and a name that needs an extended header.
    let sparse = File::create(source.join("n".repeat(180))).unwrap();
    for number in 0..300_u64 {
        let byte = [u8::try_from(number % 250 + 1).unwrap(); 4096];
        std::os::unix::fs::FileExt::write_all_at(&sparse, &byte, number << 16).unwrap();
    }
    drop(sparse);
    tree::set_time(&source, 1_111_111_111, 111);
    let want = tree::describe(&source);
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    let before = fs::read(&image).unwrap();
    for (name, options) in [
        ("a.tar", &[][..]),
        ("a.tar.gz", &[]),
        ("a.tzst", &["--access-times"]),
        ("a.xz", &["--compress=xz"]),
    ] {
        let archive = scratch.path(name);
        let words = ["export"].iter().chain(options).map(OsString::from);
        let places = [image.clone().into_os_string(), archive.clone().into_os_string()];
        run_ok(words.chain(places));
        assert_compares(&archive, &source);
        // And unpacked by tar, with what it does not compare.
        let out = scratch.path("out");
        fs::create_dir(&out).unwrap();
        let words = ["-x", "--xattrs", "--acls", "--numeric-owner", "-p", "-f"].map(OsStr::new);
        let output = tar(&out, &[&words[..], &[archive.as_os_str()]].concat());
        assert!(output.status.success(), "{output:?}");
        tree::assert_same(&want, &tree::describe(&out));
        fs::remove_dir_all(&out).unwrap();
    }
    assert!(before == fs::read(&image).unwrap(), "the image has changed");
    // Twice the same, also by a pipe.
    let piped = run_ok(["export".as_ref(), image.as_os_str(), "-".as_ref()]);
    assert!(piped == fs::read(scratch.path("a.tar")).unwrap(), "another archive");
    // A round: the same tree in another image, from which the same archive comes.
    let other = scratch.path("other");
    run_ok(["mkfs".as_ref(), "-q".as_ref(), other.as_os_str(), "96M".as_ref()]);
    run_ok(["import".into(), scratch.path("a.tzst").into_os_string(), at(&other, "/")]);
    let again = run_ok(["export".as_ref(), other.as_os_str(), "-".as_ref()]);
    assert!(again == piped, "another archive of the other image");
    assert_clean(&other);
}

#[test]
fn a_directory_of_the_host_is_what_went_in() {
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), image(&scratch));
    tree::make(&source);
    let want = tree::describe(&source);
    run_ok(["import".into(), source.into_os_string(), at(&image, "/tree")]);
    let out = scratch.path("out");
    let words = |options: &'static [&str]| {
        let words = ["export"].iter().chain(options).map(OsString::from);
        words.chain([at(&image, "/tree"), out.clone().into_os_string()])
    };
    if is_root() {
        let why = "/tree/null device: is a device; left out without --devices";
        run_fails(words(&[]), why);
        assert!(!out.join("null device").exists());
        fs::remove_dir_all(&out).unwrap();
    }
    run_ok(words(&["--devices"]));
    tree::assert_same(&want, &tree::describe(&out));
    run_ok(words(&["--devices"]));
    tree::assert_same(&want, &tree::describe(&out));
    if is_root() {
        run_ok(words(&["--devices", "--map-owner=u:*:12", "--map-owner=0:13"]));
        let meta = fs::metadata(out.join("big")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (12, 13));
    }
}

/// Fault model: several threads leave another tree than one: a directory that is finished before
/// what is in it, a file that is not filled at the end, an owner or an access list that a shortcut
/// has left out where the target's own directory gives another.
#[test]
fn threads_leave_what_one_leaves() {
    let scratch = Scratch::in_memory();
    let (source, image) = (scratch.path("source"), image(&scratch));
    tree::make(&source);
    let want = tree::describe(&source);
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    // What is made below gets an access list, and the group of the directory.
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let all =
        [(1, 7, u32::MAX), (2, 7, 12), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let entries = all.map(|(tag, rights, id)| entry(tag, rights, id)).concat();
    let list = [&2_u32.to_le_bytes()[..], &entries].concat();
    for (number, processors) in ["0", "0-1", "0-1"].into_iter().enumerate() {
        let out = scratch.path(format!("out-{number}"));
        fs::create_dir(&out).unwrap();
        // Of the last one: those of the image count in any case.
        if number == 2 {
            let name = "system.posix_acl_default";
            match rustix::fs::setxattr(&out, name, &list, rustix::fs::XattrFlags::empty()) {
                Err(rustix::io::Errno::NOTSUP) => continue,
                set => set.unwrap(),
            }
            fs::set_permissions(&out, fs::Permissions::from_mode(0o2755)).unwrap();
            if is_root() {
                std::os::unix::fs::chown(&out, None, Some(13)).unwrap();
            }
        }
        let uext4 = env!("CARGO_BIN_EXE_uext4");
        let mut export = match common::has("taskset") {
            true => common::system("taskset"),
            false => common::system(uext4),
        };
        if common::has("taskset") {
            export.args(["-c", processors, uext4]);
        }
        let output = export.args(["export", "--devices"]).arg(&image).arg(&out).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        tree::assert_same(&want, &tree::describe(&out));
        for name in ["big", "many/file-with-a-name-00001", "deep/er"] {
            let path = out.join(name);
            let list = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut [0_u8; 64]);
            assert!(list.is_err(), "{name} has an access list of its own");
        }
    }
}

/// Names of the image's own users are in the archive, and those of the host are not.
#[test]
fn names_of_owners_are_the_images() {
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), image(&scratch));
    fs::create_dir_all(source.join("etc")).unwrap();
    fs::write(source.join("etc/passwd"), b"smith:x:33:33::/:/bin/sh\n").unwrap();
    fs::write(source.join("etc/group"), b"smiths:x:34:\n").unwrap();
    let map = ["--map-owner=u:*:33", "--map-owner=g:*:34"].map(OsString::from);
    let words = [OsString::from("import")].into_iter().chain(map);
    run_ok(words.chain([source.into_os_string(), at(&image, "/")]));
    let list = |options: &[&str]| {
        let archive = scratch.path("a.tar");
        let words = ["export"].iter().chain(options).map(OsString::from);
        let places = [image.clone().into_os_string(), archive.clone().into_os_string()];
        run_ok(words.chain(places));
        let output = tar(scratch.dir.path(), &["-tvf".as_ref(), archive.as_os_str()]);
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = list(&[]);
    assert!(listed.lines().all(|line| line.contains(" smith/smiths ")), "{listed}");
    assert!(!listed.contains("lost+found"), "{listed}");
    assert!(list(&["--numeric"]).contains(" 33/34 "));
    assert!(list(&["--map-owner=33:5", "--numeric"]).contains(" 5/34 "));
}

#[test]
fn an_ordinary_user_keeps_owners_in_archives() {
    if is_root() {
        return as_nobody("an_ordinary_user_keeps_owners_in_archives");
    }
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), image(&scratch));
    tree::make(&source);
    let words = ["import", "--map-owner=*:4000000000"].map(OsString::from);
    run_ok(words.into_iter().chain([source.clone().into_os_string(), at(&image, "/")]));
    let (first, second) = (scratch.path("a.tar"), scratch.path("b.tar"));
    run_ok(["export".as_ref(), image.as_os_str(), first.as_os_str()]);
    let listed = tar(&source, &["-tvf".as_ref(), first.as_os_str()]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.lines().all(|line| line.contains(" 4000000000/4000000000 ")), "{listed}");
    let words = ["export", "--map-owner=4000000000:65534"].map(OsString::from);
    run_ok(words.into_iter().chain([image.into_os_string(), second.clone().into_os_string()]));
    assert_compares(&second, &source);
}

/// Links that stand in the target lead nowhere, and the image is not replaced.
#[test]
fn nothing_leaves_the_target() {
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), image(&scratch));
    fs::create_dir_all(source.join("dir")).unwrap();
    for name in ["dir/file", "name", "image"] {
        fs::write(source.join(name), b"of the image").unwrap();
    }
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    let (out, outside) = (scratch.path("out"), scratch.path("outside"));
    fs::create_dir_all(&out).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), b"untouched").unwrap();
    symlink(&outside, out.join("dir")).unwrap();
    symlink(outside.join("precious"), out.join("name")).unwrap();
    fs::hard_link(&image, out.join("image")).unwrap();
    let output = run(["export".as_ref(), image.as_os_str(), out.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot overwrite a non-directory with a directory"), "{said}");
    assert!(said.contains("is an image of this command; not replaced"), "{said}");
    assert_eq!(fs::read(outside.join("precious")).unwrap(), b"untouched");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read(out.join("name")).unwrap(), b"of the image");
    assert!(out.join("image").metadata().unwrap().len() > 1 << 20);
    let words = ["export".as_ref(), "--compress=none".as_ref(), image.as_os_str()];
    run_fails(words.into_iter().chain([image.as_os_str()]), "is an image of this command");
    assert_clean(&image);
    for (name, why) in [
        ("x.tar.bz2", "is of no compression that is known"),
        ("outside/precious", "is there and no directory"),
        ("no/x.tar", "No such file"),
        ("no/x", "No such file"),
    ] {
        run_fails(["export".as_ref(), image.as_os_str(), scratch.path(name).as_os_str()], why);
    }
    let words = ["export".into(), at(&image, "/name"), scratch.path("x").into_os_string()];
    run_fails(words, "cp copies files");
}

/// An export that fails, here at a limit of the size of files, leaves the archive that was there.
#[test]
fn a_failed_export_leaves_the_old_archive() {
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), image(&scratch));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), vec![b'x'; 3 << 20]).unwrap();
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    let (archive, link) = (scratch.path("a.tar"), scratch.path("link.tar"));
    fs::write(&archive, b"old").unwrap();
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("a.tar", &link).unwrap();
    let script = "trap '' XFSZ; ulimit -f 1000; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, "sh", common::UEXT4, "export"])
        .args([&image, &link])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(fs::read(&archive).unwrap(), b"old");
    assert_eq!(fs::read_dir(scratch.dir.path()).unwrap().count(), 4, "a part is left");
    run_ok(["export".as_ref(), image.as_os_str(), link.as_os_str()]);
    let found = fs::metadata(&archive).unwrap();
    assert!(found.len() > 3 << 20 && link.is_symlink());
    assert_eq!(found.mode() & 0o777, 0o640);
    // A name that leaves no room for another one beside it.
    let long = scratch.path(format!("{}.tar", "n".repeat(250)));
    run_ok(["export".as_ref(), image.as_os_str(), long.as_os_str()]);
    run_ok(["export".as_ref(), image.as_os_str(), long.as_os_str()]);
    assert!(fs::read(&long).unwrap() == fs::read(&archive).unwrap());
}

/// The block of its attributes hides no hole of a file.
#[test]
fn holes_are_kept_beside_attributes() {
    let scratch = Scratch::new();
    let (source, image, archive) = (scratch.path("source"), image(&scratch), scratch.path("a.tar"));
    fs::create_dir(&source).unwrap();
    let file = source.join("file");
    fs::write(&file, [b'x'; 4096]).unwrap();
    let value = "v".repeat(800);
    let mut set = common::system("setfattr");
    let set = set.args(["-n", "user.large", "-v", &value]).arg(&file).output();
    if !set.is_ok_and(|output| output.status.success()) {
        skip!("no extended attributes here");
    }
    File::options().write(true).open(&file).unwrap().set_len(4096 + 1024).unwrap();
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    run_ok(["export".as_ref(), image.as_os_str(), archive.as_os_str()]);
    let bytes = fs::read(&archive).unwrap();
    assert!(bytes.windows(10).any(|part| part == b"GNU.sparse"), "no hole");
}

/// Where the host keeps no access lists, none is won by the mode, and that is told.
#[test]
fn a_list_that_is_lost_gives_no_right() {
    if !is_root() || !common::has("setfacl") {
        skip!("no root or no setfacl");
    }
    let scratch = Scratch::new();
    let (source, image, out) = (scratch.path("source"), image(&scratch), scratch.path("out"));
    fs::create_dir_all(source.join("dir")).unwrap();
    fs::create_dir(&out).unwrap();
    for (name, list) in [("file", "u::rw,g::-,u:5:rw,m::rw,o::-"), ("dir", "g::r,u:5:rwx")] {
        let path = source.join(name);
        if name == "file" {
            fs::write(&path, b"").unwrap();
        }
        let set = common::system("setfacl").args(["-m", list]).arg(&path).output().unwrap();
        if !set.status.success() {
            skip!("no access lists here");
        }
    }
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    let mounted = common::system("mount").args(["-t", "ramfs", "none"]).arg(&out).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip!("no ramfs");
    }
    let output = run(["export".as_ref(), image.as_os_str(), out.as_os_str()]);
    let modes = ["file", "dir"].map(|name| out.join(name).metadata().map(|meta| meta.mode()));
    assert!(common::system("umount").arg(&out).status().unwrap().success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 2), "{said}");
    assert!(said.contains("file: attribute system.posix_acl_access: "), "{said}");
    let modes = modes.map(|mode| mode.unwrap() & 0o777);
    assert_eq!(modes, [0o600, 0o745]);
}

/// A journal on a device of its own is as precious as the image.
#[test]
fn the_journal_is_not_replaced() {
    let scratch = Scratch::new();
    let [journal, image] = ["journal", "image"].map(|name| scratch.path(name));
    let words = ["mkfs", "-q", "-b", "1024", "-O", "journal_dev"].map(OsString::from);
    run_ok(words.into_iter().chain([journal.clone().into(), "8M".into()]));
    let words = ["mkfs", "-q", "-J", &format!("device={}", journal.display())].map(OsString::from);
    run_ok(words.into_iter().chain([image.clone().into(), "32M".into()]));
    let (source, out) = (scratch.path("source"), scratch.path("out"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(source.join("name"), b"of the image").unwrap();
    fs::hard_link(&journal, source.join("log")).unwrap();
    fs::hard_link(&journal, out.join("name")).unwrap();
    let with = |words: &[&OsStr]| {
        let journal = [OsStr::new("--journal-device"), journal.as_os_str()];
        [&journal[..], words].concat().into_iter().map(OsString::from).collect::<Vec<_>>()
    };
    let (image, archive) = (image.as_os_str(), journal.as_os_str());
    let output = run(with(&["import".as_ref(), source.as_os_str(), image]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("log: is an image"), "{said}");
    let before = fs::read(&journal).unwrap();
    let why = "is an image of this command; not replaced";
    run_fails(with(&["export".as_ref(), "--compress=none".as_ref(), image, archive]), why);
    run_fails(with(&["export".as_ref(), image, out.as_os_str()]), why);
    assert!(before == fs::read(&journal).unwrap(), "the journal has changed");
}

/// A hostile image: a directory that is its own ancestor, and names that lead out.
#[test]
fn a_hostile_image_is_told_and_stays_inside() {
    let scratch = Scratch::new();
    let (source, image) = (scratch.path("source"), scratch.path("image"));
    // Without checksums, so that another name is no damage.
    let words = ["mkfs", "-q", "-O", "^metadata_csum"].map(OsStr::new);
    run_ok(words.into_iter().chain([image.as_os_str(), "16M".as_ref()]));
    fs::create_dir_all(source.join("parent/child")).unwrap();
    fs::create_dir(source.join("sub")).unwrap();
    fs::write(source.join("sub/cccccc"), b"c").unwrap();
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    if !common::has("debugfs") {
        skip!("no debugfs");
    }
    let request = "link parent /parent/child/up";
    let output = common::system("debugfs").args(["-w", "-R", request]).arg(&image).output();
    assert!(output.is_ok_and(|output| output.status.success()));
    let mut hostile = fs::read(&image).unwrap();
    // In the directory, and in the log that is not replayed.
    let found = |bytes: &[u8]| bytes.windows(6).position(|part| part == b"cccccc");
    while let Some(place) = found(&hostile) {
        hostile[place..place + 6].copy_from_slice(b"../out");
    }
    fs::write(&image, &hostile).unwrap();
    let archive = scratch.path("a.tar");
    for target in [&archive, &scratch.path("dir")] {
        let output = run(["export".as_ref(), image.as_os_str(), target.as_os_str()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().all(|line| line.starts_with("uext4: export: ")), "{said}");
        assert!(said.contains("/up: ") && said.contains("name holds a slash"), "{said}");
    }
    assert!(!scratch.path("out").exists());
    let listed = tar(scratch.dir.path(), &["-tf".as_ref(), archive.as_os_str()]);
    assert!(listed.status.success(), "{listed:?}");
    assert!(!String::from_utf8_lossy(&listed.stdout).contains(".."), "{listed:?}");
}

/// Several threads write when the host's file system becomes full: no file that is there is a half
/// one, and a file that was to give way is still the old one.
#[test]
fn a_full_host_has_no_half_of_a_file() {
    let scratch = Scratch::new();
    let (source, full) = (scratch.path("source"), scratch.path("full"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&full).unwrap();
    for number in 10..30 {
        fs::write(source.join(format!("f{number}")), vec![number; 1_000_000]).unwrap();
    }
    let image = image(&scratch);
    run_ok(["import".as_ref(), source.as_os_str(), image.as_os_str()]);
    let tmpfs = ["-t", "tmpfs", "-o", "size=9m", "none"];
    if !is_root() || !common::system("mount").args(tmpfs).arg(&full).status().unwrap().success() {
        skip!("no small tmpfs: not root");
    }
    let out = full.join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("f29"), b"old").unwrap();
    let output = run(["export".as_ref(), image.as_os_str(), out.as_os_str()]);
    let there: Vec<(OsString, Vec<u8>)> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
        .collect();
    assert!(common::system("umount").arg(&full).status().unwrap().success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!((6..20).contains(&there.len()), "{} files", there.len());
    for (name, content) in there {
        let whole = fs::read(source.join(&name)).unwrap();
        let is_old = name == "f29" && content == b"old";
        assert!(is_old || content == whole, "{}: {} bytes", name.display(), content.len());
    }
}
