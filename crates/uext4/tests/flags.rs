//! Inode flags: immutable, append-only, SYNC, DIRSYNC.
//!
//! Fault model: an image whose inodes have the flags (set by debugfs, as chattr(1) would); a crash
//! without any sync.

mod common;

use common::{have, mount_with, new};
use std::process::Command;
use std::sync::Arc;
use uext4::{
    AllocateMode, InodeRef, MountOptions, Owner, RenameMode, Result, SetAttr, SetTime, Timestamp,
    Volume, XattrMode,
};
use uext4_device::MemoryDevice;
use uext4_ondisk::{FileKind, InodeFlags};

const FILES: &[(&str, u32)] =
    &[("plain", 0), ("fixed", 0x10), ("log", 0x20), ("durable", 0x8), ("victim", 0)];
const DIRS: &[(&str, u32)] =
    &[("dir", 0), ("fixeddir", 0x10), ("logdir", 0x20), ("durabledir", 0x1_0000)];
const EXTENTS: u32 = 0x8_0000;

fn image() -> Arc<MemoryDevice> {
    let device = Arc::new(common::mke2fs(16, "-b 1024"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    for (name, _) in FILES {
        let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        volume.open_file(&inode).unwrap().write_at(0, b"0123456789").unwrap();
    }
    for (name, _) in DIRS {
        let dir = volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap();
        volume.create(&dir, b"inside", &new(FileKind::Regular, 0o644)).unwrap();
    }
    drop(root);
    volume.close().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    for (name, flags) in FILES.iter().chain(DIRS) {
        let request = format!("set_inode_field /{name} flags {:#x}", flags | EXTENTS);
        let output = Command::new("/sbin/debugfs")
            .args(["-w", "-R", &request])
            .arg(file.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    Arc::new(MemoryDevice::load(file.path()).unwrap())
}

fn find(volume: &Volume, name: &str) -> InodeRef {
    volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T>) {
    assert_eq!(result.map_err(|error| error.errno()).err(), Some(libc::EPERM));
}

fn set(change: impl FnOnce(&mut SetAttr)) -> SetAttr {
    let mut attr = SetAttr::default();
    change(&mut attr);
    attr
}

#[test]
fn immutable_inodes_stay_as_they_are() {
    if !have("mke2fs") {
        return;
    }
    let volume = mount_with(&image(), MountOptions::default());
    let (root, fixed) = (volume.root().unwrap(), find(&volume, "fixed"));
    assert!(volume.attr(&fixed).flags.contains(InodeFlags::IMMUTABLE));
    let file = volume.open_file(&fixed).unwrap();
    refused(file.write_at(0, b"x"));
    refused(file.append(b"x"));
    refused(file.allocate(AllocateMode::PunchHole, 0, 1024));
    refused(volume.set_attr(&fixed, &set(|a| a.size = Some(0))));
    refused(volume.set_attr(&fixed, &set(|a| a.mode = Some(0o600))));
    refused(volume.set_attr(&fixed, &set(|a| a.uid = Some(7))));
    refused(volume.set_attr(&fixed, &set(|a| a.mtime = Some(SetTime::Now))));
    refused(volume.xattr_set(&fixed, b"user.a", b"1", XattrMode::Any));
    refused(volume.link(&fixed, &root, b"again"));
    refused(volume.unlink(&root, b"fixed"));
    refused(volume.rename(&root, b"fixed", &root, b"moved", RenameMode::Replace));
    refused(volume.rename(&root, b"plain", &root, b"fixed", RenameMode::Replace));
    let dir = find(&volume, "fixeddir");
    refused(volume.create(&dir, b"new", &new(FileKind::Regular, 0o644)));
    refused(volume.symlink(&dir, b"new", b"target", Owner::default()));
    refused(volume.link(&find(&volume, "plain"), &dir, b"new"));
    refused(volume.unlink(&dir, b"inside"));
    refused(volume.rename(&dir, b"inside", &root, b"out", RenameMode::Replace));
    refused(volume.rename(&root, b"plain", &dir, b"in", RenameMode::Replace));
    refused(volume.rmdir(&root, b"fixeddir"));
}

#[test]
fn append_only_inodes_only_grow() {
    if !have("mke2fs") {
        return;
    }
    let volume = mount_with(&image(), MountOptions::default());
    let (root, log) = (volume.root().unwrap(), find(&volume, "log"));
    let file = volume.open_file(&log).unwrap();
    refused(file.write_at(0, b"x"));
    refused(file.write_at(5, b"5678X"));
    refused(file.write_at(20, b"behind a gap"));
    file.append(b"ab").unwrap();
    // A cache above writes the page that it has appended to.
    file.write_at(0, b"0123456789abcd").unwrap();
    let mut read = [0; 20];
    assert_eq!(file.read_at(0, &mut read).unwrap(), 14);
    assert_eq!(&read[..14], b"0123456789abcd");
    refused(file.allocate(AllocateMode::PunchHole, 0, 1024));
    refused(file.allocate(AllocateMode::ZeroRange { keep_size: true }, 0, 1024));
    refused(volume.set_attr(&log, &set(|a| a.size = Some(3))));
    refused(volume.set_attr(&log, &set(|a| a.size = Some(300))));
    refused(volume.set_attr(&log, &set(|a| a.mode = Some(0o600))));
    let time = Timestamp { secs: 1, nanos: 0 };
    refused(volume.set_attr(&log, &set(|a| a.mtime = Some(SetTime::At(time)))));
    volume.set_attr(&log, &set(|a| a.mtime = Some(SetTime::Now))).unwrap();
    refused(volume.xattr_set(&log, b"user.a", b"1", XattrMode::Any));
    refused(volume.link(&log, &root, b"again"));
    refused(volume.unlink(&root, b"log"));
    refused(volume.rename(&root, b"log", &root, b"moved", RenameMode::Replace));
    let dir = find(&volume, "logdir");
    let made = volume.create(&dir, b"new", &new(FileKind::Directory, 0o755)).unwrap();
    drop(made);
    refused(volume.unlink(&dir, b"inside"));
    refused(volume.rmdir(&dir, b"new"));
    refused(volume.rename(&dir, b"inside", &root, b"out", RenameMode::Replace));
    refused(volume.rename(&root, b"plain", &dir, b"inside", RenameMode::Replace));
    volume.rename(&root, b"plain", &dir, b"in", RenameMode::Replace).unwrap();
    refused(volume.rmdir(&root, b"logdir"));
}

#[test]
fn sync_and_dirsync_flags_make_changes_durable() {
    if !have("mke2fs") {
        return;
    }
    let device = image();
    let volume = mount_with(&device, MountOptions::default());
    let (root, durable, dir) =
        (volume.root().unwrap(), find(&volume, "durable"), find(&volume, "durabledir"));
    let file = volume.open_file(&durable).unwrap();
    file.write_at(10, b"abc").unwrap();
    let crashed = mount_with(&Arc::new(device.snapshot()), MountOptions::default());
    let mut read = [0; 20];
    let there = crashed.open_file(&find(&crashed, "durable")).unwrap();
    assert_eq!(there.read_at(0, &mut read).unwrap(), 13);
    assert_eq!(&read[..13], b"0123456789abc");

    let names = |expect: &[&str], gone: &[&str]| {
        let crashed = mount_with(&Arc::new(device.snapshot()), MountOptions::default());
        let dir = find(&crashed, "durabledir");
        for name in expect {
            assert!(crashed.lookup(&dir, name.as_bytes()).is_ok(), "{name} is there");
        }
        for name in gone {
            assert!(crashed.lookup(&dir, name.as_bytes()).is_err(), "{name} is gone");
        }
    };
    volume.create(&dir, b"a", &new(FileKind::Regular, 0o644)).unwrap();
    names(&["inside", "a"], &[]);
    volume.symlink(&dir, b"s", b"target", Owner::default()).unwrap();
    names(&["inside", "a", "s"], &[]);
    volume.link(&find(&volume, "victim"), &dir, b"hard").unwrap();
    names(&["hard"], &[]);
    volume.unlink(&dir, b"a").unwrap();
    names(&["hard"], &["a"]);
    volume.rename(&dir, b"hard", &root, b"out", RenameMode::Replace).unwrap();
    names(&["inside"], &["hard"]);
}
