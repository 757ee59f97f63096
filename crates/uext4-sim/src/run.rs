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

mod threads;

use crate::broken_syncs::{BrokenSyncs, FlushDropper};
use crate::category::Category;
use crate::encrypted::with_key;
use crate::external;
use crate::format::{Format, ORDINARY};
use crate::model::History;
use crate::oracle::JUNK;
use crate::overlaid;
use crate::volume_target;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::sync::Arc;
#[cfg(not(feature = "simulate"))]
use threads::fill;
#[cfg(feature = "simulate")]
pub(crate) use threads::{FILL, fill};
use threads::{Load, Surroundings};
use uext4::config::{DataMode, DaxMode};
use uext4::{MountOptions, Volume};
use uext4_device::{
    AddressableDevice, Device, FaultDevice, FaultPlan, MemoryDevice, Recording, RecordingDevice,
    SharedDevice,
};

/// Shape of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes per block.
    pub block_size: u32,
    /// MiB of the journal.
    pub journal_mib: u32,
    /// MiB of the device.
    pub image_mib: u64,
    /// Features that edit those of the format.
    pub features: &'static str,
    /// The form of the file system.
    pub format: &'static Format,
}

impl Shape {
    /// The features that edit mkfs's default set.
    fn feature_words(&self) -> String {
        let words = [self.format.features, self.features];
        words.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(",")
    }
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
    /// The mix of operations.
    pub category: Category,
    /// Odds that a transaction is committed before an operation, in percent: the more commits, the
    /// more states.
    pub commit_percent: u32,
    /// Words of mount options under which the run happens, for messages.
    pub ablation: &'static str,
}

