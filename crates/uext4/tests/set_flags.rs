//! Inode flags as users see and set them (`FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`), and what new
//! inodes inherit.
//!
//! Fault model: a crash after a sync. What is allowed and refused is what the kernel's ext4 of
//! Linux 6.18 does with the same bits, except for a change of the form of mapping, of the
//! journaling of data, and of a bit that nothing uses any more. `flags.rs` has what immutable and
//! append-only inodes refuse.

mod common;
#[path = "common/direct.rs"]
mod way;

use common::{assert_clean, have, mke2fs, mount, mount_with, new};
use std::sync::Arc;
use uext4::{InodeRef, IoBuf, MountOptions, Owner, Result, SetAttr, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::{FileKind, InodeFlags};

const EXTENTS: u32 = InodeFlags::EXTENTS.bits();
const IMMUTABLE: u32 = InodeFlags::IMMUTABLE.bits();
const APPEND: u32 = InodeFlags::APPEND.bits();
const NODUMP: u32 = InodeFlags::NODUMP.bits();

#[track_caller]
fn fails<T>(result: Result<T>, errno: i32) {
    assert_eq!(result.map_err(|error| error.errno()).err(), Some(errno));
}

fn make(volume: &Volume, dir: &InodeRef, name: &str, kind: FileKind) -> InodeRef {
    volume.create(dir, name.as_bytes(), &new(kind, 0o755)).unwrap()
}

#[test]
fn each_flag_of_each_type() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let of_both = 0x0200_80ff;
    let of_directories = 0x2003_0000;
    let ignored = 0x1010_1f00;
    let kinds = [
        ("file", FileKind::Regular, of_both),
        ("dir", FileKind::Directory, of_both | of_directories),
        // The others keep to what they can have: no dump, no access times.
        ("fifo", FileKind::Fifo, 0xc0),
    ];
    for (name, kind, settable) in kinds {
        let inode = make(&volume, &root, name, kind);
        let before = volume.flags(&inode);
        assert_eq!(before, if kind == FileKind::Fifo { 0 } else { EXTENTS });
        for bit in (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| before & bit == 0) {
            let set = volume.set_flags(&inode, before | bit);
            if (settable | ignored) & bit != 0 {
                set.unwrap_or_else(|error| panic!("{name} {bit:#x}: {error}"));
                assert_eq!(volume.flags(&inode), before | (bit & settable), "{name} {bit:#x}");
                volume.set_flags(&inode, before).unwrap();
            } else {
                fails(set, libc::EOPNOTSUPP);
            }
            assert_eq!(volume.flags(&inode), before, "{name} {bit:#x}");
        }
        if kind != FileKind::Fifo {
            fails(volume.set_flags(&inode, before & !EXTENTS), libc::EOPNOTSUPP);
        }
        volume.set_flags(&inode, before | settable).unwrap();
    }
    volume.sync().unwrap();
    let crashed = Arc::new(device.snapshot());
    drop(root);
    volume.close().unwrap();
    for device in [device, crashed] {
        let volume = mount(&device);
        let root = volume.root().unwrap();
        for (name, kind, settable) in kinds {
            let inode = volume.lookup(&root, name.as_bytes()).unwrap();
            let extents = if kind == FileKind::Fifo { 0 } else { EXTENTS };
            assert_eq!(volume.flags(&inode), settable | extents, "{name}");
        }
        drop(root);
        volume.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn an_immutable_inode_can_only_cease_to_be_one() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let file = make(&volume, &root, "file", FileKind::Regular);
    let long_ago = SetAttr { ctime: Some(common::at(1)), ..SetAttr::default() };
    volume.set_attr(&file, &long_ago).unwrap();
    volume.set_flags(&file, EXTENTS | IMMUTABLE).unwrap();
    let changed = volume.attr(&file).ctime;
    assert_ne!(changed, common::at(1));
    fails(volume.set_flags(&file, EXTENTS | IMMUTABLE | NODUMP), libc::EPERM);
    volume.set_flags(&file, EXTENTS | IMMUTABLE).unwrap();
    fails(volume.unlink(&root, b"file"), libc::EPERM);
    volume.set_flags(&file, EXTENTS | NODUMP).unwrap();
    assert_eq!(volume.flags(&file), EXTENTS | NODUMP);
    volume.unlink(&root, b"file").unwrap();
}

/// Flags reach files that are open, and direct overwrites that take no lock.
#[test]
fn open_files_obey_at_once() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let inode = make(&volume, &root, "file", FileKind::Regular);
    let file = volume.open_file(&inode).unwrap();
    let mut block = IoBuf::new(4096).unwrap();
    block.fill(7);
    let write = || file.write_direct_at(0, &block);
    for _ in 0..5 {
        write().unwrap();
    }
    let overwrites = || way::number(&volume, "direct_overwrites");
    let before = overwrites();
    write().unwrap();
    assert!(overwrites() > before, "the fast path is in use");
    let mut other = IoBuf::new(4096).unwrap();
    other.fill(9);
    for flag in [IMMUTABLE, APPEND] {
        volume.set_flags(&inode, EXTENTS | flag).unwrap();
        fails(file.write_direct_at(0, &other), libc::EPERM);
        fails(file.write_at(0, b"x"), libc::EPERM);
        volume.set_flags(&inode, EXTENTS).unwrap();
        write().unwrap();
    }
    let before = overwrites();
    write().unwrap();
    write().unwrap();
    assert!(overwrites() > before, "the fast path is in use again");
    volume.set_flags(&inode, EXTENTS | InodeFlags::SYNC.bits()).unwrap();
    block.fill(8);
    file.write_direct_at(0, &block).unwrap();
    let crashed = mount(&Arc::new(device.snapshot()));
    let mut read = [0; 4096];
    let there = crashed.lookup(&crashed.root().unwrap(), b"file").unwrap();
    crashed.open_file(&there).unwrap().read_at(0, &mut read).unwrap();
    assert!(read.iter().all(|&byte| byte == 8));
    for flag in [IMMUTABLE, APPEND] {
        volume.set_flags(&inode, EXTENTS | flag).unwrap();
        assert_eq!(file.append(b"x").is_ok(), flag == APPEND);
    }
}

