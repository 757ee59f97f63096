//! A loss of power while a file system grows.
//!
//! Fault model: the power fails at any moment. The medium then holds every write that a completed
//! flush promises, and of the others any subset, torn (`uext4_sim::crash`): all subsets of few
//! writes, else all, none and some at random. Each state must recover to a file system of the old
//! size, of the new one or of a step between, without findings of the checker, with the content
//! that was synced before. With a journal uext4 recovers each state, and e2fsck a part of them;
//! without one each that is not called clean is repaired by e2fsck.
//! Not covered: failing reads and writes.

mod common;

use common::{bytes, have, mke2fs, open, write_file};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use uext4::{MountOptions, Volume};
use uext4_device::{MemoryDevice, Recording, RecordingDevice, SharedDevice};
use uext4_ondisk::features::Features;
use uext4_ondisk::superblock::STATE_VALID;
use uext4_ondisk::{Compat, RawSuperblock};
use uext4_resize::{ResizeError, fitting_blocks, resize};
use uext4_sim::broken_syncs::FlushDropper;
use uext4_sim::crash::{Depth, each_state};
use uext4_sim::oracle::{Oracle, expect_clean, judge};

const CONTENT: usize = 300_000;
/// Every so many states e2fsck recovers as well.
const E2FSCK_EVERY: usize = 60;

/// A file system, and the size in KiB that it grows to.
struct Case(&'static str, u64, u64);

const CASES: &[Case] = &[
    // Within the last group; more groups; more descriptor blocks; more than are reserved.
    Case("-b 1024 -J size=1", 12 << 10, 13 << 10),
    Case("-b 1024 -J size=1", 20 << 10, 60 << 10),
    Case("-b 1024 -J size=2", 20 << 10, 400 << 10),
    Case("-b 1024 -J size=1 -E resize=40000", 16 << 10, 400 << 10),
    Case("-b 1024 -J size=1 -E resize=200000", 16 << 10, 400 << 10),
    Case("-b 1024 -J size=1 -O ^resize_inode", 20 << 10, 160 << 10),
    Case("-b 1024 -J size=1 -O ^resize_inode,meta_bg", 20 << 10, 160 << 10),
    Case("-b 1024 -J size=1 -O sparse_super2", 14 << 10, 60 << 10),
    Case("-b 4096 -J size=4", 100 << 10, 300 << 10),
    Case("-b 1024 -J size=1 -O bigalloc -C 4096", 20 << 10, 60 << 10),
    Case("-b 1024 -J size=1 -O ^metadata_csum,^uninit_bg", 20 << 10, 60 << 10),
    Case("-b 1024 -O ^has_journal", 12 << 10, 13 << 10),
    Case("-b 1024 -O ^has_journal", 20 << 10, 60 << 10),
    Case("-b 1024 -O ^has_journal", 20 << 10, 150 << 10),
    Case("-b 1024 -O ^has_journal,^metadata_csum", 20 << 10, 60 << 10),
    Case("-b 1024 -O ^has_journal,^resize_inode", 20 << 10, 160 << 10),
];

fn superblock(device: &MemoryDevice) -> RawSuperblock {
    let mut bytes = [0; 1024];
    uext4_device::Device::read_at(device, 1024, &mut bytes).expect("is read");
    RawSuperblock::from_prefix(&bytes).expect("is long enough")
}

/// An image with content, on a device with room for `kib` KiB.
fn image(dir: &Path, case: &Case) -> MemoryDevice {
    let path = dir.join("image");
    mke2fs(&path, case.1, case.0);
    let volume = open(&path).expect("opens");
    write_file(&volume, "content", CONTENT);
    volume.close().expect("closes");
    let file = std::fs::File::options().write(true).open(&path).expect("an image");
    file.set_len(case.2 << 10).expect("room");
    MemoryDevice::load(&path).expect("an image")
}

/// Grows an image. Returns the sizes that it may have, and what was written.
fn record(
    image: &MemoryDevice,
    kib: u64,
    device: impl Fn(Arc<RecordingDevice>) -> SharedDevice,
) -> (BTreeSet<u64>, Recording) {
    let sb = superblock(image);
    let recorder = Arc::new(RecordingDevice::over(image.snapshot()));
    let device = device(Arc::clone(&recorder));
    let blocks = (kib << 10) >> (10 + sb.s_log_block_size.get());
    let blocks = fitting_blocks(&sb, blocks).expect("it can grow");
    let open = || {
        let options = MountOptions { cache_bytes: 16 << 20, ..MountOptions::default() };
        Ok::<_, ResizeError>(Volume::open(Arc::clone(&device), options)?)
    };
    let report = resize(blocks, &mut { open }).expect("grows");
    assert_eq!(report.last().blocks, blocks);
    let sizes = report.steps.iter().map(|shape| shape.blocks);
    (sizes.chain([report.old.blocks]).collect(), recorder.recording())
}

/// What is wrong with a file system at rest; `Ok` has its size.
fn judge_at_rest(device: &MemoryDevice, sizes: &BTreeSet<u64>) -> Result<u64, String> {
    let options = uext4_fsck::Options { threads: 1, findings_max: 3 };
    let report = uext4_fsck::check(device, &options, &mut ()).map_err(|e| e.to_string())?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("checker: {finding}"));
    }
    let blocks = superblock(device).blocks_count();
    if !sizes.contains(&blocks) {
        return Err(format!("has {blocks} blocks, which is none of {sizes:?}"));
    }
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let shared: SharedDevice = Arc::new(device.snapshot());
    let volume = Volume::open(shared, options).map_err(|e| e.to_string())?;
    let root = volume.root().map_err(|e| e.to_string())?;
    let file = volume.lookup(&root, b"content").map_err(|e| e.to_string())?;
    let file = volume.open_file(&file).map_err(|e| e.to_string())?;
    let mut found = vec![0; CONTENT];
    file.read_at(0, &mut found).map_err(|e| e.to_string())?;
    if found == bytes("content", CONTENT) { Ok(blocks) } else { Err("other content".to_owned()) }
}