/// Mount options that a crash test tries each for itself: every data mode and ablation option.
/// Words that need each other are one, with a comma.
pub const ABLATIONS: &[&str] = &[
    "delalloc",
    "nodelalloc",
    "noauto_da_alloc",
    "data=journal",
    "writeback=ordered",
    "writeback=unwritten",
    "fsync_batch=rescan",
    "journal_async_commit,data=writeback",
    "journal_join=herd",
    "journal_credits=worst",
    "checkpoint=inline",
    "journal_join=herd,journal_credits=worst,checkpoint=inline",
    "mb_optimize_scan=0",
    "mb_optimize_scan=0,mb_trylock=0,mb_stream_goal=global,mb_free=global,mb_reserve=off",
    "discard",
    "dio_completion=deferred",
    "dax_overwrite=journal",
];

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
        let shape = Shape { block_size, journal_mib, image_mib, features, format: &ORDINARY };
        let mut plan = Plan::with(seed, shape);
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
        Plan {
            seed,
            shape,
            threads: 4,
            operations: 40,
            options,
            closes,
            category: Category::Mix,
            commit_percent: 0,
            ablation: "",
        }
    }

    /// A short run of one category on a small volume with the smallest journal, with many commits.
    ///
    /// # Panics
    /// If `ablation` is no mount option.
    #[must_use]
    pub fn of(category: Category, seed: u64, ablation: &'static str) -> Plan {
        Plan::on(&ORDINARY, category, seed, ablation)
    }

    /// The same on a form of the file system.
    ///
    /// # Panics
    /// If `ablation` is no mount option.
    #[must_use]
    pub fn on(
        format: &'static Format,
        category: Category,
        seed: u64,
        ablation: &'static str,
    ) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x00ca_7e90);
        let (block_size, journal_mib, image_mib) = match rng.random_range(0..8) {
            0..=4 => (1024, 1, 8),
            5 => (2048, 2, 8),
            _ => (4096, 4, 16),
        };
        let features = if rng.random_bool(0.5) { format.newer_features() } else { "" };
        let shape = Shape { block_size, journal_mib, image_mib, features, format };
        let mut plan = Plan::with(seed, shape);
        plan.options = MountOptions {
            cache_bytes: MountOptions::CACHE_BYTES_MIN,
            commit_interval_ms: 5_000,
            dirty_expire_ms: [20, 30_000][rng.random_range(0..2)],
            ..MountOptions::default()
        };
        plan.ablation = ablation;
        for word in ablation.split(',') {
            plan.options.parse(word).expect("a mount option");
        }
        // Journaled data is never stored in place.
        if category == Category::Dax && plan.options.data_mode != DataMode::Journal {
            plan.options.dax = DaxMode::Always;
        }
        plan.category = category;
        plan.threads = match category {
            Category::Storm => 12,
            _ => [1, 1, 2, 3][rng.random_range(0..4)],
        };
        // Most runs go round the log once; some several times.
        let operations = if rng.random_ratio(1, 10) { 500..=700 } else { 100..=260 };
        plan.operations = rng.random_range(operations) / plan.threads as usize;
        plan.commit_percent = [50, 100][rng.random_range(0..2)];
        plan.closes = rng.random_bool(0.3);
        plan
    }

    /// Whether the device says that it is behind a network: a third of the seeds.
    fn is_far(&self) -> bool {
        self.seed % 3 == 2
    }

    /// The device as this plan's volume is to see it.
    fn addressed(&self, device: SharedDevice) -> SharedDevice {
        match self.options.dax {
            DaxMode::Always => Arc::new(AddressableDevice::new(device)),
            DaxMode::Inode | DaxMode::Never => device,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { block_size, journal_mib, features, format, .. } = &self.shape;
        let features = if features.is_empty() { "default features" } else { features };
        let (threads, operations) = (self.threads, self.operations);
        write!(
            f,
            "{} seed {} {} on {format}: {block_size}-byte blocks, {journal_mib} MiB journal, \
             {features}, {threads} threads of {operations} operations, commit {} ms, expire {} ms, \
             {}",
            self.category,
            self.seed,
            self.ablation,
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
    /// With an overlay: its base. The recording is that of its store.
    pub base: Option<Arc<MemoryDevice>>,
}

impl Run {
    /// The image that a state of the medium shows.
    ///
    /// # Errors
    /// An overlay that cannot be read.
    pub fn shown(&self, medium: &MemoryDevice) -> Result<MemoryDevice, String> {
        match &self.base {
            None => Ok(medium.snapshot()),
            Some(base) => overlaid::merged(medium, base),
        }
    }

    /// Where the image begins in the medium.
    pub(crate) fn image_start(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| overlaid::image_start(base))
    }

    /// The devices of a medium that is recorded.
    ///
    /// # Errors
    /// An overlay that cannot be opened.
    pub fn split_recorded(
        &self,
        recorder: &Arc<RecordingDevice>,
    ) -> Result<(SharedDevice, Option<SharedDevice>), String> {
        match &self.base {
            None => Ok(external::split_recorded(recorder)),
            Some(base) => Ok((overlaid::open(recorder.clone(), base)?, None)),
        }
    }
}

/// Runs a plan.
///
/// # Errors
/// What could not be made, or the first operation that should have succeeded.
pub fn record(plan: &Plan, syncs: BrokenSyncs) -> Result<Run, String> {
    let memory = Arc::new(make(&plan.shape, plan.seed)?);
    let volume = open(memory.clone(), MountOptions::default())?;
    volume_target::set_up(&volume, plan.threads).map_err(|error| format!("set up: {error}"))?;
    let mut load = Load::new(plan);
    load.warm_up(&volume)?;
    if let Some(left) = plan.category.free_blocks() {
        fill(&volume, left).map_err(|error| format!("fill: {error}"))?;
    }
    volume.close().map_err(|error| format!("close after set-up: {error}"))?;

    let base = plan.shape.format.has_overlay.then(|| memory.clone());
    let medium =
        base.as_ref().map_or_else(|| Ok(memory.snapshot()), |base| overlaid::make(base))?;
    let recorder = Arc::new(RecordingDevice::over(medium).far(plan.is_far()));
    load.mark_warm(&recorder);
    let (device, journal) = match syncs {
        BrokenSyncs::DroppedFlushes => {
            let dropper: SharedDevice = Arc::new(FlushDropper::new(recorder.clone()));
            match &base {
                Some(base) => (overlaid::open(dropper, base)?, None),
                None => external::split(&dropper),
            }
        }
        _ => match &base {
            Some(base) => (overlaid::open(recorder.clone(), base)?, None),
            None => external::split_recorded(&recorder),
        },
    };
    let volume = open_parts((plan.addressed(device), journal), plan.options.clone())?;
    let around = Surroundings {
        skips_syncs: syncs == BrokenSyncs::SkippedSyncs,
        synced: &|mark| recorder.mark(mark.number()),
        faulty: None,
    };
    let done = load.run(&volume, &around);
    let ended = if plan.closes {
        volume.close().map_err(|error| format!("close: {error}"))
    } else {
        volume.abandon();
        Ok(())
    };
    done?;
    ended?;
    Ok(Run { recording: recorder.recording(), history: load.history(), base })
}

fn open(device: SharedDevice, options: MountOptions) -> Result<Volume, String> {
    open_parts(external::split(&device), options)
}

fn open_parts(
    parts: (SharedDevice, Option<SharedDevice>),
    options: MountOptions,
) -> Result<Volume, String> {
    external::open(parts, with_key(options)).map_err(|error| format!("open: {error}"))
}

/// A fresh file system whose free blocks hold junk.
///
/// # Errors
/// Those of mkfs.
pub fn make(shape: &Shape, seed: u64) -> Result<MemoryDevice, String> {
    let memory = MemoryDevice::new((shape.image_mib << 20) + external::journal_bytes(shape));
    let junk = vec![JUNK; 1 << 16];
    for at in (0..memory.len()).step_by(junk.len()) {
        memory.write_at(at, &junk).map_err(|error| error.to_string())?;
    }
    let options = uext4_mkfs::Options {
        block_size: Some(shape.block_size),
        journal_mib: shape.format.has_journal().then_some(shape.journal_mib),
        features: shape.feature_words(),
        cluster_size: shape.format.cluster_size,
        inode_size: shape.format.inode_size,
        // Several meta groups.
        blocks_per_group: shape.format.features.contains("meta_bg").then_some(1024),
        hash_seed: Some([seed as u8; 16]),
        discard: Some(false),
        ..uext4_mkfs::Options::default()
    };
    match shape.format.has_journal_device {
        true => external::make(&memory, shape, &options)?,
        false => {
            uext4_mkfs::format(&memory, &options).map_err(|error| format!("mkfs: {error}"))?;
        }
    }
    Ok(memory)
}

/// A run on a device that failed.
#[derive(Debug)]
pub struct FailedRun {
    /// Requests that failed.
    pub struck: u64,
    /// Whether somebody was told: a caller, also of open or close.
    pub told: bool,
    /// Whether an aborted journal left a volume that says it can be written.
    pub writable_after_abort: bool,
    /// The medium afterwards.
    pub medium: MemoryDevice,
    /// What the threads did.
    pub history: History,
}

/// Runs a plan on a device that fails as planned, from the opening to the closing of the volume.
///
/// # Errors
/// What could not be made, or an operation that failed before the device did.
pub fn run_failing(plan: &Plan, fault: FaultPlan) -> Result<FailedRun, String> {
    let medium = Arc::new(make(&plan.shape, plan.seed)?);
    let volume = open(medium.clone(), MountOptions::default())?;
    volume_target::set_up(&volume, plan.threads).map_err(|error| format!("set up: {error}"))?;
    volume.close().map_err(|error| format!("close after set-up: {error}"))?;
    let device = Arc::new(FaultDevice::new(medium.clone()));
    device.arm(fault);
    let mut load = Load::new(plan);
    let (mut told, mut writable_after_abort) = (false, false);
    let (data, journal) = external::split(&(device.clone() as SharedDevice));
    match open_parts((plan.addressed(data), journal), plan.options.clone()) {
        Err(_) => told = true,
        Ok(volume) => {
            let faulty = Some(device.clone());
            let around = Surroundings { skips_syncs: false, synced: &|_| (), faulty };
            load.run(&volume, &around)?;
            let aborted = volume.space().journal().is_aborted();
            writable_after_abort = aborted && volume.read_only_reason().is_none();
            told |= volume.close().is_err();
        }
    }
    let struck = device.struck();
    let history = load.history();
    told |= history.threads.iter().any(|t| t.entries.last().is_some_and(|e| e.ended.is_none()));
    let medium = medium.snapshot();
    Ok(FailedRun { struck, told, writable_after_abort, medium, history })
}
