//! Times and extra fields of inodes, beside the kernel's ext4.
//!
//! Fault model: times that the format does not have (before 1901, after 2446 or, in inodes of 128
//! bytes, after 2038; nanoseconds there), and superblocks that ask for more extra fields. Demanded:
//! what an inode shows from memory is what it shows when it is loaded again, and what the kernel
//! shows for the same calls (as root, over a loop device).
//! Not covered: extra fields of inodes that exist (`extra_fields.rs`).

#![cfg(not(feature = "shuttle"))]

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use uext4::{FileKind, MountOptions, NewInode, Owner, SetAttr, SetTime, Timestamp, Volume};
use uext4_device::{Access, FileDevice};
use uext4_sim::mount::{KernelMount, run, why_no_loop};
use uext4_sim::oracle::{expect_clean, image_folder, program};

const EARLIEST: i64 = i32::MIN as i64;
const LATEST_CLASSIC: i64 = i32::MAX as i64;
const LATEST: i64 = (3 << 32) + i32::MAX as i64;

const TIMES: [(i64, u32); 12] = [
    (0, 0),
    (1, 999_999_999),
    (-1, 5),
    (EARLIEST - 1, 3),
    (EARLIEST, 3),
    (EARLIEST + 1, 3),
    (LATEST_CLASSIC, 7),
    (LATEST_CLASSIC + 1, 7),
    (LATEST - 1, 9),
    (LATEST, 9),
    (LATEST + 1, 9),
    (1 << 40, 1),
];

fn image(folder: &Path, words: &[&str]) -> PathBuf {
    let path = folder.join("image");
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4"]).args(words).arg(&path);
    run(&mut mke2fs).unwrap_or_else(|why| panic!("{why}"));
    path
}

fn open(image: &Path) -> Volume {
    let device = FileDevice::open(image, Access::ReadWrite, 0).unwrap();
    Volume::open(Arc::new(device), MountOptions::default()).unwrap()
}

fn create(volume: &Volume, name: &str) -> uext4::InodeRef {
    let (kind, owner) = (FileKind::Regular, Owner::default());
    let new = NewInode { kind, mode: 0o644, owner, rdev: Default::default() };
    volume.create(&volume.root().unwrap(), name.as_bytes(), &new).unwrap()
}

/// Access and modification time of each file.
fn shown(volume: &Volume) -> Vec<[(i64, u32); 2]> {
    let root = volume.root().unwrap();
    let attrs = (0..TIMES.len()).map(|number| {
        volume.attr(&volume.lookup(&root, format!("file{number}").as_bytes()).unwrap())
    });
    attrs.map(|attr| [attr.atime, attr.mtime].map(|time| (time.secs, time.nanos))).collect()
}

#[test]
fn times_are_what_the_inode_can_keep_and_the_kernel_shows() {
    if program("mke2fs").is_none() {
        eprintln!("skipped: no mke2fs");
        return;
    }
    for size in ["128", "256"] {
        let folder = image_folder().unwrap();
        let image = image(folder.path(), &["-I", size]);
        let volume = open(&image);
        for (number, (secs, nanos)) in TIMES.into_iter().enumerate() {
            let time = Some(SetTime::At(Timestamp { secs, nanos }));
            let inode = create(&volume, &format!("file{number}"));
            let change = SetAttr { atime: time, mtime: time, ..SetAttr::default() };
            volume.set_attr(&inode, &change).unwrap();
        }
        let written = create(&volume, "written");
        volume.open_file(&written).unwrap().write_at(0, b"now").unwrap();
        let now = volume.attr(&written);
        let from_memory = shown(&volume);
        drop(written);
        volume.close().unwrap();
        let volume = open(&image);
        assert_eq!(shown(&volume), from_memory, "{size}: loaded again");
        let again = volume.lookup(&volume.root().unwrap(), b"written").unwrap();
        let again = volume.attr(&again);
        assert_eq!((again.mtime, again.ctime), (now.mtime, now.ctime), "{size}");
        volume.close().unwrap();
        expect_clean(&image).unwrap();
        if let Some(why) = why_no_loop() {
            eprintln!("skipped: beside the kernel: {why}");
            continue;
        }
        let point = folder.path().join("mnt");
        let mount = KernelMount::start(&image, &point, false).unwrap();
        let kernel: Vec<_> = (0..TIMES.len())
            .map(|number| {
                let path = point.join(format!("kernel{number}"));
                File::create(&path).unwrap();
                let (tv_sec, nanos) = TIMES[number];
                let time = Timespec { tv_sec, tv_nsec: nanos.into() };
                let times = Timestamps { last_access: time, last_modification: time };
                utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
                let found = fs::metadata(&path).unwrap();
                let nanos = |nanos: i64| u32::try_from(nanos).unwrap();
                [
                    (found.atime(), nanos(found.atime_nsec())),
                    (found.mtime(), nanos(found.mtime_nsec())),
                ]
            })
            .collect();
        mount.unmount().unwrap();
        assert_eq!(from_memory, kernel, "inodes of {size} bytes");
    }
}

