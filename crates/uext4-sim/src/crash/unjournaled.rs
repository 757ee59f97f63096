//! The crash test of file systems without a journal, which has rules of its own.
//!
//! # What each state must show
//! - `e2fsck -fy` repairs it: it exits with 0 or 1, and `-fn` then finds nothing.
//! - uext4 opens the repaired volume for writing, and knows that it was checked.
//! - What was synced and has not been changed since, nor the directories that lead to it, is there:
//!   names, sizes and bytes (docs/durability.md, D51).
//! - After a clean close it is all there without e2fsck, and the volume says that it is clean.
//!
//! # The load
//! Directories made and synced first. In each round one of them gets files, which are synced one by
//! one or all together, and then a directory of its own is disturbed: files are made, overwritten,
//! cut, renamed and removed, so that blocks and inodes are freed and used again.
//!
//! # Not covered
//! Directories that change after a sync: a crash while a block of one is split may leave its names
//! to lost+found, as with the kernel.

use super::window::{CrashState, Depth, Windows};
use crate::oracle::{Oracle, expect_clean, judge};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;
use uext4::{InodeRef, MountOptions, NewInode, Owner, RenameMode, SetAttr, SetTime, Volume};
use uext4_device::{Access, FileDevice, MemoryDevice, RecordingDevice, SharedDevice};
use uext4_ondisk::FileKind;

/// Rounds of a run, each with a directory of its own.
const ROUNDS: usize = 5;
const IMAGE_MIB: u64 = 16;

/// What a volume without a journal promised at some moment: content by directory and name.
type Promised = BTreeMap<(usize, String), Vec<u8>>;

/// What came of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Different states, judged each.
    pub states: usize,
    /// State and what is wrong with it.
    pub faults: Vec<(String, String)>,
}

/// A run on a device that records, and what it promised after each mark.
struct Load {
    volume: Volume,
    recorder: Arc<RecordingDevice>,
    rng: StdRng,
    /// The last one is disturbed and promises nothing.
    folders: Vec<InodeRef>,
    promises: Vec<Promised>,
    disturbed: Vec<String>,
}

fn told<T>(what: &str, result: uext4::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn new(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o755, owner: Owner::default(), rdev: uext4::Device::default() }
}

fn folder_name(number: usize) -> Vec<u8> {
    format!("folder{number}").into_bytes()
}

impl Load {
    fn begin(features: &str, seed: u64) -> Result<Self, String> {
        let memory = MemoryDevice::new(IMAGE_MIB << 20);
        let options = uext4_mkfs::Options {
            block_size: Some(if seed.is_multiple_of(3) { 4096 } else { 1024 }),
            features: features.to_owned(),
            hash_seed: Some([seed as u8; 16]),
            discard: Some(false),
            ..uext4_mkfs::Options::default()
        };
        uext4_mkfs::format(&memory, &options).map_err(|error| format!("mkfs: {error}"))?;
        let recorder = Arc::new(RecordingDevice::over(memory));
        let shared: SharedDevice = recorder.clone();
        let options = MountOptions { commit_interval_ms: 900_000, ..MountOptions::default() };
        let volume = told("open", Volume::open(shared, options))?;
        let root = told("root", volume.root())?;
        let folders = (0..=ROUNDS)
            .map(|n| {
                told("mkdir", volume.create(&root, &folder_name(n), &new(FileKind::Directory)))
            })
            .collect::<Result<_, _>>()?;
        told("sync", volume.sync())?;
        let (rng, promises, disturbed) =
            (StdRng::seed_from_u64(seed), vec![Promised::new()], Vec::new());
        let load = Self { volume, recorder, rng, folders, promises, disturbed };
        load.recorder.mark(0);
        Ok(load)
    }

    fn content(&mut self) -> Vec<u8> {
        let len = [0, 100, 5_000, 40_000, 150_000][self.rng.random_range(0..5)];
        let first: u8 = self.rng.random();
        (0..len).map(|at: usize| first.wrapping_add((at / 7) as u8)).collect()
    }

