//! Directories with damaged blocks: errors, never a panic or an endless loop.
//!
//! Fault model: bytes of directory blocks changed at random in an image without checksums, which
//! would catch most of it. Not covered: damage outside the directory.

use super::name;
use crate::dir::{Insertion, is_empty, lookup, parent_entry, read};
use crate::extent;
use crate::extent::harness::{Folder, Harness, make_image};
use crate::inode::InodeRef;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::{BlockNo, FileBlock, FileKind, Ino};

/// Entries after which a reading is taken to be endless: the directories have far fewer.
const ENTRIES_MAX: usize = 100_000;

/// An image whose `/d` has many names, and that directory's inode and blocks.
struct Target {
    device: MemoryDevice,
    ino: Ino,
    blocks: Vec<BlockNo>,
}

fn prepare(folder: &Folder, args: &[&str], count: usize) -> Option<Target> {
    let image = make_image(folder, "16M", args)?;
    let mut harness = Harness::open(&image);
    let files = harness.files();
    let dir = harness.inode("d");
    for n in 0..count {
        harness.link(&dir, &name(n), files[n % 4]).unwrap();
    }
    let size = u32::try_from(dir.size()).unwrap() / harness.space.layout().block_size;
    let block = |at| extent::block_of(&dir, FileBlock(at)).unwrap();
    let blocks = (0..size).map(block).collect();
    let ino = dir.ino();
    drop(dir);
    harness.close_and_check();
    Some(Target { device: MemoryDevice::load(&image).unwrap(), ino, blocks })
}

fn damage(device: &MemoryDevice, block_size: u64, blocks: &[BlockNo], rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..6) {
        // The first block, and the starts of blocks, hold what steers the rest.
        let block = if rng.random_bool(0.4) { 0 } else { rng.random_range(0..blocks.len()) };
        let within = if rng.random_bool(0.5) { 48 } else { block_size };
        let at = blocks[block].get() * block_size + rng.random_range(0..within);
        let byte = match rng.random_range(0..4) {
            0 => 0,
            1 => 0xff,
            2 => rng.random_range(0..16),
            _ => rng.random(),
        };
        device.write_at(at, &[byte]).unwrap();
    }
}

/// Everything that can be done with a directory; whether reading it found the damage.
fn use_it(harness: &Harness, dir: &InodeRef, rng: &mut StdRng) -> bool {
    let _ = is_empty(dir);
    let _ = parent_entry(dir);
    let mut seen = 0;
    let mut cursor = 0;
    let result = read(dir, 0, &mut |entry| {
        assert!(entry.next > cursor, "cursors rise");
        cursor = entry.next;
        seen += 1;
        seen < ENTRIES_MAX
    });
    assert!(seen < ENTRIES_MAX, "the reading does not end");
    for _ in 0..10 {
        let name = name(rng.random_range(0..3_000));
        if let Ok(Some(entry)) = lookup(dir, &name) {
            let _ = harness.run(1, |handle| entry.remove(handle, dir));
        } else if let Ok(insertion) = Insertion::plan(dir, &name) {
            let _ = harness.run(insertion.credits(), |handle| {
                insertion.apply(handle, Ino(13), FileKind::Regular)
            });
        }
    }
    result.is_err()
}

fn survive(args: &[&str], count: usize, rounds: u64) {
    let folder = Folder::new();
    let Some(target) = prepare(&folder, args, count) else { return };
    let mut found = 0;
    for seed in 0..rounds {
        let mut rng = StdRng::seed_from_u64(seed);
        let damaged = target.device.snapshot();
        let harness = Harness::open_device(damaged, folder.path("image"));
        let block_size = u64::from(harness.space.layout().block_size);
        // Nothing of the directory is in memory yet.
        damage(&harness.device, block_size, &target.blocks, &mut rng);
        let dir = harness.inodes.get(target.ino).unwrap();
        found += u64::from(use_it(&harness, &dir, &mut rng));
        drop(dir);
        let _ = harness.journal.close();
    }
    assert!(found > rounds / 10, "the damage was met {found} times in {rounds} rounds");
}

#[test]
fn damaged_linear_directories_are_survived() {
    survive(&["-b", "1024", "-O", "^metadata_csum,^dir_index"], 60, 150);
    survive(&["-b", "1024", "-O", "^metadata_csum"], 10, 150);
}

#[test]
fn damaged_trees_are_survived() {
    survive(&["-b", "1024", "-O", "^metadata_csum"], 400, 300);
    survive(&["-b", "1024", "-O", "^metadata_csum,large_dir"], 3_000, 200);
}
