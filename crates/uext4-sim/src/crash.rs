//! The crash test: what a loss of power may leave behind, recovered and judged.
//!
//! # Fault model
//! The power fails at any moment of a recorded run. The medium then holds every write that a
//! completed flush or FUA promises, and of the other writes that were issued:
//!
//! - **prefix**: all that had completed, in order. One state for each completed flush, at its
//!   start, and for each FUA write, the beginning and the end;
//! - **subset**: for each of these places also moments before the next flush returns, each with a
//!   random subset of the writes that nothing promises yet. It is this that shows a flush that is
//!   missing between the journal's images and their commit block;
//! - **torn**: every other subset also tears writes: some of their sectors (512 bytes) are there
//!   and some are not. The superblock is left whole: that its checksum does not survive a tear
//!   between its two sectors is the format's own limit.
//!
//! # What each state must show
//! - (a) uext4 opens it; `e2fsck -fn` then finds nothing.
//! - (b) `e2fsck -fy` on another copy recovers the journal and cleans up orphans, nothing else (see
//!   [`crate::oracle`]); `-fn` then finds nothing.
//! - (c) Everything that was synced is there, after (a) and after (b): [`History::check`].
//! - (d) No file holds bytes that were never written to it; free blocks hold junk to show that.
//! - After (a) and (b) the volume shows the same names, attributes and bytes.
//! - Every eighth state is also opened read-only, which must show the same and write nothing.
//!
//! # Not covered
//! All subsets but a few of each place; crashes of the recovery itself; media that lose what they
//! had promised; failing reads and writes.

use crate::model::{History, Mark};
use crate::oracle::{self, Oracle};
use crate::run::Run;
use crate::view::View;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use uext4::{MountOptions, Volume};
use uext4_device::{
    Access, CutKind, Device, Event, FileDevice, MemoryDevice, Recording, SharedDevice, State,
    States,
};
use uext4_ondisk::Ino;

/// How much to judge.
#[derive(Clone, Debug, Default)]
pub struct Effort {
    /// Stop before this moment.
    pub until: Option<Instant>,
    /// Stop after this many faults; 0: never.
    pub faults_max: usize,
    /// Judge about this many places of a longer log, evenly spread; 0: all.
    pub places_max: usize,
    /// Subsets of each place; 0 counts as 1.
    pub subsets: usize,
    /// Where the images of faults are kept.
    pub keep: Option<PathBuf>,
    /// Threads that judge; 0: one for each processor.
    pub workers: usize,
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The state: number, kind and place in the log.
    pub state: String,
    /// What is wrong with it.
    pub what: String,
}

/// What came of judging.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// States that were judged.
    pub states: usize,
    /// Places (cuts, with their subsets) that time, faults or `places_max` left out.
    pub left_out: usize,
    /// Faults, in no order.
    pub faults: Vec<Fault>,
}

/// A state to judge.
struct Case {
    name: String,
    device: MemoryDevice,
    marks: Vec<Mark>,
    /// Whether it is opened read-only, too.
    read_only_too: bool,
}

/// Judges the states of a run.
///
/// # Errors
/// The machinery failed: no e2fsck, no room for images.
pub fn judge_run(run: &Run, seed: u64, effort: &Effort) -> Result<Findings, String> {
    if oracle::e2fsck().is_none() {
        return Err("e2fsck is not installed".into());
    }
    let workers = match effort.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let states = Mutex::new(run.recording.states());
    let findings = Mutex::new(Findings::default());
    let judges: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let judges: Vec<_> = (0..workers)
            .map(|_| scope.spawn(|| judge_states(run, seed, effort, &states, &findings)))
            .collect();
        judges
            .into_iter()
            .map(|judge| judge.join().unwrap_or_else(|_| Err("a judge panicked".into())))
            .collect()
    });
    judges.into_iter().collect::<Result<(), String>>()?;
    Ok(into_inner(findings))
}

fn judge_states(
    run: &Run,
    seed: u64,
    effort: &Effort,
    states: &Mutex<States<'_>>,
    findings: &Mutex<Findings>,
) -> Result<(), String> {
    let oracle = Oracle::new().map_err(|error| format!("no folder for images: {error}"))?;
    let stride = match effort.places_max {
        0 => 1,
        most => lock(states).len().div_ceil(most).max(1),
    };
    loop {
        let Some(state) = lock(states).next() else { return Ok(()) };
        let enough = effort.faults_max > 0 && lock(findings).faults.len() >= effort.faults_max;
        let late = effort.until.is_some_and(|until| Instant::now() >= until);
        if enough || late || state.index % stride != 0 {
            lock(findings).left_out += 1;
            continue;
        }
        let mut cases: Vec<Case> = (0..effort.subsets.max(1))
            .filter_map(|number| subset_case(&run.recording, &state, seed, number))
            .collect();
        cases.push(prefix_case(&run.recording, state));
        for case in cases {
            let faults = judge_case(&oracle, &run.history, &case)?;
            if !faults.is_empty() {
                keep(effort.keep.as_deref(), seed, &case);
            }
            let mut findings = lock(findings);
            findings.states += 1;
            findings
                .faults
                .extend(faults.into_iter().map(|what| Fault { state: case.name.clone(), what }));
        }
    }
}

