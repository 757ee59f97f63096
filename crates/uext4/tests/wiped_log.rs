//! A log that holds transactions although the superblock does not ask for a replay.
//!
//! Fault model: `needs_recovery` was cleared by a tool over a log that is not empty, and the volume
//! crashes again. Checked: nothing of the old log comes back, and ids of transactions go on. Not
//! covered: journals on other devices.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::process::Command;
use std::sync::Arc;
use uext4::{MountOptions, Volume};
use uext4_device::{MemoryDevice, SharedDevice};
use uext4_ondisk::FileKind;

fn mkdir(volume: &Volume, name: &str) {
    let root = volume.root().unwrap();
    volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap();
}

/// Commits some transactions, without a checkpoint that matters, and dies.
fn work_and_die(memory: &Arc<MemoryDevice>, names: &str, count: usize) {
    let volume = mount(memory);
    for n in 0..count {
        mkdir(&volume, &format!("{names}{n}"));
        volume.sync().unwrap();
    }
    volume.abandon();
}

fn without_flag(memory: &MemoryDevice) -> Arc<MemoryDevice> {
    let image = tempfile::NamedTempFile::new().unwrap();
    memory.save(image.path()).unwrap();
    let clear = ["-w", "-R", "feature -needs_recovery"];
    let output = Command::new("/sbin/debugfs").args(clear).arg(image.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Arc::new(MemoryDevice::load(image.path()).unwrap())
}

#[test]
fn an_old_log_that_is_not_to_be_replayed_never_comes_back() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let memory = Arc::new(mke2fs(64, ""));
    work_and_die(&memory, "old", 20);
    let memory = without_flag(&memory);
    work_and_die(&memory, "new", 2);
    let volume = mount(&memory);
    let root = volume.root().unwrap();
    for name in [b"new0", b"new1"] {
        volume.lookup(&root, name).expect("it was synced");
    }
    // The old ones were never checkpointed: they are gone with the log, as with the kernel.
    assert!(volume.lookup(&root, b"old19").is_err(), "the old log was replayed");
    drop(root);
    volume.close().unwrap();
    assert_clean(&memory);
}

/// Nothing is written to a volume that is opened read-only.
#[test]
fn a_read_only_volume_keeps_such_a_log() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let memory = Arc::new(mke2fs(64, ""));
    work_and_die(&memory, "old", 3);
    let memory = without_flag(&memory);
    let before = memory.stored_bytes();
    let copy = tempfile::NamedTempFile::new().unwrap();
    memory.save(copy.path()).unwrap();
    let shared: SharedDevice = memory.clone();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    Volume::open(shared, options).unwrap().close().unwrap();
    let after = tempfile::NamedTempFile::new().unwrap();
    memory.save(after.path()).unwrap();
    assert_eq!(memory.stored_bytes(), before);
    assert!(std::fs::read(copy.path()).unwrap() == std::fs::read(after.path()).unwrap());
}
