//! Ranges taken out of files and put into them.
//!
//! Fault model: the power fails between any two requests to the device while a range is collapsed
//! or inserted, with all that was written before on the medium. Each state is recovered: the
//! checker finds nothing, and the file is as before or as after; where the shift takes several
//! handles it may also be shifted up to some block, with a hole behind that.
//! Besides: the same calls on the kernel's ext4, result by result and byte by byte.
//! Not covered: torn and reordered writes of the log (the crash harness has these for all
//! metadata).

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::{
    AllocateMode, Extent, FileBlock, FileKind, MountOptions, NewInode, OpenFile, Owner, Volume,
};
use uext4_device::{MemoryDevice, RecordingDevice, SharedDevice};
use uext4_sim::crash::{Checker, Judge};
use uext4_sim::format::ORDINARY;
use uext4_sim::mount::{KernelMount, why_no_loop};
use uext4_sim::oracle::image_folder;
use uext4_sim::run::{Shape, make};

const BLOCK: u64 = 1024;
const SHAPE: Shape =
    Shape { block_size: 1024, journal_mib: 1, image_mib: 16, features: "", format: &ORDINARY };
const NAME: &[u8] = b"f";

fn options() -> MountOptions {
    // Small neighbours are split off, so that files have as many extents as these tests want.
    MountOptions { extent_max_zeroout: 0, cache_bytes: 8 << 20, ..MountOptions::default() }
}

fn create(volume: &Volume) -> OpenFile {
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0o644,
        owner: Owner::default(),
        rdev: uext4::Device::default(),
    };
    let root = volume.root().unwrap();
    volume.open_file(&volume.create(&root, NAME, &new).unwrap()).unwrap()
}

/// Fills block `at` with its number, which is not 0.
fn block(at: u32) -> Vec<u8> {
    (at + 1).to_le_bytes().repeat(BLOCK as usize / 4)
}

/// The number in each block of the file; 0 where it is zero. A block of two minds is none.
fn numbers(volume: &Volume) -> Option<Vec<u32>> {
    let inode = volume.lookup(&volume.root().ok()?, NAME).ok()?;
    let mut bytes = vec![0; volume.attr(&inode).size as usize];
    let read = volume.open_file(&inode).ok()?.read_at(0, &mut bytes).ok()?;
    assert_eq!(read, bytes.len());
    bytes
        .chunks(BLOCK as usize)
        .map(|block| {
            let mut words = block.chunks(4);
            let first = words.next()?;
            words.all(|word| word == first).then(|| u32::from_le_bytes(first.try_into().unwrap()))
        })
        .collect()
}

/// A volume with a file of `blocks` blocks of which every `step`th is written, the others
/// unwritten.
fn build(blocks: u32, step: u32) -> (Arc<RecordingDevice>, Volume, OpenFile) {
    let device = Arc::new(RecordingDevice::over(make(&SHAPE, 3).unwrap()));
    let shared: SharedDevice = device.clone();
    let volume = Volume::open(shared, options()).unwrap();
    let file = create(&volume);
    let mode = AllocateMode::Allocate { keep_size: false };
    file.allocate(mode, 0, u64::from(blocks) * BLOCK).unwrap();
    for at in (0..blocks).step_by(step as usize) {
        file.write_at(u64::from(at) * BLOCK, &block(at)).unwrap();
    }
    volume.sync().unwrap();
    (device, volume, file)
}

/// A range of blocks that moves what is behind it.
#[derive(Clone, Copy, Debug)]
struct Range {
    mode: AllocateMode,
    first: u32,
    count: u32,
}

impl Range {
    fn collapse(first: u32, count: u32) -> Range {
        Range { mode: AllocateMode::CollapseRange, first, count }
    }

    fn insert(first: u32, count: u32) -> Range {
        Range { mode: AllocateMode::InsertRange, first, count }
    }

    fn apply(self, file: &OpenFile) {
        let (first, count) = (u64::from(self.first), u64::from(self.count));
        file.allocate(self.mode, first * BLOCK, count * BLOCK).unwrap();
    }

    fn after(self, old: &[u32]) -> Vec<u32> {
        let (first, count) = (self.first as usize, self.count as usize);
        let mut new = old.to_vec();
        match self.mode {
            AllocateMode::CollapseRange => drop(new.drain(first..first + count)),
            _ => drop(new.splice(first..first, vec![0; count])),
        }
        new
    }

