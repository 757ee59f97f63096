//! Damage: what it does to the volume.
//!
//! Fault model: metadata blocks with wrong bytes. Checked: `errors=` acts on damage wherever it is
//! met, and records it. Not covered: requests that fail (`failing_reads.rs`).

mod common;

use common::{arm, have, mke2fs, mount_with, new, scatter, wait_until};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uext4::config::OnError;
use uext4::{ErrorKind, GroupNo, MountOptions, Result, Volume};
use uext4_device::{Device, FaultDevice, MemoryDevice, Operation, Times};
use uext4_ondisk::{FileKind, RawSuperblock};

const BLOCK: u64 = 1024;

fn options(errors: OnError) -> MountOptions {
    MountOptions { errors: Some(errors), ..MountOptions::default() }
}

/// A file of many extents on a device whose extent blocks are damaged.
fn with_damaged_extents() -> Arc<MemoryDevice> {
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"victim", &new(FileKind::Regular, 0o644)).unwrap();
    scatter(&volume, &inode, 200);
    drop((root, inode));
    volume.close().unwrap();
    let mut hit = 0;
    for at in (0..device.len()).step_by(BLOCK as usize) {
        let mut head = [0; 2];
        device.read_at(at, &mut head).unwrap();
        if head == [0x0a, 0xf3] {
            device.write_at(at + 100, &[0xee; 8]).unwrap();
            hit += 1;
        }
    }
    assert!(hit > 0);
    device
}

fn read_victim(volume: &Volume) -> Result<usize> {
    let inode = volume.lookup(&volume.root()?, b"victim")?;
    volume.open_file(&inode)?.read_at(0, &mut [0; 4096])
}

fn check_recorded(superblock: &RawSuperblock) {
    assert_eq!(superblock.s_state.get() & 3, 3, "clean with errors, as by the kernel");
    assert!(superblock.s_error_count.get() >= 1);
    assert!(superblock.s_first_error_time.get() > 0 && superblock.s_last_error_time.get() > 0);
    assert!(superblock.s_last_error_ino.get() > 0 || superblock.s_last_error_block.get() > 0);
    assert!(superblock.s_last_error_func.starts_with(b"extent"));
    assert!((4..=5).contains(&superblock.s_first_error_errcode));
}

fn is_corrupt<T>(result: &Result<T>) -> bool {
    matches!(result.as_ref().map_err(|error| error.kind()), Err(ErrorKind::Corrupt(_)))
}

/// G1 of docs/durability.md, as it was.
#[test]
fn errors_continue_records_damage_met_in_an_open_file() {
    if !have("mke2fs") {
        return;
    }
    let device = with_damaged_extents();
    let volume = mount_with(&device, options(OnError::Continue));
    assert!(is_corrupt(&read_victim(&volume)));
    assert!(is_corrupt(&read_victim(&volume)));
    assert!(!volume.read_only());
    let root = volume.root().unwrap();
    volume.create(&root, b"more", &new(FileKind::Regular, 0o644)).unwrap();
    drop(root);
    volume.close().unwrap();
    let volume = mount_with(&device, MountOptions { read_only: true, ..MountOptions::default() });
    check_recorded(&volume.superblock());
    assert_eq!(volume.superblock().s_error_count.get(), 2, "each time once");
}

#[test]
fn errors_remount_ro_ends_changes_and_is_recorded() {
    if !have("mke2fs") {
        return;
    }
    let device = with_damaged_extents();
    let volume = mount_with(&device, options(OnError::RemountReadOnly));
    assert!(is_corrupt(&read_victim(&volume)));
    assert!(volume.read_only() && volume.read_only_reason().unwrap().contains("damage"));
    let root = volume.root().unwrap();
    let late = volume.create(&root, b"late", &new(FileKind::Regular, 0o644));
    assert_eq!(late.unwrap_err().errno(), libc::EROFS);
    drop(root);
    assert!(volume.close().is_err());
    let volume = mount_with(&device, MountOptions::default());
    check_recorded(&volume.superblock());
}

/// The hook of a program ends it; here it counts.
#[test]
fn errors_panic_calls_the_hook_and_leaves_the_image_to_recovery() {
    if !have("mke2fs") {
        return;
    }
    let device = with_damaged_extents();
    let volume = mount_with(&device, options(OnError::Panic));
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let memory = Arc::clone(&device);
    let at_the_end = Arc::new(std::sync::Mutex::new(None));
    let end = Arc::clone(&at_the_end);
    volume.set_panic_hook(move |error| {
        assert!(error.to_string().contains("corrupt"), "{error}");
        counter.fetch_add(1, Ordering::Relaxed);
        end.lock().unwrap().get_or_insert_with(|| memory.snapshot());
    });
    assert!(is_corrupt(&read_victim(&volume)));
    assert!(calls.load(Ordering::Relaxed) >= 1);
    assert!(volume.read_only(), "a hook that returns leaves a volume that refuses changes");
    // What the process would have left behind.
    let image = Arc::new(at_the_end.lock().unwrap().take().unwrap());
    let mut bytes = [0; 1024];
    image.read_at(1024, &mut bytes).unwrap();
    let raw = RawSuperblock::read(&bytes).unwrap();
    assert_ne!(raw.s_feature_incompat.get() & 4, 0, "needs_recovery");
    let volume = mount_with(&image, MountOptions::default());
    check_recorded(&volume.superblock());
}

#[test]
fn errors_panic_ends_the_process_when_the_journal_is_aborted() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(FaultDevice::new(Arc::new(mke2fs(16, "-b 1024"))));
    let volume = Volume::open(device.clone(), options(OnError::Panic)).unwrap();
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    volume.set_panic_hook(move |error| {
        let _ = tell.lock().unwrap().send(error.to_string());
    });
    let root = volume.root().unwrap();
    volume.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
    arm(&device, Operation::Write, 1, Times::Onwards);
    assert!(volume.sync().is_err());
    assert!(told.recv_timeout(Duration::from_secs(10)).is_ok());
}

#[test]
fn damage_met_in_background_writeback_is_recorded() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let with_expiry = MountOptions { dirty_expire_ms: 1, ..options(OnError::Continue) };
    let volume = mount_with(&device, with_expiry);
    for group in 0..volume.layout().group_count {
        let bitmap = volume.group_desc(GroupNo(group)).block_bitmap();
        device.write_at(bitmap.get() * BLOCK + 700, &[0x5a; 8]).unwrap();
    }
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[1; 4000]).unwrap();
    wait_until("the flusher meets the damage", || volume.superblock().s_error_count.get() > 0);
    assert!(file.sync(false).is_err(), "and the writer is told");
}
