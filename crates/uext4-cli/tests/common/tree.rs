//! A tree with everything a file system holds, and a comparison of two trees.

#![allow(dead_code)] // every test file uses a part

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};

/// Makes the tree below `root` (which is made too).
pub(crate) fn make(root: &Path) {
    fs::create_dir(root).unwrap();
    let file = |name: &[u8], content: &[u8]| -> PathBuf {
        let path = root.join(OsStr::from_bytes(name));
        fs::write(&path, content).unwrap();
        path
    };
    file(b"empty", b"");
    file(b"with space", b"x");
    file(b"-dash", b"dash\n");
    file(b"new\nline", b"nl");
    file(b"not utf8 \xff\xfe", b"bytes");
    file("\u{e4}\u{20ac}".as_bytes(), b"utf8");
    file(&[b'n'; 255], b"longest name");
    let big: Vec<u8> =
        (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    file(b"big", &big);

    let modes = file(b"set-id", b"#!/bin/sh\n");
    fs::set_permissions(&modes, fs::Permissions::from_mode(0o4755)).unwrap();
    let unreadable = file(b"mode 0600", b"secret");
    fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o600)).unwrap();

    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"head", 0).unwrap();
    sparse.write_all_at(&[7; 5000], 6 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    drop(sparse);
    File::create(root.join("all hole")).unwrap().set_len(1 << 20).unwrap();

    fs::create_dir_all(root.join("deep/er/and/deeper/still")).unwrap();
    fs::write(root.join("deep/er/and/deeper/still/leaf"), b"leaf").unwrap();
    fs::create_dir(root.join("empty dir")).unwrap();
    fs::create_dir(root.join("sticky")).unwrap();
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for i in 0..1500 {
        fs::write(many.join(format!("file-with-a-name-{i:05}")), i.to_string()).unwrap();
    }

    fs::hard_link(root.join("big"), root.join("deep/big again")).unwrap();
    fs::hard_link(root.join("big"), root.join("zz big third")).unwrap();
    symlink("big", root.join("link")).unwrap();
    symlink("/no/such/place", root.join("dangling")).unwrap();
    symlink("x".repeat(200), root.join("long link")).unwrap();
    rustix::fs::mknodat(
        CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    if rustix::process::geteuid().is_root() {
        rustix::fs::mknodat(
            CWD,
            root.join("null device"),
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::from_raw_mode(0o666),
            rustix::fs::makedev(1, 3),
        )
        .unwrap();
        std::os::unix::fs::lchown(root.join("empty"), Some(12_345), Some(70_000)).unwrap();
        std::os::unix::fs::lchown(root.join("dangling"), Some(1), Some(2)).unwrap();
    }
    // Temporary folders on old kernels have no user attributes; then none is compared.
    let set = |name: &str, attribute: &str, value: &[u8]| {
        let _ = rustix::fs::lsetxattr(root.join(name), attribute, value, XattrFlags::empty());
    };
    set("with space", "user.comment", b"some \0 bytes");
    set("with space", "user.empty", b"");
    set("big", "user.long", &[b'v'; 600]);
    set("empty dir", "user.of.dir", b"d");

    set_time(&root.join("empty"), -2, 800_000_001);
    set_time(&root.join("with space"), 5_000_000_000, 123_456_789);
    set_time(&root.join("link"), 1_000_000_000, 1);
    set_time(&root.join("empty dir"), 999_999_999, 999_999_999);
    fs::set_permissions(root.join("sticky"), fs::Permissions::from_mode(0o1777)).unwrap();
    set_time(&root.join("deep"), 1_234_567_890, 42);
    set_time(root, 1_111_111_111, 111);
}

pub(crate) fn set_time(path: &Path, secs: i64, nanos: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// What a tree looks like: by path, everything that must be kept.
pub(crate) fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut first_names = BTreeMap::new();
    walk(root, root, &mut found, &mut first_names);
    found
}

fn walk(
    root: &Path,
    path: &Path,
    found: &mut BTreeMap<PathBuf, String>,
    first_names: &mut BTreeMap<u64, PathBuf>,
) {
    let meta = fs::symlink_metadata(path).unwrap();
    let name = path.strip_prefix(root).unwrap().to_owned();
    let mut line =
        format!("mode {:o} mtime {}.{:09}", meta.mode(), meta.mtime(), meta.mtime_nsec());
    if rustix::process::geteuid().is_root() {
        line.push_str(&format!(" owner {}:{}", meta.uid(), meta.gid()));
    }
    let kind = meta.file_type();
    if kind.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        for child in names {
            walk(root, &child, found, first_names);
        }
    } else {
        line.push_str(&format!(" links {}", meta.nlink()));
        if meta.nlink() > 1 {
            let first = first_names.entry(meta.ino()).or_insert_with(|| name.clone());
            line.push_str(&format!(" same as {first:?}"));
        }
    }
    if kind.is_file() {
        let (hash, len) = content(path);
        // A sparse file must not have become full, nor its holes have been counted as data.
        let sparse = meta.blocks() * 512 < meta.size() / 2;
        line.push_str(&format!(" size {len} hash {hash:016x} sparse {sparse}"));
    } else if kind.is_symlink() {
        line.push_str(&format!(" to {:?}", fs::read_link(path).unwrap()));
    } else if kind.is_char_device() || kind.is_block_device() {
        line.push_str(&format!(" device {}", meta.rdev()));
    }
    line.push_str(&attributes(path));
    found.insert(name, line);
}

fn attributes(path: &Path) -> String {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut shown: Vec<String> = names[..len]
        .split(|byte| *byte == 0)
        .filter(|name| name.starts_with(b"user."))
        .map(|name| {
            let mut value = vec![0; 65_536];
            let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
            format!(" {}={}", String::from_utf8_lossy(name), value[..len].escape_ascii())
        })
        .collect();
    shown.sort();
    shown.concat()
}

/// FNV-1a of a file, and its length.
fn content(path: &Path) -> (u64, u64) {
    let mut file = File::open(path).unwrap();
    let (mut hash, mut len) = (0xcbf2_9ce4_8422_2325_u64, 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let got = file.read(&mut buffer).unwrap();
        if got == 0 {
            return (hash, len);
        }
        len += got as u64;
        for byte in &buffer[..got] {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// Fails with the first differences of two descriptions.
pub(crate) fn assert_same(want: &BTreeMap<PathBuf, String>, found: &BTreeMap<PathBuf, String>) {
    let mut differences = Vec::new();
    for (path, line) in want {
        match found.get(path) {
            None => differences.push(format!("{path:?}: missing")),
            Some(other) if other != line => {
                differences.push(format!("{path:?}:\n  want  {line}\n  found {other}"));
            }
            Some(_) => {}
        }
    }
    for path in found.keys().filter(|path| !want.contains_key(*path)) {
        differences.push(format!("{path:?}: not wanted"));
    }
    let shown = differences.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} differences:\n{shown}", differences.len());
}

/// Something to write that is different for each name.
pub(crate) fn write_all(path: &Path, seed: u64, len: usize) {
    let mut file = File::create(path).unwrap();
    let bytes: Vec<u8> =
        (0..len).map(|i| (seed.wrapping_mul(31).wrapping_add(i as u64) % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
}
