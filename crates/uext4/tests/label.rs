//! The volume's label.
//!
//! Fault model: a crash after a sync and without one; a backup that is none.

mod common;

use common::{assert_clean, e2fsck, have, mke2fs, mount, mount_with};
use std::process::Command;
use std::sync::Arc;
use uext4::{MountOptions, Result};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::superblock::SUPERBLOCK_SIZE;
use uext4_ondisk::{BlockNo, GroupNo, Layout, RawSuperblock};

#[track_caller]
fn fails<T>(result: Result<T>, errno: i32) {
    assert_eq!(result.map_err(|error| error.errno()).err(), Some(errno));
}

/// The labels of the superblock and its backups.
fn labels(device: &MemoryDevice, layout: &Layout) -> Vec<String> {
    let copies = (0..layout.group_count).filter_map(|group| layout.super_copy(GroupNo(group)));
    let at = |block: BlockNo| match block == layout.super_block_no() {
        true => 1024,
        false => layout.byte_of(block),
    };
    let label = |block| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(at(block), &mut bytes).unwrap();
        let raw = RawSuperblock::read(&bytes).unwrap();
        String::from_utf8_lossy(&raw.s_volume_name).trim_end_matches('\0').to_owned()
    };
    copies.map(label).collect()
}

#[test]
fn it_changes_everywhere() {
    if !have("mke2fs") {
        return;
    }
    for options in ["-b 1024 -g 2048", "-b 4096 -g 1024 -O ^metadata_csum"] {
        let device = Arc::new(mke2fs(24, &format!("{options} -L before")));
        let volume = mount(&device);
        let layout = volume.layout().clone();
        let count = labels(&device, &layout).len();
        assert!(count > 2);
        assert_eq!(volume.label(), b"before");
        volume.set_label(b"").unwrap();
        assert_eq!(volume.label(), b"");
        volume.set_label(b"sixteen bytes ok").unwrap();
        fails(volume.set_label(b"seventeen bytes !"), libc::EINVAL);
        fails(volume.set_label(b"a\0b"), libc::EINVAL);
        let unsynced = Arc::new(device.snapshot());
        volume.sync().unwrap();
        let synced = Arc::new(device.snapshot());
        volume.close().unwrap();
        let crashed = mount(&unsynced);
        assert!([&b"before"[..], b"sixteen bytes ok"].contains(&&crashed.label()[..]));
        crashed.close().unwrap();
        mount(&synced).close().unwrap();
        for device in [device, synced] {
            assert_eq!(labels(&device, &layout), vec!["sixteen bytes ok"; count], "{options}");
            assert_clean(&device);
        }
        assert_clean(&unsynced);
    }
}

#[test]
fn a_short_label_leaves_nothing_of_a_long_one() {
    if !have("mke2fs") || !have("e2label") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -L sixteen_letters_"));
    let volume = mount(&device);
    volume.set_label(b"short").unwrap();
    volume.close().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    let output = Command::new("/sbin/e2label").arg(file.path()).output().unwrap();
    assert_eq!(output.stdout, b"short\n");
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let volume = mount_with(&device, options);
    assert_eq!(volume.label(), b"short");
    fails(volume.set_label(b"other"), libc::EROFS);
}

#[test]
fn a_damaged_backup_stays_as_it_is() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let volume = mount(&device);
    let backup = volume.layout().super_copy(GroupNo(1)).unwrap();
    let at = volume.layout().byte_of(backup);
    let junk = [0xa5; 1024];
    device.write_at(at, &junk).unwrap();
    volume.set_label(b"new").unwrap();
    volume.close().unwrap();
    let mut found = [0; 1024];
    device.read_at(at, &mut found).unwrap();
    assert_eq!(found, junk);
    let (_, text) = e2fsck(&device, "-fn");
    assert!(text.contains("new"), "{text}");
}
