//! Listing extents and free runs through the library.
//!
//! Fault model: extents left out, listed twice or out of order at the edges of leaves and while
//! others write; a block map crafted to name billions of blocks by a few. Not covered: what the
//! tools of e2fsprogs make of the same image (the tests of the command).

mod common;

use common::{have, mke2fs, mount, new};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use uext4::{Extent, FileBlock, GroupNo, InodeRef, Volume};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::FileKind;

const BLOCK: u64 = 1024;

fn listed(volume: &Volume, inode: &InodeRef, from: u32) -> Vec<Extent> {
    let mut extents = Vec::new();
    volume
        .extents(inode, FileBlock(from), &mut |extent| {
            extents.push(extent);
            true
        })
        .unwrap();
    extents
}

#[test]
fn extents_of_a_deep_tree_come_in_order_from_anywhere() {
    if !have("mke2fs") {
        return;
    }
    let volume = mount(&Arc::new(mke2fs(32, "-b 1024")));
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
    assert_eq!(listed(&volume, &inode, 0), []);
    let file = volume.open_file(&inode).unwrap();
    // More than four leaves of 84 extents: two levels of index nodes.
    let count = 700;
    for n in 0..count {
        file.write_at(n * 3 * BLOCK, &[1; BLOCK as usize]).unwrap();
    }
    file.sync(false).unwrap();
    let all = listed(&volume, &inode, 0);
    let firsts: Vec<u64> = all.iter().map(|extent| u64::from(extent.first.get())).collect();
    assert_eq!(firsts, (0..count).map(|n| n * 3).collect::<Vec<_>>());
    for from in [0, 1, 3, 250, 251, 252, 1000, 2097, 2098, u32::MAX] {
        let want: Vec<Extent> = all.iter().filter(|e| e.end().get() > from).copied().collect();
        assert_eq!(listed(&volume, &inode, from), want, "from {from}");
    }
    let mut seen = 0;
    let stop_at_100 = &mut |_: Extent| {
        seen += 1;
        seen < 100
    };
    volume.extents(&inode, FileBlock(0), stop_at_100).unwrap();
    assert_eq!(seen, 100);
    volume.close().unwrap();
}

#[test]
fn free_runs_agree_with_the_descriptors_while_files_come_and_go() {
    if !have("mke2fs") {
        return;
    }
    let volume = mount(&Arc::new(mke2fs(64, "-b 1024")));
    let root = volume.root().unwrap();
    let groups = volume.layout().group_count;
    assert!(volume.free_runs(GroupNo(groups)).is_err());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for group in 0..groups {
                        let runs = volume.free_runs(GroupNo(group)).unwrap();
                        let apart = runs.windows(2).all(|two| two[0].end() < two[1].start);
                        assert!(apart, "group {group}: {runs:?}");
                    }
                }
            });
        }
        for n in 0..100_u64 {
            let name = format!("f{}", n % 10);
            if n >= 10 {
                volume.unlink(&root, name.as_bytes()).unwrap();
            }
            let inode =
                volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
            let file = volume.open_file(&inode).unwrap();
            file.write_at(0, &vec![1; (n * 977 % 60_000) as usize]).unwrap();
            file.sync(false).unwrap();
            listed(&volume, &inode, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    volume.sync().unwrap();
    for group in (0..groups).map(GroupNo) {
        let free: u32 = volume.free_runs(group).unwrap().iter().map(|run| run.len).sum();
        assert_eq!(free, volume.group_desc(group).free_blocks(), "group {group}");
    }
    volume.close().unwrap();
}

fn read(device: &MemoryDevice, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_block_map_that_leads_in_circles_ends() {
    if !have("mke2fs") {
        return;
    }
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("f"), vec![7; 1 << 20]).unwrap();
    let options = "-b 1024 -O ^extent,^64bit,^metadata_csum,^uninit_bg,^has_journal -d";
    let device = Arc::new(mke2fs(16, &format!("{options} {}", tree.path().display())));
    let volume = mount_read_only(&device);
    let inode = volume.lookup(&volume.root().unwrap(), b"f").unwrap();
    let runs = listed(&volume, &inode, 0);
    assert_eq!(runs.iter().map(|run| run.len).sum::<u32>(), 1024);
    assert!(runs.windows(2).all(|two| two[0].end() == two[1].first), "{runs:?}");
    let layout = volume.layout();
    let index = u64::from(inode.ino().get() - 1);
    let table = volume.group_desc(GroupNo(0)).inode_table().get() * BLOCK;
    let at = table + index * u64::from(layout.inode_size) + 40;
    drop(inode);
    volume.close().unwrap();

    // All of the doubly indirect block's entries become the first one.
    let slot = read(&device, at + 13 * 4, 4);
    let double = u64::from(u32::from_le_bytes(slot.try_into().unwrap())) * BLOCK;
    let first = read(&device, double, 4);
    (0..256).for_each(|n| device.write_at(double + n * 4, &first).unwrap());
    let volume = mount_read_only(&device);
    let inode = volume.lookup(&volume.root().unwrap(), b"f").unwrap();
    let error = volume.extents(&inode, FileBlock(0), &mut |_| true).unwrap_err();
    assert!(error.to_string().contains("two places"), "{error}");
}

fn mount_read_only(device: &Arc<MemoryDevice>) -> Volume {
    let options = uext4::MountOptions { read_only: true, ..Default::default() };
    common::mount_with(device, options)
}
