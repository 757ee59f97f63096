//! Renames that leave a whiteout at the old name (`RENAME_WHITEOUT`).
//!
//! Fault model: a crash after a sync; no free inode. The crash test's category `overlay` cuts these
//! renames anywhere.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::sync::Arc;
use uext4::{Attr, Device, InodeRef, Owner, RenameMode, Result, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;

const OWNER: Owner = Owner { uid: 3, gid: 4 };
const WHITEOUT: RenameMode = RenameMode::Whiteout(OWNER);
const NO_REPLACE: RenameMode = RenameMode::WhiteoutNoReplace(OWNER);

#[track_caller]
fn fails<T>(result: Result<T>, errno: i32) {
    assert_eq!(result.map_err(|error| error.errno()).err(), Some(errno));
}

fn device() -> Arc<MemoryDevice> {
    Arc::new(mke2fs(16, "-b 1024"))
}

fn attr(volume: &Volume, dir: &InodeRef, name: &str) -> Attr {
    volume.attr(&volume.lookup(dir, name.as_bytes()).unwrap())
}

#[track_caller]
fn assert_whiteout(volume: &Volume, dir: &InodeRef, name: &str) {
    let attr = attr(volume, dir, name);
    assert_eq!((attr.kind, attr.mode, attr.links), (FileKind::CharDevice, 0, 1));
    assert_eq!((attr.rdev, attr.uid, attr.gid), (Device::default(), OWNER.uid, OWNER.gid));
    let mut listed = None;
    volume
        .read_dir(dir, 0, &mut |entry| {
            if entry.name == name.as_bytes() {
                listed = entry.kind;
            }
            true
        })
        .unwrap();
    assert_eq!(listed, Some(FileKind::CharDevice));
}

#[test]
fn a_whiteout_takes_the_old_name() {
    if !have("mke2fs") {
        return;
    }
    let device = device();
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let make = |dir: &InodeRef, name: &str, kind| {
        volume.create(dir, name.as_bytes(), &new(kind, 0o755)).unwrap()
    };
    let (a, b) = (make(&root, "a", FileKind::Directory), make(&root, "b", FileKind::Directory));
    let file = make(&a, "file", FileKind::Regular).ino();
    let victim = make(&b, "victim", FileKind::Regular);
    make(&a, "sub", FileKind::Directory);
    make(&b, "taken", FileKind::Regular);
    let links = |dir| volume.attr(dir).links;
    assert_eq!((links(&a), links(&b)), (3, 2));

    // In one directory and across directories; over nothing and over a file; a directory.
    volume.rename(&a, b"file", &a, b"moved", NO_REPLACE).unwrap();
    fails(volume.rename(&a, b"moved", &b, b"taken", NO_REPLACE), libc::EEXIST);
    assert_eq!(attr(&volume, &a, "moved").ino, file);
    volume.rename(&a, b"moved", &b, b"victim", WHITEOUT).unwrap();
    volume.rename(&a, b"sub", &b, b"sub", WHITEOUT).unwrap();
    assert_eq!(volume.attr(&victim).links, 0);
    assert_eq!((links(&a), links(&b)), (2, 3));
    // A whiteout moves and leaves another one.
    volume.rename(&a, b"file", &b, b"file", WHITEOUT).unwrap();
    // Two names of one inode: nothing happens.
    volume.link(&volume.lookup(&b, b"taken").unwrap(), &a, b"taken").unwrap();
    volume.rename(&a, b"taken", &b, b"taken", WHITEOUT).unwrap();
    assert_eq!(attr(&volume, &a, "taken").kind, FileKind::Regular);
    fails(volume.rename(&a, b"none", &b, b"none", WHITEOUT), libc::ENOENT);
    volume.sync().unwrap();
    let crashed = Arc::new(device.snapshot());
    drop((root, a, b, victim));
    volume.close().unwrap();
    for device in [device, crashed] {
        let volume = mount(&device);
        let root = volume.root().unwrap();
        let (a, b) = (volume.lookup(&root, b"a").unwrap(), volume.lookup(&root, b"b").unwrap());
        for name in ["file", "moved", "sub"] {
            assert_whiteout(&volume, &a, name);
        }
        assert_whiteout(&volume, &b, "file");
        assert_eq!(attr(&volume, &b, "victim").ino, file);
        assert_eq!(attr(&volume, &b, "sub").kind, FileKind::Directory);
        volume.unlink(&a, b"moved").unwrap();
        drop((root, a, b));
        volume.close().unwrap();
        assert_clean(&device);
    }
}

/// The new name may split the block that the old name is in.
#[test]
fn whiteouts_in_a_directory_that_grows() {
    if !have("mke2fs") {
        return;
    }
    let device = device();
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let dir = volume.create(&root, b"dir", &new(FileKind::Directory, 0o755)).unwrap();
    let name = |prefix: &str, n: u32| format!("{prefix}{n}-{}", "x".repeat(100)).into_bytes();
    for n in 0..200 {
        volume.create(&dir, &name("old", n), &new(FileKind::Regular, 0o644)).unwrap();
    }
    for n in 0..200 {
        volume.rename(&dir, &name("old", n), &dir, &name("new", n), WHITEOUT).unwrap();
    }
    for n in 0..200 {
        let kind = |prefix| volume.lookup(&dir, &name(prefix, n)).unwrap().kind();
        assert_eq!((kind("old"), kind("new")), (FileKind::CharDevice, FileKind::Regular));
    }
    drop((root, dir));
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn without_an_inode_for_the_whiteout_nothing_is_renamed() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -N 32"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let mut count = 0;
    while volume
        .create(&root, format!("f{count}").as_bytes(), &new(FileKind::Regular, 0o644))
        .is_ok()
    {
        count += 1;
    }
    fails(volume.rename(&root, b"f0", &root, b"moved", WHITEOUT), libc::ENOSPC);
    assert_eq!(attr(&volume, &root, "f0").kind, FileKind::Regular);
    fails(volume.lookup(&root, b"moved"), libc::ENOENT);
    volume.unlink(&root, b"f1").unwrap();
    volume.rename(&root, b"f0", &root, b"moved", WHITEOUT).unwrap();
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}
