//! Power fails at every flush of a recorded run of several threads, and between flushes.
//!
//! `UEXT4_SEEDS=N` runs N seeds instead of one.
//!
//! Fault model: the device holds exactly what was written before a flush (or a durable write) that
//! completed, nothing after; or, between two flushes, also any subset of the writes since the
//! first (one subset a flush is tried). Each such state is recovered by uext4 and by e2fsck.
//! Checked: both leave a file system without a flaw, e2fsck has nothing to do but replay the log
//! and clean orphans, and every file whose fsync had returned has its content.
//! Not covered: torn writes, all subsets, crashes during recovery.

mod common;

use common::{e2fsck, have, mke2fs, mount, new};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use uext4::{AllocateMode, MountOptions, RenameMode, SetAttr, Volume, XattrMode};
use uext4_device::{Device, Event, MemoryDevice, Recording, RecordingDevice, SharedDevice};
use uext4_ondisk::FileKind;

/// What a mark in the recording promises: this file, with this content, is durable.
type Promises = Mutex<BTreeMap<u64, (String, Vec<u8>)>>;

struct Run<'a> {
    volume: &'a Volume,
    device: &'a RecordingDevice,
    promises: &'a Promises,
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl Run<'_> {
    fn work(&self, id: u64, seed: u64, rounds: u64) {
        let root = self.volume.root().unwrap();
        let name = format!("d{id}");
        let dir = new(FileKind::Directory, 0o755);
        let dir = self.volume.create(&root, name.as_bytes(), &dir).unwrap();
        let mut seed = seed * 1000 + id + 1;
        for round in 0..rounds {
            let r = random(&mut seed);
            if r.is_multiple_of(4) {
                self.promise(id, round, &dir, &mut seed);
            } else {
                self.disturb(&dir, &mut seed);
            }
        }
    }

    /// A file of its own, written and synced; nobody touches it again.
    fn promise(&self, id: u64, round: u64, dir: &uext4::InodeRef, seed: &mut u64) {
        let name = format!("kept{round}");
        let file = new(FileKind::Regular, 0o644);
        let inode = self.volume.create(dir, name.as_bytes(), &file).unwrap();
        let open = self.volume.open_file(&inode).unwrap();
        let content = vec![(round % 250) as u8 + 1; (random(seed) % 30_000) as usize + 1];
        open.write_at(0, &content).unwrap();
        open.sync(random(seed).is_multiple_of(2)).unwrap();
        let number = id * 1_000_000 + round;
        self.promises.lock().unwrap().insert(number, (format!("d{id}/{name}"), content));
        self.device.mark(number);
    }

    fn disturb(&self, dir: &uext4::InodeRef, seed: &mut u64) {
        let name = format!("f{}-{:0100}", random(seed) % 30, 7);
        let name = name.as_bytes();
        let inode = match self.volume.lookup(dir, name) {
            Ok(inode) => inode,
            Err(_) => {
                let kind = if random(seed).is_multiple_of(5) {
                    FileKind::Directory
                } else {
                    FileKind::Regular
                };
                self.volume.create(dir, name, &new(kind, 0o644)).unwrap()
            }
        };
        if inode.kind() == FileKind::Directory {
            return self.volume.rmdir(dir, name).unwrap();
        }
        let open = self.volume.open_file(&inode).unwrap();
        let (offset, len) = (random(seed) % 200_000, random(seed) % 30_000 + 1);
        match random(seed) % 12 {
            0 => self.volume.unlink(dir, name).unwrap(),
            1 | 2 => {
                let size = Some(random(seed) % 150_000);
                self.volume.set_attr(&inode, &SetAttr { size, ..SetAttr::default() }).unwrap();
            }
            3 => open.allocate(AllocateMode::PunchHole, offset, len).unwrap(),
            4 => open.allocate(AllocateMode::Allocate { keep_size: true }, offset, len).unwrap(),
            5 => open.allocate(AllocateMode::ZeroRange { keep_size: false }, offset, len).unwrap(),
            6 => {
                let to = format!("g{}", random(seed) % 10);
                self.volume.rename(dir, name, dir, to.as_bytes(), RenameMode::Replace).unwrap();
            }
            7 => {
                let value = vec![1; (random(seed) % 700) as usize];
                self.volume.xattr_set(&inode, b"user.x", &value, XattrMode::Any).unwrap();
            }
            8 => open.sync(false).unwrap(),
            _ => assert_eq!(open.write_at(offset, &vec![251; len as usize]).unwrap(), len as usize),
        }
    }
}

/// Lines that e2fsck prints for what a crash leaves and nothing else.
fn is_expected(line: &str) -> bool {
    let line = line.trim();
    line.is_empty()
        || line.starts_with("Pass ")
        || line.contains("recovering journal")
        || line.starts_with("Clearing orphaned inode")
        || line.starts_with("Truncating orphaned inode")
        // Part of orphan clean-up: the flag says "mounted", as the kernel sets it, too; e2fsck
        // empties the orphan file after it has deleted what that names.
        || line.starts_with("Feature orphan_present is set but orphan file is clean")
        || (line.starts_with("Orphan file (inode") && line.ends_with("is not clean."))
        || line == "Clear? yes"
        || line.contains("FILE SYSTEM WAS MODIFIED")
        // The summary: "IMAGE: 12/8192 files (0.0% non-contiguous), 1552/8192 blocks".
        || line.ends_with(" blocks")
}

fn copy(state: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(state.snapshot())
}

