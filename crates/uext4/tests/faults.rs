//! A device that fails: the Nth write, flush or read, once or from there on.
//!
//! Fault model: one request of the device fails as planned, whole or half done; the medium keeps
//! what was written. Checked for every N of a workload: some caller is told, nothing panics or
//! hangs, a failed journal ends all changes, and when the device works again, the image replays to
//! a consistent file system with every file whose sync said yes. Not covered: lost or reordered
//! writes (crash tests), wrong bytes.

mod common;

use common::{e2fsck, have, mke2fs, new};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::{InodeRef, MountOptions, Owner, RenameMode, Result, SetAttr, Volume, XattrMode};
use uext4_device::{
    Device, Fault, FaultDevice, FaultPlan, MemoryDevice, Operation, SharedDevice, Times,
};
use uext4_ondisk::{FileKind, RawSuperblock};

/// What each case may take; one that hangs ends the program.
const BOUND: Duration = Duration::from_secs(30);

/// The workload so far, as its caller knows it.
#[derive(Default)]
struct Log {
    /// Files that were synced and not touched since.
    synced: BTreeMap<String, Vec<u8>>,
    /// Files that were written and not synced: there if nothing failed until the volume was closed.
    written: BTreeMap<String, Vec<u8>>,
    errors: Vec<String>,
}

impl Log {
    fn note<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(format!("{what}: {error}"))).ok()
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + seed * 57 + i / 301) as u8).collect()
}

fn workload(volume: &Volume, log: &mut Log) {
    let Some(root) = log.note("root", volume.root()) else { return };
    for round in 0..4 {
        let name = format!("dir{round}");
        let dir = volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755));
        let Some(dir) = log.note("mkdir", dir) else { continue };
        for n in 0..5 {
            file(volume, &dir, round * 5 + n, log);
        }
        names(volume, &root, &dir, round, log);
        if round % 2 == 1 {
            log.note("sync", volume.sync());
        }
    }
}

/// A file that is written once and synced.
fn file(volume: &Volume, dir: &InodeRef, n: usize, log: &mut Log) {
    let name = format!("f{n}");
    let created = volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644));
    let Some(inode) = log.note("create", created) else { return };
    let Some(file) = log.note("open", volume.open_file(&inode)) else { return };
    let data = pattern(n, 500 + n * 7_000);
    if log.note("write", file.write_at(0, &data)) != Some(data.len()) {
        return;
    }
    let path = format!("dir{}/{name}", n / 5);
    if n % 3 == 2 {
        log.written.insert(path, data);
    } else if log.note("fsync", file.sync(n.is_multiple_of(2))).is_some() {
        log.synced.insert(path, data);
    }
}

fn names(volume: &Volume, root: &InodeRef, dir: &InodeRef, round: usize, log: &mut Log) {
    let scratch = volume.create(dir, b"scratch", &new(FileKind::Regular, 0o600));
    if let Some(inode) = log.note("create", scratch) {
        if let Some(file) = log.note("open", volume.open_file(&inode)) {
            log.note("write", file.write_at(0, &pattern(99, 60_000)));
            let cut = SetAttr { size: Some(10_001), ..SetAttr::default() };
            log.note("truncate", volume.set_attr(&inode, &cut));
            log.note("close", file.flush());
        }
        log.note("xattr", volume.xattr_set(&inode, b"user.x", &[4; 400], XattrMode::Any));
    }
    log.note("symlink", volume.symlink(dir, b"slow", &[b's'; 200], Owner::default()));
    let to = format!("moved{round}");
    let mode = RenameMode::Replace;
    log.note("rename", volume.rename(dir, b"scratch", root, to.as_bytes(), mode));
    if round > 0 {
        log.note("unlink", volume.unlink(root, format!("moved{}", round - 1).as_bytes()));
    }
}

/// Runs the workload on a device that fails as planned, then checks the image.
fn run(base: &MemoryDevice, plan: FaultPlan) -> Case {
    let started = Instant::now();
    let medium = Arc::new(base.snapshot());
    let device = Arc::new(FaultDevice::new(medium.clone()));
    device.arm(plan);
    let mut log = Log::default();
    let shared: SharedDevice = device.clone();
    let options = MountOptions { cache_bytes: 8 << 20, ..MountOptions::default() };
    let (mut is_closed, mut has_lost) = (true, false);
    if let Some(volume) = log.note("mount", Volume::open(shared, options)) {
        workload(&volume, &mut log);
        if volume.space().journal().is_aborted() {
            check_read_only(&volume);
        }
        is_closed = log.note("close", volume.clone().close()).is_some();
        has_lost = volume.has_lost_changes();
    }
    let struck = device.struck();
    device.reset();
    let name = format!("{plan:?}");
    assert!(started.elapsed() < BOUND, "{name} took {:?}", started.elapsed());
    // A write of many files that fails is tried again for each: if that mends it, nobody is told,
    // and everything must be there.
    let is_mended = plan.operation == Operation::Write && log.errors.is_empty();
    let is_told = (struck > 0) != log.errors.is_empty();
    assert!(is_told || is_mended, "{name} struck {struck}: {:?}", log.errors);
    assert!(!is_closed || !has_lost, "{name}: a close that succeeds loses nothing");
    // A close that fails and says that nothing is lost is held to that.
    if is_closed && log.errors.is_empty() || !is_closed && !has_lost {
        let written = std::mem::take(&mut log.written);
        log.synced.extend(written);
    }
    let is_torn = plan.fault == Fault::Short && has_torn_superblock(&medium);
    if !is_torn {
        check_image(&medium, &log, &name);
    }
    Case { struck, is_torn, is_kept: !is_closed && !has_lost }
}