    /// Makes a file with some content; direct and buffered writes take turns.
    fn write_file(&mut self, folder: usize, name: &str, bytes: &[u8]) -> Result<(), String> {
        let dir = self.folders[folder].clone();
        let found = self.volume.lookup(&dir, name.as_bytes());
        let inode = match found {
            Ok(inode) => inode,
            Err(_) => {
                told("create", self.volume.create(&dir, name.as_bytes(), &new(FileKind::Regular)))?
            }
        };
        let file = told("open a file", self.volume.open_file(&inode))?;
        // In pieces from the end on, so that there are many extents.
        let step = self.rng.random_range(3_000..60_000);
        let mut pieces: Vec<(usize, &[u8])> = bytes.chunks(step).enumerate().collect();
        pieces.reverse();
        for (number, piece) in pieces {
            told("write", file.write_at((number * step) as u64, piece))?;
        }
        Ok(())
    }

    /// A round: files, their sync, the promise, and then disturbance.
    fn round(&mut self, round: usize) -> Result<(), String> {
        let mut promised = self.promises.last().cloned().unwrap_or_default();
        for n in 0..self.rng.random_range(1..5) {
            let (name, bytes) = (format!("file{n}"), self.content());
            self.write_file(round, &name, &bytes)?;
            promised.insert((round, name), bytes);
        }
        if self.rng.random_bool(0.5) {
            told("sync", self.volume.sync())?;
        } else {
            for (_, name) in promised.keys().filter(|(folder, _)| *folder == round) {
                let inode = self.volume.lookup(&self.folders[round], name.as_bytes());
                let file = told("open", inode.and_then(|inode| self.volume.open_file(&inode)))?;
                told("fsync", file.sync(false))?;
            }
        }
        self.promises.push(promised);
        self.recorder.mark((self.promises.len() - 1) as u64);
        for _ in 0..self.rng.random_range(5..25) {
            self.disturb()?;
        }
        Ok(())
    }

    fn disturb(&mut self) -> Result<(), String> {
        let folder = self.folders[ROUNDS].clone();
        let picked = match self.disturbed.len() {
            0 => None,
            len => Some(self.rng.random_range(0..len)),
        };
        match (self.rng.random_range(0..10), picked) {
            (0..4, _) | (_, None) => {
                let name = format!("scratch-{:<40}", self.rng.random::<u32>());
                let bytes = self.content();
                self.write_file(ROUNDS, &name, &bytes)?;
                self.disturbed.push(name);
            }
            (4..6, Some(at)) => {
                let (name, bytes) = (self.disturbed[at].clone(), self.content());
                self.write_file(ROUNDS, &name, &bytes)?;
            }
            (6, Some(at)) => {
                let (from, to) =
                    (self.disturbed[at].clone(), format!("moved-{}", self.rng.random::<u32>()));
                let mode = RenameMode::Replace;
                let moved =
                    self.volume.rename(&folder, from.as_bytes(), &folder, to.as_bytes(), mode);
                told("rename", moved)?;
                self.disturbed[at] = to;
            }
            (7, Some(at)) => {
                let inode =
                    told("lookup", self.volume.lookup(&folder, self.disturbed[at].as_bytes()))?;
                let size = Some(self.rng.random_range(0..60_000));
                let cut = SetAttr { size, mtime: Some(SetTime::Now), ..SetAttr::default() };
                told("truncate", self.volume.set_attr(&inode, &cut))?;
            }
            (8, Some(at)) => {
                let name = self.disturbed.swap_remove(at);
                told("unlink", self.volume.unlink(&folder, name.as_bytes()))?;
                told("delete", self.volume.delete_unlinked())?;
            }
            _ => told("sync", self.volume.sync())?,
        }
        Ok(())
    }
}

