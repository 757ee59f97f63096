//! Longer extra fields for inodes that exist, beside the kernel's ext4.
//!
//! Fault model: a superblock that asks for more than inodes have that are full of extended
//! attributes, in the inode and in a block. Demanded: fields become as long as the kernel makes
//! them, and no attribute is lost.

#![cfg(not(feature = "shuttle"))]

use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use uext4::{FileKind, InodeRef, MountOptions, NewInode, Owner, SetAttr, Volume, XattrMode};
use uext4_device::{Access, FileDevice};
use uext4_sim::mount::{KernelMount, run, why_no_loop};
use uext4_sim::oracle::{expect_clean, image_folder, program};

/// Bytes of an inode, and of its extra fields before and after. 256 bytes are left for attributes
/// at first.
const INODE: u32 = 1024;
const BEFORE: u32 = INODE - 128 - 256;
const AFTER: u32 = BEFORE + 80;
const AFTER_AT_LEAST: u32 = BEFORE + 16;
/// Bytes of a block for attributes, in attributes of 24 bytes.
const IN_BLOCK: usize = (4096 - 36) / 24;

/// Files by the number of their attributes of 24 bytes, and the length of their fields afterwards.
/// Ten fit the inode at first.
const FILES: [(&str, usize, u32); 8] = [
    ("none", 0, AFTER),
    ("some", 4, AFTER),
    ("just-enough", 7, AFTER),
    ("one-moves", 8, AFTER),
    ("full", 10, AFTER),
    ("one-in-block", 11, AFTER),
    // One more fits the block, which is enough for the shorter wish.
    ("nearly-full-block", 10 + IN_BLOCK - 1, AFTER_AT_LEAST),
    ("full-block", 10 + IN_BLOCK, BEFORE),
];

fn ask_for(image: &Path, want: u32, min: u32) {
    for (field, value) in [("want", want), ("min", min)] {
        let request = format!("set_super_value {field}_extra_isize {value}");
        run(Command::new("debugfs").args(["-w", "-R", &request]).arg(image)).unwrap();
    }
}

fn open(image: &Path) -> Volume {
    let device = FileDevice::open(image, Access::ReadWrite, 0).unwrap();
    Volume::open(Arc::new(device), MountOptions::default()).unwrap()
}

fn find(volume: &Volume, name: &str) -> InodeRef {
    volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap()
}

fn attribute(number: usize) -> String {
    format!("user.{number}")
}

/// An image with the files, whose superblock asks for more extra fields than they have.
fn image(folder: &Path) -> PathBuf {
    let path = folder.join("image");
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I"]).arg(INODE.to_string()).arg(&path);
    run(&mut mke2fs).unwrap_or_else(|why| panic!("{why}"));
    ask_for(&path, BEFORE, BEFORE);
    let volume = open(&path);
    for (name, count, _) in FILES {
        let (kind, owner) = (FileKind::Regular, Owner::default());
        let new = NewInode { kind, mode: 0o644, owner, rdev: Default::default() };
        let inode = volume.create(&volume.root().unwrap(), name.as_bytes(), &new).unwrap();
        for number in 0..count {
            volume
                .xattr_set(&inode, attribute(number).as_bytes(), b"aa", XattrMode::Any)
                .unwrap_or_else(|error| panic!("{name} {number}: {error}"));
        }
    }
    volume.close().unwrap();
    ask_for(&path, AFTER, AFTER_AT_LEAST);
    path
}

/// The length of the extra fields of each file.
fn lengths(image: &Path) -> Vec<u32> {
    let length = |name: &str| {
        let request = format!("stat /{name}");
        let text = run(Command::new("debugfs").args(["-R", &request]).arg(image)).unwrap();
        let line = text.lines().find(|line| line.contains("extra inode fields")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    FILES.iter().map(|(name, ..)| length(name)).collect()
}

#[test]
fn attributes_move_for_longer_fields() {
    if program("mke2fs").is_none() || program("debugfs").is_none() {
        eprintln!("skipped: no mke2fs or debugfs");
        return;
    }
    let folder = image_folder().unwrap();
    let image = image(folder.path());
    let before = vec![BEFORE; FILES.len()];
    assert_eq!(lengths(&image), before);
    let of_kernel = folder.path().join("of-kernel");
    fs::copy(&image, &of_kernel).unwrap();

    let volume = open(&image);
    for (name, ..) in FILES {
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        volume.set_attr(&find(&volume, name), &change).unwrap();
    }
    let check = |volume: &Volume| {
        for (name, count, _) in FILES {
            let inode = find(volume, name);
            assert_eq!(volume.xattr_list(&inode).unwrap().len(), count, "{name}");
            for number in 0..count {
                let value = volume.xattr_get(&inode, attribute(number).as_bytes()).unwrap();
                assert_eq!(value, b"aa", "{name} {number}");
            }
        }
    };
    check(&volume);
    volume.close().unwrap();
    expect_clean(&image).unwrap();
    let volume = open(&image);
    check(&volume);
    volume.close().unwrap();
    let ours = lengths(&image);
    assert_eq!(ours, FILES.map(|(_, _, length)| length));
    if let Some(why) = why_no_loop() {
        eprintln!("skipped: beside the kernel: {why}");
        return;
    }
    let point = folder.path().join("mnt");
    let mount = KernelMount::start(&image, &point, true).unwrap();
    for (name, count, _) in FILES {
        for number in 0..count {
            let mut value = [0; 8];
            let len = lgetxattr(point.join(name), attribute(number), &mut value[..]).unwrap();
            assert_eq!(&value[..len], b"aa", "{name} {number}, by the kernel");
        }
    }
    mount.unmount().unwrap();
    let mount = KernelMount::start(&of_kernel, &point, false).unwrap();
    for (name, ..) in FILES {
        fs::write(point.join(name), "aaaa").unwrap();
    }
    mount.unmount().unwrap();
    assert_eq!(lengths(&of_kernel), ours, "the kernel's");
}

/// A change of an attribute moves the others first.
#[test]
fn a_new_attribute_meets_the_longer_fields() {
    if program("mke2fs").is_none() || program("debugfs").is_none() {
        eprintln!("skipped: no mke2fs or debugfs");
        return;
    }
    let folder = image_folder().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    for (name, ..) in FILES.iter().filter(|(_, _, after)| *after == AFTER) {
        volume.xattr_set(&find(&volume, name), b"user.0", b"bb", XattrMode::Any).unwrap();
    }
    volume.close().unwrap();
    expect_clean(&image).unwrap();
    let found = lengths(&image);
    for ((name, _, after), found) in FILES.iter().zip(found) {
        assert!(*after != AFTER || found == AFTER, "{name}: {found}");
    }
    if let Some(why) = why_no_loop() {
        eprintln!("skipped: the kernel goes on: {why}");
        return;
    }
    let point = folder.path().join("mnt");
    let mount = KernelMount::start(&image, &point, false).unwrap();
    for (name, ..) in FILES.iter().filter(|(_, _, after)| *after == AFTER) {
        lsetxattr(point.join(name), "user.1", b"cc", XattrFlags::empty()).unwrap();
    }
    mount.unmount().unwrap();
    expect_clean(&image).unwrap();
}
