//! Preallocation for streams: what they hold, where their blocks are, and when it is discarded.
//!
//! Fault model: no free block; a crash whose device has everything written so far. The extent lists
//! show the layout, e2fsck checks the image. Not covered: speed.

mod common;

use common::{assert_clean, have, mke2fs, mount, mount_with, new};
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, InodeRef, MountOptions, OpenFile, SetAttr, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{FileBlock, FileKind};

const GROW: AllocateMode = AllocateMode::Allocate { keep_size: false };

fn create(volume: &Volume, dir: &InodeRef, name: &str) -> OpenFile {
    let inode = volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&inode).unwrap()
}

fn extents(volume: &Volume, inode: &InodeRef) -> Vec<Extent> {
    let mut all = Vec::new();
    volume
        .extents(inode, FileBlock(0), &mut |extent| {
            all.push(extent);
            true
        })
        .unwrap();
    all
}

/// Number of contiguous pieces on the device.
fn pieces(volume: &Volume, inode: &InodeRef) -> usize {
    let all = extents(volume, inode);
    let goes_on = |w: &[Extent]| w[0].start.plus(u64::from(w[0].len)) == w[1].start;
    all.len() - all.windows(2).filter(|w| goes_on(w)).count()
}

fn cut(volume: &Volume, file: &OpenFile) {
    cut_to(volume, file, 0);
}

