//! Images that are mean in one way each: what random damage hardly ever makes.
//!
//! Most are without metadata checksums, where a liar has least to do.

use crate::child::{self, Watchdog};
use crate::common::{have, mke2fs, mount, new};
use crate::exercise::{Bounds, Report, rewrite, walk};
use std::sync::Arc;
use std::time::Duration;
use uext4::{InodeRef, MountOptions, RenameMode, SetAttr, Volume};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_ondisk::dir_entry::DirBlock;
use uext4_ondisk::extent::{Extent, ExtentIndex, write_index, write_leaf};
use uext4_ondisk::{BlockNo, FileBlock, FileKind, Ino, RawGroupDesc, RawInode, RawSuperblock};
use uext4_sim::anatomy::{Anatomy, Seal, bytes};

const CHILD: &str = "crafted::one_case";
const BOUND: Duration = Duration::from_secs(30);
const MEMORY_MIB: u64 = 64;
const BLOCK: usize = 1024;
/// 1 KiB blocks, no checksums.
const SHAPE: &str = "-b 1024 -N 256 -O ^metadata_csum,^uninit_bg,^resize_inode";

const BOUNDS: Bounds =
    Bounds { inodes: 600, entries_per_directory: 5000, bytes_per_file: 1 << 20, changes: 60 };

