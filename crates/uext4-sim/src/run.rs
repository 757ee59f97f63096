//! A recorded run: several threads on one volume on a recording device.
//!
//! # What
//! [`Plan`] says everything that a seed decides; [`record`] makes the file system, runs the threads
//! and returns the log of the device with the history of the threads. Free blocks of the fresh file
//! system hold junk, so that a block that is shown before it was written is seen.
//!
//! # Repeating
//! A seed repeats the operations of each thread, not how the threads interleave: a fault that needs
//! a schedule may take several tries. A plan with one thread comes close to exact.

use crate::generator::{Generator, Limits};
use crate::model::{History, Mark, ThreadHistory};
use crate::oracle::JUNK;
use crate::plant::{FlushDropper, Plant};
use crate::target::{Clock, act};
use crate::volume_target::{self, VolumeTarget};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::sync::Arc;
use uext4::{MountOptions, Volume};
use uext4_device::{Device, MemoryDevice, Recording, RecordingDevice, SharedDevice};

/// Shape of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes per block.
    pub block_size: u32,
    /// MiB of the journal.
    pub journal_mib: u32,
    /// MiB of the device.
    pub image_mib: u64,
    /// Features that edit the default set.
    pub features: &'static str,
}

/// Features of newer e2fsprogs.
pub const NEWER_FEATURES: &str = "orphan_file,metadata_csum_seed";

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The file system.
    pub shape: Shape,
    /// Number of threads.
    pub threads: u32,
    /// Operations of each thread.
    pub operations: usize,
    /// Options of the mount.
    pub options: MountOptions,
    /// Whether the run ends with an unmount, or in the middle.
    pub closes: bool,
}

impl Plan {
    /// The plan of a seed: shape, mount options and length vary.
    #[must_use]
    pub fn from_seed(seed: u64) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
        let (block_size, journal_mib) = match rng.random_range(0..6) {
            0 | 1 => (1024, 1),
            2 => (1024, 4),
            3 => (2048, 2),
            _ => (4096, 4),
        };
        let features = if rng.random_bool(0.5) { NEWER_FEATURES } else { "" };
        let image_mib = if block_size == 4096 { 48 } else { 32 };
        let mut plan = Plan::with(seed, Shape { block_size, journal_mib, image_mib, features });
        plan.threads = rng.random_range(1..=6);
        // Most runs are short, so that every place of their logs is judged; the long ones go round
        // the log several times.
        let operations = if rng.random_bool(0.15) { 1_000..=3_000 } else { 60..=400 };
        plan.operations = rng.random_range(operations) / plan.threads as usize;
        plan
    }

    /// The plan of a seed on a given shape.
    #[must_use]
    pub fn with(seed: u64, shape: Shape) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x0097_1045);
        let options = MountOptions {
            // Commits and writeback of their own accord, not only for syncs.
            commit_interval_ms: [5, 30, 5_000][rng.random_range(0..3)],
            dirty_expire_ms: [10, 100, 30_000][rng.random_range(0..3)],
            delalloc: rng.random_bool(0.8),
            cache_bytes: [8 << 20, 64 << 20][rng.random_range(0..2)],
            ..MountOptions::default()
        };
        let closes = rng.random_bool(0.5);
        Plan { seed, shape, threads: 4, operations: 40, options, closes }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { block_size, journal_mib, features, .. } = &self.shape;
        let features = if features.is_empty() { "default features" } else { features };
        let (threads, operations) = (self.threads, self.operations);
        write!(
            f,
            "seed {}: {block_size}-byte blocks, {journal_mib} MiB journal, {features}, {threads} \
             threads of {operations} operations, commit {} ms, expire {} ms, {}",
            self.seed,
            self.options.commit_interval_ms,
            self.options.dirty_expire_ms,
            if self.closes { "closed" } else { "abandoned" },
        )
    }
}

/// A run that is over.
#[derive(Debug)]
pub struct Run {
    /// What the device saw; marks are [`Mark`] numbers.
    pub recording: Recording,
    /// What the threads did.
    pub history: History,
}

/// Runs a plan.
///
/// # Errors
/// What could not be made, or the first operation that should have succeeded.
pub fn record(plan: &Plan, plant: Plant) -> Result<Run, String> {
    let memory = Arc::new(make(&plan.shape, plan.seed)?);
    let volume = open(memory.clone(), MountOptions::default())?;
    volume_target::set_up(&volume, plan.threads).map_err(|error| format!("set up: {error}"))?;
    volume.close().map_err(|error| format!("close after set-up: {error}"))?;

    let recorder = Arc::new(RecordingDevice::over(memory.snapshot()));
    let device: SharedDevice = match plant {
        Plant::DroppedFlushes => Arc::new(FlushDropper::new(recorder.clone())),
        Plant::None | Plant::SkippedSyncs => recorder.clone(),
    };
    let volume = open(device, plan.options.clone())?;
    let done = run_threads(plan, &volume, plant, &recorder);
    let ended = if plan.closes {
        volume.close().map_err(|error| format!("close: {error}"))
    } else {
        volume.abandon();
        Ok(())
    };
    let history = done?;
    ended?;
    Ok(Run { recording: recorder.recording(), history })
}

fn open(device: SharedDevice, options: MountOptions) -> Result<Volume, String> {
    Volume::open(device, options).map_err(|error| format!("open: {error}"))
}

/// A fresh file system whose free blocks hold junk.
///
/// # Errors
/// Those of mkfs.
pub fn make(shape: &Shape, seed: u64) -> Result<MemoryDevice, String> {
    let memory = MemoryDevice::new(shape.image_mib << 20);
    let junk = vec![JUNK; 1 << 20];
    for mib in 0..shape.image_mib {
        memory.write_at(mib << 20, &junk).map_err(|error| error.to_string())?;
    }
    let options = uext4_mkfs::Options {
        block_size: Some(shape.block_size),
        journal_mib: Some(shape.journal_mib),
        features: shape.features.to_owned(),
        hash_seed: Some([seed as u8; 16]),
        discard: false,
        ..uext4_mkfs::Options::default()
    };
    uext4_mkfs::format(&memory, &options).map_err(|error| format!("mkfs: {error}"))?;
    Ok(memory)
}

fn run_threads(
    plan: &Plan,
    volume: &Volume,
    plant: Plant,
    recorder: &RecordingDevice,
) -> Result<History, String> {
    let clock = Clock::default();
    let limits = Limits {
        // What is left of a block beside the attributes that the inode has no room for.
        xattr_bytes: plan.shape.block_size as usize / 2,
        file_bytes: if plan.shape.block_size == 1024 { 120_000 } else { 300_000 },
        ..Limits::default()
    };
    let results: Vec<Result<ThreadHistory, String>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=plan.threads)
            .map(|thread| {
                let (clock, volume) = (&clock, volume.clone());
                scope.spawn(move || {
                    let mut generator = Generator::new(plan.seed, thread, limits, true);
                    let mut target = VolumeTarget::new(volume, plant == Plant::SkippedSyncs);
                    let entries = Vec::new();
                    let mut history = ThreadHistory { thread, identifies: true, entries };
                    let more = |done: usize| done < plan.operations;
                    let synced = |mark: Mark| recorder.mark(mark.number());
                    act(&mut generator, &mut target, clock, &mut history, &more, &synced)?;
                    Ok(history)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    let threads = results.into_iter().collect::<Result<_, _>>()?;
    Ok(History { threads })
}