fn check_state(state: &MemoryDevice, durable: &[u64], promises: &Promises) {
    // By e2fsck.
    let theirs = copy(state);
    let file = tempfile::NamedTempFile::new().unwrap();
    theirs.save(file.path()).unwrap();
    let fsck = |flags: &str| {
        let output = std::process::Command::new("/sbin/e2fsck")
            .args([flags, file.path().to_str().unwrap()])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code().unwrap_or(-1), text)
    };
    let (code, text) = fsck("-fy");
    assert!(code <= 1, "e2fsck -fy exits {code}:\n{text}");
    let repair = text.lines().find(|line| !is_expected(line));
    assert_eq!(repair, None, "e2fsck -fy repairs:\n{text}");
    let (code, text) = fsck("-fn");
    assert_eq!(code, 0, "e2fsck -fn after -fy:\n{text}");
    // By uext4.
    let ours = copy(state);
    let volume = mount(&ours);
    let root = volume.root().unwrap();
    for number in durable {
        let promises = promises.lock().unwrap();
        let (path, content) = &promises[number];
        let (dir, name) = path.split_once('/').unwrap();
        let found = volume
            .lookup(&root, dir.as_bytes())
            .and_then(|dir| volume.lookup(&dir, name.as_bytes()))
            .unwrap_or_else(|e| panic!("{path} was synced: {e}"));
        let mut bytes = vec![0; content.len() + 1];
        let read = volume.open_file(&found).unwrap().read_at(0, &mut bytes).unwrap();
        assert!(bytes[..read] == content[..], "{path} was synced: content differs");
    }
    drop(root);
    volume.close().unwrap();
    let (code, text) = e2fsck(&ours, "-fn");
    assert_eq!(code, 0, "e2fsck -fn after uext4's recovery:\n{text}");
}

fn record(mib: u64, shape: &str, seed: u64, rounds: u64) -> (Arc<RecordingDevice>, Promises) {
    let device = Arc::new(RecordingDevice::over(mke2fs(mib, shape)));
    let promises = Promises::default();
    let shared: SharedDevice = device.clone();
    let options = MountOptions { cache_bytes: 8 << 20, ..MountOptions::default() };
    let volume = Volume::open(shared, options).unwrap();
    std::thread::scope(|scope| {
        for id in 0..3 {
            let run = Run { volume: &volume, device: &device, promises: &promises };
            scope.spawn(move || run.work(id, seed, rounds));
        }
    });
    volume.close().unwrap();
    (device, promises)
}

fn check(mib: u64, shape: &str, seed: u64, rounds: u64) {
    if !have("mke2fs") {
        return;
    }
    let seeds = std::env::var("UEXT4_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    (0..seeds).for_each(|i| check_seed(mib, shape, seed + 100 * i, rounds));
}

fn check_seed(mib: u64, shape: &str, seed: u64, rounds: u64) {
    println!("shape '{shape}', seed {seed}");
    let (device, promises) = record(mib, shape, seed, rounds);
    let recording = device.recording();
    let mut states = 0;
    for state in recording.states() {
        if state.changes == 0 {
            continue;
        }
        let durable: Vec<u64> = recording.marks_before(state.position).collect();
        check_state(&state.device, &durable, &promises);
        states += 1;
    }
    let mut random_seed = seed + 7;
    for k in 0..recording.flush_count().saturating_sub(1) {
        let unflushed = recording.unflushed_after(Some(k));
        if unflushed.is_empty() {
            continue;
        }
        // A moment between this flush and the next; any subset of what was written since, and all
        // that was written durably.
        let most = random(&mut random_seed) as usize % unflushed.len() + 1;
        let position = unflushed[most - 1] + 1;
        let chosen: Vec<usize> = unflushed[..most]
            .iter()
            .copied()
            .filter(|&at| {
                let fua = matches!(recording.events()[at], Event::Write { fua: true, .. });
                fua || random(&mut random_seed).is_multiple_of(2)
            })
            .collect();
        let state = recording.state_with(unflushed[0], &chosen);
        let durable: Vec<u64> = recording.marks_before(position).collect();
        check_state(&state, &durable, &promises);
        states += 1;
    }
    println!("{states} states of '{shape}', seed {seed}");
    assert!(states > 20, "the run has too few flushes to say anything");
}

#[test]
fn every_prefix_recovers() {
    check(48, "-b 4096 -J size=4", 1, 40);
}

#[test]
fn every_prefix_recovers_with_an_orphan_file() {
    check(48, "-b 4096 -J size=4 -O orphan_file,metadata_csum_seed", 2, 40);
}

#[test]
fn every_prefix_recovers_with_small_blocks_and_a_wrapping_log() {
    check(48, "-b 1024 -J size=1", 3, 80);
}

/// The harness must be able to fail: a device that answers a flush and keeps only what is written
/// durably by itself (the commit blocks) loses the images and the data before them.
#[test]
fn a_device_that_lies_about_a_flush_is_noticed() {
    if !have("mke2fs") {
        return;
    }
    let (device, promises) = record(48, "-b 4096 -J size=4", 4, 10);
    let recording = device.recording();
    let flushes: Vec<usize> = (0..recording.events().len())
        .filter(|&i| matches!(recording.events()[i], Event::Flush { .. }))
        .collect();
    let caught = flushes.windows(2).skip(3).any(|pair| {
        let state = lying_state(&recording, pair[0], pair[1]);
        let durable: Vec<u64> = recording.marks_before(pair[1]).collect();
        let check = || check_state(&state, &durable, &promises);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err()
    });
    assert!(caught, "lost images passed every check");
}

/// Everything before `from`, and of what stands between `from` and the event after `to` only the
/// durable writes.
fn lying_state(recording: &Recording, from: usize, to: usize) -> MemoryDevice {
    let state = recording.base().snapshot();
    for (index, event) in recording.events().iter().enumerate().take(to + 3) {
        if let Event::Write { offset, bytes, fua, .. } = event
            && (index < from || *fua)
        {
            state.write_at(*offset, bytes).unwrap();
        }
    }
    state
}