type Case = (&'static str, fn() -> MemoryDevice, fn(&Volume));

const CASES: [Case; 12] = [
    ("a directory below itself", own_child, loops),
    ("two directories below each other", each_others_child, loops),
    ("hundreds of millions of groups", many_groups, nothing),
    ("groups as long as descriptors go", too_many_groups, nothing),
    ("a journal mapped by one block many times", journal_tree, nothing),
    ("a journal whose indirect blocks are one", journal_map, nothing),
    ("a file mapped by one block many times", file_tree, nothing),
    ("a block map with one hole of terabytes", sparse_block_map, seek_holes),
    ("an orphan list that is a circle", orphan_circle, nothing),
    ("an orphan file full of one inode", orphan_file, nothing),
    ("a directory of all blocks there are", huge_directory, nothing),
    ("a journal that replays another file system", replayed_features, nothing),
];

#[test]
fn every_crafted_image_is_survived() {
    if !have("mke2fs") {
        return;
    }
    let mut failures = Vec::new();
    for (name, _, _) in CASES {
        let outcome = child::run(CHILD, name, 2 * BOUND);
        let report = outcome.output.lines().find(|line| line.starts_with("CRAFTED"));
        println!("{name}: {}", report.unwrap_or("no report"));
        if !outcome.success || report.is_none() {
            failures.push(format!("{name}:\n{}", outcome.output));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The child's part.
#[test]
fn one_case() {
    let Some(wanted) = child::task(CHILD) else { return };
    let (_, make, extra) = CASES.iter().find(|(name, _, _)| *name == wanted).expect("case");
    let image = make();
    child::catch_panics();
    let before = child::reset_peak();
    let dog = Watchdog::start(BOUND);
    let mut report = Report::default();
    let mut opened = [false; 2];
    for read_only in [true, false] {
        let device: SharedDevice = Arc::new(image.snapshot());
        let options = MountOptions { read_only, cache_bytes: 16 << 20, ..MountOptions::default() };
        dog.watch(wanted.clone(), || {
            let Some(volume) = report.note(Volume::open(device, options)) else { return };
            opened[usize::from(!read_only)] = true;
            extra(&volume);
            let found = walk(&volume, BOUNDS, &mut report);
            rewrite(&volume, &found, BOUNDS, &mut report);
            drop(found);
            report.note(volume.close());
        });
    }
    let peak = child::status_kib("VmHWM:").saturating_sub(before);
    println!(
        "\nCRAFTED opened {opened:?}, {} ms, {peak} KiB, {}",
        dog.slowest_ms(),
        report.first_error.unwrap_or_default()
    );
    let panics = child::take_panics();
    assert!(panics.is_empty(), "panics: {panics:#?}");
    assert!(report.internal.is_empty(), "faults: {:#?}", report.internal);
    assert!(peak < MEMORY_MIB * 1024, "peak of {peak} KiB");
}

fn nothing(_: &Volume) {}

/// Directories `a` and `b`, each with a directory in it, some files.
fn base(shape: &str) -> MemoryDevice {
    let device = Arc::new(mke2fs(16, shape));
    let volume = mount(&device);
    let root = volume.root().expect("root");
    let dir = |parent: &InodeRef, name: &str| {
        volume.create(parent, name.as_bytes(), &new(FileKind::Directory, 0o755)).expect(name)
    };
    for name in ["a", "b"] {
        dir(&dir(&root, name), "x");
    }
    for name in ["f", "g"] {
        let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644));
        let file = volume.open_file(&inode.expect(name)).expect(name);
        file.write_at(0, &[7; 5000]).expect(name);
    }
    drop(root);
    volume.close().expect("close");
    device.snapshot()
}

fn number(device: &MemoryDevice, name: &str) -> Ino {
    let device = Arc::new(device.snapshot());
    let volume = mount(&device);
    volume.lookup(&volume.root().expect("root"), name.as_bytes()).expect(name).ino()
}

fn slot_of(anatomy: &Anatomy, ino: Ino) -> u64 {
    let target = anatomy.targets.iter().find(|t| t.seal == Seal::Inode(ino));
    target.expect("inode").at
}

fn change_inode(device: &MemoryDevice, ino: Ino, change: impl FnOnce(&mut RawInode)) {
    let at = slot_of(&Anatomy::of(device), ino);
    let mut slot = bytes(device, at, 256);
    let mut raw = RawInode::read(&slot).expect("inode");
    change(&mut raw);
    raw.write(&mut slot).expect("slot");
    device.write_at(at, &slot).expect("memory");
}

fn change_superblock(device: &MemoryDevice, change: impl FnOnce(&mut RawSuperblock)) {
    let mut image = bytes(device, 1024, 1024);
    let raw = RawSuperblock::mut_from_prefix(&mut image).expect("superblock");
    change(raw);
    raw.seal();
    device.write_at(1024, &image).expect("memory");
}

/// Points the entry `x` of directory `dir` to `to`.
fn redirect(device: &MemoryDevice, dir: &str, to: Ino) {
    let own = number(device, dir);
    for target in Anatomy::of(device).targets {
        let block = bytes(device, target.at, target.len);
        let mut entries = DirBlock::new(&block).map_while(Result::ok);
        if !matches!(target.seal, Seal::DirLeaf(_))
            || entries.next().is_none_or(|dot| dot.ino != own)
        {
            continue;
        }
        let entry = entries.find(|entry| entry.name == b"x").expect("x");
        let at = target.at + u64::from(entry.offset);
        device.write_at(at, &to.get().to_le_bytes()).expect("memory");
    }
}

fn own_child() -> MemoryDevice {
    let device = base(SHAPE);
    redirect(&device, "a", number(&device, "a"));
    device
}

fn each_others_child() -> MemoryDevice {
    let device = base(SHAPE);
    let (a, b) = (number(&device, "a"), number(&device, "b"));
    redirect(&device, "a", b);
    redirect(&device, "b", a);
    device
}

/// Many threads, each with its own idea of which directory is above which.
fn loops(volume: &Volume) {
    let root = volume.root().expect("root");
    let (a, b) = (volume.lookup(&root, b"a").expect("a"), volume.lookup(&root, b"b").expect("b"));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (a, b, root) = (&a, &b, &root);
            scope.spawn(move || {
                let (one, other) = if thread % 2 == 0 { (a, b) } else { (b, a) };
                for n in 0..300 {
                    let _ = volume.rmdir(one, b"x");
                    let _ = volume.rename(one, b"x", one, b"y", RenameMode::Replace);
                    let _ = volume.rename(one, b"y", other, b"x", RenameMode::Exchange);
                    let _ = volume.rename(one, b"y", one, b"x", RenameMode::Replace);
                    let _ = volume.rename(root, b"a", one, b"z", RenameMode::NoReplace);
                    let name = format!("new{thread}-{n}");
                    let _ = volume.create(one, name.as_bytes(), &new(FileKind::Directory, 0o755));
                    let _ = volume.rename(one, name.as_bytes(), other, b"w", RenameMode::Replace);
                    let _ = volume.rmdir(other, b"w");
                }
            });
        }
    });
}

