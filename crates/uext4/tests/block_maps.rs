//! Files with block maps: direct blocks and three levels of indirect ones.
//!
//! Fault model: an indirect block that is lost, leaked or counted wrongly where levels meet; data
//! that a punch or a truncate leaves or takes too much of; a page that finds no block although it
//! was acknowledged; an indirect block or a block of data that two places name, and a number that
//! leads out of the data area. A model of the blocks judges content, e2fsck the image. Not covered:
//! crashes (the crash kit, `--format ext3`), and what the kernel makes of the files (`features` of
//! the command's tests).

mod common;

use common::{arm, assert_clean, cut, e2fsck, have, mke2fs, mount, mount_with, new};
use common::{map_of, number, set_number};
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, InodeRef, MountOptions, Volume};
use uext4_device::{FaultDevice, MemoryDevice, Operation, SharedDevice, Times};
use uext4_ondisk::{FileBlock, FileKind, GroupNo, InodeFlags, RoCompat};

const BLOCK: u64 = 1024;
const SHAPE: &str = "-b 1024 -O ^extent,^64bit,^metadata_csum,^flex_bg,^resize_inode";
/// Where the levels of a map of blocks of 1 KiB begin, and blocks in the middle of each.
const PLACES: [u64; 10] = [0, 11, 12, 140, 267, 268, 523, 33_000, 65_803, 3_000_000];
const END: u64 = 12 + 256 + 65_536 + (1 << 24);

fn create(volume: &Volume, name: &str) -> InodeRef {
    let root = volume.root().unwrap();
    volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap()
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Blocks of a file that hold something, and its size in blocks.
#[derive(Default)]
struct SparseModel {
    blocks: BTreeMap<u64, u8>,
    size: u64,
}

impl SparseModel {
    fn check(&self, volume: &Volume, inode: &InodeRef) {
        let file = volume.open_file(inode).unwrap();
        assert_eq!(volume.attr(inode).size, self.size * BLOCK);
        for place in PLACES {
            for at in place.saturating_sub(3)..place + 9 {
                let want = self.blocks.get(&at).copied().unwrap_or(0);
                let mut bytes = vec![1; BLOCK as usize];
                let len = file.read_at(at * BLOCK, &mut bytes).unwrap();
                assert_eq!(len as u64, if at < self.size { BLOCK } else { 0 }, "block {at}");
                assert!(bytes[..len].iter().all(|&byte| byte == want), "block {at}");
            }
        }
        file.sync(false).unwrap();
        let mut mapped = Vec::new();
        let from = FileBlock(0);
        volume
            .extents(inode, from, &mut |run| {
                mapped.extend((run.first.get()..run.end().get()).map(u64::from));
                true
            })
            .unwrap();
        assert_eq!(mapped, self.blocks.keys().copied().collect::<Vec<_>>());
    }

    fn change(&mut self, volume: &Volume, inode: &InodeRef, state: &mut u64) {
        let file = volume.open_file(inode).unwrap();
        let place = PLACES[random(state) as usize % PLACES.len()];
        let at = place.saturating_sub(random(state) % 3);
        let count = 1 + random(state) % 6;
        match random(state) % 8 {
            0..=4 => {
                let fill = 1 + (random(state) % 200) as u8;
                let bytes = vec![fill; (count * BLOCK) as usize];
                let direct = random(state).is_multiple_of(3);
                let written = match direct {
                    true => file.write_direct_at(at * BLOCK, &bytes),
                    false => file.write_at(at * BLOCK, &bytes),
                };
                assert_eq!(written.unwrap() as u64, count * BLOCK);
                self.blocks.extend((at..at + count).map(|at| (at, fill)));
                self.size = self.size.max(at + count);
            }
            5..=6 => {
                let count = if random(state).is_multiple_of(3) { 70_000 } else { count };
                file.allocate(AllocateMode::PunchHole, at * BLOCK, count * BLOCK).unwrap();
                self.blocks.retain(|block, _| !(at..at + count).contains(block));
            }
            _ => {
                volume.set_attr(inode, &cut(at * BLOCK)).unwrap();
                self.blocks.retain(|&block, _| block < at);
                self.size = at;
            }
        }
        if random(state).is_multiple_of(4) {
            file.sync(true).unwrap();
        }
    }
}

#[test]
fn every_level_is_written_punched_and_cut() {
    if !have("mke2fs") {
        return;
    }
    for (seed, options) in [(1_u64, ""), (2, "nodelalloc"), (3, "data=journal"), (4, "")] {
        let device = Arc::new(mke2fs(24, SHAPE));
        let mut mount_options = MountOptions::default();
        if !options.is_empty() {
            mount_options.parse(options).unwrap();
        }
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut model = SparseModel::default();
        create(&mount_with(&device, mount_options.clone()), "f");
        for _ in 0..8 {
            let volume = mount_with(&device, mount_options.clone());
            let root = volume.root().unwrap();
            let inode = volume.lookup(&root, b"f").unwrap();
            for _ in 0..30 {
                model.change(&volume, &inode, &mut state);
            }
            model.check(&volume, &inode);
            drop((inode, root));
            volume.close().unwrap();
            assert_clean(&device);
        }
        // Nothing is left of it.
        let volume = mount_with(&device, mount_options);
        let root = volume.root().unwrap();
        volume.unlink(&root, b"f").unwrap();
        drop(root);
        volume.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn a_block_map_has_limits() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, &format!("{SHAPE},^large_file")));
    let volume = mount(&device);
    let inode = create(&volume, "f");
    let file = volume.open_file(&inode).unwrap();
    let has_large_file =
        || volume.superblock().s_feature_ro_compat.get() & RoCompat::LARGE_FILE.bits() != 0;
    file.write_at((1 << 31) - 2, b"x").unwrap();
    assert!(!has_large_file());
    file.write_at(END * BLOCK - 1, b"x").unwrap();
    assert!(has_large_file(), "the first file of 2 GiB sets the feature");
    let error = file.write_at(END * BLOCK - 1, b"xy").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::FileTooBig);
    let error = volume.set_attr(&inode, &cut(END * BLOCK + 1)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::FileTooBig);
    let keep_size = false;
    for mode in [
        AllocateMode::Allocate { keep_size },
        AllocateMode::ZeroRange { keep_size },
        AllocateMode::CollapseRange,
        AllocateMode::InsertRange,
    ] {
        let error = file.allocate(mode, 0, BLOCK).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unsupported, "{mode:?}");
    }
    let size = END * BLOCK;
    assert_eq!(file.seek_data(size - 4096).unwrap(), size - BLOCK);
    assert_eq!(file.seek_data(1 << 31).unwrap(), size - BLOCK);
    drop((file, inode));
    volume.close().unwrap();
    assert_clean(&device);
}

