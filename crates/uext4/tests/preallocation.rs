//! Preallocation around random writes into files whose size is set first.
//!
//! Fault model: a full volume, and a read that fails where it only serves to find a goal. The order
//! of the writes is random. The extent lists show the layout, e2fsck checks the image. Not covered:
//! speed (`runs/`), crashes (the crash kit).

mod common;

use common::{arm, assert_clean, cut, have, mke2fs, mount, new};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, InodeRef, MountOptions, OpenFile, Volume};
use uext4_device::{FaultDevice, MemoryDevice, Operation, SharedDevice, Times};
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{FileBlock, FileKind};

fn create(volume: &Volume, name: &str) -> OpenFile {
    let root = volume.root().unwrap();
    let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&inode).unwrap()
}

/// Number of extents in the tree, and of contiguous pieces on the device.
fn layout(volume: &Volume, inode: &InodeRef) -> (usize, usize) {
    let mut all: Vec<Extent> = Vec::new();
    volume
        .extents(inode, FileBlock(0), &mut |extent| {
            all.push(extent);
            true
        })
        .unwrap();
    let goes_on = |w: &[Extent]| w[0].start.plus(u64::from(w[0].len)) == w[1].start;
    (all.len(), all.len() - all.windows(2).filter(|w| goes_on(w)).count())
}

fn set_size(volume: &Volume, file: &OpenFile, size: u64) {
    volume.set_attr(file.inode(), &cut(size)).unwrap();
}

/// Offsets of all units of a file, in a random order.
fn shuffled(size: u64, unit: u64, seed: u64) -> Vec<u64> {
    let mut places: Vec<u64> = (0..size / unit).map(|n| n * unit).collect();
    places.shuffle(&mut StdRng::seed_from_u64(seed));
    places
}

/// The content at an offset, so that a unit in the wrong place is detected.
fn content(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|byte| (byte / 512 + byte % 251) as u8).collect()
}

fn check_content(file: &OpenFile, size: u64) {
    let mut read = vec![0; size as usize];
    assert_eq!(file.read_at(0, &mut read).unwrap(), read.len());
    assert!(read == content(0, size), "the file's content");
}

fn finish(volume: Volume, device: &MemoryDevice) {
    volume.close().unwrap();
    assert_clean(device);
}

/// Writes all of a file of preset size in random order through its handles alternately, with a sync
/// after each `per_sync` writes. Returns its extents and pieces.
fn random_writes(size: u64, unit: u64, per_sync: usize, handles: usize) -> (usize, usize) {
    let device = Arc::new(mke2fs(160, "-b 4096 -J size=8"));
    let volume = mount(&device);
    let file = create(&volume, "f");
    set_size(&volume, &file, size);
    let open = || volume.open_file(file.inode()).unwrap();
    let all: Vec<OpenFile> = (0..handles).map(|_| open()).collect();
    let before = volume.stat_fs().blocks_free;
    for (n, at) in shuffled(size, unit, 7).into_iter().enumerate() {
        let handle = &all[n % handles];
        handle.write_at(at, &content(at, unit)).unwrap();
        if (n + 1).is_multiple_of(per_sync) {
            handle.sync(true).unwrap();
        }
    }
    file.sync(false).unwrap();
    let (extents, pieces) = layout(&volume, file.inode());
    println!("{size} bytes in units of {unit}: {extents} extents, {pieces} pieces");
    check_content(&file, size);
    // Nothing else was taken, but for a node or two of the tree.
    let used = before - volume.stat_fs().blocks_free;
    assert!((size / 4096..size / 4096 + 64).contains(&used), "{used} blocks");
    drop((all, file));
    assert_eq!(volume.space().preallocation_stats().held, 0, "closed files hold nothing");
    finish(volume, &device);
    (extents, pieces)
}

#[test]
fn random_synced_writes_get_few_extents() {
    if !have("mke2fs") {
        return;
    }
    let small = random_writes(8 << 20, 4096, 16, 1);
    let large = random_writes(64 << 20, 16 << 10, 16, 1);
    let shared = random_writes(1 << 20, 4096, 8, 2);
    for (what, (extents, pieces)) in [("small", small), ("large", large), ("shared", shared)] {
        // A leaf that was split, while there were many extents, stays.
        assert!(pieces == 1 && extents <= 4, "{what}: {extents} extents, {pieces} pieces");
    }
}