/// The smallest groups that are allowed, on the largest device.
fn many_groups() -> MemoryDevice {
    let shape = "-b 1024 -N 256 -I 128 -O ^metadata_csum,^uninit_bg,^resize_inode,sparse_super2";
    let device = base(&format!("{shape} -E num_backup_sb=0"));
    let groups: u64 = (1 << 29) - 1;
    let huge = MemoryDevice::new(1 << 48);
    huge.write_at(0, &bytes(&device, 0, 16 << 20)).expect("memory");
    change_superblock(&huge, |sb| {
        sb.s_blocks_per_group.set(256);
        sb.s_clusters_per_group.set(256);
        sb.s_inodes_per_group.set(8);
        sb.s_inodes_count.set((groups * 8) as u32);
        sb.set_blocks_count(groups * 256 + 1);
    });
    huge
}

/// A hundred thousand of them with sound descriptors.
fn too_many_groups() -> MemoryDevice {
    let device = many_groups();
    // They cover what stood there; the inodes of the system come along.
    let old = RawGroupDesc::read(&bytes(&device, 2048, 64), 64).expect("desc");
    let inodes = bytes(&device, old.inode_table().get() * BLOCK as u64, BLOCK);
    device.write_at(60_002 * BLOCK as u64, &inodes).expect("memory");
    let mut desc = RawGroupDesc::zeroed();
    for group in 0..100_000_u64 {
        let first = 60_000 + group * 256;
        desc.set_block_bitmap(BlockNo(first));
        desc.set_inode_bitmap(BlockNo(first + 1));
        desc.set_inode_table(BlockNo(first + 2));
        let mut slot = [0; 64];
        desc.write(&mut slot, 64);
        device.write_at(2048 + group * 64, &slot).expect("memory");
    }
    device
}

/// Writes a tree of depth 5 in which every node of a level is the same block.
fn exponential_tree(device: &MemoryDevice, map: &mut [u8; 60], first_block: u64) {
    let child = |depth: u16| BlockNo(first_block + u64::from(depth));
    for depth in 0..5 {
        let mut block = vec![0; BLOCK];
        if depth == 0 {
            let extents: Vec<Extent> = (0..84)
                .map(|n| Extent {
                    first: FileBlock(n),
                    len: 1,
                    start: BlockNo(first_block + 10 + u64::from(n)),
                    unwritten: false,
                })
                .collect();
            assert!(write_leaf(&mut block, &extents));
        } else {
            let children: Vec<ExtentIndex> = (0..84)
                .map(|n| ExtentIndex { first: FileBlock(n), child: child(depth - 1) })
                .collect();
            assert!(write_index(&mut block, depth, &children));
        }
        device.write_at(child(depth).get() * BLOCK as u64, &block).expect("memory");
    }
    let children: Vec<ExtentIndex> =
        (0..4).map(|n| ExtentIndex { first: FileBlock(n), child: child(4) }).collect();
    assert!(write_index(map, 5, &children));
}

fn journal_tree() -> MemoryDevice {
    let device = base(SHAPE);
    let mut map = [0; 60];
    exponential_tree(&device, &mut map, 15_000);
    change_inode(&device, Ino(8), |raw| raw.i_block = map);
    device
}

fn file_tree() -> MemoryDevice {
    let device = base(SHAPE);
    let mut map = [0; 60];
    exponential_tree(&device, &mut map, 15_000);
    change_inode(&device, number(&device, "f"), |raw| {
        raw.i_block = map;
        raw.set_size(1 << 30);
    });
    device
}

/// Indirect blocks of all levels that hold nothing but the number of the level below.
fn journal_map() -> MemoryDevice {
    let device = MemoryDevice::new(1 << 42);
    device.write_at(0, &bytes(&base(SHAPE), 0, 16 << 20)).expect("memory");
    for level in 0..3_u32 {
        let number = 9000 + level;
        let block: Vec<u8> = (0..BLOCK / 4).flat_map(|_| number.to_le_bytes()).collect();
        device.write_at(u64::from(9001 + level) * BLOCK as u64, &block).expect("memory");
    }
    change_inode(&device, Ino(8), |raw| {
        raw.set_flags(uext4_ondisk::InodeFlags::empty());
        raw.i_block = [0; 60];
        for slot in 0..15_u32 {
            let block = 9000 + slot.saturating_sub(11);
            let at = slot as usize * 4;
            raw.i_block[at..at + 4].copy_from_slice(&block.to_le_bytes());
        }
        raw.set_size(u64::from(u32::MAX) * BLOCK as u64);
    });
    // Enough groups for the size, all as the first one says.
    let blocks = 1_u64 << 26;
    change_superblock(&device, |sb| sb.set_blocks_count(blocks));
    let groups = blocks.div_ceil(8192);
    let per_group = bytes(&device, 1024 + 40, 4);
    let per_group = u32::from_le_bytes(per_group.try_into().expect("four"));
    change_superblock(&device, |sb| sb.s_inodes_count.set(per_group * groups as u32));
    device
}

