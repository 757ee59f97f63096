//! Injected faults for each harness, which must find them: a harness that finds none of these finds
//! nothing.
//!
//! Run with `--features injected-faults`; `cargo xtask test` does. Faults that are injected outside
//! the engine (a device that skips flushes, syncs that do nothing) stand beside the harness that
//! finds them.

#![cfg(feature = "injected-faults")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uext4::injected_faults::{Fault, inject};
use uext4::{MountOptions, Volume};
use uext4_device::{self as device, FaultPlan, Operation, Times};
use uext4_sim::bit_flips;
use uext4_sim::broken_syncs::BrokenSyncs;
use uext4_sim::category::Category;
use uext4_sim::crash::unjournaled;
use uext4_sim::crash::{Checker, Depth, Effort, Samples, campaign, judge_recovered, judge_run};
use uext4_sim::format::{Format, FormatName, ORDINARY};
use uext4_sim::reference::{self, At, Reference, Step};
use uext4_sim::run::{Shape, make, record, run_failing};

/// A fault is injected into the whole process: tests run one after the other.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Injects a fault while `work` runs.
fn with<T>(fault: Fault, work: impl FnOnce() -> T) -> T {
    inject(Some(fault));
    let done = work();
    inject(None);
    done
}

/// The first seed whose run, with the fault, gives a state that fails; and what fails.
fn first_found(
    format: &'static Format,
    fault: Fault,
    categories: &[Category],
    seeds: u64,
) -> Option<String> {
    let effort = Effort {
        faults_max: 1,
        states_max: 1_500,
        depth: Depth { exhaustive_max: 6, random: 2 },
        close_every: 1,
        samples: Samples::default(),
        ..Effort::default()
    };
    for seed in 1..=seeds {
        for &category in categories {
            let plan = campaign::plan_on(format, category, seed);
            let run = match with(fault, || record(&plan, BrokenSyncs::None)) {
                Ok(run) => run,
                Err(error) => return Some(format!("{category} seed {seed}: {error}")),
            };
            let judged = judge_run(&run, seed, &Checker, &effort).expect("the machinery works");
            if let Some((state, what)) = judged.faults.first() {
                return Some(format!("{category} seed {seed}: {state}: {what}"));
            }
        }
    }
    None
}

/// What hangs on the order of threads is found in one seed of eight.
const SEEDS: u64 = 96;

fn must_find(fault: Fault, categories: &[Category]) {
    must_find_on(&ORDINARY, fault, categories);
}

fn must_find_on(format: &'static Format, fault: Fault, categories: &[Category]) {
    let _alone = one_at_a_time();
    let found = first_found(format, fault, categories, SEEDS);
    println!("{fault:?}: {}", found.as_deref().unwrap_or("not found"));
    assert!(found.is_some(), "{fault:?} was not found");
}

#[test]
fn a_skipped_barrier() {
    must_find(Fault::SkippedBarrier, &[Category::ReplaceSynced, Category::Append]);
}

/// With the journal on a device of its own: commits that flush that device alone.
#[test]
fn a_skipped_flush_of_the_data_device() {
    let FormatName(format) = "external".parse().expect("a form");
    must_find_on(format, Fault::SkippedDataFlush, &[Category::ReplaceSynced, Category::Append]);
}

#[test]
fn a_skipped_barrier_without_a_journal() {
    let _alone = one_at_a_time();
    if uext4_sim::oracle::e2fsck().is_none() {
        return;
    }
    let depth = Depth { exhaustive_max: 4, random: 2 };
    let found = (1..=5).any(|seed| {
        let work = || unjournaled::judge_run("^has_journal", seed, depth, 200, None);
        !with(Fault::SkippedBarrier, work).expect("the machinery works").faults.is_empty()
    });
    assert!(found, "a sync that does not flush is not found");
}

#[test]
fn a_block_left_out_of_a_transaction() {
    must_find(Fault::MissingBlock, &[Category::Tree, Category::Links]);
}

#[test]
fn a_lost_revoke() {
    must_find(Fault::LostRevoke, &[Category::Mix, Category::Tree]);
}