/// A write does not fail because its goal cannot be found: the leaf with the extent behind the hole
/// cannot be read at that moment.
#[test]
fn a_failed_search_for_a_goal_fails_no_write() {
    if !have("mke2fs") {
        return;
    }
    let medium = Arc::new(mke2fs(64, "-b 1024 -J size=4"));
    {
        let volume = mount(&medium);
        let file = create(&volume, "f");
        // A tree with a leaf, whose first extent is far from the file's begin.
        for n in 0..20 {
            file.write_at((100 + 2 * n) << 10, &[n as u8; 1024]).unwrap();
        }
        drop(file);
        volume.close().unwrap();
    }
    let device = Arc::new(FaultDevice::new(medium.clone()));
    let shared: SharedDevice = device.clone();
    let volume = Volume::open(shared, MountOptions::default()).unwrap();
    let inode = volume.lookup(&volume.root().unwrap(), b"f").unwrap();
    let file = volume.open_file(&inode).unwrap();
    // The bitmap of the group is in memory.
    let other = create(&volume, "other");
    other.write_at(0, &[1; 4096]).unwrap();
    other.sync(false).unwrap();
    file.write_at(0, &[9; 1024]).unwrap();
    arm(&device, Operation::Read, 1, Times::Once);
    file.sync(false).expect("a place was only looked for");
    assert_eq!(device.struck(), 1, "the leaf was read");
    device.reset();
    let mut read = [0; 1024];
    file.read_at(0, &mut read).unwrap();
    assert_eq!(read, [9; 1024]);
    drop((file, other, inode));
    volume.close().unwrap();
    assert_clean(&medium);
}

/// Blocks held around random writes count as free, are discarded when space runs out, and when the
/// file is truncated. Other files get them by writes and by fallocate, to the last block.
#[test]
fn pieces_are_discarded_when_they_are_needed() {
    if !have("mke2fs") {
        return;
    }
    for allocated in [false, true] {
        let device = Arc::new(mke2fs(64, "-b 4096 -m 0 -J size=4"));
        let volume = mount(&device);
        let before = volume.stat_fs().blocks_free;
        let holders: Vec<OpenFile> = (0..6).map(|n| create(&volume, &format!("h{n}"))).collect();
        for (n, file) in (0..).zip(&holders) {
            set_size(&volume, file, 4 << 20);
            file.write_at((n * 7 % 100) * 40_960, &[1; 4096]).unwrap();
            file.sync(true).unwrap();
        }
        let stats = volume.space().preallocation_stats();
        assert_eq!(stats.held, 6, "each holds blocks around what was written");
        assert_eq!(volume.stat_fs().blocks_free, before - 6, "held blocks are free");
        let full = create(&volume, "full");
        let mut at = 0;
        let error = loop {
            let done = match allocated {
                true => full.allocate(AllocateMode::Allocate { keep_size: false }, at, 4096),
                false => full.write_at(at, &[1; 4096]).map(drop),
            };
            match done {
                Ok(()) => at += 4096,
                Err(error) => break error,
            }
        };
        assert_eq!(*error.kind(), ErrorKind::NoSpace);
        assert!(volume.space().preallocation_stats().discarded >= 6);
        // A page that is written reserves itself and five nodes of its tree.
        let left = volume.stat_fs().blocks_available;
        assert!(left <= if allocated { 0 } else { 5 }, "{left} blocks were left unused");
        set_size(&volume, &full, 0);
        volume.sync().unwrap();
        for file in &holders {
            file.write_at(3 << 20, &[2; 4096]).unwrap();
            file.sync(true).unwrap();
            set_size(&volume, file, 1 << 20);
        }
        drop(full);
        assert_eq!(
            volume.space().preallocation_stats().held,
            0,
            "a file that was cut holds nothing ahead"
        );
        drop(holders);
        finish(volume, &device);
    }
}