/// A panic of one judge must not hide the findings of the others.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn keep(folder: Option<&Path>, seed: u64, case: &Case) {
    let Some(folder) = folder else { return };
    let name = case.name.replace([' ', ','], "-");
    let path = folder.join(format!("seed-{seed}-{name}.img"));
    if let Err(error) = case.device.save(&path) {
        println!("cannot keep {}: {error}", path.display());
    }
}

fn marks_before(recording: &Recording, position: usize) -> Vec<Mark> {
    recording.marks_before(position).map(Mark::from_number).collect()
}

fn prefix_case(recording: &Recording, state: State) -> Case {
    let kind = match state.kind {
        CutKind::Start => "start",
        CutKind::Flush => "flush",
        CutKind::Fua => "fua",
        CutKind::End => "end",
    };
    Case {
        name: format!("state {} {kind} at {}", state.index, state.position),
        marks: marks_before(recording, state.position),
        device: state.device,
        read_only_too: state.index.is_multiple_of(8),
    }
}

/// A moment after the state and before the next flush has returned, with a random subset of what
/// nothing promises by then.
fn subset_case(recording: &Recording, state: &State, seed: u64, number: usize) -> Option<Case> {
    let events = recording.events();
    let end = (state.position + 1..events.len())
        .find_map(|at| match events[at] {
            Event::Flush { completed_at } => completed_at,
            _ => None,
        })
        .unwrap_or(events.len());
    if end <= state.position + 1 {
        return None;
    }
    let mut rng = StdRng::seed_from_u64(seed ^ (state.index as u64) << 32 ^ (number as u64) << 56);
    let moment = rng.random_range(state.position + 1..=end);
    let durable = durable_before(events, moment);
    let odds = [0.1, 0.5, 0.9][rng.random_range(0..3)];
    let tears = rng.random_bool(0.5);
    let device = recording.prefix(durable);
    for event in &events[durable..moment] {
        let result = match event {
            Event::Write { offset, bytes, fua: true, .. } => device.write_at(*offset, bytes),
            Event::Write { offset, bytes, .. } if rng.random_bool(odds) => {
                if tears && !covers_superblock(*offset, bytes) && rng.random_bool(0.4) {
                    write_torn(&device, *offset, bytes, &mut rng)
                } else {
                    device.write_at(*offset, bytes)
                }
            }
            Event::Punch { offset, len, .. } if rng.random_bool(odds) => {
                device.punch(*offset, *len).map(drop)
            }
            _ => Ok(()),
        };
        // The recorded device had the same length and took the same request.
        assert!(result.is_ok(), "a recorded request must fit: {event:?}");
    }
    let torn = if tears { "torn " } else { "" };
    Some(Case {
        name: format!("state {} {torn}subset {number} of {durable} to {moment}", state.index),
        device,
        marks: marks_before(recording, moment),
        read_only_too: false,
    })
}

fn covers_superblock(offset: u64, bytes: &[u8]) -> bool {
    offset < 2048 && offset + bytes.len() as u64 > 1024
}

/// Writes some of the sectors only.
fn write_torn(
    device: &MemoryDevice,
    offset: u64,
    bytes: &[u8],
    rng: &mut StdRng,
) -> std::io::Result<()> {
    const SECTOR: usize = 512;
    let odds = rng.random_range(0.05..0.95);
    for (number, sector) in bytes.chunks(SECTOR).enumerate() {
        if rng.random_bool(odds) {
            device.write_at(offset + (number * SECTOR) as u64, sector)?;
        }
    }
    Ok(())
}

/// Events before this place are promised by a flush that had returned by `moment`.
fn durable_before(events: &[Event], moment: usize) -> usize {
    events[..moment]
        .iter()
        .rposition(|event| match event {
            Event::Flush { completed_at: Some(end) } => *end <= moment,
            _ => false,
        })
        .unwrap_or(0)
}

/// Judges one image, as the states of a recording are judged.
///
/// # Errors
/// The machinery failed.
pub fn judge_image(
    device: MemoryDevice,
    history: &History,
    marks: Vec<Mark>,
) -> Result<Vec<String>, String> {
    let oracle = Oracle::new().map_err(|error| format!("no folder for images: {error}"))?;
    let case = Case { name: "image".into(), device, marks, read_only_too: true };
    judge_case(&oracle, history, &case)
}

