//! Nodes of extent trees on a full volume: what takes blocks away or converts them never lacks one.
//!
//! Fault model: no block left for data, neither for an ordinary user nor for root. Not covered: a
//! volume so full of nodes that the pool itself is used up.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::process::Command;
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, OpenFile, Result, Volume, as_user};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;

const BLOCK: u64 = 1024;
const STEPS: u64 = 500;
/// Blocks between two conversions: more than writeback zeroes and converts with one.
const APART: u64 = 70;

fn create(volume: &Volume, name: &str) -> OpenFile {
    let root = volume.root().unwrap();
    let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&inode).unwrap()
}

fn shuffled(count: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    all.shuffle(&mut StdRng::seed_from_u64(3));
    all
}

fn fill(volume: &Volume) -> OpenFile {
    let full = create(volume, "full");
    let mut len = 1 << 16;
    while len >= BLOCK {
        match full.append(&vec![9; len as usize]) {
            Ok((_, written)) if written as u64 == len => {}
            Ok(_) => len /= 2,
            Err(error) if *error.kind() == ErrorKind::NoSpace => len /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    full.sync(false).unwrap();
    // The reservation for the last pages was more than they needed.
    while full
        .allocate(
            AllocateMode::Allocate { keep_size: false },
            volume.attr(full.inode()).size,
            BLOCK,
        )
        .is_ok()
    {}
    full
}

/// How many of the steps found no space.
fn refused(step: impl Fn(u64) -> Result<()>) -> usize {
    let result = |n| match step(n) {
        Ok(()) => false,
        Err(error) if *error.kind() == ErrorKind::NoSpace => true,
        Err(error) => panic!("step {n}: {error}"),
    };
    shuffled(STEPS).into_iter().filter(|&n| result(n)).count()
}

fn on_a_full_volume(volume: &Volume) {
    let unwritten = create(volume, "unwritten");
    let grow = AllocateMode::Allocate { keep_size: false };
    unwritten.allocate(grow, 0, STEPS * APART * BLOCK).unwrap();
    let written: Vec<OpenFile> = (0..3).map(|n| create(volume, &format!("w{n}"))).collect();
    for file in &written {
        file.write_at(0, &vec![1; (3 * STEPS * BLOCK) as usize]).unwrap();
        file.sync(false).unwrap();
    }
    let full = fill(volume);
    let space = volume.stat_fs();
    assert_eq!(space.blocks_available, 0);
    println!("{} blocks free", space.blocks_free);
    // Nothing is freed by these, so each split takes from what is kept.
    let convert = |n: u64| {
        unwritten.write_at((n * APART + APART / 2) * BLOCK, &[2; BLOCK as usize])?;
        unwritten.sync(true)
    };
    let converted = refused(convert);
    let zeroed = refused(|n| {
        written[2].allocate(AllocateMode::ZeroRange { keep_size: true }, n * 3 * BLOCK, BLOCK)
    });
    let inserted =
        refused(|n| written[0].allocate(AllocateMode::InsertRange, n * 3 * BLOCK, BLOCK));
    let punched = refused(|n| written[1].allocate(AllocateMode::PunchHole, n * 3 * BLOCK, BLOCK));
    let collapsed =
        refused(|n| written[0].allocate(AllocateMode::CollapseRange, n * 2 * BLOCK, BLOCK));
    let all = [converted, zeroed, inserted, punched, collapsed];
    println!("refused: {all:?} conversions, zeroed ranges, inserts, punches, collapses");
    assert_eq!(all, [0; 5]);
    volume.sync().unwrap();
    drop(full);
}

#[test]
fn removal_and_conversion_find_nodes_on_a_full_volume() {
    if !have("mke2fs") {
        return;
    }
    for by_user in [true, false] {
        println!("{}", if by_user { "an ordinary user" } else { "root" });
        let reserved = if by_user { 5 } else { 0 };
        let device = Arc::new(mke2fs(64, &format!("-b 1024 -m {reserved} -J size=4")));
        let volume = mount(&device);
        if by_user {
            as_user(|| on_a_full_volume(&volume));
        } else {
            on_a_full_volume(&volume);
        }
        volume.close().unwrap();
        assert_clean(&device);
    }
}

/// Blocks, free ones and available ones, as the kernel tells them of an image; `None` without a
/// loop device.
fn kernel_counts(device: &MemoryDevice) -> Option<[u64; 3]> {
    let dir = tempfile::tempdir().unwrap();
    let (image, point) = (dir.path().join("image"), dir.path().join("point"));
    device.save(&image).unwrap();
    std::fs::create_dir(&point).unwrap();
    let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("skipped: no loop mount");
        return None;
    }
    let told = Command::new("stat").args(["-f", "-c", "%b %f %a"]).arg(&point).output().unwrap();
    assert!(Command::new("umount").arg(&point).status().unwrap().success());
    let told = String::from_utf8(told.stdout).unwrap();
    let counts: Vec<u64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
    Some([counts[0], counts[1], counts[2]])
}

/// statfs(2) tells what the kernel tells of the same image: available is what is free without
/// root's reserve and the pool. Volumes whose pool is a fiftieth, and the most it can be.
#[test]
fn statfs_tells_available_blocks_as_the_kernel_does() {
    if !have("mke2fs") {
        return;
    }
    for (mib, shape) in [(64, "-b 1024 -m 5"), (48, "-b 4096 -m 0"), (256, "-b 1024 -m 1")] {
        let device = Arc::new(mke2fs(mib, shape));
        let volume = mount(&device);
        let file = create(&volume, "f");
        file.write_at(0, &vec![1; 3 << 20]).unwrap();
        file.sync(false).unwrap();
        drop(file);
        volume.close().unwrap();
        let Some(kernel) = kernel_counts(&device) else { return };
        let volume = mount(&device);
        let ours = volume.stat_fs();
        volume.close().unwrap();
        assert_eq!([ours.blocks, ours.blocks_free, ours.blocks_available], kernel, "{shape}");
        println!("{shape}: {kernel:?}");
    }
}

/// Holes in a file on a full volume, by an ordinary user, and what each frees is written again at
/// once.
#[test]
fn holes_that_are_filled_again_by_other_files() {
    if !have("mke2fs") {
        return;
    }
    for (block, shape) in [(1024, "-b 1024"), (4096, "-b 4096")] {
        let device = Arc::new(mke2fs(64, &format!("{shape} -J size=4")));
        let volume = mount(&device);
        let refused = as_user(|| {
            let holed = create(&volume, "holed");
            holed.write_at(0, &vec![1; (STEPS * 3 * block) as usize]).unwrap();
            holed.sync(false).unwrap();
            let full = fill(&volume);
            let root = volume.root().unwrap();
            let mut refused = 0;
            for n in 0..STEPS {
                let punched = holed.allocate(AllocateMode::PunchHole, n * 3 * block, 2 * block);
                refused += u32::from(punched.is_err());
                // The directory may need a block that nobody has.
                let new = new(FileKind::Regular, 0o644);
                let Ok(inode) = volume.create(&root, format!("{n}").as_bytes(), &new) else {
                    continue;
                };
                let other = volume.open_file(&inode).unwrap();
                let _ = other.write_at(0, &vec![3; (2 * block) as usize]);
                let _ = other.flush();
            }
            drop(full);
            refused
        });
        assert_eq!(refused, 0, "{shape}");
        volume.close().unwrap();
        assert_clean(&device);
    }
}
