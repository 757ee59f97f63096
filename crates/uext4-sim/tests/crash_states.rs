//! Crash states of short runs of every category.
//!
//! Fault model and what each state must show: [`uext4_sim::crash`]. `cargo xtask crash` goes on
//! from here for as long as one likes.

use uext4_device::Event;
use uext4_sim::broken_syncs::BrokenSyncs;
use uext4_sim::category::{CATEGORIES, Category};
use uext4_sim::crash::unjournaled::judge_run as judge_unjournaled;
use uext4_sim::crash::{
    Campaign, Checker, Depth, Effort, Judge, Samples, judge_in_order, judge_run,
};
use uext4_sim::format::{FORMATS, ORDINARY};
use uext4_sim::mount::why_no_loop;
use uext4_sim::oracle::{Oracle, e2fsck};
use uext4_sim::run::{NEWER_FEATURES, Plan, Shape, record};

fn effort() -> Effort {
    let e2fsck_every = if e2fsck().is_some() { 60 } else { 0 };
    let kernel_every = if why_no_loop().is_none() { 150 } else { 0 };
    Effort {
        states_max: 900,
        close_every: 5,
        samples: Samples {
            nested: 12,
            e2fsck: e2fsck_every,
            kernel: kernel_every,
            ..Samples::default()
        },
        depth: Depth { exhaustive_max: 5, random: 2 },
        ..Effort::default()
    }
}

/// A fixed number of seeds of each category, under each ablation option.
#[test]
fn every_category() {
    if e2fsck().is_none() {
        println!("skipped: e2fsck as a second judge: not installed");
    }
    if let Some(why) = why_no_loop() {
        println!("skipped: the kernel as a third judge: {why}");
    }
    let campaign = Campaign { rounds: 6, ..Campaign::all(1, effort()) };
    let summary = campaign.run().expect("the machinery works");
    println!("{summary}");
    assert!(summary.faults.is_empty(), "{}", summary.faults.join("\n"));
    for category in CATEGORIES {
        let tally = summary.tallies[category];
        // A mix that makes no states tests nothing.
        assert!(tally.states > 60, "{category}: {tally:?}");
    }
}

/// Every other form of the file system: one seed of each category.
#[test]
fn every_format() {
    for &format in FORMATS.iter().filter(|format| **format != &ORDINARY && format.has_journal()) {
        let effort = Effort { states_max: 60, ..effort() };
        let campaign = Campaign { rounds: 1, format, ..Campaign::all(1, effort) };
        let summary = campaign.run().expect("the machinery works");
        println!("{format}\n{summary}");
        assert!(summary.faults.is_empty(), "{format}: {}", summary.faults.join("\n"));
        assert!(summary.states() > 100, "{format}: {} states", summary.states());
    }
}

/// The log is gone round several times.
#[test]
fn the_log_wraps() {
    let shape = Shape {
        block_size: 1024,
        journal_mib: 1,
        image_mib: 32,
        features: NEWER_FEATURES,
        format: &ORDINARY,
    };
    let plan = Plan { operations: 500, commit_percent: 60, ..Plan::with(20, shape) };
    let run = record(&plan, BrokenSyncs::None).unwrap_or_else(|error| panic!("{plan}: {error}"));
    let effort = Effort { close_every: 25, states_max: 2_500, ..effort() };
    let judged = judge_run(&run, 20, &Checker, &effort).expect("the machinery works");
    println!("{plan}: {} images, {} states", judged.states, judged.views.len());
    assert!(judged.faults.is_empty(), "{plan}: {:#?}", judged.faults);
}

