//! Runs of a load that syncs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use uext4::Volume;
use uext4_device::{FileDevice, MeteredDevice};

use crate::bench::files::{Directory, Library};
use crate::bench::{
    self, Bench, CAUSES, Candidate, Counters, Experiment, Figures, Limits, Setting, StartImage,
    known,
};
use crate::counted::counted;
use crate::error::{Doing, Error, Result};
use crate::evidence::{Served, TargetRun};
use crate::explain::Subject;
use crate::fio::is_installed;
use crate::load::Load;
use crate::machine;
use crate::mkfs_option::MkfsOptions;
use crate::plan::{Event, Plan};
use crate::report::DEFAULT;
use crate::stage::{Loop, Medium, Route};
use crate::storm::base;
use crate::storm::journals::{candidates, journals_of, with_journal};
use crate::storm::judge;
use crate::storm::raw::Raw;
use crate::storm::storm_fio;
use crate::storm::storm_shape::{JOURNAL_MIB, StormKind, StormShape};
use crate::storm::syncers::{self, StormOutcome};
use crate::target::{self, Opened, Target};

/// A candidate with a fixed number of writes that is slower than planned is cut off after this many
/// times the duration of the plan.
const PATIENCE: u32 = 6;

/// Space that a run takes at most, in bytes, with the largest journal.
pub(crate) fn room(kind: StormKind, plan: &Plan, threads: u32) -> u64 {
    // In a mounted directory what is allocated is taken, as in no sparse image.
    let writes = plan.operations.filter(|_| plan.dir.is_none());
    largest(kind, plan, threads).space_bytes(writes, plan.kinds())
}

/// Length of the image of a run with the largest journal, in bytes.
pub(crate) fn length(kind: StormKind, plan: &Plan, threads: u32) -> u64 {
    let shape = largest(kind, plan, threads);
    if plan.mkfs.is_empty() { shape.image_bytes() } else { shape.roomy_image_bytes() }
}

fn largest(kind: StormKind, plan: &Plan, threads: u32) -> StormShape {
    let journal = journals_of(kind, plan).iter().copied().max().unwrap_or(JOURNAL_MIB);
    StormShape::new(kind, threads, journal, plan.scale)
}

/// All runs of a load on those targets.
///
/// # Errors
/// No room; an early end. Failures of targets are events.
pub(crate) fn run(
    kind: StormKind,
    plan: &Plan,
    load: &'static Load,
    targets: &[Target],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    for threads in plan.threads_of(load) {
        for &journal in journals_of(kind, plan) {
            let shape = StormShape::new(kind, threads, journal, plan.scale);
            let bench = Bench::new(plan, load, shape.image_bytes())?;
            let what = format!("{}, journal {journal} MiB", counted(threads, "thread"));
            let need = shape.space_bytes(plan.operations, plan.kinds());
            bench.require_room(&what, need, "use --scale or --ops", tell)?;
            let setting = Setting { form: None, threads, bs: load.block_bytes };
            let candidates = candidates(plan, (kind, load), targets, journal);
            if bench.is_done(setting, &candidates) {
                continue;
            }
            let base = base::make(plan, &bench.stage, &shape, None)?;
            let bases = HashMap::from([(None, base)]);
            let mut storm = Storm { shape, bases, operations: None };
            storm.calibrate(&bench, setting, tell)?;
            bench.all_rounds(&mut storm, setting, &candidates, tell)?;
        }
    }
    plan.go_on()
}

/// A load with a number of threads and a journal.
struct Storm {
    shape: StormShape,
    /// The images that runs start from, by what the file system is made with.
    bases: HashMap<Option<MkfsOptions>, PathBuf>,
    /// Writes of each thread, where every target makes the same number.
    operations: Option<u32>,
}

impl Experiment for Storm {
    type Outcome = StormOutcome;

    fn prepare(&mut self, bench: &Bench<'_>, candidate: &Candidate) -> Result<()> {
        if !self.bases.contains_key(&candidate.mkfs) {
            let mkfs = candidate.mkfs.as_ref();
            let base = base::make(bench.plan, &bench.stage, &self.shape, mkfs)?;
            self.bases.insert(candidate.mkfs.clone(), base);
        }
        Ok(())
    }