/// Each time has a place of its own among the extra fields, and an inode may have some of them.
#[test]
fn each_time_is_what_its_own_extra_field_can_keep() {
    if program("mke2fs").is_none() || program("debugfs").is_none() {
        eprintln!("skipped: no mke2fs or debugfs");
        return;
    }
    let folder = image_folder().unwrap();
    let image = image(folder.path(), &["-I", "256"]);
    let volume = open(&image);
    let sizes = [4, 8, 12, 16, 20, 24, 32_usize];
    sizes.iter().for_each(|size| drop(create(&volume, &format!("f{size}"))));
    volume.close().unwrap();
    for size in sizes {
        // The fields do not grow if the attributes behind them have nowhere to go: one fills the
        // inode, another the block.
        let short = format!("set_inode_field /f{size} extra_isize {size}");
        let behind = format!("ea_set /f{size} user.a {}", "a".repeat(128 - size - 28));
        let in_block = format!("ea_set /f{size} user.b {}", "b".repeat(968));
        for request in [short, behind, in_block] {
            run(Command::new("debugfs").args(["-w", "-R", &request]).arg(&image)).unwrap();
        }
    }
    let shown = |volume: &Volume| {
        let root = volume.root().unwrap();
        sizes.map(|size| {
            let attr = volume.attr(&volume.lookup(&root, format!("f{size}").as_bytes()).unwrap());
            [Some(attr.ctime), Some(attr.mtime), Some(attr.atime), attr.crtime]
        })
    };
    let volume = open(&image);
    let late = Timestamp { secs: LATEST_CLASSIC + 1_000_000, nanos: 5 };
    for size in sizes {
        let inode = volume.lookup(&volume.root().unwrap(), format!("f{size}").as_bytes()).unwrap();
        let time = Some(SetTime::At(late));
        let (ctime, crtime) = (Some(late), Some(late));
        let change = SetAttr { atime: time, mtime: time, ctime, crtime, ..SetAttr::default() };
        volume.set_attr(&inode, &change).unwrap();
    }
    let from_memory = shown(&volume);
    volume.close().unwrap();
    expect_clean(&image).unwrap();
    let volume = open(&image);
    assert_eq!(shown(&volume), from_memory, "loaded again");
    volume.close().unwrap();
    for (size, times) in sizes.into_iter().zip(from_memory) {
        // Where each field ends.
        for (end, time) in [8, 12, 16, 24].into_iter().zip(times) {
            let want =
                if size >= end { late } else { Timestamp { secs: LATEST_CLASSIC, nanos: 0 } };
            assert_eq!(time.unwrap_or(want), want, "{size} bytes, the time that ends at {end}");
        }
    }
}

/// `i_extra_isize` of a file in the root.
fn extra_size(image: &Path, name: &str) -> String {
    let request = format!("stat /{name}");
    let text = run(Command::new("debugfs").args(["-R", &request]).arg(image)).unwrap();
    let line = text.lines().find(|line| line.contains("extra inode fields")).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn new_inodes_have_the_extra_fields_that_the_superblock_asks_for() {
    if program("mke2fs").is_none() || program("debugfs").is_none() {
        eprintln!("skipped: no mke2fs or debugfs");
        return;
    }
    for (field, value, want) in [
        ("want_extra_isize", 64, "64"),
        ("min_extra_isize", 48, "48"),
        ("want_extra_isize", 28, "32"),
    ] {
        let folder = image_folder().unwrap();
        let image = image(folder.path(), &["-I", "512"]);
        let request = format!("set_super_value {field} {value}");
        run(Command::new("debugfs").args(["-w", "-R", &request]).arg(&image)).unwrap();
        let volume = open(&image);
        let inode = create(&volume, "ours");
        volume.xattr_set(&inode, b"user.name", &[7; 100], uext4::XattrMode::Any).unwrap();
        drop(inode);
        volume.close().unwrap();
        assert_eq!(extra_size(&image, "ours"), want, "{field} {value}");
        if let Some(why) = why_no_loop() {
            eprintln!("skipped: beside the kernel: {why}");
        } else {
            let point = folder.path().join("mnt");
            let mount = KernelMount::start(&image, &point, false).unwrap();
            File::create(point.join("kernel")).unwrap();
            mount.unmount().unwrap();
            assert_eq!(extra_size(&image, "kernel"), want, "{field} {value}: the kernel's");
        }
        expect_clean(&image).unwrap();
        let volume = open(&image);
        let inode = volume.lookup(&volume.root().unwrap(), b"ours").unwrap();
        assert_eq!(volume.xattr_get(&inode, b"user.name").unwrap(), [7; 100]);
        drop(inode);
        volume.close().unwrap();
    }
}