fn cut_to(volume: &Volume, file: &OpenFile, size: u64) {
    volume.set_attr(file.inode(), &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

fn free_blocks(volume: &Volume) -> u64 {
    volume.stat_fs().blocks_free
}

fn options(words: &str) -> MountOptions {
    let mut options = MountOptions::default();
    words.split_whitespace().for_each(|word| options.parse(word).unwrap());
    options
}

fn finish(volume: Volume, device: &MemoryDevice) {
    volume.close().unwrap();
    assert_clean(device);
}

/// Grows files side by side until the volume is nearly full. Returns the most pieces of one file.
fn side_by_side(words: &str, append: impl Fn(&OpenFile, u64)) -> usize {
    let device = Arc::new(mke2fs(192, "-b 4096 -m 0 -J size=8"));
    let volume = mount_with(&device, options(words));
    let root = volume.root().unwrap();
    let files: Vec<OpenFile> = (0..8).map(|n| create(&volume, &root, &format!("f{n}"))).collect();
    // Eight files of 18 MiB in 175: they meet.
    for n in 0..18 * 256 / 2 {
        files.iter().for_each(|file| append(file, n * 8192));
    }
    files.iter().for_each(|file| file.sync(false).unwrap());
    let most = files.iter().map(|file| pieces(&volume, file.inode())).max().unwrap();
    drop((files, root));
    // But for what small files of the two groups share.
    assert!(volume.space().preallocation_stats().held <= 2, "closed files hold nothing");
    finish(volume, &device);
    most
}

#[test]
fn concurrent_appenders_get_few_pieces() {
    if !have("mke2fs") {
        return;
    }
    let allocate = |file: &OpenFile, at: u64| file.allocate(GROW, at, 8192).unwrap();
    let write = |file: &OpenFile, at: u64| {
        file.write_at(at, &[7; 8192]).unwrap();
        if at.is_multiple_of(64 * 8192) {
            file.sync(true).unwrap();
        }
    };
    let (held, bare) = (side_by_side("", allocate), side_by_side("mb_reserve=off", allocate));
    println!("fallocate: {held} pieces, {bare} without preallocation");
    assert!(held <= 20, "{held} pieces of 18 MiB");
    assert!(bare > 4 * held, "without preallocation there are only {bare} pieces");
    let written = side_by_side("", write);
    println!("written: {written} pieces");
    assert!(written <= 20, "{written} pieces of 18 MiB");
}

/// A file gets the last block while other files hold preallocations: by fallocate, and by writing.
#[test]
fn preallocations_are_discarded_before_an_allocation_fails() {
    if !have("mke2fs") {
        return;
    }
    for written in [false, true] {
        let device = Arc::new(mke2fs(64, "-b 1024 -m 0 -g 8192"));
        let volume = mount(&device);
        let root = volume.root().unwrap();
        let holders: Vec<OpenFile> =
            (0..40).map(|n| create(&volume, &root, &format!("f{n}"))).collect();
        for (n, holder) in (0..).zip(&holders) {
            (0..4).for_each(|i| holder.allocate(GROW, i * 20 * 1024, 20 * 1024).unwrap());
            assert!(
                volume.space().preallocation_stats().held > n,
                "an open file that grows holds a preallocation"
            );
        }
        let full = create(&volume, &root, "full");
        let mut at = 0;
        let error = loop {
            let done = match written {
                true => full.write_at(at, &[1; 1024]).map(drop),
                false => full.allocate(GROW, at, 1024),
            };
            match done {
                Ok(()) => at += 1024,
                Err(error) => break error,
            }
        };
        assert_eq!(*error.kind(), ErrorKind::NoSpace);
        // A page that is written reserves itself and five nodes of its tree. What is set aside for
        // nodes is not available.
        let left = volume.stat_fs().blocks_available;
        assert!(left <= if written { 5 } else { 0 }, "{left} blocks were left unused");
        assert!(volume.space().preallocation_stats().discarded > 0);
        full.sync(false).unwrap();
        // Nobody took what others have: they go on once there is space.
        cut(&volume, &full);
        holders.iter().for_each(|file| file.allocate(GROW, 80 * 1024, 20 * 1024).unwrap());
        drop((holders, full, root));
        finish(volume, &device);
    }
}

#[test]
fn statfs_counts_preallocated_blocks_as_free() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let file = create(&volume, &root, "f");
    let before = free_blocks(&volume);
    for n in 0..10 {
        file.allocate(GROW, n * 4096, 4096).unwrap();
        assert_eq!(free_blocks(&volume), before - n - 1);
    }
    assert_eq!(volume.space().preallocation_stats().held, 1);
    let second = volume.open_file(file.inode()).unwrap();
    drop(file);
    assert_eq!(volume.space().preallocation_stats().held, 1, "it is still open");
    drop(second);
    assert_eq!((volume.space().preallocation_stats().held, free_blocks(&volume)), (0, before - 10));
    // What is written back after the last close holds nothing.
    let late = create(&volume, &root, "late");
    late.write_at(0, &[1; 100 << 10]).unwrap();
    drop(late);
    volume.sync().unwrap();
    assert_eq!(volume.space().preallocation_stats().held, 0);
    drop(root);
    finish(volume, &device);
}

/// Two threads write small files of two directories in different groups, alternately. The files of
/// a directory are close together.
#[test]
fn small_files_of_a_directory_are_close_together() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(128, "-b 1024 -g 8192 -O ^flex_bg"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let dir = |n| {
        let name = format!("d{n}");
        volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap()
    };
    let group = |dir: &InodeRef| volume.layout().group_of_ino(dir.ino()).unwrap().0;
    let first = dir(0);
    let other = (1..64).map(dir).find(|dir| group(dir) != group(&first)).unwrap();
    let dirs = [first, other];
    std::thread::scope(|scope| {
        for thread in 0..2_usize {
            let (volume, dirs) = (&volume, &dirs);
            scope.spawn(move || {
                for n in 0..200_usize {
                    let file = create(volume, &dirs[(n + thread) % 2], &format!("{thread}-{n}"));
                    file.write_at(0, &vec![3; 1024 * (1 + n % 3)]).unwrap();
                    if n.is_multiple_of(16) {
                        file.sync(true).unwrap();
                    }
                }
            });
        }
    });
    volume.sync().unwrap();
    for dir in &dirs {
        let mut starts = Vec::new();
        for entry in ["0", "1"].iter().flat_map(|t| (0..200).map(move |n| format!("{t}-{n}"))) {
            let Ok(inode) = volume.lookup(dir, entry.as_bytes()) else { continue };
            starts.push(extents(&volume, &inode)[0].start.get());
        }
        assert_eq!(starts.len(), 200);
        starts.sort_unstable();
        let mean = (starts[199] - starts[0]) / 199;
        println!("mean distance {mean} blocks");
        assert!(mean <= 3, "files of 1 to 3 blocks lie {mean} blocks apart");
    }
    drop((dirs, root));
    finish(volume, &device);
}

/// Blocks that a transaction allocates and frees are allocated again. A file that is appended to
/// and truncated hundreds of times needs no other blocks, no commit, and no memory for waiting
/// frees.
#[test]
fn append_and_truncate_reuse_the_same_blocks() {
    if !have("mke2fs") {
        return;
    }
    // Small groups, so that the file lies in several.
    for groups in ["-g 1024", "-g 8192"] {
        let device = Arc::new(mke2fs(16, &format!("-b 1024 -m 0 -J size=4 {groups}")));
        let volume = mount_with(&device, options("commit=300"));
        let root = volume.root().unwrap();
        // Each begins somewhere else.
        let files: Vec<OpenFile> =
            (0..10).map(|n| create(&volume, &root, &format!("f{n}"))).collect();
        let before = free_blocks(&volume);
        for file in files.iter().cycle().take(300) {
            (0..192).for_each(|n| file.allocate(GROW, n * 8192, 8192).unwrap());
            cut(&volume, file);
            assert_eq!(free_blocks(&volume), before);
        }
        let recycled = volume.space().preallocation_stats().recycled_blocks;
        assert!(recycled > 440_000, "only {recycled} of 460,800 blocks went round");
        drop((files, root));
        finish(volume, &device);
    }
}

/// Blocks that are freed in the transaction that allocated them are kept for the blocks of the file
/// that they were, and the tail of the stream is kept for the stream.
#[test]
fn recycled_blocks_keep_their_place_in_the_file() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024 -m 0"));
    let volume = mount_with(&device, options("commit=300"));
    let root = volume.root().unwrap();
    let blocks = |n: u64| n * 1024;
    // A punch in the middle of a file that goes on at its end.
    let punched = create(&volume, &root, "punched");
    for n in 0..5 {
        punched.allocate(GROW, blocks(4 * n), blocks(4)).unwrap();
    }
    punched.allocate(AllocateMode::PunchHole, blocks(4), blocks(4)).unwrap();
    punched.allocate(GROW, blocks(20), blocks(4)).unwrap();
    punched.allocate(GROW, blocks(4), blocks(4)).unwrap();
    let all = extents(&volume, punched.inode());
    assert_eq!(all.iter().map(|extent| extent.len).sum::<u32>(), 24);
    assert_eq!(pieces(&volume, punched.inode()), 1, "{all:?}");
    // A cut of several extents that continue each other: two of data, in different states.
    let one_piece = |n| {
        let file = create(&volume, &root, &format!("cut{n}"));
        file.allocate(GROW, 0, blocks(96)).unwrap();
        (extents(&volume, file.inode()).len() == 1).then_some(file)
    };
    let file = (0..20).find_map(one_piece).expect("there is room");
    cut(&volume, &file);
    file.allocate(GROW, 0, blocks(96)).unwrap();
    file.write_at(0, &[7; 4096]).unwrap();
    // Of a file that was cut to nothing it writes the data, without a commit.
    file.flush().unwrap();
    let before = extents(&volume, file.inode());
    assert_eq!(before.len(), 2, "written and unwritten");
    cut(&volume, &file);
    file.allocate(GROW, 0, blocks(96)).unwrap();
    let after = extents(&volume, file.inode());
    assert_eq!((after[0].start, pieces(&volume, file.inode())), (before[0].start, 1));
    // A cut that leaves some.
    cut_to(&volume, &file, blocks(6));
    file.allocate(GROW, blocks(6), blocks(12)).unwrap();
    assert_eq!(pieces(&volume, file.inode()), 1);
    drop((file, punched));
    assert_eq!(volume.space().preallocation_stats().held, 0, "recycled blocks are released");
    drop(root);
    finish(volume, &device);
}