/// What is missing of a promise.
fn broken(volume: &Volume, promised: &Promised) -> Result<Vec<String>, String> {
    let root = told("root", volume.root())?;
    let mut missing = Vec::new();
    for ((folder, name), bytes) in promised {
        let found = volume
            .lookup(&root, &folder_name(*folder))
            .and_then(|dir| volume.lookup(&dir, name.as_bytes()))
            .and_then(|inode| {
                let mut read = vec![0; bytes.len() + 1];
                let len = volume.open_file(&inode)?.read_at(0, &mut read)?;
                read.truncate(len);
                Ok(read)
            });
        match found {
            Ok(read) if read == *bytes => {}
            Ok(read) => missing.push(format!(
                "folder{folder}/{name}: {} bytes, {} were synced, or others",
                read.len(),
                bytes.len()
            )),
            Err(error) => missing.push(format!("folder{folder}/{name}: {error}")),
        }
    }
    Ok(missing)
}

/// Judges one state.
fn judge_state(
    oracle: &Oracle,
    state: &MemoryDevice,
    promised: &Promised,
    is_closed: bool,
) -> Result<Vec<String>, String> {
    let path = oracle.put(state, "unjournaled.img").map_err(|error| error.to_string())?;
    if !is_closed {
        let verdict = judge(&path, "-fy").map_err(|error| error.to_string())?;
        if !matches!(verdict.code, 0 | 1) {
            return Ok(vec![format!("e2fsck -fy exits {}: {}", verdict.code, verdict.text)]);
        }
    }
    let mut found: Vec<String> = expect_clean(&path).err().into_iter().collect();
    let device = FileDevice::open(&path, Access::ReadWrite, 0).map_err(|e| e.to_string())?;
    let volume = told("open", Volume::open(Arc::new(device), MountOptions::default()))?;
    if volume.recovery().is_unchecked {
        found.push("it is said to be unchecked".to_owned());
    }
    found.extend(volume.read_only_reason());
    found.extend(broken(&volume, promised)?);
    told("close", volume.close())?;
    found.extend(expect_clean(&path).err());
    Ok(found)
}

/// Records a run on a file system with these features and judges what a loss of power may leave,
/// until `until`, or for `states_max` states.
///
/// # Errors
/// The machinery failed.
pub fn judge_run(
    features: &str,
    seed: u64,
    depth: Depth,
    states_max: usize,
    until: Option<Instant>,
) -> Result<Tally, String> {
    let mut load = Load::begin(features, seed)?;
    for round in 0..ROUNDS {
        load.round(round)?;
    }
    let Load { volume, recorder, promises, folders, .. } = load;
    drop(folders);
    told("close", volume.close())?;
    recorder.mark(promises.len() as u64);
    let recording = recorder.recording();
    let oracle = Oracle::new().map_err(|error| error.to_string())?;
    let (mut tally, mut seen) = (Tally::default(), HashSet::new());
    let mut rng = StdRng::seed_from_u64(seed);
    let mut visit = |state: &CrashState, tally: &mut Tally| {
        let mark = recording.marks_before(state.moment).last();
        if !seen.insert((state.digest, mark)) {
            return Ok(true);
        }
        let at = mark.and_then(|mark| usize::try_from(mark).ok());
        let is_closed = at == Some(promises.len());
        let none = Promised::new();
        let promised = at.map_or(&none, |at| &promises[at.min(promises.len() - 1)]);
        tally.states += 1;
        for what in judge_state(&oracle, &state.device, promised, is_closed)? {
            tally.faults.push((state.name.clone(), what));
        }
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        Ok::<_, String>(tally.states < states_max && tally.faults.len() < 5 && !is_late)
    };
    let mut windows = Windows::new(&recording);
    let (mut goes_on, mut failed) = (true, Ok(()));
    while let Some(window) = windows.advance().filter(|_| goes_on) {
        windows.states(&window, depth, &mut rng, &mut |state| {
            goes_on = visit(&state, &mut tally).unwrap_or_else(|error| {
                failed = Err(format!("{}: {error}", state.name));
                false
            });
            goes_on
        });
    }
    failed.map(|()| tally)
}
