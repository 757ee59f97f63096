//! Everything that a seed draws before the run begins.

use super::case::Case;
use super::part::{Part, Parts};
use super::scene::{DrawnMoments, Failing, Scene};
use super::tenant::Tenancy;
use crate::category::{CATEGORIES, Category};
use crate::oracle::JUNK;
use crate::run::ABLATIONS;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use uext4::MountOptions;
use uext4::config::{DataMode, DaxMode};
use uext4_device::{Device, MemoryDevice};
use uext4_schedule::Policy;

/// Simulated time in which no operation ends: nothing goes on any more.
pub(super) const PATIENCE: Duration = Duration::from_secs(3600);

/// How a life of the volume ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The power fails at this request of the device.
    Cut { request: u64 },
    /// The power fails as soon as so many syncs of callers have returned.
    CutAtSync { number: u32 },
    /// The callers have done their operations, and the volume is closed.
    Close,
    /// The volume is closed after about this time, with callers inside.
    CloseBeside { after: Duration },
    /// The volume is made read-only after about this time, with callers inside.
    ReadOnlyBeside { after: Duration },
    /// The volume is forgotten where it stands.
    Abandon,
}

/// One life.
#[derive(Clone, Debug)]
pub(super) struct LifePlan {
    pub(super) options: MountOptions,
    pub(super) ablation: &'static str,
    pub(super) category: Category,
    /// Of a narrow run: the callers do these kinds of operation, on so few files.
    pub(super) scene: Option<Scene>,
    /// The callers do this instead.
    pub(super) tenancy: Option<Tenancy>,
    pub(super) operations: usize,
    pub(super) end: End,
    /// The recovery afterwards is cut at this request.
    pub(super) recovery_cut: Option<u64>,
    /// When writes fail, and whether for want of space.
    pub(super) failing: Option<(Failing, bool)>,
    pub(super) moments: DrawnMoments,
}

/// Speed of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// Of most reads and writes, at most.
    pub(super) request: Duration,
    /// Of flushes, at most.
    pub(super) flush: Duration,
    /// Of a hundred requests so many take eight or a hundred times as long, so that commits pass
    /// them.
    pub(super) slow_percent: u32,
    /// So many last until others have ended some iterations, `iterations` at most.
    pub(super) linger_percent: u32,
    pub(super) iterations: u32,
}

impl Speed {
    pub(super) const AT_ONCE: Speed = Speed {
        request: Duration::ZERO,
        flush: Duration::ZERO,
        slow_percent: 0,
        linger_percent: 0,
        iterations: 1,
    };
}

/// Everything that a seed draws.
#[derive(Clone, Debug)]
pub struct SeedPlan {
    pub(super) case: Case,
    /// Few parts, few files, few kinds of operation, again and again.
    pub(super) is_narrow: bool,
    pub(super) parts: Parts,
    pub(super) policy: Policy,
    pub(super) step: Duration,
    pub(super) threads: u32,
    /// How many the engine is told of: it has as many cells of its counters, and lanes for syncs.
    pub(super) processors: usize,
    pub(super) speed: Speed,
    pub(super) lives: Vec<LifePlan>,
    pub(super) format: uext4_mkfs::Options,
    pub(super) image_mib: u64,
}

/// Features that edit the default set.
const FEATURES: &[&str] = &[
    "",
    "orphan_file",
    "orphan_file,metadata_csum_seed",
    "^metadata_csum",
    "^metadata_csum,uninit_bg",
    "^metadata_csum,orphan_file",
];

impl SeedPlan {
    /// The plan of a case. What the case leaves out changes nothing of the rest.
    ///
    /// # Panics
    /// If an ablation is no mount option.
    #[must_use]
    pub fn draw(case: &Case) -> SeedPlan {
        let mut rng = StdRng::seed_from_u64(case.seed);
        let is_narrow = rng.random_ratio(3, 5);
        let parts = if is_narrow { Parts::draw_few(&mut rng) } else { Parts::draw(&mut rng) };
        let parts = parts.with(case.with).without(case.without);
        let mut policy = Policy::draw(&mut rng);
        policy.preemptions_max = case.preemptions.unwrap_or(u64::MAX);
        let step = Duration::from_nanos([20, 100, 500, 2_000][rng.random_range(0..4)]);
        let threads = rng.random_range(if is_narrow { 2..=4 } else { 1..=5 });
        // Syncs go in groups where many sync.
        let threads = if parts.has(Part::SyncOften) { threads.max(4) } else { threads };
        let threads = threads.min(case.threads.unwrap_or(u32::MAX)).max(1);
        let micros = |most| Duration::from_micros(most);
        let speed = match parts.has(Part::Latency) {
            true => Speed {
                request: micros([20, 200, 3_000][rng.random_range(0..3)]),
                flush: micros([50, 2_000, 40_000][rng.random_range(0..3)]),
                slow_percent: [0, 5, 20][rng.random_range(0..3)],
                linger_percent: [0, 1, 4, 15][rng.random_range(0..4)],
                iterations: [3, 15][rng.random_range(0..2)],
            },
            false => Speed::AT_ONCE,
        };
        let (format, image_mib) = draw_format(&mut rng, case.seed, parts);
        let processors = [1, 1, 1, 2, 4][rng.random_range(0..5)];
        let count = rng.random_range(1..=4).min(case.lives.unwrap_or(usize::MAX)).max(1);
        let block_size = format.block_size.unwrap_or(4096);
        let lives = (0..count)
            .map(|life| {
                let mut rng = StdRng::seed_from_u64(case.seed ^ (life as u64 + 1) << 48);
                let mut plan = draw_life(&mut rng, is_narrow, parts, threads, block_size);
                plan.operations = plan.operations.min(case.operations.unwrap_or(usize::MAX));
                plan
            })
            .collect();
        let case = case.clone();
        SeedPlan {
            case,
            is_narrow,
            parts,
            policy,
            step,
            threads,
            processors,
            speed,
            lives,
            format,
            image_mib,
        }
    }

