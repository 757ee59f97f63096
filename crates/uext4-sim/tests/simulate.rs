//! The whole engine from one seed, in its short form: see docs/testing.md, Simulation.
//!
//! Fault model: every schedule of callers and the engine's threads that a seed draws, on a device
//! that is slow, fails for a moment or for good, and loses power with lost and torn writes. Run
//! with `--features simulate`; `cargo xtask test` does.

#![cfg(feature = "simulate")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use uext4::injected_faults::Fault;
use uext4::{MountOptions, Volume};
use uext4_device::MemoryDevice;
use uext4_schedule::{Order, Policy, Settings};
use uext4_sim::simulate::Case;
use uext4_sim::simulate::seed_campaign::{SeedCampaign, Workers};

fn workers() -> Workers {
    Workers { program: PathBuf::from(env!("CARGO_BIN_EXE_uext4-sim")) }
}

fn campaign(case: Case, seeds: u64) -> SeedCampaign {
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    SeedCampaign {
        workers: workers(),
        case,
        seeds: Some(seeds),
        time: None,
        operations: None,
        jobs,
    }
}

/// The same seed in three processes: one hash of every decision and every request.
#[test]
fn a_seed_gives_the_same_run_to_the_byte() {
    let mut traces = Vec::new();
    for seed in 1..=12 {
        let case = Case { seed, ..Case::default() };
        let runs: Vec<_> = (0..3).map(|_| workers().attempt(&case).unwrap()).collect();
        let (first, rest) = runs.split_first().unwrap();
        assert!(first.trace != 0, "seed {seed}: {:?}", first.faults);
        for again in rest {
            assert_eq!(again.trace, first.trace, "seed {seed}");
            assert_eq!(again.faults, first.faults, "seed {seed}");
        }
        traces.push(first.trace);
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 12, "different seeds gave the same run");
}

#[test]
fn seeds_run_without_a_fault() {
    let case = Case { seed: 1, ..Case::default() };
    let totals = campaign(case, 400).run().unwrap();
    if let Some((case, faults)) = totals.fault {
        panic!("cargo xtask simulate {case}\n{}", faults.join("\n"));
    }
    assert!(totals.operations > 100_000 && totals.cuts > 300, "{totals:?}");
}

/// Faults that are injected, each found within so many seeds.
const INJECTED: &[(Fault, u64)] = &[
    (Fault::WrongLinkCount, 200),
    (Fault::LooseNumber, 400),
    (Fault::OpenDoor, 400),
    (Fault::VisibleCreation, 400),
    (Fault::HastyDelete, 400),
    (Fault::HoardedPages, 400),
];

#[test]
fn injected_faults_are_found_and_replayed() {
    for &(fault, seeds) in INJECTED {
        let case = Case { seed: 1, fault: Some(fault), ..Case::default() };
        let time = Some(Duration::from_secs(600));
        let totals = SeedCampaign { time, ..campaign(case, seeds) }.run().unwrap();
        let Some((case, faults)) = totals.fault else {
            panic!("{fault:?} was not found in {} seeds", totals.seeds)
        };
        let again = workers().attempt(&case).unwrap();
        assert_eq!(again.faults, faults, "{case} ran in another way");
    }
}

/// A volume that was made read-only and stays open for an hour: its threads sleep. The flusher used
/// to wait for no time at all, again and again, once its first period was over.
#[test]
fn the_threads_of_a_volume_for_reading_sleep() {
    let settings = Settings {
        seed: 1,
        policy: Policy {
            order: Order::Random,
            mean: 1_000,
            preemptions_max: u64::MAX,
            stops: None,
        },
        step: Duration::from_micros(1),
        patience: Duration::from_secs(7_200),
        processors: 2,
    };
    let outcome = uext4_schedule::run(settings, || {
        let device = MemoryDevice::new(8 << 20);
        uext4_mkfs::format(&device, &uext4_mkfs::Options::default()).unwrap();
        let volume = Volume::open(Arc::new(device), MountOptions::default()).unwrap();
        volume.remount_read_only().unwrap();
        uext4_schedule::thread::sleep(Duration::from_secs(3_600));
        volume.close().unwrap();
    });
    outcome.result.unwrap();
    // Once in a second.
    assert!(outcome.switches < 20_000, "{} switches: {:?}", outcome.switches, outcome.waits);
}
