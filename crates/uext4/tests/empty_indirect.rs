//! Indirect blocks of block maps that lead to nothing, as other programs leave them.
//!
//! Fault model: an empty indirect block that stays when its file loses the blocks around it, or is
//! counted wrongly; one that has two places, or a place among the data as well, and is freed twice,
//! which aborts the journal. e2fsck judges images. Not covered: crashes.

mod common;

use common::{assert_clean, cut, debugfs, e2fsck, have, mke2fs, mount, new};
use common::{map_of, number, set_number};
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, InodeRef, Volume, XattrMode};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::{FileKind, GroupNo, RawInode};

const BLOCK: u64 = 1024;
const SHAPE: &str = "-b 1024 -O ^extent,^64bit,^metadata_csum,^flex_bg,^resize_inode";
const END: u64 = 12 + 256 + 65_536 + (1 << 24);
/// Where the second level of a map begins.
const DOUBLE: u64 = 12 + 256;

fn create(volume: &Volume, name: &str) -> InodeRef {
    let root = volume.root().unwrap();
    volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap()
}

fn entry_of(block: u32, index: u64) -> u64 {
    u64::from(block) * BLOCK + index * 4
}

/// Indirect blocks that lead to nothing, as other programs leave them: at each level, below others
/// and by themselves.
#[test]
fn empty_indirect_blocks_go_with_their_file() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let device = Arc::new(mke2fs(16, &format!("{SHAPE},^has_journal")));
    let volume = mount(&device);
    let mut places = Vec::new();
    // Block 12 is full of zeroes. As an indirect block it is empty.
    for (name, slot) in
        [("double", "DIND"), ("triple", "TIND"), ("cut", "DIND"), ("punched", "TIND")]
    {
        let inode = create(&volume, name);
        let file = volume.open_file(&inode).unwrap();
        file.write_at(0, &[7; 12 * BLOCK as usize]).unwrap();
        file.write_at(12 * BLOCK, &[0; BLOCK as usize]).unwrap();
        file.sync(false).unwrap();
        places.push((inode.ino(), slot));
    }
    let layout = volume.layout().clone();
    let table = volume.group_desc(GroupNo(0)).inode_table();
    volume.close().unwrap();
    let mut commands = Vec::new();
    for (ino, slot) in places {
        let mut bytes = [0; 128];
        let at = layout.byte_of(table) + u64::from((ino.get() - 1) * layout.inode_size);
        device.read_at(at, &mut bytes).unwrap();
        let map = RawInode::read(&bytes).unwrap().i_block;
        let indirect = u32::from_le_bytes(map[48..52].try_into().unwrap());
        commands.push(format!("set_inode_field <{ino}> block[IND] 0"));
        commands.push(format!("set_inode_field <{ino}> block[{slot}] {indirect}"));
    }
    let device = Arc::new(debugfs(&device, &commands));
    assert_clean(&device);
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let find = |name: &str| volume.lookup(&root, name.as_bytes()).unwrap();
    let blocks = |name: &str| volume.attr(&find(name)).blocks_512;
    assert_eq!(blocks("cut"), 14 * 2);
    volume.set_attr(&find("cut"), &cut(BLOCK)).unwrap();
    assert_eq!(blocks("cut"), 2);
    let punched = volume.open_file(&find("punched")).unwrap();
    punched.allocate(AllocateMode::PunchHole, 0, END * BLOCK).unwrap();
    assert_eq!(blocks("punched"), 0);
    volume.unlink(&root, b"double").unwrap();
    volume.unlink(&root, b"triple").unwrap();
    drop((punched, root));
    volume.close().unwrap();
    assert_clean(&device);
}

/// An empty leaf in a node whose other entries all lead to blocks.
#[test]
fn an_empty_leaf_goes_from_a_full_node() {
    if !have("mke2fs") {
        return;
    }
    let pristine = Arc::new(mke2fs(16, SHAPE));
    let volume = mount(&pristine);
    let inode = create(&volume, "f");
    let file = volume.open_file(&inode).unwrap();
    for leaf in 0..256 {
        file.write_at((DOUBLE + leaf * 256) * BLOCK, &[7; BLOCK as usize]).unwrap();
    }
    file.sync(false).unwrap();
    let map = map_of(&volume, &inode);
    drop((file, inode));
    volume.close().unwrap();
    for empty in [0, 100, 255] {
        let device = pristine.snapshot();
        // The block of a leaf becomes the file's first one.
        let leaf = number(&device, entry_of(number(&device, map + 52), empty));
        set_number(&device, map, number(&device, entry_of(leaf, 0)));
        set_number(&device, entry_of(leaf, 0), 0);
        assert_clean(&device);
        for way in 0..4 {
            let device = Arc::new(device.snapshot());
            let volume = mount(&device);
            let root = volume.root().unwrap();
            let inode = volume.lookup(&root, b"f").unwrap();
            let file = volume.open_file(&inode).unwrap();
            let before = volume.attr(&inode).blocks_512;
            let first = DOUBLE + empty * 256;
            let punch = |first: u64, count: u64| {
                file.allocate(AllocateMode::PunchHole, first * BLOCK, count * BLOCK).unwrap();
            };
            // Only the leaf; the leaf and what is beside it; what is behind it; all.
            let gone = match way {
                0 => {
                    punch(first + 3, 1);
                    1
                }
                1 => {
                    punch(first - 1, 258);
                    if empty == 255 { 1 } else { 3 }
                }
                2 => {
                    volume.set_attr(&inode, &cut(first * BLOCK)).unwrap();
                    // Before the first leaf there is nothing, so the node goes, too.
                    1 + 2 * (255 - empty) + u64::from(empty == 0)
                }
                _ => {
                    volume.set_attr(&inode, &cut(BLOCK)).unwrap();
                    before / 2 - 1
                }
            };
            file.sync(false).unwrap();
            let after = volume.attr(&inode).blocks_512;
            assert_eq!(after, before - gone * 2, "leaf {empty}, way {way}");
            drop((file, inode, root));
            volume.close().unwrap();
            assert_clean(&device);
        }
    }
}

