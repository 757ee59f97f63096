//! Allocation in clusters (bigalloc).
//!
//! Fault model: a block that is freed and used again in the cluster that its file has kept, with
//! the process ending at the next moment; features that meet clusters. Not covered: lost and
//! reordered writes (the crash kit, `--format bigalloc`).

mod common;

use common::{assert_clean, have, mke2fs, mount_with, new};
use std::sync::Arc;
use uext4::config::DataMode;
use uext4::quota::{Counted, QuotaEntry, QuotaKind};
use uext4::{AllocateMode, ErrorKind, MountOptions, NewInode, Owner, Volume, as_user};
use uext4_ondisk::FileKind;

const BLOCK: usize = 1024;

fn with_data(mode: DataMode) -> MountOptions {
    MountOptions { data_mode: mode, ..MountOptions::default() }
}

fn content(volume: &Volume, name: &str, len: usize) -> Vec<u8> {
    let inode = volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap();
    let mut bytes = vec![0; len];
    volume.open_file(&inode).unwrap().read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn journaled_data_in_a_block_that_the_same_transaction_has_revoked() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024 -C 16384 -O bigalloc"));
    let volume = mount_with(&device, with_data(DataMode::Journal));
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[1; 8 * BLOCK]).unwrap();
    file.sync(false).unwrap();
    // The cluster stays, so the block is the same again, unwritten.
    file.allocate(AllocateMode::PunchHole, 2 * BLOCK as u64, BLOCK as u64).unwrap();
    let keep = AllocateMode::Allocate { keep_size: true };
    file.allocate(keep, 2 * BLOCK as u64, BLOCK as u64).unwrap();
    file.write_at(2 * BLOCK as u64, &[2; BLOCK]).unwrap();
    file.sync(false).unwrap();
    let crashed = Arc::new(device.snapshot());
    drop((file, inode, root));
    volume.close().unwrap();

    let volume = mount_with(&crashed, with_data(DataMode::Ordered));
    let expected: Vec<u8> = (0..8 * BLOCK).map(|at| 1 + u8::from(at / BLOCK == 2)).collect();
    assert!(content(&volume, "file", 8 * BLOCK) == expected, "synced data is lost");
    volume.close().unwrap();
    assert_clean(&crashed);
}

#[test]
fn data_in_inodes_and_clusters_together() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 4096 -C 16384 -I 256 -O bigalloc,inline_data"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    for (name, len) in [("inside", 50_usize), ("outside", 9000)] {
        let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        let file = volume.open_file(&inode).unwrap();
        for at in 0..len.div_ceil(50) {
            file.write_at(50 * at as u64, &[7; 50]).unwrap();
        }
        let dir = new(FileKind::Directory, 0o755);
        let dir = volume.create(&root, format!("dir {name}").as_bytes(), &dir).unwrap();
        for n in 0..len / 50 {
            let name = format!("entry {n}");
            volume.create(&dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        }
    }
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
    let volume = mount_with(&device, MountOptions::default());
    assert_eq!(content(&volume, "inside", 50), [7; 50]);
    assert_eq!(content(&volume, "outside", 9000), [7; 9000]);
    volume.close().unwrap();
}

fn is_quota_exceeded<T: std::fmt::Debug>(result: uext4::Result<T>) -> bool {
    matches!(result, Err(error) if *error.kind() == ErrorKind::QuotaExceeded)
}