/// Every page over a hole has its block, and every indirect block that it may need, when the write
/// returns.
#[test]
fn scattered_pages_on_a_full_file_system_find_their_blocks() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(8, &format!("{SHAPE} -m 0")));
    let volume = mount(&device);
    let inode = create(&volume, "f");
    let file = volume.open_file(&inode).unwrap();
    let mut written = Vec::new();
    for n in 0.. {
        let at = if n % 3 == 0 { n * 2000 } else { n * 300 };
        match file.write_at(at * BLOCK, &[n as u8 | 1; BLOCK as usize]) {
            Ok(_) => written.push((at, n as u8 | 1)),
            Err(error) => {
                assert_eq!(*error.kind(), ErrorKind::NoSpace, "{error}");
                break;
            }
        }
    }
    assert!(written.len() > 500, "{}", written.len());
    file.sync(false).unwrap();
    drop((file, inode));
    volume.close().unwrap();
    assert_clean(&device);
    let volume = mount(&device);
    let inode = volume.lookup(&volume.root().unwrap(), b"f").unwrap();
    let file = volume.open_file(&inode).unwrap();
    let last: BTreeMap<u64, u8> = written.into_iter().collect();
    for (at, fill) in last {
        let mut bytes = vec![0; BLOCK as usize];
        file.read_at(at * BLOCK, &mut bytes).unwrap();
        assert_eq!(bytes, vec![fill; BLOCK as usize], "block {at}");
    }
}

/// Damages the map of a file of 700 blocks. Slots 12 and 13 of the map lead to indirect blocks.
type Damage = fn(&MemoryDevice, u64, &Volume);

fn of_block(block: u32, index: u64) -> u64 {
    u64::from(block) * BLOCK + index * 4
}