    fn start(&self, candidate: &Candidate) -> StartImage<'_> {
        match candidate.target {
            Target::Raw => StartImage::Empty(self.shape.image_bytes()),
            _ => StartImage::Copy(self.base(candidate)),
        }
    }

    fn perform(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<(StormOutcome, Figures)> {
        match candidate.target {
            Target::Raw => {
                let scene = bench.scene(run, candidate, Served::Nothing, medium);
                scene.during(|| self.on_raw(bench, medium))
            }
            Target::Uext4 => self.on_library(bench, candidate, run, medium),
            _ => self.on_mount(bench, candidate, run, medium),
        }
    }

    /// Both checkers, and what the blocks hold where our own threads wrote them.
    fn judge(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        _run: TargetRun,
        image: &Path,
        outcome: &StormOutcome,
    ) -> Result<Figures> {
        if candidate.target == Target::Raw {
            judge::raw(&self.shape, image, &outcome.more.writes)?;
        } else {
            judge::files(bench, &self.shape, candidate.target, image, &outcome.more.writes)?;
        }
        Ok(Figures::new())
    }

    fn fill(&self, bench: &Bench<'_>, dir: &Path) -> Result<()> {
        base::fill(bench.plan, &bench.stage, &self.shape, dir)
    }

    fn judge_folder(&self, dir: &Path, outcome: &StormOutcome) -> Result<()> {
        judge::folder(&self.shape, dir, &outcome.more.writes)
    }

    fn remark(&self, candidate: &Candidate, outcome: &StormOutcome) -> Option<String> {
        let (name, variant) = (candidate.target.name(), &candidate.variant);
        let (done, seconds) = (outcome.operations, outcome.seconds);
        let wanted = u64::from(self.operations.unwrap_or(0)) * u64::from(self.shape.threads);
        outcome.more.cut_off.then(|| {
            format!("{name} {variant} was cut off after {seconds:.0} s: {done} of {wanted} writes")
        })
    }
}

impl Storm {
    fn base(&self, candidate: &Candidate) -> &Path {
        // It was prepared.
        &self.bases[&candidate.mkfs]
    }

    /// Finds how many writes each thread makes: as many as uext4 does in the time of the plan.
    fn calibrate(
        &mut self,
        bench: &Bench<'_>,
        setting: Setting,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let direct = self.store_takes_direct_io(bench)?;
        if let Some(direct) = direct {
            let text = if direct { "pass the page cache by" } else { "go through the page cache" };
            tell(Event::Note(bench.load, format!("loop devices {text}")));
        }
        if self.shape.kind == StormKind::Shared {
            return Ok(());
        }
        let blocks = self.shape.blocks();
        let candidate = Candidate::new(Target::Uext4, DEFAULT);
        let candidate = with_journal(self.shape.kind, candidate, self.shape.journal_mib);
        let run = bench.run_of(setting, candidate.target, 0);
        let key = run.named(&candidate.variant).key();
        // A run that goes on does as much in its other rounds.
        let known = bench.plan.operations.or_else(|| bench.plan.resumed.number(&key));
        let operations = match known {
            Some(count) => count,
            None => {
                let (outcome, _) = bench.run(self, &candidate, run)?;
                let each = outcome.operations / u64::from(self.shape.threads);
                u32::try_from(each).unwrap_or(u32::MAX)
            }
        };
        let operations = operations.clamp(1, blocks);
        self.operations = Some(operations);
        tell(Event::Found(&key, operations));
        let seconds = bench.plan.duration.as_secs_f64();
        let text = format!(
            "each thread makes {} of {blocks} that there is room for; planned are {seconds} s on \
             uext4",
            counted(operations, "write")
        );
        tell(Event::Note(bench.load, text));
        Ok(())
    }

    /// Whether loop devices over the store pass its page cache by; `None` if none is used.
    fn store_takes_direct_io(&self, bench: &Bench<'_>) -> Result<Option<bool>> {
        let plan = bench.plan;
        let by_loop = plan.route == Route::Device && plan.lent.is_none();
        if !by_loop || Target::Kernel.obstacle(plan).is_some() {
            return Ok(None);
        }
        let medium = Medium::of(plan, &self.bases[&None], Loop::Direct)?;
        let direct = medium.is_direct();
        medium.release()?;
        Ok(Some(direct))
    }