/// Damages the map of a file whose first 12 blocks are data, and the 12 behind them zeroes. Gets
/// the place of the map and the numbers of those.
type Damage = fn(&MemoryDevice, u64, &[u32]);

const DAMAGES: &[(&str, Damage)] = &[
    ("two slots lead to it", |device, map, empty| {
        set_number(device, map + 48, empty[0]);
        set_number(device, map + 52, empty[0]);
    }),
    ("two entries that follow each other", |device, map, empty| {
        set_number(device, map + 52, empty[0]);
        set_number(device, entry_of(empty[0], 0), empty[1]);
        set_number(device, entry_of(empty[0], 1), empty[1]);
    }),
    ("two entries far from each other", |device, map, empty| {
        set_number(device, map + 52, empty[0]);
        for index in 0..12 {
            let leaf = empty[1 + index as usize % 8];
            set_number(device, entry_of(empty[0], index * 9), leaf);
        }
    }),
    ("two places at two levels", |device, map, empty| {
        set_number(device, map + 48, empty[2]);
        set_number(device, map + 52, empty[0]);
        set_number(device, map + 56, empty[1]);
        set_number(device, entry_of(empty[0], 0), empty[2]);
        set_number(device, entry_of(empty[1], 0), empty[0]);
    }),
    ("it is a block of data, too", |device, map, empty| {
        set_number(device, map + 48, empty[0]);
        set_number(device, map + 44, empty[0]);
    }),
    ("it is a block of data of a leaf, too", |device, map, empty| {
        set_number(device, map + 48, empty[0]);
        set_number(device, entry_of(empty[0], 5), empty[1]);
        set_number(device, map + 52, empty[1]);
    }),
    ("a node with it is a block of data, too", |device, map, empty| {
        set_number(device, map + 52, empty[0]);
        set_number(device, entry_of(empty[0], 3), empty[1]);
        set_number(device, map, empty[0]);
    }),
];

/// Nothing is freed twice: the file is refused before anything changes.
#[test]
fn an_empty_block_with_two_places_is_refused() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, SHAPE));
    let volume = mount(&device);
    let inode = create(&volume, "f");
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[7; 12 * BLOCK as usize]).unwrap();
    file.write_at(12 * BLOCK, &[0; 12 * BLOCK as usize]).unwrap();
    file.sync(false).unwrap();
    let map = map_of(&volume, &inode);
    drop((file, inode));
    volume.close().unwrap();
    let indirect = number(&device, map + 48);
    let empty: Vec<u32> = (0..12).map(|n| number(&device, entry_of(indirect, n))).collect();
    set_number(&device, map + 48, 0);
    for (name, damage) in DAMAGES {
        for way in 0..4 {
            let device = Arc::new(device.snapshot());
            damage(&device, map, &empty);
            let volume = mount(&device);
            let root = volume.root().unwrap();
            let inode = volume.lookup(&root, b"f").unwrap();
            let file = volume.open_file(&inode).unwrap();
            let result = match way {
                0 => volume.set_attr(&inode, &cut(BLOCK)).map(drop),
                1 => file.allocate(AllocateMode::PunchHole, 0, END * BLOCK),
                2 => file.allocate(AllocateMode::PunchHole, 11 * BLOCK, END * BLOCK),
                _ => volume.unlink(&root, b"f"),
            };
            if let Err(error) = result {
                assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{name}, {way}: {error}");
            }
            drop((file, inode, root));
            let _ = volume.sync();
            assert!(!volume.read_only(), "{name}, {way}: the journal is aborted");
            // A file that could not be deleted stays an orphan.
            let _ = volume.close();
            let (code, text) = e2fsck(&device, "-fy");
            assert!(code <= 1, "{name}, {way}: {text}");
        }
    }
}