const DAMAGES: &[(&str, Damage)] = &[
    ("an indirect block leads to itself", |device, map, _| {
        let indirect = number(device, map + 48);
        set_number(device, of_block(indirect, 7), indirect);
    }),
    ("a doubly indirect block leads to itself", |device, map, _| {
        let double = number(device, map + 52);
        set_number(device, of_block(double, 1), double);
    }),
    ("two places lead to one indirect block", |device, map, _| {
        let double = number(device, map + 52);
        let first = number(device, of_block(double, 0));
        set_number(device, of_block(double, 1), first);
    }),
    ("a block of data is its own indirect block", |device, map, _| {
        let indirect = number(device, map + 48);
        set_number(device, of_block(indirect, 150), indirect);
    }),
    ("a block of data is there twice in a leaf", |device, map, _| {
        let first = number(device, map);
        set_number(device, map + 8, first);
    }),
    ("a block of data is there twice in two leaves", |device, map, _| {
        let indirect = number(device, map + 48);
        set_number(device, of_block(indirect, 200), number(device, map));
    }),
    ("a number lies in the inode table", |device, map, volume| {
        let table = volume.group_desc(GroupNo(0)).inode_table().get();
        set_number(device, map + 48, table as u32);
    }),
    ("a number lies outside", |device, map, _| {
        let indirect = number(device, map + 48);
        set_number(device, of_block(indirect, 3), u32::MAX);
    }),
];

/// Nothing is freed twice, nothing outside is touched, and other files stay as they are.
#[test]
fn hostile_maps_are_refused() {
    if !have("mke2fs") {
        return;
    }
    let pristine = mke2fs(16, SHAPE);
    let device = Arc::new(pristine.snapshot());
    let volume = mount(&device);
    let content: Vec<u8> = (0..700 * BLOCK).map(|n| (n % 251) as u8).collect();
    let [f, g] = ["f", "g"].map(|name| create(&volume, name));
    for inode in [&f, &g] {
        let file = volume.open_file(inode).unwrap();
        assert_eq!(file.write_at(0, &content).unwrap(), content.len());
    }
    let map = map_of(&volume, &f);
    drop((f, g));
    volume.close().unwrap();
    for (name, damage) in DAMAGES {
        let device = Arc::new(device.snapshot());
        let volume = mount(&device);
        damage(&device, map, &volume);
        drop(volume);
        let volume = mount(&device);
        let root = volume.root().unwrap();
        let inode = volume.lookup(&root, b"f").unwrap();
        let file = volume.open_file(&inode).unwrap();
        let mut failed = false;
        let mut note = |result: Result<(), uext4::Error>| {
            if let Err(error) = result {
                assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{name}: {error}");
                failed = true;
            }
        };
        note(volume.extents(&inode, FileBlock(0), &mut |_| true));
        note(file.read_at(0, &mut vec![0; content.len()]).map(drop));
        note(file.write_at(900 * BLOCK, &[1; 4096]).and_then(|_| file.sync(false)));
        note(file.allocate(AllocateMode::PunchHole, 100 * BLOCK, 100 * BLOCK));
        note(volume.set_attr(&inode, &cut(BLOCK)).map(drop));
        note(volume.unlink(&root, b"f"));
        drop((file, inode));
        let _ = volume.sync();
        let good = volume.lookup(&root, b"g").unwrap();
        let mut bytes = vec![0; content.len()];
        volume.open_file(&good).unwrap().read_at(0, &mut bytes).unwrap();
        assert!(bytes == content, "{name}: another file has changed");
        drop((good, root));
        assert!(!volume.read_only(), "{name}: the journal is aborted");
        // The file could not be deleted, and stays an orphan.
        let closed = volume.close();
        assert!(failed || closed.is_err(), "{name}: nobody was told");
        let (code, text) = e2fsck(&device, "-fy");
        assert!(code <= 1, "{name}: {text}");
    }
}

/// Every block of the content of `at`'s pattern.
fn content_at(at: u64) -> Vec<u8> {
    vec![(at % 251) as u8 + 1; BLOCK as usize]
}

