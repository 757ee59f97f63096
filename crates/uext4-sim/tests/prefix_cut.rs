//! Recorded runs, cut at every flush: see `uext4_sim::crash` for the fault model.
//!
//! Each test is one shape of file system with fixed seeds; `cargo xtask crash` goes on from there.
//! Not covered: what `uext4_sim::crash` names, and what a run of this length does not reach.

use std::time::{Duration, Instant};
use uext4_sim::crash::{Effort, judge_run};
use uext4_sim::oracle::e2fsck;
use uext4_sim::plant::Plant;
use uext4_sim::run::{NEWER_FEATURES, Plan, Shape, record};

/// One shape must not take the suite's time; what is left out is printed.
const TIME: Duration = Duration::from_secs(20);

fn have_e2fsck() -> bool {
    let found = e2fsck().is_some();
    if !found {
        println!("skipped: e2fsck is not installed");
    }
    found
}

fn shape(block_size: u32, journal_mib: u32, features: &'static str) -> Shape {
    Shape { block_size, journal_mib, image_mib: 32, features }
}

fn check(shape: &Shape, seeds: &[u64]) {
    check_length(shape, seeds, 40, 0);
}

fn check_length(shape: &Shape, seeds: &[u64], operations: usize, places_max: usize) {
    if !have_e2fsck() {
        return;
    }
    let until = Some(Instant::now() + TIME);
    let effort = Effort { until, faults_max: 3, places_max, ..Effort::default() };
    for &seed in seeds {
        let plan = Plan { operations, ..Plan::with(seed, shape.clone()) };
        let run = record(&plan, Plant::None).unwrap_or_else(|error| panic!("{plan}: {error}"));
        let findings = judge_run(&run, seed, &effort).expect("the machinery works");
        println!("{plan}: {} states, {} places left out", findings.states, findings.left_out);
        for fault in &findings.faults {
            println!("{}: {}", fault.state, fault.what);
        }
        assert!(
            findings.faults.is_empty(),
            "{plan}: {} faults; more: cargo xtask crash --seed {seed} --shape {},{},{}",
            findings.faults.len(),
            shape.block_size,
            shape.journal_mib,
            shape.features,
        );
    }
}

#[test]
fn small_blocks_smallest_journal() {
    check(&shape(1024, 1, ""), &[1, 2, 8, 9]);
}

#[test]
fn small_blocks_smallest_journal_newer_features() {
    check(&shape(1024, 1, NEWER_FEATURES), &[3, 4, 10, 11]);
}

#[test]
fn small_blocks() {
    check(&shape(1024, 4, ""), &[5, 12, 13]);
}

#[test]
fn large_blocks_smallest_journal() {
    check(&shape(4096, 4, ""), &[6, 14, 15]);
}

#[test]
fn large_blocks_smallest_journal_newer_features() {
    check(&shape(4096, 4, NEWER_FEATURES), &[7, 16, 17]);
}

/// The smallest log is gone round several times: places all along it, not each.
#[test]
fn the_log_wraps() {
    check_length(&shape(1024, 1, ""), &[20], 500, 60);
    check_length(&shape(4096, 4, NEWER_FEATURES), &[21], 700, 60);
}

/// The test must find a device that answers flushes without doing them, and an fsync that does
/// nothing: else it would find no such fault of the engine either.
#[test]
fn planted_faults_are_found() {
    if !have_e2fsck() {
        return;
    }
    let effort = Effort { faults_max: 1, ..Effort::default() };
    for plant in [Plant::DroppedFlushes, Plant::SkippedSyncs] {
        let found = (100..110).any(|seed| {
            let mut plan = Plan::with(seed, shape(1024, 1, ""));
            plan.closes = false;
            let run = record(&plan, plant).expect("the run itself does not notice");
            !judge_run(&run, seed, &effort).expect("the machinery works").faults.is_empty()
        });
        assert!(found, "{plant:?} was not found");
    }
}