    fn limits<'p>(&self, bench: &Bench<'p>) -> Limits<'p> {
        let plan = bench.plan;
        let patience = if self.operations.is_some() { PATIENCE } else { 1 };
        let time = plan.duration.saturating_mul(patience).max(Duration::from_millis(100));
        let timelines = bench.is_watching();
        Limits { operations: self.operations, time, stop: &plan.stop, timelines }
    }

    fn on_raw(&self, bench: &Bench<'_>, medium: &Medium) -> Result<(StormOutcome, Figures)> {
        let raw = Raw::open(medium.path(), &self.shape)?;
        let count = || Counters {
            flushes: Some(raw.flushes()),
            transactions: Some(raw.batches()),
            handles: Some(raw.syncs()),
            ..Counters::of_kernel(None)
        };
        let limits = self.limits(bench);
        let subject = Subject::raw(medium);
        let work = || bench.watched(subject, || syncers::run(&raw, &self.shape, limits));
        measure(count, work, || None)
    }

    fn on_library(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<(StormOutcome, Figures)> {
        let (options, file) = target::parse_options(&candidate.options)?;
        let device = FileDevice::open_with(medium.path(), &file).doing("opening the image")?;
        let device = Arc::new(device);
        // A loop device counts its flushes itself, for every target alike.
        let meter = medium.block_device().is_none().then(|| MeteredDevice::new(device.clone()));
        let meter = meter.map(Arc::new);
        let volume = match &meter {
            Some(meter) => Volume::open(meter.clone(), options)?,
            None => Volume::open(device, options)?,
        };
        let count = || {
            let mut counters = Counters::of_kernel(medium.block_device()).with_volume(&volume);
            if let Some(meter) = &meter {
                let read = meter.read_meter();
                counters.flushes = Some(read.flushes + read.fua_writes);
            }
            counters
        };
        let limits = self.limits(bench);
        let subject = Subject::volume(&volume, medium);
        let work = || syncers::run(&Library(&volume), &self.shape, limits);
        let work = || bench.watched(subject, work);
        let scene = bench.scene(run, candidate, Served::Volume(&volume), medium);
        let measured = scene.during(|| measure(count, work, machine::peak_rss_kib))?;
        volume.close()?;
        Ok(measured)
    }

    fn on_mount(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<(StormOutcome, Figures)> {
        let opened =
            candidate.target.start(bench.plan, &bench.stage, medium, &candidate.options)?;
        let Opened::Mount(mount) = &opened else { return Err(Error::new("not a mount")) };
        let count = || Counters::of_kernel(medium.block_device());
        let limits = self.limits(bench);
        let by_fio = is_installed() && self.shape.kind != StormKind::Append;
        let log = bench.stage.source("fio.json");
        let work = || match by_fio {
            true => storm_fio::run(&self.shape, mount.dir(), limits, &log),
            false => syncers::run(&Directory(mount.dir()), &self.shape, limits),
        };
        let work = || bench.watched(Subject::of(&opened, medium), work);
        let scene = bench.scene(run, candidate, Served::by(&opened), medium);
        let measured = scene.during(|| measure(count, work, || opened.peak_rss_kib()))?;
        if by_fio {
            scene.keep_file("fio.json", &log)?;
        }
        opened.end()?;
        Ok(measured)
    }
}

/// Does the work and forms figures of it.
fn measure(
    count: impl Fn() -> Counters,
    work: impl FnOnce() -> Result<StormOutcome>,
    peak_rss_kib: impl FnOnce() -> Option<u64>,
) -> Result<(StormOutcome, Figures)> {
    let (outcome, usage) = bench::measure(count, work)?;
    let counted = usage.counted;
    if outcome.more.syncs == 0 {
        return Err(Error::new("nothing was synced in the time"));
    }
    let (sync, write, syncs) = (outcome.latency, outcome.more.write, outcome.more.syncs as f64);
    let sync_us = sync.mean_us * syncs;
    let figures = [
        ("iops", Some(outcome.rate())),
        ("latency_p50_us", Some(sync.p50_us)),
        ("latency_p99_us", Some(sync.p99_us)),
        ("latency_max_us", Some(sync.max_us)),
        ("latency_mean_us", Some(sync.mean_us)),
        ("write_latency_p50_us", Some(write.p50_us)),
        ("write_latency_p99_us", Some(write.p99_us)),
        ("write_latency_max_us", Some(write.max_us)),
        ("handles_per_txn", counted.handles_per_txn()),
        ("commit_mean_us", counted.commit_mean_us()),
        ("flushes_per_fsync", counted.flushes.map(|count| count as f64 / syncs)),
        ("context_switches_per_op", outcome.each(counted.context_switches)),
        ("log_space_wait_share", counted.log_space_wait_us.map(|us| us / sync_us)),
        ("cpu_s", usage.cpu_s),
        ("peak_rss_kib", peak_rss_kib().map(|kib| kib as f64)),
        ("operations", Some(outcome.operations as f64)),
    ];
    let causes = CAUSES.into_iter().zip(counted.causes.map(|count| count.map(|n| n as f64)));
    let reserved = counted.reserved_high_water.map(|credits| credits as f64);
    let causes = causes.chain([("reserved_high_water", reserved)]);
    Ok((outcome, known(figures.into_iter().chain(causes)).collect()))
}