#[test]
fn a_freed_block_reused_too_early() {
    must_find(Fault::EarlyReuse, &[Category::ReplaceSynced, Category::Truncate]);
}

#[test]
fn a_block_of_an_earlier_transaction_recycled() {
    must_find(Fault::LateRecycling, &[Category::Recycle]);
}

#[test]
fn a_wrong_link_count() {
    must_find(Fault::WrongLinkCount, &[Category::Links]);
}

#[test]
fn an_unzeroed_tail() {
    must_find(Fault::UnzeroedTail, &[Category::Truncate]);
}

#[test]
fn a_mapping_before_its_data() {
    must_find(Fault::MappingBeforeData, &[Category::Append, Category::ReplaceSynced]);
}

#[test]
fn a_group_that_is_let_go_before_its_commit() {
    must_find(Fault::EarlyGroupWakeUp, &[Category::Storm]);
}

#[test]
fn a_direct_mapping_before_its_data() {
    must_find(Fault::MappingBeforeData, &[Category::Direct]);
}

#[test]
fn an_overwrite_that_a_sync_does_not_flush() {
    must_find(Fault::ForgottenOverwrites, &[Category::Direct]);
}

#[test]
fn a_dax_mapping_before_its_data() {
    must_find(Fault::MappingBeforeData, &[Category::Dax]);
}

#[test]
fn a_store_that_a_sync_does_not_flush() {
    must_find(Fault::ForgottenOverwrites, &[Category::Dax]);
}

#[test]
fn a_tail_that_is_not_zeroed_in_place() {
    must_find(Fault::UnzeroedTail, &[Category::Dax]);
}

/// Found by flipped bits of metadata blocks, not by crashes.
#[test]
fn an_unchecked_checksum() {
    let _alone = one_at_a_time();
    // Which image a seed makes depends on the list of ablation options.
    let found = (7..15).any(|seed| {
        let image = bit_flips::image(seed).expect("an image");
        let found = with(Fault::UncheckedChecksum, || bit_flips::silent(&image, seed, 400));
        !found.expect("the machinery works").is_empty()
    });
    assert!(found, "no silent damage was found");
}

/// Found by the comparison with the file system in memory.
#[test]
fn an_unzeroed_tail_in_the_model() {
    let _alone = one_at_a_time();
    let shape =
        Shape { block_size: 1024, journal_mib: 1, image_mib: 8, features: "", format: &ORDINARY };
    let device = Arc::new(make(&shape, 5).expect("an image"));
    let volume = Volume::open(device, MountOptions::default()).expect("it opens");
    let at = At { dir: 0, name: 0 };
    let steps = [
        Step::Create { at },
        Step::Write { at, offset: 0, len: 3_000, byte: 7 },
        Step::Resize { at, size: 1_500 },
        Step::Resize { at, size: 3_000 },
    ];
    let mut reference = Reference::default();
    with(Fault::UnzeroedTail, || {
        for step in &steps {
            reference::perform(&volume, &reference, step).expect("it is done");
            reference.step(step).expect("it is done");
        }
    });
    assert_ne!(reference::tree(&volume).expect("it reads"), reference.tree());
    volume.close().expect("it closes");
}

/// Found by failing devices: what was synced is not there, or nobody was told.
#[test]
fn a_swallowed_error() {
    let _alone = one_at_a_time();
    let mut plan = campaign::plan(Category::ReplaceSynced, 2);
    plan.operations = 30;
    let found = (1..60).any(|nth| {
        let (operation, times) = (Operation::Write, Times::Once);
        let fault = FaultPlan { operation, nth, times, fault: device::Fault::Io };
        let run = with(Fault::SwallowedError, || run_failing(&plan, fault)).expect("it runs");
        let marks = run.history.syncs_before(u64::MAX);
        let judged = judge_recovered(&run.medium, &run.history, &marks);
        run.struck > 0 && !run.told || !judged.expect("the machinery works").is_empty()
    });
    assert!(found, "no acknowledged loss was found");
}
