//! Metadata changed at random and sealed again.

use crate::child::{self, Watchdog};
use crate::common::have;
use crate::exercise::{Bounds, Report, rewrite, walk};
use crate::population::{Base, bases};
use crate::random::Random;
use crate::targets::{Anatomy, Seal, Target, bytes};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::{MountOptions, Volume};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_ondisk::dir_entry::DirBlock;

const CHILD: &str = "mutate::many_cases";
/// Cases of an ordinary run.
const CASES: u64 = 600;
/// Time for one case, in a debug build on a busy machine.
const BOUND: Duration = Duration::from_secs(20);
/// Peak of resident memory over all cases, the images included, in MiB.
const MEMORY_MIB: u64 = 256;
/// Failures after which a run stops.
const FAILURES_MAX: usize = 400;

const BOUNDS: Bounds =
    Bounds { inodes: 600, entries_per_directory: 800, bytes_per_file: 1 << 18, changes: 45 };

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn damaged_and_sealed_metadata_is_survived() {
    if !have("mke2fs") {
        return;
    }
    let cases = number("UEXT4_HOSTILE_CASES", CASES);
    let seed = number("UEXT4_HOSTILE_SEED", 1);
    let bound = Duration::from_secs(120 + cases);
    let outcome = child::run(CHILD, &format!("{cases} {seed}"), bound);
    let summary = outcome.output.lines().find(|line| line.starts_with("CASES"));
    println!("{}", summary.unwrap_or("no report"));
    assert!(outcome.success && summary.is_some(), "{}", outcome.output);
}

/// The child's part.
#[test]
fn many_cases() {
    let Some(argument) = child::task(CHILD) else { return };
    let (cases, seed) = argument.split_once(' ').expect("cases and seed");
    let (cases, seed): (u64, u64) = (cases.parse().expect("cases"), seed.parse().expect("seed"));
    let bases: Vec<(Base, Anatomy)> = bases()
        .into_iter()
        .map(|base| {
            let anatomy = Anatomy::of(&base.device);
            (base, anatomy)
        })
        .collect();
    child::catch_panics();
    child::reset_peak();
    let dog = Watchdog::start(BOUND);
    let mut failures = Vec::new();
    let mut tally = Tally::default();
    let started = Instant::now();
    for case in seed..seed + cases {
        let mut random = Random::new(case);
        let (base, anatomy) = random.pick(&bases);
        let device = base.device.snapshot();
        let what = damage(&device, anatomy, &mut random);
        let name = format!("case {case} ({}): {what}", base.name);
        let result = dog.watch(name.clone(), || {
            catch_unwind(AssertUnwindSafe(|| survive(device, case, &mut tally)))
        });
        let internal = result.unwrap_or_default();
        let panics = child::take_panics();
        if !panics.is_empty() || !internal.is_empty() {
            println!("FAILED {name}\n  {panics:?}\n  {internal:?}");
            failures.push(case);
        }
        if failures.len() >= FAILURES_MAX {
            break;
        }
    }
    let peak = child::status_kib("VmHWM:");
    println!(
        "\nCASES {cases} from {seed}: {} failed, {:?}, slowest {} ms, peak {peak} KiB, {tally:?}",
        failures.len(),
        started.elapsed(),
        dog.slowest_ms(),
    );
    assert!(failures.is_empty(), "failed cases: {failures:?}");
    assert!(peak < MEMORY_MIB * 1024, "peak of {peak} KiB");
}

/// How far the cases came: a run in which nothing opens tests nothing.
#[derive(Debug, Default)]
struct Tally {
    opened_ro: u64,
    opened_rw: u64,
    errors: u64,
    aborted: u64,
}

fn survive(device: MemoryDevice, case: u64, tally: &mut Tally) -> Vec<String> {
    let mut report = Report::default();
    let shared: SharedDevice = Arc::new(device.snapshot());
    let options = MountOptions { read_only: true, cache_bytes: 8 << 20, ..MountOptions::default() };
    if let Some(volume) = report.note(Volume::open(shared, options)) {
        tally.opened_ro += 1;
        drop(walk(&volume, BOUNDS, &mut report));
        report.note(volume.close());
    }
    let device = Arc::new(device);
    if let Some(volume) = open(&device, &mut report) {
        tally.opened_rw += 1;
        let found = walk(&volume, BOUNDS, &mut report);
        rewrite(&volume, &found, BOUNDS, &mut report);
        drop(found);
        report.note(volume.delete_unlinked());
        tally.aborted += u64::from(volume.space().journal().is_aborted());
        if case.is_multiple_of(4) {
            volume.abandon();
        } else {
            report.note(volume.close());
        }
        if let Some(volume) = open(&device, &mut report) {
            drop(walk(&volume, BOUNDS, &mut report));
            report.note(volume.close());
        }
    }
    tally.errors += u64::from(report.errors > 0);
    report.internal
}

