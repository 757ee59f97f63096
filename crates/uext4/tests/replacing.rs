//! A rename over a file while its data is on the way to the device.
//!
//! Fault model: a device that sits on data writes, or fails them; other threads use both
//! directories meanwhile. That the data is durable no later than the new name (D16) is for the
//! crash states to show.

mod common;

use common::{arm, gated, have, mke2fs, mount, new, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::{ErrorKind, FileKind, MountOptions, RenameMode, Volume};
use uext4_device::{FaultDevice, Gate, Operation, Times};

/// The first bytes of each block of data.
const MARK: [u8; 16] = [0xd7; 16];

#[test]
fn directories_are_free_while_a_replacing_file_is_written() {
    if !have("mke2fs") {
        return;
    }
    for crosses in [false, true] {
        let gate = Arc::new(Gate::default());
        let device = gated(Arc::new(mke2fs(64, "-b 4096")), &gate, |request| {
            request.writes_any(|bytes| bytes.starts_with(&MARK))
        });
        let volume = Volume::open(device, MountOptions::default()).unwrap();
        let root = volume.root().unwrap();
        let regular = new(FileKind::Regular, 0o644);
        let from = volume.create(&root, b"from", &new(FileKind::Directory, 0o755)).unwrap();
        let to = match crosses {
            true => volume.create(&root, b"to", &new(FileKind::Directory, 0o755)).unwrap(),
            false => from.clone(),
        };
        let old = volume.create(&to, b"old", &regular).unwrap().ino();
        let inode = volume.create(&from, b"new", &regular).unwrap();
        let file = volume.open_file(&inode).unwrap();
        file.write_at(0, &[MARK[0]; 1 << 20]).unwrap();
        let others_are_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let opened = gate.close();
            let rename = scope
                .spawn(|| volume.rename(&from, b"new", &to, b"old", RenameMode::Replace).unwrap());
            wait_until("the data is on its way", || gate.is_met());
            scope.spawn(|| {
                for dir in [&from, &to] {
                    drop(volume.create(dir, b"another", &regular).unwrap());
                    volume.lookup(dir, b"another").unwrap();
                    volume.unlink(dir, b"another").unwrap();
                }
                // Nor is the right to move between directories held.
                drop(volume.create(&from, b"moves", &regular).unwrap());
                volume.rename(&from, b"moves", &to, b"moved", RenameMode::Replace).unwrap();
                others_are_done.store(true, Ordering::SeqCst);
            });
            wait_until("others go on", || others_are_done.load(Ordering::SeqCst));
            // Nothing leads to data that is not there.
            assert_eq!(volume.lookup(&to, b"old").unwrap().ino(), old);
            drop(opened);
            rename.join().unwrap();
        });
        assert_eq!(volume.lookup(&to, b"old").unwrap().ino(), inode.ino());
        assert!(volume.lookup(&from, b"new").is_err());
        assert_eq!(volume.stats().number("pages_dirty"), Some(0), "written before the name");
        volume.close().unwrap();
    }
}

/// What is wrong with the names is told, not that data could not be written that need not be.
#[test]
fn a_failed_write_ahead_is_told_where_the_data_is_needed() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(FaultDevice::new(Arc::new(mke2fs(64, "-b 4096"))));
    let volume = Volume::open(device.clone(), MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    let regular = new(FileKind::Regular, 0o644);
    let inode = volume.create(&root, b"new", &regular).unwrap();
    volume.create(&root, b"old", &regular).unwrap();
    volume.create(&root, b"directory", &new(FileKind::Directory, 0o755)).unwrap();
    volume.sync().unwrap();
    volume.open_file(&inode).unwrap().write_at(0, &[7; 4096]).unwrap();
    let rename = |to: &[u8]| volume.rename(&root, b"new", &root, to, RenameMode::Replace);
    arm(&device, Operation::Write, 1, Times::Onwards);
    let error = rename(b"directory").expect_err("a file does not replace a directory");
    assert_eq!(*error.kind(), ErrorKind::IsADirectory, "{error}");
    let error = rename(b"old").expect_err("its data cannot be written");
    assert_eq!(*error.kind(), ErrorKind::Io, "{error}");
    device.reset();
    rename(b"old").unwrap();
    volume.close().unwrap();
}

/// A rename that fails deletes what waits for that, as one that succeeds.
#[test]
fn a_failed_rename_leaves_no_deletion_behind() {
    if !have("mke2fs") {
        return;
    }
    let volume = mount(&Arc::new(mke2fs(64, "-b 4096")));
    let root = volume.root().unwrap();
    let before = volume.stat_fs().inodes_free;
    let held = volume.create(&root, b"held", &new(FileKind::Regular, 0o644)).unwrap();
    volume.unlink(&root, b"held").unwrap();
    drop(held);
    assert_eq!(volume.stat_fs().inodes_free, before - 1, "its last user has gone since");
    let error = volume.rename(&root, b"none", &root, b"new", RenameMode::Replace);
    assert_eq!(*error.expect_err("no such name").kind(), ErrorKind::NotFound);
    assert_eq!(volume.stat_fs().inodes_free, before);
    volume.close().unwrap();
}