fn judge_case(oracle: &Oracle, history: &History, case: &Case) -> Result<Vec<String>, String> {
    let put = |device: &MemoryDevice, name| {
        oracle.put(device, name).map_err(|error| format!("cannot put an image down: {error}"))
    };
    let mut faults = Vec::new();
    let mut add = |way: &str, found: Vec<String>| {
        faults.extend(found.into_iter().map(|what| format!("{way}: {what}")));
    };

    // (a) Recovered by uext4.
    let device = Arc::new(case.device.snapshot());
    let ours = recover(device.clone());
    match &ours {
        Ok(view) => add("after uext4's recovery", history.check(&case.marks, view)),
        Err(error) => add("uext4's recovery", vec![error.clone()]),
    }
    let path = put(&device, "ours.img")?;
    add("after uext4's recovery", oracle::expect_clean(&path).err().into_iter().collect());

    // (b) Recovered by e2fsck.
    let path = put(&case.device, "theirs.img")?;
    let truncated = oracle::expect_recovery_only(&path).unwrap_or_else(|error| {
        add("recovery by e2fsck", vec![error]);
        Vec::new()
    });
    add("after e2fsck's recovery", oracle::expect_clean(&path).err().into_iter().collect());
    let recovered = FileDevice::open(&path, Access::ReadOnly, 0)
        .map_err(|error| format!("cannot open what e2fsck left: {error}"))?;
    let mut theirs = read_only(Arc::new(recovered));
    if let (Ok(ours), Ok(theirs)) = (&ours, &mut theirs) {
        forgive_truncated(&truncated, ours, theirs);
    }
    match (&ours, theirs) {
        (Ok(ours), Ok(theirs)) if *ours == theirs => {}
        (ours, Ok(theirs)) => {
            add("after e2fsck's recovery", history.check(&case.marks, &theirs));
            if let Ok(ours) = ours {
                add("uext4's and e2fsck's recovery differ", ours.differences(&theirs));
            }
        }
        (_, Err(error)) => add("after e2fsck's recovery", vec![error]),
    }

    if case.read_only_too {
        add("read-only", check_read_only(&case.device, ours.as_ref().ok(), &truncated));
    }
    Ok(faults)
}

/// e2fsck loses the attribute block of an orphan that it truncates, and leaves its times alone
/// where uext4 and the kernel set them: see [`crate::oracle`].
fn forgive_truncated(truncated: &[u32], ours: &View, theirs: &mut View) {
    for ino in truncated.iter().map(|&ino| Ino(ino)) {
        if let (Some(our), Some(their)) = (ours.nodes.get(&ino), theirs.nodes.get_mut(&ino)) {
            their.mtime = our.mtime;
            let kept = their.xattrs.iter().all(|(name, value)| our.xattrs.get(name) == Some(value));
            if kept {
                their.xattrs.clone_from(&our.xattrs);
            }
        }
    }
}

/// Opens, reads and closes.
fn recover(device: SharedDevice) -> Result<View, String> {
    let volume = Volume::open(device, MountOptions::default()).map_err(|e| format!("open: {e}"))?;
    if let Some(reason) = volume.read_only_reason() {
        return Err(format!("opened read-only: {reason}"));
    }
    let view = View::read(&volume)?;
    volume.close().map_err(|error| format!("close: {error}"))?;
    Ok(view)
}

fn read_only(device: SharedDevice) -> Result<View, String> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let volume = Volume::open(device, options).map_err(|error| format!("open: {error}"))?;
    let view = View::read(&volume)?;
    volume.close().map_err(|error| format!("close: {error}"))?;
    Ok(view)
}

/// A read-only mount of a dirty image shows what recovery makes of it and writes nothing.
fn check_read_only(
    dirty: &MemoryDevice,
    recovered: Option<&View>,
    truncated: &[u32],
) -> Vec<String> {
    let device = Arc::new(dirty.snapshot());
    let mut view = match read_only(device.clone()) {
        Ok(view) => view,
        Err(error) => return vec![error],
    };
    let mut faults = Vec::new();
    if let Some(recovered) = recovered {
        // The truncation of an orphan touches its times.
        forgive_truncated(truncated, recovered, &mut view);
        faults = recovered.differences(&view);
    }
    if !same_bytes(dirty, &device) {
        faults.push("the device was written".into());
    }
    faults
}

fn same_bytes(one: &MemoryDevice, other: &MemoryDevice) -> bool {
    const STEP: usize = 1 << 20;
    let (mut left, mut right) = (vec![0; STEP], vec![0; STEP]);
    let mut at = 0;
    while at < one.len() {
        let count = STEP.min((one.len() - at) as usize);
        let read = one.read_at(at, &mut left[..count]).is_ok()
            && other.read_at(at, &mut right[..count]).is_ok();
        if !read || left[..count] != right[..count] {
            return false;
        }
        at += count as u64;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_promises_what_stood_before_it_once_it_has_returned() {
        let write = || Event::Write { offset: 0, bytes: [1].into(), fua: false, issued_at: 0 };
        let events = [
            write(),
            Event::Flush { completed_at: Some(3) },
            write(),
            write(),
            Event::Flush { completed_at: None },
            Event::Flush { completed_at: Some(7) },
            write(),
        ];
        let durable: Vec<usize> = (0..=7).map(|moment| durable_before(&events, moment)).collect();
        assert_eq!(durable, [0, 0, 0, 1, 1, 1, 1, 5]);
    }
}