    /// Whether `found` is `old` shifted up to (or from) some block, with a hole there.
    fn is_between(self, old: &[u32], found: &[u32]) -> bool {
        let (first, count) = (self.first as usize, self.count as usize);
        let after = self.after(old);
        let (low, high) = match self.mode {
            AllocateMode::CollapseRange => (&after[..], old),
            _ => (old, &after[..]),
        };
        found.len() == high.len()
            && (first..=low.len()).any(|at| {
                found[..at] == low[..at]
                    && found[at..at + count].iter().all(|&number| number == 0)
                    && found[at + count..] == high[at + count..]
            })
    }
}

/// Fails the power at every request while `range` is done; returns the states that were neither
/// before nor after.
fn crash(blocks: u32, step: u32, range: Range, in_parts: bool) -> usize {
    let (device, volume, file) = build(blocks, step);
    let old = numbers(&volume).unwrap();
    let from = device.recording().events().len();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if in_parts {
            // Commits between the handles.
            let (volume, done) = (&volume, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    volume.space().journal().commit_all().unwrap();
                }
            });
        }
        range.apply(&file);
        done.store(true, Ordering::Relaxed);
    });
    let new = numbers(&volume).unwrap();
    assert_eq!(new, range.after(&old), "{range:?}");
    volume.sync().unwrap();
    let recording = device.recording();
    drop(file);
    volume.abandon();

    let (mut between, mut shown_new) = (0, 0);
    for position in from..=recording.events().len() {
        let state = Arc::new(recording.prefix(position));
        let volume = Volume::open(state.clone(), options()).unwrap();
        let found = numbers(&volume).unwrap_or_else(|| panic!("{range:?} at {position}"));
        volume.close().unwrap();
        if found == new {
            shown_new += 1;
        } else if found != old {
            assert!(in_parts, "{range:?}: at {position} neither before nor after");
            // The range is punched before anything moves.
            let at = range.first as usize;
            let mut punched = old.clone();
            punched[at..at + range.count as usize].fill(0);
            let is_punch = found.len() == old.len()
                && found.iter().zip(&old).zip(&punched).all(|((f, o), p)| f == o || f == p);
            assert!(
                is_punch || range.is_between(&old, &found),
                "{range:?}: no shift of it at {position}"
            );
            between += 1;
        }
        let findings = Checker.findings(&state).unwrap();
        assert!(findings.is_empty(), "{range:?} at {position}: {findings:?}");
    }
    assert!(shown_new > 0, "{range:?}: never durable");
    between
}

#[test]
fn a_crash_shows_the_file_before_or_after() {
    for range in [
        Range::collapse(0, 7),
        Range::collapse(13, 3),
        Range::collapse(100, 2),
        Range::insert(0, 9),
        Range::insert(101, 1),
        Range::insert(58, 30),
    ] {
        // One extent; some; hundreds, in a tree of two levels.
        for step in [1, 40, 2] {
            let blocks = if step == 2 { 600 } else { 120 };
            assert_eq!(crash(blocks, step, range, false), 0);
        }
    }
}

#[test]
fn a_crash_in_the_middle_of_several_handles_shows_a_prefix_of_them() {
    let mut between = 0;
    for range in [Range::collapse(31, 50), Range::insert(33, 40)] {
        between += crash(12_000, 2, range, true);
    }
    println!("{between} states between the first handle and the last");
    assert!(between > 0, "the handles of a long shift were never seen one by one");
}

#[test]
fn what_was_one_extent_becomes_one_again() {
    let (_device, volume, file) = build(64, 1);
    let extents = |volume: &Volume| {
        let mut extents: Vec<Extent> = Vec::new();
        let inode = volume.lookup(&volume.root().unwrap(), NAME).unwrap();
        volume
            .extents(&inode, FileBlock(0), &mut |extent| {
                extents.push(extent);
                true
            })
            .unwrap();
        extents
    };
    let before = extents(&volume);
    Range::insert(20, 5).apply(&file);
    assert_eq!(extents(&volume).len(), before.len() + 1);
    assert_eq!(file.seek_hole(0).unwrap(), 20 * BLOCK);
    assert_eq!(file.seek_data(20 * BLOCK).unwrap(), 25 * BLOCK);
    Range::collapse(20, 5).apply(&file);
    assert_eq!(extents(&volume), before);
    drop(file);
    volume.close().unwrap();
}