/// A file of 12 blocks, each in a run of its own, and 12 behind them that are zeroes, with a block
/// of attributes. Returns the place of its map and the numbers of those that are zeroes.
fn scattered(device: &Arc<MemoryDevice>) -> (u64, Vec<u32>) {
    let volume = mount(device);
    let inode = create(&volume, "f");
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[7; 12 * BLOCK as usize]).unwrap();
    file.write_at(12 * BLOCK, &[0; 12 * BLOCK as usize]).unwrap();
    file.sync(false).unwrap();
    volume.xattr_set(&inode, b"user.a", &[3; 700], XattrMode::Any).unwrap();
    let map = map_of(&volume, &inode);
    drop((file, inode));
    volume.close().unwrap();
    let numbers: Vec<u32> = (0..12).map(|n| number(device, map + 4 * n)).collect();
    for (n, place) in numbers.iter().rev().zip((0..).step_by(4)) {
        set_number(device, map + place, *n);
    }
    let indirect = number(device, map + 48);
    (map, (0..12).map(|n| number(device, entry_of(indirect, n))).collect())
}

fn free_blocks(volume: &Volume) -> u32 {
    (0..volume.layout().group_count).map(|n| volume.group_desc(GroupNo(n)).free_blocks()).sum()
}

/// What block 0 of the file is as well, and the ways of freeing it that are refused.
const SHARED: &[(&str, &[u32], Damage)] = &[
    ("the first indirect block", &[0, 1, 2], |device, map, _| {
        set_number(device, map, number(device, map + 48));
    }),
    ("the double indirect block", &[0, 1, 2], |device, map, empty| {
        set_number(device, map + 52, empty[0]);
        set_number(device, entry_of(empty[0], 0), empty[1]);
        set_number(device, map, empty[0]);
    }),
    ("the block of attributes", &[0, 1, 2], |device, map, _| {
        // `i_file_acl` is behind `i_block`, the generation and the size.
        set_number(device, map, number(device, map + 64));
    }),
    ("a block below the double indirect block", &[2], |device, map, empty| {
        set_number(device, map + 52, empty[0]);
        set_number(device, entry_of(empty[0], 0), empty[1]);
        set_number(device, map, empty[1]);
    }),
];

/// A block of data that the file needs otherwise is not freed, in whatever handle that would be.
#[test]
fn a_block_that_the_file_needs_is_not_freed_as_data() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, SHAPE));
    let (map, empty) = scattered(&device);
    for (name, ways, damage) in SHARED {
        for &way in *ways {
            let device = Arc::new(device.snapshot());
            damage(&device, map, &empty);
            let volume = mount(&device);
            let root = volume.root().unwrap();
            let inode = volume.lookup(&root, b"f").unwrap();
            let file = volume.open_file(&inode).unwrap();
            let before = free_blocks(&volume);
            let result = match way {
                0 => file.allocate(AllocateMode::PunchHole, 0, BLOCK),
                1 => volume.set_attr(&inode, &cut(0)).map(drop),
                _ => {
                    drop((file, inode));
                    volume.unlink(&root, b"f")
                }
            };
            let error = result.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{name}, {way}: {error}");
            let _ = volume.sync();
            assert!(!volume.read_only(), "{name}, {way}: the journal is aborted");
            assert_eq!(free_blocks(&volume), before, "{name}, {way}");
            drop(root);
            let _ = volume.close();
            let (code, text) = e2fsck(&device, "-fy");
            assert!(code <= 1, "{name}, {way}: {text}");
        }
    }
}

/// The same in the last handle of an unlink, with a tree and with clusters.
#[test]
fn a_tree_that_maps_the_attribute_block_is_refused() {
    if !have("mke2fs") {
        return;
    }
    for options in ["", ",bigalloc -C 16384"] {
        let device =
            Arc::new(mke2fs(16, &format!("-b 1024 -O ^64bit,^metadata_csum,^flex_bg{options}")));
        let volume = mount(&device);
        let inode = create(&volume, "f");
        let file = volume.open_file(&inode).unwrap();
        file.write_at(0, &[7; BLOCK as usize]).unwrap();
        file.sync(false).unwrap();
        volume.xattr_set(&inode, b"user.a", &[3; 700], XattrMode::Any).unwrap();
        let map = map_of(&volume, &inode);
        drop((file, inode));
        volume.close().unwrap();
        // The lower half of the first extent's place.
        set_number(&device, map + 20, number(&device, map + 64));
        for _ in 0..2 {
            let volume = mount(&device);
            let root = volume.root().unwrap();
            let _ = volume.unlink(&root, b"f");
            let _ = volume.sync();
            assert!(!volume.read_only(), "{options}: the journal is aborted");
            drop(root);
            let _ = volume.close();
        }
        let (code, text) = e2fsck(&device, "-fy");
        assert!(code <= 1, "{options}: {text}");
    }
}
