//! File systems without a journal: the mark of an unclean end, what is refused, and failing writes.
//!
//! Fault model: a mark that comes late, goes early or is lost by an open that changes nothing; an
//! option whose promise needs a log; metadata writes that fail from each one on. What a loss of
//! power leaves: `uext4-sim/src/crash/unjournaled.rs`.

mod common;

use common::{arm, assert_clean, debugfs, e2fsck, have, mke2fs, mount, mount_with, new};
use std::sync::Arc;
use uext4::config::DataMode;
use uext4::{ErrorKind, MountOptions, Volume};
use uext4_device::{Device, FaultDevice, MemoryDevice, Operation, SharedDevice, Times};
use uext4_ondisk::superblock::{STATE_VALID, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{FileKind, RawSuperblock, RoCompat};

fn image() -> Option<Arc<MemoryDevice>> {
    have("mke2fs").then(|| Arc::new(mke2fs(16, "-b 1024 -O ^has_journal")))
}

fn is_marked_clean(device: &MemoryDevice) -> bool {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    RawSuperblock::read(&bytes).unwrap().s_state.get() & STATE_VALID != 0
}

fn add_file(volume: &Volume, name: &str) -> uext4::Result<()> {
    let inode = volume.create(&volume.root()?, name.as_bytes(), &new(FileKind::Regular, 0o644))?;
    let file = volume.open_file(&inode)?;
    file.write_at(0, &[7; 30_000])?;
    file.sync(false)
}

#[test]
fn only_a_clean_close_and_e2fsck_mark_a_volume_clean() {
    let Some(device) = image() else { return };
    let volume = mount(&device);
    assert!(!is_marked_clean(&device) && !volume.recovery().is_unchecked);
    add_file(&volume, "a").unwrap();
    volume.close().unwrap();
    assert!(is_marked_clean(&device));
    assert_clean(&device);

    let volume = mount(&device);
    add_file(&volume, "b").unwrap();
    volume.abandon();
    let volume = mount(&device);
    assert!(volume.recovery().is_unchecked && !volume.read_only());
    add_file(&volume, "c").unwrap();
    volume.close().unwrap();
    assert!(!is_marked_clean(&device), "nobody has checked it");

    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    let before = device.snapshot();
    mount_with(&device, read_only).close().unwrap();
    let bytes = |device: &MemoryDevice| {
        let mut bytes = vec![0; device.len() as usize];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    assert!(bytes(&before) == bytes(&device), "a read-only open writes");
}

#[test]
fn a_volume_that_keeps_files_without_a_name_is_not_clean() {
    let Some(device) = image() else { return };
    let volume = mount(&device);
    add_file(&volume, "open").unwrap();
    let root = volume.root().unwrap();
    let held = volume.lookup(&root, b"open").unwrap();
    volume.unlink(&root, b"open").unwrap();
    volume.remount_read_only().unwrap();
    assert!(!is_marked_clean(&device));
    drop(held);
    let (code, text) = e2fsck(&device, "-fn");
    assert_ne!(code, 0, "{text}");
}

#[test]
fn options_that_need_a_log_are_refused() {
    let Some(device) = image() else { return };
    let journaled = MountOptions { data_mode: DataMode::Journal, ..MountOptions::default() };
    let late = MountOptions {
        journal_async_commit: true,
        data_mode: DataMode::Writeback,
        ..MountOptions::default()
    };
    for options in [journaled, late] {
        let shared: SharedDevice = device.clone();
        let error = Volume::open(shared, options).expect_err("it is refused");
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("no journal"), "{error}");
        assert!(is_marked_clean(&device));
    }
}

#[test]
fn a_failed_write_of_metadata_ends_all_changes() {
    let Some(base) = image() else { return };
    for nth in 1.. {
        let memory = Arc::new(base.snapshot());
        let shared: SharedDevice = memory.clone();
        let device = Arc::new(FaultDevice::new(shared));
        let shared: SharedDevice = device.clone();
        let volume = Volume::open(shared, MountOptions::default()).unwrap();
        add_file(&volume, "first").unwrap();
        arm(&device, Operation::Write, nth, Times::Onwards);
        let result = add_file(&volume, "second");
        device.reset();
        if result.is_ok() {
            assert!(nth > 2, "data and metadata are written");
            volume.close().unwrap();
            return;
        }
        let is_metadata = volume.read_only();
        assert_eq!(is_metadata, add_file(&volume, "third").is_err(), "write {nth}");
        assert_eq!(volume.close().is_err(), is_metadata, "write {nth}");
        assert_eq!(is_marked_clean(&memory), !is_metadata, "write {nth}");
        let (code, text) = e2fsck(&memory, "-fy");
        assert!(code <= 1, "{text}");
        let volume = mount(&memory);
        let first = volume.lookup(&volume.root().unwrap(), b"first").unwrap();
        assert_eq!(volume.attr(&first).size, 30_000);
    }
}

/// Late failures: orphans that were readable when they were looked at are not when they are cleaned
/// up. What the superblock says is as before.
#[test]
fn an_open_that_fails_late_leaves_the_marks() {
    // Each in a block of its own, and more of them than the cache holds.
    const ORPHANS: u32 = 1900;
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -I 1024 -N 2048 -O ^has_journal"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let made: Vec<u32> = (0..ORPHANS)
        .map(|n| {
            let name = format!("f{n}");
            let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644));
            inode.unwrap().ino().get()
        })
        .collect();
    drop(root);
    volume.close().unwrap();
    let mut commands = vec![format!("set_super_value last_orphan {}", made[0])];
    for (n, ino) in made.iter().enumerate() {
        let next = made.get(n + 1).copied().unwrap_or(0);
        commands.push(format!("set_inode_field <{ino}> dtime @{next}"));
        commands.push(format!("set_inode_field <{ino}> links_count 0"));
    }
    commands.push("feature orphan_present".to_owned());
    let left = debugfs(&device, &commands);
    let superblock = |device: &MemoryDevice| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
        RawSuperblock::read(&bytes).unwrap()
    };
    let is_present = |device: &MemoryDevice| {
        let ro_compat = superblock(device).s_feature_ro_compat.get();
        ro_compat & RoCompat::ORPHAN_PRESENT.bits() != 0
    };
    assert!(is_present(&left) && is_marked_clean(&left));
    let mounts = superblock(&left).s_mnt_count.get();
    let mut late = 0;
    for nth in (1..).step_by(61) {
        let memory = Arc::new(left.snapshot());
        let faults = Arc::new(FaultDevice::new(memory.clone() as SharedDevice));
        arm(&faults, Operation::Read, nth, Times::Once);
        let options =
            MountOptions { cache_bytes: MountOptions::CACHE_BYTES_MIN, ..MountOptions::default() };
        match Volume::open(faults.clone() as SharedDevice, options) {
            Ok(volume) => {
                volume.abandon();
                break;
            }
            Err(_) if is_marked_clean(&memory) => {
                late += u32::from(superblock(&memory).s_mnt_count.get() > mounts);
                assert!(is_present(&memory), "read {nth}");
            }
            Err(_) => {}
        }
    }
    println!("{late} opens failed late");
    assert!(late > 0, "no open failed late");
}