#[test]
fn access_times_stay_with_noatime() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let mut options = MountOptions::default();
    options.parse("strictatime").unwrap();
    let volume = mount_with(&device, options);
    let root = volume.root().unwrap();
    for (flags, moves) in [(EXTENTS | InodeFlags::NOATIME.bits(), false), (EXTENTS, true)] {
        let inode = make(&volume, &root, "file", FileKind::Regular);
        let file = volume.open_file(&inode).unwrap();
        file.write_at(0, b"content").unwrap();
        let long_ago = Some(uext4::SetTime::At(common::at(1)));
        volume.set_attr(&inode, &SetAttr { atime: long_ago, ..SetAttr::default() }).unwrap();
        volume.set_flags(&inode, flags).unwrap();
        file.read_at(0, &mut [0; 7]).unwrap();
        assert_eq!(volume.attr(&inode).atime != common::at(1), moves);
        volume.unlink(&root, b"file").unwrap();
    }
}

/// What the kernel's ext4 gives the children of directories with these flags.
#[test]
fn children_inherit_what_they_can_have() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let cases: [(u32, [u32; 4]); 2] = [
        (0x200b_80cf, [0x2009_80cf, 0x8_80cf, 0xc0, 0x8_00c0]),
        (0x0208_0008, [0x0208_0008, 0x0208_0008, 0, 0x8_0000]),
    ];
    for (flags, inherited) in cases {
        let dir = make(&volume, &root, &format!("{flags:x}"), FileKind::Directory);
        volume.set_flags(&dir, flags).unwrap();
        let children = [
            make(&volume, &dir, "d", FileKind::Directory),
            make(&volume, &dir, "f", FileKind::Regular),
            make(&volume, &dir, "q", FileKind::Fifo),
            volume.symlink(&dir, b"s", &[b'x'; 100], Owner::default()).unwrap(),
        ];
        assert_eq!(children.each_ref().map(|child| volume.flags(child)), inherited);
    }
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_read_only_volume_refuses() {
    if !have("mke2fs") {
        return;
    }
    let device: Arc<MemoryDevice> = Arc::new(mke2fs(16, "-b 1024"));
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let volume = mount_with(&device, options);
    let root = volume.root().unwrap();
    fails(volume.set_flags(&root, EXTENTS | NODUMP), libc::EROFS);
}
