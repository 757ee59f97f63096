//! Allocation in clusters (bigalloc).
//!
//! Fault model: a block that is freed and used again in the cluster that its file has kept, with
//! the process ending at the next moment; features that meet clusters. Not covered: lost and
//! reordered writes (the crash kit, `--format bigalloc`).

mod common;

use common::{assert_clean, have, mke2fs, mount_with, new};
use std::sync::Arc;
use uext4::config::DataMode;
use uext4::{AllocateMode, MountOptions, Volume};
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