/// A file of many runs on an image without extents, and its blocks.
fn with_a_scattered_file() -> (MemoryDevice, Vec<u64>) {
    let device = Arc::new(mke2fs(24, SHAPE));
    let volume = mount(&device);
    let inode = create(&volume, "f");
    let file = volume.open_file(&inode).unwrap();
    let blocks: Vec<u64> =
        (0..900).map(|n| n * 2).chain((0..700).map(|n| 70_000 + n * 300)).collect();
    for &at in &blocks {
        file.write_at(at * BLOCK, &content_at(at)).unwrap();
    }
    let root = volume.root().unwrap();
    volume.create(&root, b"d", &new(FileKind::Directory, 0o755)).unwrap();
    drop((file, inode, root));
    volume.enable_extents().unwrap();
    volume.close().unwrap();
    (device.snapshot(), blocks)
}

fn check_content(volume: &Volume, blocks: &[u64]) {
    let inode = volume.lookup(&volume.root().unwrap(), b"f").unwrap();
    let file = volume.open_file(&inode).unwrap();
    for &at in blocks {
        let mut bytes = vec![0; BLOCK as usize];
        file.read_at(at * BLOCK, &mut bytes).unwrap();
        assert!(bytes == content_at(at), "block {at}");
    }
}

fn has_tree(volume: &Volume) -> bool {
    let inode = volume.lookup(&volume.root().unwrap(), b"f").unwrap();
    volume.attr(&inode).flags.contains(InodeFlags::EXTENTS)
}

#[test]
fn a_file_gets_an_extent_tree() {
    if !have("mke2fs") {
        return;
    }
    let (device, mut blocks) = with_a_scattered_file();
    let device = Arc::new(device);
    let volume = mount(&device);
    let root = volume.root().unwrap();
    // Until then it is written by its map, beside files with extents.
    let inode = volume.lookup(&root, b"f").unwrap();
    let file = volume.open_file(&inode).unwrap();
    for at in 2_500..2_520 {
        file.write_at(at * BLOCK, &content_at(at)).unwrap();
        blocks.push(at);
    }
    let beside = create(&volume, "beside");
    assert!(volume.attr(&beside).flags.contains(InodeFlags::EXTENTS));
    volume.open_file(&beside).unwrap().write_at(0, &[1; 5000]).unwrap();
    drop((inode, file, beside));
    assert!(!has_tree(&volume));
    for name in [b"f".as_slice(), b"d"] {
        let inode = volume.lookup(&root, name).unwrap();
        assert!(volume.convert_to_extents(&inode).unwrap());
        assert!(!volume.convert_to_extents(&inode).unwrap());
    }
    assert!(has_tree(&volume));
    check_content(&volume, &blocks);
    // It goes on as a file with extents.
    let inode = volume.lookup(&root, b"f").unwrap();
    let file = volume.open_file(&inode).unwrap();
    let keep_size = false;
    file.allocate(AllocateMode::Allocate { keep_size }, 1 << 20, 1 << 20).unwrap();
    for at in 3_000..3_100 {
        file.write_at(at * BLOCK, &content_at(at)).unwrap();
        blocks.push(at);
    }
    drop((file, inode, root));
    volume.close().unwrap();
    assert_clean(&device);
    let volume = mount(&device);
    check_content(&volume, &blocks);
    volume.unlink(&volume.root().unwrap(), b"f").unwrap();
    volume.close().unwrap();
    assert_clean(&device);
}

/// The device ends at any of its writes: the file is whole, in one form or the other, and every
/// block has one owner.
#[test]
fn a_conversion_that_ends_anywhere_leaves_one_form() {
    if !have("mke2fs") {
        return;
    }
    let (image, blocks) = with_a_scattered_file();
    let (mut old, mut new) = (0, 0);
    for nth in (1..).step_by(3) {
        let memory = Arc::new(image.snapshot());
        let device = Arc::new(FaultDevice::new(memory.clone() as SharedDevice));
        let volume = Volume::open(device.clone() as SharedDevice, MountOptions::default()).unwrap();
        arm(&device, Operation::Write, nth, Times::Onwards);
        let inode = volume.lookup(&volume.root().unwrap(), b"f").unwrap();
        let converted = volume.convert_to_extents(&inode).is_ok();
        let synced = volume.sync().is_ok();
        drop(inode);
        volume.abandon();
        let volume = mount(&memory);
        check_content(&volume, &blocks);
        match has_tree(&volume) {
            true => new += 1,
            false => old += 1,
        }
        assert!(!synced || !converted || has_tree(&volume));
        volume.close().unwrap();
        assert_clean(&memory);
        if synced {
            break;
        }
    }
    assert!(old > 2 && new > 1, "{old} {new}");
}