/// A crash while blocks of an earlier transaction are freed, but not durably: the file has its
/// synced content, whatever was written since.
#[test]
fn blocks_of_an_earlier_transaction_are_not_recycled() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024"));
    let volume = mount_with(&device, options("commit=300"));
    let root = volume.root().unwrap();
    let file = create(&volume, &root, "f");
    let old = vec![b'o'; 64 << 10];
    file.allocate(GROW, 0, old.len() as u64).unwrap();
    file.write_at(0, &old).unwrap();
    file.sync(false).unwrap();
    volume.sync().unwrap();
    cut(&volume, &file);
    file.allocate(GROW, 0, old.len() as u64).unwrap();
    file.write_at(0, &vec![b'n'; old.len()]).unwrap();
    // Written and mapped as at close(2), and not committed.
    file.flush().unwrap();
    let crashed = Arc::new(device.snapshot());
    let recovered = mount(&crashed);
    let inode = recovered.lookup(&recovered.root().unwrap(), b"f").unwrap();
    let mut read = vec![0; old.len()];
    let len = recovered.open_file(&inode).unwrap().read_at(0, &mut read).unwrap();
    assert!(len == old.len() && read == old, "the synced file is not there after the crash");
    drop(inode);
    finish(recovered, &crashed);
    drop((file, root));
    finish(volume, &device);
}
