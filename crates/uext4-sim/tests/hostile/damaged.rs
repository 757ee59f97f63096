//! Metadata changed at random and sealed again.

use crate::child::{self, Watchdog};
use crate::common::have;
use crate::exercise::{Bounds, Found, Report, rewrite, walk};
use crate::population::{Base, SHAPES, bases};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::{MountOptions, Volume};
use uext4_device::{MemoryDevice, SharedDevice};
use uext4_sim::anatomy::Anatomy;
use uext4_sim::structure_damage::Mutator;

const CHILD: &str = "damaged::many_cases";
/// Cases of an ordinary run.
const CASES: u64 = 2000;
/// Time for one case, in a debug build on a busy machine.
const BOUND: Duration = Duration::from_secs(30);
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
    let bases: Vec<(Base, Anatomy)> = bases(&SHAPES)
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
        let mut mutator = Mutator::new(case);
        let (base, anatomy) = mutator.pick(&bases);
        let device = base.device.snapshot();
        let what = mutator.damage(&device, anatomy);
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
        if case % 4 == 1 {
            rewrite_together(&volume, found, &mut report);
        } else {
            rewrite(&volume, &found, BOUNDS, &mut report);
        }
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

/// Two threads at the same names from both ends. Their locks meet in any order that the image
/// suggests.
fn rewrite_together(volume: &Volume, mut found: Vec<Found>, report: &mut Report) {
    let mut other = Report::default();
    let mut reversed: Vec<Found> = found.iter().map(Found::again).collect();
    reversed.reverse();
    std::thread::scope(|scope| {
        scope.spawn(|| rewrite(volume, &reversed, BOUNDS, &mut other));
        rewrite(volume, &found, BOUNDS, report);
    });
    found.clear();
    report.errors += other.errors;
    report.internal.append(&mut other.internal);
}

fn open(device: &Arc<MemoryDevice>, report: &mut Report) -> Option<Volume> {
    let shared: SharedDevice = device.clone();
    let options = MountOptions { cache_bytes: 8 << 20, ..MountOptions::default() };
    report.note(Volume::open(shared, options))
}