fn sparse_block_map() -> MemoryDevice {
    let device = base(SHAPE);
    change_inode(&device, number(&device, "f"), |raw| {
        raw.set_flags(uext4_ondisk::InodeFlags::empty());
        raw.i_block = [0; 60];
        raw.set_size((1 << 42) - 4096);
    });
    device
}

fn seek_holes(volume: &Volume) {
    let root = volume.root().expect("root");
    let inode = volume.lookup(&root, b"f").expect("f");
    let file = volume.open_file(&inode).expect("open");
    let size = volume.attr(&inode).size;
    assert!(file.seek_data(0).is_err());
    assert_eq!(file.seek_hole(0).expect("hole"), 0);
    let mut end = [1; 100];
    assert_eq!(file.read_at(size - 50, &mut end).expect("read"), 50);
    assert!(end[..50].iter().all(|&byte| byte == 0));
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    let cut = volume.set_attr(&inode, &cut);
    assert!(cut.is_ok() || volume.read_only(), "{cut:?}");
}

fn orphan_circle() -> MemoryDevice {
    let device = base(SHAPE);
    let (f, g) = (number(&device, "f"), number(&device, "g"));
    change_inode(&device, f, |raw| raw.i_dtime.set(g.get()));
    change_inode(&device, g, |raw| raw.i_dtime.set(f.get()));
    change_superblock(&device, |sb| sb.s_last_orphan.set(f.get()));
    device
}

fn orphan_file() -> MemoryDevice {
    let device = base("-b 1024 -N 256 -O orphan_file");
    let anatomy = Anatomy::of(&device);
    let ino = number(&device, "f").get();
    for target in anatomy.targets.iter().filter(|t| matches!(t.seal, Seal::Orphan(..))) {
        let slots: Vec<u8> = (0..BLOCK / 4 - 2).flat_map(|_| ino.to_le_bytes()).collect();
        device.write_at(target.at, &slots).expect("memory");
        anatomy.seal(&device, target);
    }
    device
}

/// One block of names, mapped as often as the file system has blocks.
fn huge_directory() -> MemoryDevice {
    let device = base(SHAPE);
    let anatomy = Anatomy::of(&device);
    change_inode(&device, number(&device, "a"), |raw| {
        let mut block = BlockNo(0);
        if let Ok(node) = uext4_ondisk::extent::ExtentNode::parse(&raw.i_block, None, 0..u64::MAX) {
            block = node.extents().next().expect("block").start;
        }
        let extents = [Extent { first: FileBlock(0), len: 4000, start: block, unwritten: false }];
        assert!(write_leaf(&mut raw.i_block, &extents));
        raw.set_size(anatomy.layout.blocks_count * BLOCK as u64);
    });
    device
}

/// A dirty journal in which the superblock has an unknown feature.
fn replayed_features() -> MemoryDevice {
    let device = Arc::new(base(SHAPE));
    let volume = mount(&device);
    let root = volume.root().expect("root");
    volume.create(&root, b"new", &new(FileKind::Regular, 0o644)).expect("new");
    volume.sync().expect("sync");
    volume.abandon();
    drop(root);
    let device = device.snapshot();
    let anatomy = Anatomy::of(&device);
    let superblock =
        anatomy.targets.iter().filter(|t| matches!(t.seal, Seal::LogImage(_))).find(|target| {
            let image = bytes(&device, target.at, target.len);
            RawSuperblock::from_prefix(&image).is_some_and(|raw| raw.s_magic.get() == 0xef53)
        });
    let target = superblock.expect("the superblock is in the log");
    let mut image = bytes(&device, target.at, target.len);
    let raw = RawSuperblock::mut_from_prefix(&mut image).expect("superblock");
    raw.s_feature_incompat.set(raw.s_feature_incompat.get() | 1 << 30);
    device.write_at(target.at, &image).expect("memory");
    let shared: SharedDevice = Arc::new(device.snapshot());
    let error = Volume::open(shared, MountOptions::default()).expect_err("unknown feature");
    assert!(error.to_string().contains("FEATURE_I30"), "{error}");
    device
}