    /// A fresh file system. Its free blocks hold junk; with lazily initialised tables the junk
    /// looks like inodes of an older file system.
    pub(super) fn make(&self) -> Result<MemoryDevice, String> {
        let memory = junk(self.image_mib, self.parts.has(Part::LazyTables))?;
        uext4_mkfs::format(&memory, &self.format).map_err(|error| format!("mkfs: {error}"))?;
        Ok(memory)
    }
}

/// A device full of junk, which costs its making once in a process.
fn junk(mib: u64, is_of_inodes: bool) -> Result<MemoryDevice, String> {
    static MADE: Mutex<BTreeMap<(u64, bool), MemoryDevice>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock();
    if let Some(device) = made.get(&(mib, is_of_inodes)) {
        return Ok(device.snapshot());
    }
    let memory = MemoryDevice::new(mib << 20);
    let mut junk = vec![JUNK; 1 << 20];
    if is_of_inodes {
        for inode in junk.chunks_exact_mut(256) {
            inode.fill(0);
            // A regular file of some bytes, with one link.
            inode[..6].copy_from_slice(&[0xa4, 0x81, 0, 0, 77, 0]);
            inode[26] = 1;
        }
    }
    for at in 0..mib {
        memory.write_at(at << 20, &junk).map_err(|error| error.to_string())?;
    }
    made.insert((mib, is_of_inodes), memory.snapshot());
    Ok(memory)
}

fn draw_format(rng: &mut StdRng, seed: u64, parts: Parts) -> (uext4_mkfs::Options, u64) {
    let (block_size, journal_mib, image_mib) = match rng.random_range(0..8) {
        0..=3 => (1024, 1, 8),
        4 => (1024, 1, 24),
        5 => (2048, 2, 8),
        _ => (4096, 4, 16),
    };
    let inodes = [None, Some(1024), Some(8192)][rng.random_range(0..3)];
    // Where inodes are many, numbers are claimed before anything is known of the name.
    let inodes = if parts.has(Part::LazyTables) { Some(8192) } else { inodes };
    let features = FEATURES[rng.random_range(0..FEATURES.len())];
    let seeds = [seed as u8; 16];
    let options = uext4_mkfs::Options {
        block_size: Some(block_size),
        journal_mib: Some(journal_mib),
        inodes,
        features: features.to_owned(),
        hash_seed: Some(seeds),
        uuid: Some(seeds),
        time: Some(1_704_000_000),
        lazy_itable_init: Some(parts.has(Part::LazyTables)),
        // What is given back goes to root's reserve first, and past the cells of the others.
        reserved_percent: Some(if parts.has(Part::Tight) { 0.0 } else { 5.0 }),
        discard: Some(false),
        ..uext4_mkfs::Options::default()
    };
    (options, image_mib)
}