#[test]
fn the_blocks_of_a_collapsed_range_come_back() {
    let (_device, volume, file) = build(400, 1);
    let free = volume.stat_fs().blocks_free;
    Range::collapse(10, 300).apply(&file);
    assert_eq!(volume.stat_fs().blocks_free, free + 300);
    drop(file);
    volume.close().unwrap();
}

/// One call in the same words for both sides: mode, offset, length.
fn calls(rng: &mut StdRng, size: u64) -> (AllocateMode, u64, u64) {
    let blocks = |bytes: u64| bytes / BLOCK * BLOCK;
    let at = rng.random_range(0..=size + 3 * BLOCK);
    let len = rng.random_range(0..20 * BLOCK);
    let (at, len) = match rng.random_range(0..12) {
        0 => (at, len),
        1 => (blocks(at), len),
        2 => (blocks(at), u64::MAX >> rng.random_range(1..24) & !(BLOCK - 1)),
        _ => (blocks(at), blocks(len).max(BLOCK)),
    };
    let mode = match rng.random_range(0..5) {
        0 | 1 => AllocateMode::CollapseRange,
        2 | 3 => AllocateMode::InsertRange,
        // The kernel refuses a punch past the largest file; here it is a punch to the end.
        _ => return (AllocateMode::PunchHole, at, len.clamp(1, 20 * BLOCK)),
    };
    (mode, at, len)
}

#[test]
fn the_kernel_does_the_same() {
    if let Some(why) = why_no_loop() {
        println!("skipped: {why}");
        return;
    }
    let folder = image_folder().unwrap();
    let image = folder.path().join("image");
    make(&SHAPE, 9).unwrap().save(&image).unwrap();
    let point = folder.path().join("mount");
    let kernel = KernelMount::start(&image, &point, false).unwrap();
    let theirs = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(point.join(std::str::from_utf8(NAME).unwrap()))
        .unwrap();
    let device: SharedDevice = Arc::new(make(&SHAPE, 9).unwrap());
    let volume = Volume::open(device, options()).unwrap();
    let ours = create(&volume);
    let mut rng = StdRng::seed_from_u64(17);
    let (mut done, mut refused) = (0, 0);
    for round in 0..600_u32 {
        let size = volume.attr(ours.inode()).size;
        if size < 60 * BLOCK {
            let bytes: Vec<u8> = (round..round + 40).flat_map(block).collect();
            let at = size + rng.random_range(0..5000);
            ours.write_at(at, &bytes).unwrap();
            theirs.write_all_at(&bytes, at).unwrap();
        }
        let (mode, at, len) = calls(&mut rng, size);
        let flags = match mode {
            AllocateMode::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
            AllocateMode::InsertRange => FallocateFlags::INSERT_RANGE,
            _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        let want = fallocate(&theirs, flags, at, len).map_err(|errno| errno.raw_os_error());
        let got = ours.allocate(mode, at, len).map_err(|error| error.errno());
        assert_eq!(got, want, "{round}: {mode:?} of {len} bytes at {at}, size {size}");
        if want.is_ok() {
            done += 1
        } else {
            refused += 1
        }
        let mut bytes = [Vec::new(), Vec::new()];
        bytes[0].resize(volume.attr(ours.inode()).size as usize, 0);
        bytes[1].resize(theirs.metadata().unwrap().len() as usize, 0);
        ours.read_at(0, &mut bytes[0]).unwrap();
        theirs.read_exact_at(&mut bytes[1], 0).unwrap();
        assert!(bytes[0] == bytes[1], "{round}: content differs after {mode:?} {len} at {at}");
    }
    println!("{done} calls done, {refused} refused");
    assert!(done > 100 && refused > 20);
    drop((theirs, ours));
    kernel.unmount().unwrap();
    volume.close().unwrap();
    let after = MemoryDevice::load(&image).unwrap();
    assert_eq!(Checker.findings(&after).unwrap(), Vec::<String>::new());
}