struct Case {
    struck: u64,
    is_torn: bool,
    /// The volume could not be closed, and nothing is lost.
    is_kept: bool,
}

/// The superblock of 1024 bytes has its checksum in its second half, and no second copy that a
/// mount would use: a write that ends between the halves is the format's own limit.
fn has_torn_superblock(medium: &MemoryDevice) -> bool {
    let mut bytes = [0; 1024];
    medium.read_at(1024, &mut bytes).unwrap();
    RawSuperblock::read(&bytes).is_err()
}

fn check_read_only(volume: &Volume) {
    assert!(volume.read_only() && volume.read_only_reason().is_some());
    let root = volume.root().unwrap();
    let created = volume.create(&root, b"too late", &new(FileKind::Regular, 0o644));
    assert_eq!(created.unwrap_err().errno(), libc::EROFS);
}

fn check_image(medium: &Arc<MemoryDevice>, log: &Log, name: &str) {
    let shared: SharedDevice = medium.clone();
    let volume = Volume::open(shared, MountOptions::default())
        .unwrap_or_else(|error| panic!("{name}: the image cannot be opened: {error}"));
    let root = volume.root().unwrap();
    for (path, data) in &log.synced {
        let (dir, file) = path.split_once('/').unwrap();
        let inode = volume
            .lookup(&root, dir.as_bytes())
            .and_then(|dir| volume.lookup(&dir, file.as_bytes()))
            .unwrap_or_else(|error| panic!("{name}: {path} was synced: {error}"));
        let mut read = vec![0; data.len() + 1];
        let count = volume.open_file(&inode).unwrap().read_at(0, &mut read).unwrap();
        assert!(count == data.len() && read[..count] == data[..], "{name}: content of {path}");
    }
    drop(root);
    volume.close().unwrap();
    // A journal that was aborted leaves its mark, which asks for a check and nothing else.
    let (code, text) = e2fsck(medium, "-fn");
    assert_eq!(code, 0, "{name}: e2fsck -fn:\n{text}");
}

/// The workload with request 1, 2, .. failing, until it needs fewer.
fn every_request(operation: Operation, times: Times, fault: Fault) {
    if !have("mke2fs") {
        return;
    }
    let base = mke2fs(8, "-b 1024 -O orphan_file");
    let (mut nth, mut torn, mut kept) = (1, 0, 0);
    loop {
        let case = run(&base, FaultPlan { operation, nth, times, fault });
        if case.struck == 0 {
            break;
        }
        nth += 1;
        torn += u32::from(case.is_torn);
        kept += u32::from(case.is_kept);
    }
    println!("{} requests, {torn} tore the superblock, {kept} failed after all was kept", nth - 1);
    let fails_to_the_end = operation == Operation::Write && times == Times::Onwards;
    assert!(kept > 0 || !fails_to_the_end, "no close failed behind its last sync");
    assert!(nth > 10, "the workload has {nth} requests only");
    // It is written when the volume is opened and closed, and home by a checkpoint or two, as the
    // schedule has it; the rest goes to the log.
    assert!(torn <= 4, "{torn} writes tore the superblock");
}

#[test]
fn each_write_fails_once() {
    every_request(Operation::Write, Times::Once, Fault::Io);
}

#[test]
fn writes_fail_from_each_one_on() {
    every_request(Operation::Write, Times::Onwards, Fault::Io);
}

#[test]
fn the_device_runs_out_of_space_at_each_write() {
    every_request(Operation::Write, Times::Onwards, Fault::NoSpace);
}

#[test]
fn each_flush_fails_once() {
    every_request(Operation::Flush, Times::Once, Fault::Io);
}

#[test]
fn flushes_fail_from_each_one_on() {
    every_request(Operation::Flush, Times::Onwards, Fault::Io);
}

#[test]
fn each_read_fails_once() {
    every_request(Operation::Read, Times::Once, Fault::Io);
}

#[test]
fn writes_are_cut_short_from_each_one_on() {
    every_request(Operation::Write, Times::Onwards, Fault::Short);
}