fn draw_life(
    rng: &mut StdRng,
    is_narrow: bool,
    parts: Parts,
    threads: u32,
    block_size: u32,
) -> LifePlan {
    let mut options = MountOptions {
        commit_interval_ms: [5, 100, 5_000][rng.random_range(0..3)],
        dirty_expire_ms: [20, 1_000, 30_000][rng.random_range(0..3)],
        ..MountOptions::default()
    };
    options.cache_bytes = match parts.has(Part::SmallCache) {
        true if is_narrow && rng.random() => 64 << 10,
        true => [64 << 10, 64 << 10, 512 << 10, 2 << 20][rng.random_range(0..4)],
        false => MountOptions::CACHE_BYTES_MIN,
    };
    let ablation = ABLATIONS[rng.random_range(0..ABLATIONS.len())];
    let ablation = if parts.has(Part::Ablation) { ablation } else { "delalloc" };
    for word in ablation.split(',') {
        options.parse(word).expect("a mount option");
    }
    if parts.has(Part::Trim) && rng.random_bool(0.5) {
        options.discard = true;
    }
    if parts.has(Part::Dax) && options.data_mode != DataMode::Journal {
        options.dax = DaxMode::Always;
    }
    let category = CATEGORIES[rng.random_range(0..CATEGORIES.len())];
    let category = match parts.has(Part::Category) {
        true if category != Category::NoSpace => category,
        _ => Category::Mix,
    };
    let storms = rng.random_bool(0.5);
    let category = if parts.has(Part::SyncOften) && storms { Category::Storm } else { category };
    let category = if parts.has(Part::Full) { Category::NoSpace } else { category };
    let scene = Scene::draw(rng, parts);
    let is_scene = is_narrow && !parts.has(Part::Category) && !parts.has(Part::Full);
    let scene = is_scene.then_some(scene);
    let category = if scene.is_some() { Category::Mix } else { category };
    let tenancy = Tenancy::draw(rng);
    // Asynchronous commits may show anything in what was not synced (D32).
    let is_tight = parts.has(Part::Tight) && !options.journal_async_commit;
    let tenancy = is_tight.then_some(tenancy);
    if tenancy.is_some_and(|tenancy| !tenancy.has_pool) {
        options.parse("mb_node_pool=0").expect("a mount option");
    }
    let most = if is_narrow { 250 } else { 400 };
    let operations = rng.random_range(20..=most) / threads as usize + 1;
    let cut = End::Cut { request: draw_request(rng, block_size) };
    let number = rng.random_range(1..=40);
    let cut = if rng.random_ratio(2, 5) { End::CutAtSync { number } } else { cut };
    let after = Duration::from_micros(rng.random_range(100..2_000_000));
    let roll = rng.random_range(0..10);
    let end = match roll {
        0..=4 if parts.has(Part::PowerCut) => cut,
        5..=7 if parts.has(Part::CloseBeside) => End::CloseBeside { after },
        8 if parts.has(Part::CloseBeside) => End::ReadOnlyBeside { after },
        0 => End::Abandon,
        _ => End::Close,
    };
    let recovery_cut = rng.random_range(1..60);
    let recovery_cut = parts.has(Part::RecoveryCut).then_some(recovery_cut);
    let begin = Duration::from_micros(rng.random_range(0..1_000_000));
    let length = Duration::from_micros(rng.random_range(100..3_000_000));
    let (first, count) = (draw_request(rng, block_size), [1, 1, 5, 40][rng.random_range(0..4)]);
    let failing = match rng.random_range(0..4) {
        0 => Failing::Time { begin, length },
        1 => Failing::Requests { first, count },
        _ => Failing::Flushes { first: first.isqrt(), count: 1 },
    };
    let failing = (failing, rng.random_bool(0.5));
    let failing = parts.has(Part::WriteErrors).then_some(failing);
    let moments = DrawnMoments::draw(rng);
    LifePlan {
        options,
        ablation,
        category,
        scene,
        tenancy,
        operations,
        end,
        recovery_cut,
        failing,
        moments,
    }
}

/// Most lives have some hundred requests.
fn draw_request(rng: &mut StdRng, block_size: u32) -> u64 {
    let most = if block_size == 1024 { 2_000 } else { 1_000 };
    let most = [50, 300, most][rng.random_range(0..3)];
    rng.random_range(1..most)
}

impl fmt::Display for SeedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let features = if self.format.features.is_empty() { "-" } else { &self.format.features };
        write!(
            f,
            "seed {}: {}{} MiB, {}-byte blocks, features {features}, {} callers, {} processors, \
             {:?}, step {:?}, {:?}; {}",
            self.case.seed,
            if self.is_narrow { "narrow, " } else { "" },
            self.image_mib,
            self.format.block_size.unwrap_or(0),
            self.threads,
            self.processors,
            self.policy,
            self.step,
            self.speed,
            self.parts,
        )?;
        for life in &self.lives {
            let kinds = life.scene.as_ref().map(|scene| {
                format!("{} on {} nodes of {} blocks", scene.kinds, scene.nodes, scene.blocks)
            });
            write!(
                f,
                "\n  {} x {} {} {:?}, cache {} KiB, commit {} ms, expire {} ms, {:?}",
                life.operations,
                kinds.unwrap_or_else(|| life.category.to_string()),
                life.ablation,
                life.tenancy,
                life.options.cache_bytes >> 10,
                life.options.commit_interval_ms,
                life.options.dirty_expire_ms,
                life.end,
            )?;
        }
        Ok(())
    }
}