#[test]
fn space_is_reserved_by_the_cluster() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 4096 -C 65536 -O bigalloc"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    let cluster = 65536;
    let blocks = || volume.attr(&inode).blocks_512 * 512;
    let free = volume.stat_fs().blocks_free;
    // Pages of two clusters, then more of the same, then the same again.
    for at in [0, 4096, 5 * 4096, cluster, 0, cluster + 4096] {
        file.write_at(at, &[1; 4096]).unwrap();
    }
    assert_eq!(blocks(), 2 * cluster, "dirty");
    file.sync(false).unwrap();
    assert_eq!(blocks(), 2 * cluster, "written");
    // The dirty page keeps its reservation when the block beside it, and the cluster, are freed.
    file.write_at(7 * 4096, &[2; 4096]).unwrap();
    for at in [0, 4096, 5 * 4096] {
        file.allocate(AllocateMode::PunchHole, at, 4096).unwrap();
    }
    file.sync(false).unwrap();
    assert_eq!(blocks(), 2 * cluster, "punched");
    file.allocate(AllocateMode::PunchHole, 0, cluster).unwrap();
    assert_eq!(blocks(), cluster);
    drop(file);
    drop(inode);
    volume.unlink(&root, b"file").unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.stat_fs().blocks_free, free);
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_file_system_of_clusters_is_filled_to_its_end() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 4096 -C 65536 -m 0 -O bigalloc"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    let free = volume.stat_fs().blocks_free * 4096;
    let mut at = 0;
    let refused = loop {
        match file.write_at(at, &[3; 4096]) {
            Ok(written) => at += written as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(*refused.kind(), ErrorKind::NoSpace);
    // A few clusters are kept for nodes of the tree.
    assert!(at + 16 * 65536 >= free, "{at} of {free}");
    file.sync(false).unwrap();
    assert_eq!(volume.attr(&inode).size, at);
    drop((file, inode, root));
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn limits_count_clusters() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 4096 -C 16384 -O bigalloc,quota"));
    let limited = [true, true, false];
    let options = MountOptions { quota_limits: limited, ..MountOptions::default() };
    let volume = mount_with(&device, options);
    let space = Counted { hard: 10 * 16384, ..Counted::default() };
    let limits = QuotaEntry { id: 7, space, ..QuotaEntry::default() };
    volume.set_quota_limits(QuotaKind::User, &limits).unwrap();
    let root = volume.root().unwrap();
    let owner = Owner { uid: 7, gid: 7 };
    let made = NewInode { owner, ..new(FileKind::Regular, 0o644) };
    let inode = volume.create(&root, b"file", &made).unwrap();
    let file = volume.open_file(&inode).unwrap();
    as_user(|| {
        file.write_at(0, &[1; 7 * 16384 + 100]).unwrap();
        // Two more fit, wherever they come from.
        file.allocate(AllocateMode::Allocate { keep_size: true }, 9 * 16384, 4096).unwrap();
        file.write_at(8 * 16384, &[1; 9000]).unwrap();
        assert!(is_quota_exceeded(file.write_at(10 * 16384, &[1])));
        let keep = AllocateMode::Allocate { keep_size: true };
        assert!(is_quota_exceeded(file.allocate(keep, 11 * 16384, 1)));
        file.sync(false).unwrap();
        assert!(is_quota_exceeded(file.write_at(10 * 16384, &[1])));
        // A cluster that the file has costs nothing, by whichever door.
        file.write_at(8 * 16384 + 12288, &[1; 4096]).unwrap();
        file.allocate(AllocateMode::Allocate { keep_size: true }, 9 * 16384 + 4096, 4096).unwrap();
        assert_eq!(volume.attr(&inode).blocks_512 * 512, 10 * 16384, "dirty");
        // Its last written blocks go, while pages are dirty that rely on it.
        file.sync(false).unwrap();
        file.allocate(AllocateMode::PunchHole, 8 * 16384, 16384).unwrap();
        file.write_at(8 * 16384, &[1; 4096]).unwrap();
        file.sync(false).unwrap();
        file.write_at(8 * 16384 + 8192, &[2; 4096]).unwrap();
        file.allocate(AllocateMode::PunchHole, 8 * 16384, 4096).unwrap();
        assert!(is_quota_exceeded(file.write_at(10 * 16384, &[1])));
        file.sync(false).unwrap();
        let mut bytes = [0; 4096];
        file.read_at(8 * 16384 + 8192, &mut bytes).unwrap();
        assert_eq!(bytes, [2; 4096]);
        file.write_at(8 * 16384, &[3; 4096]).unwrap();
        volume.set_attr(&inode, &common::cut(8 * 16384 + 4096)).unwrap();
        file.write_at(9 * 16384, &[1]).unwrap();
        assert!(is_quota_exceeded(file.write_at(10 * 16384, &[1])));
        file.sync(false).unwrap();
    });
    let (_, entries) = volume.quota(QuotaKind::User).unwrap().unwrap();
    let used = entries.iter().find(|entry| entry.id == 7).unwrap().space.used;
    assert_eq!(used, 10 * 16384);
    drop((file, inode, root));
    volume.close().unwrap();
    assert_clean(&device);
}
