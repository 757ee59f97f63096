//! Several threads on a device whose Nth request fails, for N = 1, 2, 3 and on until none does.
//!
//! Fault model: a read, write or flush fails (EIO, ENOSPC, half of it done), once or from there on,
//! from the opening of the volume to its closing; memory for caches is the smallest. Of every case:
//! nothing panics; no thread waits for ever (a watchdog ends the program); somebody is told, or
//! nothing at all is lost; an aborted journal is no volume for writing any more; and on the same
//! medium, once it works again, the volume recovers, the checker finds nothing, and everything that
//! a sync had said yes to is there. Each kind of request by one thread:
//! `crates/uext4/tests/faults.rs`; out of space in every operation: `full.rs` there; bounds of
//! memory: `memory.rs` there.

use std::sync::Arc;
use std::time::Duration;
use uext4::{FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::{
    Device, Fault, FaultDevice, FaultPlan, MemoryDevice, Operation as Request, Times,
};
use uext4_ondisk::RawSuperblock;
use uext4_sim::category::Category;
use uext4_sim::crash::{campaign, judge_recovered};
use uext4_sim::format::ORDINARY;
use uext4_sim::model::Entry;
use uext4_sim::operation::Operation;
use uext4_sim::run::{FailedRun, Plan, Shape, make, run_failing};
use uext4_sim::watchdog::Watchdog;

/// What one test may take.
const BOUND: Duration = Duration::from_secs(240);

fn plan(category: Category, seed: u64) -> Plan {
    let mut plan = campaign::plan(category, seed);
    plan.threads = 3;
    plan.operations = 14;
    plan.closes = true;
    // Commits that the load does not ask for have nobody to be told.
    plan.commit_percent = 0;
    plan.options.cache_bytes = MountOptions::CACHE_BYTES_MIN;
    plan
}

/// The superblock has its checksum in its second sector: a write that ends between the two is the
/// format's own limit.
fn has_torn_superblock(medium: &MemoryDevice) -> bool {
    let mut bytes = [0; 1024];
    medium.read_at(1024, &mut bytes).unwrap();
    RawSuperblock::read(&bytes).is_err()
}

fn check(run: &FailedRun, fault: FaultPlan, what: &str) {
    assert!(!run.writable_after_abort, "{what}: the journal is aborted, the volume writable");
    if fault.fault == Fault::Short && has_torn_superblock(&run.medium) {
        return;
    }
    let mut history = run.history.clone();
    if !run.told {
        // Work that nobody waits for (deleting an unlinked file) is tried again. So a failure
        // that nobody was told of must have changed nothing: as if all had been synced at the end.
        let operation = Operation::SyncVolume;
        let entry = Entry { operation, started: u64::MAX - 2, ended: Some(u64::MAX - 1) };
        history.threads[0].entries.push(entry);
    }
    let marks = history.syncs_before(u64::MAX);
    let found = judge_recovered(&run.medium, &history, &marks).expect("the machinery works");
    assert!(found.is_empty(), "{what}: {found:#?}");
}

fn every_request(name: &'static str, operation: Request, times: Times, fault: Fault) {
    let _watchdog = Watchdog::start(name, BOUND);
    let categories = [Category::Mix, Category::ReplaceSynced, Category::Unwritten, Category::Tree];
    let mut total = 0;
    for (seed, category) in (1..).zip(categories) {
        let plan = plan(category, seed);
        // The schedule decides how many requests there are: a few that do not come are no end.
        let (mut nth, mut missed) = (1, 0);
        while missed < 3 {
            let fault = FaultPlan { operation, nth, times, fault };
            let what = format!("{plan}: {fault:?}");
            let run = run_failing(&plan, fault).unwrap_or_else(|why| panic!("{what}: {why}"));
            missed = if run.struck == 0 { missed + 1 } else { 0 };
            check(&run, fault, &what);
            total += 1;
            // Each of the first requests, then some of the many.
            nth += if nth < 40 { 1 } else { 7 };
        }
    }
    println!("{total} cases");
    assert!(total > 40, "{total} cases only");
}

#[test]
fn each_write_fails_once() {
    every_request("write once", Request::Write, Times::Once, Fault::Io);
}

#[test]
fn writes_fail_from_each_one_on() {
    every_request("writes", Request::Write, Times::Onwards, Fault::Io);
}

#[test]
fn the_backing_file_is_full_from_each_write_on() {
    every_request("full", Request::Write, Times::Onwards, Fault::NoSpace);
}

#[test]
fn writes_are_cut_short() {
    every_request("short", Request::Write, Times::Once, Fault::Short);
}

#[test]
fn each_flush_fails_once() {
    every_request("flush once", Request::Flush, Times::Once, Fault::Io);
}

#[test]
fn flushes_fail_from_each_one_on() {
    every_request("flushes", Request::Flush, Times::Onwards, Fault::Io);
}

#[test]
fn each_read_fails_once() {
    every_request("read once", Request::Read, Times::Once, Fault::Io);
}

/// D17, D18: a failed write of data is told once to each file that was open, and the data is tried
/// again by the next sync. D19, D20: a failed flush is told to everybody from then on, and ends the
/// journal.
#[test]
fn failures_are_told_once_to_each_open_file_and_flushes_are_final() {
    let _watchdog = Watchdog::start("errseq", BOUND);
    for ablation in ["delalloc", "nodelalloc"] {
        let shape = Shape {
            block_size: 1024,
            journal_mib: 1,
            image_mib: 8,
            features: "",
            format: &ORDINARY,
        };
        let medium = Arc::new(make(&shape, 9).expect("an image"));
        let device = Arc::new(FaultDevice::new(medium.clone()));
        let mut options = MountOptions::default();
        options.parse(ablation).expect("an option");
        let volume = Volume::open(device.clone(), options).expect("it opens");
        let owner = Owner::default();
        let new =
            NewInode { kind: FileKind::Regular, mode: 0o600, owner, rdev: Default::default() };
        let inode = volume.create(&volume.root().unwrap(), b"f", &new).unwrap();
        let (one, two) = (volume.open_file(&inode).unwrap(), volume.open_file(&inode).unwrap());
        one.write_at(0, &[1; 5_000]).unwrap();
        one.sync(false).unwrap();

        device.reset();
        let (nth, fault) = (1, Fault::Io);
        device.arm(FaultPlan { operation: Request::Write, nth, times: Times::Once, fault });
        // Without delayed allocation the write itself meets the device.
        let written = one.write_at(2_000, &[2; 5_000]);
        let synced = one.sync(false);
        assert!(written.is_err() || synced.is_err(), "{ablation}: nobody was told");
        assert_eq!(device.struck(), 1);
        let third = volume.open_file(&inode).unwrap();
        two.sync(false).expect_err("the second file was open when it happened");
        one.sync(false).expect("told once");
        two.sync(false).expect("told once");
        third.sync(false).expect("opened afterwards");
        let mut bytes = [0; 5_000];
        third.read_at(2_000, &mut bytes).unwrap();
        assert!(bytes == [2; 5_000], "{ablation}: what failed was not tried again");

        device.reset();
        let times = Times::Once;
        device.arm(FaultPlan { operation: Request::Flush, nth, times, fault });
        for round in 0..3 {
            let done = one.write_at(0, &[3; 100]).and_then(|_| one.sync(false));
            done.expect_err(&format!("{ablation}: round {round} after a failed flush"));
        }
        // Syncs of one tick of the clock may have had nothing to commit: this has.
        let _ = volume.create(&volume.root().unwrap(), b"more", &new);
        volume.space().journal().commit_all().expect_err("nothing can be durable");
        assert!(volume.read_only_reason().is_some(), "{ablation}: the journal has ended");
        let root = volume.root().unwrap();
        volume.create(&root, b"late", &new).expect_err("read-only");
        volume.close().expect_err("it cannot be clean");

        device.reset();
        let volume = Volume::open(medium, MountOptions::default()).expect("it recovers");
        let inode = volume.lookup(&volume.root().unwrap(), b"f").unwrap();
        let file = volume.open_file(&inode).unwrap();
        file.read_at(2_000, &mut bytes).unwrap();
        assert!(bytes == [2; 5_000], "{ablation}: what was synced is not there");
        volume.close().unwrap();
    }
}