/// Without barriers nothing is flushed between opening and closing, and a medium that keeps the
/// order of writes loses nothing synced. Not covered, and not promised: a medium that reorders.
#[test]
fn without_barriers_the_order_of_writes_is_enough() {
    for (seed, category) in (0..).zip(CATEGORIES) {
        let mut plan = Plan::of(*category, seed, "barrier=0");
        plan.closes = false;
        let run =
            record(&plan, BrokenSyncs::None).unwrap_or_else(|error| panic!("{plan}: {error}"));
        let is_forced =
            |event: &&Event| matches!(event, Event::Flush { .. } | Event::Write { fua: true, .. });
        // One flush durably marks the volume as in use.
        assert_eq!(run.recording.events().iter().filter(is_forced).count(), 1, "{plan}");
        let judged = judge_in_order(&run, seed, &Checker, 7).expect("the machinery works");
        println!("{plan}: {} images, {} states", judged.states, judged.views.len());
        assert!(judged.views.len() > 5, "{plan}: {} states", judged.views.len());
        assert!(judged.faults.is_empty(), "{plan}: {:#?}", judged.faults);
    }
}

/// The commit block may be durable before the rest of its transaction: our recovery must tell.
#[test]
fn asynchronous_commits() {
    let mut torn = 0;
    for (seed, category) in (0..).zip(CATEGORIES) {
        let plan = Plan::of(*category, seed, "journal_async_commit,data=writeback");
        let run =
            record(&plan, BrokenSyncs::None).unwrap_or_else(|error| panic!("{plan}: {error}"));
        let effort = Effort { close_every: 3, states_max: 300, ..effort() };
        let judged = judge_run(&run, seed, &Checker, &effort).expect("the machinery works");
        assert!(judged.faults.is_empty(), "{plan}: {:#?}", judged.faults);
        torn += judged.states;
    }
    assert!(torn > 1000, "{torn} images");
}

/// The checker and e2fsck agree on what uext4 recovers.
#[test]
fn e2fsck_as_the_judge() {
    if e2fsck().is_none() {
        println!("skipped: e2fsck is not installed");
        return;
    }
    let oracle = Oracle::new().expect("a folder for images");
    for category in [Category::Mix, Category::NoSpace, Category::UnlinkOpen] {
        let plan = uext4_sim::crash::campaign::plan(category, 3);
        let run =
            record(&plan, BrokenSyncs::None).unwrap_or_else(|error| panic!("{plan}: {error}"));
        let effort = Effort { states_max: 80, close_every: 20, ..effort() };
        let judge: &dyn Judge = &oracle;
        let judged = judge_run(&run, 3, judge, &effort).expect("the machinery works");
        assert!(judged.faults.is_empty(), "{plan}: {:#?}", judged.faults);
    }
}

/// The test must find a device that answers flushes without doing them, and an fsync that does
/// nothing: else it would find no such fault of the engine either.
#[test]
fn faults_injected_outside_the_engine_are_found() {
    for syncs in [BrokenSyncs::DroppedFlushes, BrokenSyncs::SkippedSyncs] {
        let found = (100..120).any(|seed| {
            let plan = uext4_sim::crash::campaign::plan(Category::ReplaceSynced, seed);
            let run = record(&plan, syncs).expect("the run itself does not notice");
            let effort = Effort { faults_max: 1, states_max: 600, ..effort() };
            let judged = judge_run(&run, seed, &Checker, &effort).expect("the machinery works");
            !judged.faults.is_empty()
        });
        assert!(found, "{syncs:?} was not found");
    }
}

/// File systems without a journal, which e2fsck repairs.
#[test]
fn without_a_journal() {
    if e2fsck().is_none() {
        println!("skipped: e2fsck, which repairs them, is not installed");
        return;
    }
    let depth = Depth { exhaustive_max: 4, random: 2 };
    for (seed, features) in [(1, "^has_journal"), (2, "^has_journal,^metadata_csum"), (3, EXT2)] {
        let judged = judge_unjournaled(features, seed, depth, 40, None).expect("it works");
        assert!(judged.states >= 40 && judged.faults.is_empty(), "{features}: {judged:?}");
    }
}

/// What `mke2fs -t ext2` makes.
const EXT2: &str = "none,ext_attr,resize_inode,dir_index,filetype,sparse_super,large_file";