fn recover(state: &MemoryDevice, sizes: &BTreeSet<u64>) -> Result<u64, String> {
    let device = Arc::new(state.snapshot());
    let shared: SharedDevice = device.clone();
    let volume = Volume::open(shared, MountOptions::default()).map_err(|e| e.to_string())?;
    volume.close().map_err(|e| e.to_string())?;
    judge_at_rest(&device, sizes)
}

fn repair(oracle: &Oracle, state: &MemoryDevice, sizes: &BTreeSet<u64>) -> Result<u64, String> {
    let path = oracle.put(state, "state.img").map_err(|e| e.to_string())?;
    let verdict = judge(&path, "-fy").map_err(|e| e.to_string())?;
    if verdict.code > 1 {
        return Err(format!("e2fsck -fy: {}", verdict.text));
    }
    expect_clean(&path)?;
    judge_at_rest(&MemoryDevice::load(&path).map_err(|e| e.to_string())?, sizes)
}

/// States, the sizes that they came to, and faults.
#[derive(Default)]
struct Judged {
    states: usize,
    sizes: BTreeSet<u64>,
    faults: Vec<String>,
}

fn judge_all(
    image: &MemoryDevice,
    recording: &Recording,
    sizes: &BTreeSet<u64>,
    depth: Depth,
) -> Judged {
    let features = Features::of(&superblock(image));
    let has_journal = features.compat.contains(Compat::HAS_JOURNAL);
    let oracle = Oracle::new().expect("a folder");
    let mut judged = Judged::default();
    each_state(recording, depth, 7, &mut |state, name| {
        judged.states += 1;
        let mut results = Vec::new();
        if has_journal {
            results.push(recover(state, sizes));
        }
        // Without a journal the file system says of itself that it needs no repair.
        if !has_journal && superblock(state).s_state.get() & STATE_VALID != 0 {
            results.push(judge_at_rest(state, sizes));
        } else if !has_journal || judged.states % E2FSCK_EVERY == 0 {
            results.push(repair(&oracle, state, sizes));
        }
        for result in results {
            match result {
                Ok(blocks) => _ = judged.sizes.insert(blocks),
                Err(what) => judged.faults.push(format!("{name}: {what}")),
            }
        }
        judged.faults.len() < 3
    });
    judged
}

#[test]
fn a_loss_of_power_leaves_the_old_size_or_a_new_one() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    for case in CASES {
        let Case(words, from, to) = case;
        let image = image(dir.path(), case);
        let (sizes, recording) = record(&image, *to, |device| device);
        let without_journal = words.contains("^has_journal");
        let depth = match without_journal {
            true => Depth { exhaustive_max: 3, random: 1 },
            false => Depth { exhaustive_max: 5, random: 2 },
        };
        let judged = judge_all(&image, &recording, &sizes, depth);
        let what = format!("{words}, {from} to {to} KiB");
        println!("{what}: {} states, sizes {:?}", judged.states, judged.sizes);
        assert!(judged.faults.is_empty(), "{what}: {:#?}", judged.faults);
        // A recording that shows no size but one tests nothing.
        assert_eq!(judged.sizes, sizes, "{what}");
    }
}

/// The test must find a device that answers flushes without doing them: else it would not find a
/// flush that the growth lacks either.
#[test]
fn flushes_that_do_nothing_are_found() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let case = &CASES[1];
    let image = image(dir.path(), case);
    let (sizes, recording) =
        record(&image, case.2, |device| Arc::new(FlushDropper::new(device)) as SharedDevice);
    let depth = Depth { exhaustive_max: 5, random: 4 };
    let judged = judge_all(&image, &recording, &sizes, depth);
    println!("{} states: {:#?}", judged.states, judged.faults);
    assert!(!judged.faults.is_empty(), "nothing was found in {} states", judged.states);
}