fn open(device: &Arc<MemoryDevice>, report: &mut Report) -> Option<Volume> {
    let shared: SharedDevice = device.clone();
    let options = MountOptions { cache_bytes: 8 << 20, ..MountOptions::default() };
    report.note(Volume::open(shared, options))
}

/// Changes a few structures; says which.
fn damage(device: &MemoryDevice, anatomy: &Anatomy, random: &mut Random) -> String {
    let mut what = Vec::new();
    for _ in 0..1 + random.below(3) {
        let target = choose(anatomy, random);
        match target.seal {
            Seal::DirLeaf(_) if random.one_in(2) => redirect(device, anatomy, target, random),
            _ if random.one_in(4) => transplant(device, anatomy, target, random),
            _ => change_fields(device, anatomy, target, random),
        }
        anatomy.seal(device, target);
        what.push(format!("{:?} at {:#x}", target.seal, target.at));
    }
    what.join(", ")
}

/// Every sort of structure is as likely as every other, however many there are of it.
fn choose<'a>(anatomy: &'a Anatomy, random: &mut Random) -> &'a Target {
    let mut sorts: BTreeMap<u8, Vec<&Target>> = BTreeMap::new();
    for target in &anatomy.targets {
        sorts.entry(sort_of(target.seal)).or_default().push(target);
    }
    let sorts: Vec<Vec<&Target>> = sorts.into_values().collect();
    let sort = random.pick(&sorts);
    random.pick::<&Target>(sort)
}

fn sort_of(seal: Seal) -> u8 {
    match seal {
        Seal::Superblock => 0,
        Seal::Desc(_) => 1,
        Seal::BlockBitmap(_) => 2,
        Seal::InodeBitmap(_) => 3,
        Seal::Inode(_) => 4,
        Seal::Extent(_) => 5,
        Seal::DirLeaf(_) => 6,
        Seal::DirIndex(_) => 7,
        Seal::Xattr(_) => 8,
        Seal::Orphan(..) => 9,
        Seal::JournalSuperblock => 10,
        Seal::LogBlock => 11,
        Seal::LogImage(_) => 12,
        Seal::None => 13,
    }
}

/// Gives fields of two or four bytes values that are often just wrong enough.
fn change_fields(device: &MemoryDevice, anatomy: &Anatomy, target: &Target, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        // What steers a structure stands at its start.
        let range = if random.one_in(2) { target.used.min(160) } else { target.used };
        let width = *random.pick(&[1, 2, 2, 4, 4, 4]);
        let at = target.at + (random.below(range) / width * width) as u64;
        let old = bytes(device, at, width);
        let mut word = [0; 4];
        word[..old.len()].copy_from_slice(&old);
        let old = u32::from_le_bytes(word);
        let new = match random.below(12) {
            0 => 0,
            1 => u32::MAX,
            2 => old.wrapping_add(1),
            3 => old.wrapping_sub(1),
            4 => 1 << random.below(32),
            5 => old ^ (1 << random.below(32)),
            6 => random.below(64) as u32,
            7 => u32::try_from(anatomy.layout.blocks_count).unwrap_or(u32::MAX),
            8 => random.below(anatomy.layout.blocks_count as usize) as u32,
            9 => random.pick(&anatomy.inodes).get(),
            10 => old.swap_bytes(),
            _ => random.any() as u32,
        };
        let _ = device.write_at(at, &new.to_le_bytes()[..width]);
    }
}

/// Copies a part of another structure of the same sort: blocks and names with two owners.
fn transplant(device: &MemoryDevice, anatomy: &Anatomy, target: &Target, random: &mut Random) {
    let sort = sort_of(target.seal);
    let others: Vec<&Target> =
        anatomy.targets.iter().filter(|t| sort_of(t.seal) == sort && t.len == target.len).collect();
    let other = random.pick(&others);
    let ranges = [(40, 60), (0, 128), (0, target.len), (12, 12), (100, 4), (0, 40)];
    let &(from, len) = random.pick(&ranges);
    if from < target.len {
        let part = bytes(device, other.at + from as u64, len.min(target.len - from));
        device.write_at(target.at + from as u64, &part).expect("memory");
    }
}

/// Points names to other inodes: loops, hard links to directories, reserved and free inodes.
fn redirect(device: &MemoryDevice, anatomy: &Anatomy, target: &Target, random: &mut Random) {
    let block = bytes(device, target.at, target.len);
    let offsets: Vec<u32> =
        DirBlock::new(&block).live().map_while(|entry| entry.ok().map(|e| e.offset)).collect();
    for _ in 0..3 {
        let Some(&offset) = offsets.get(random.below(offsets.len())) else { return };
        let ino = match random.below(6) {
            0 => random.below(14) as u32,
            1 => random.below(anatomy.layout.inodes_count as usize + 2) as u32,
            _ => random.pick(&anatomy.inodes).get(),
        };
        device.write_at(target.at + u64::from(offset), &ino.to_le_bytes()).expect("memory");
    }
}
