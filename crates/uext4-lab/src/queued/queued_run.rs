//! Runs of the load that queues.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use uext4::Volume;
use uext4_device::{Access, Caching, FileDevice, FileOptions, Submission};

use crate::bench::{
    self, Bench, Candidate, Counters, Experiment, Figures, FilePlace, Ratio, Setting, StartImage,
    known,
};
use crate::check;
use crate::error::{Doing, Error, Result};
use crate::evidence::{Served, TargetRun};
use crate::explain::Subject;
use crate::fio::is_installed;
use crate::load::{Beside, Form, Load};
use crate::machine;
use crate::plan::{Event, Plan};
use crate::queued::queued_fio;
use crate::queued::queued_shape::{self, NAME, QueuedShape, read_stamp};
use crate::queued::ring::{DeviceRing, LibraryRing, Op};
use crate::queued::submitter::{self, QueuedJob, QueuedOutcome};
use crate::report::DEFAULT;
use crate::stage::Medium;
use crate::target::{self, Opened, Target};

/// Blocks that are read back after a run.
const SAMPLE: usize = 8192;

/// Space that a run takes at most, in bytes.
pub(crate) fn room(plan: &Plan) -> u64 {
    QueuedShape::new(plan.scale).image_bytes()
}

/// All runs of the load on those targets.
///
/// # Errors
/// No room; an early end. Failures of targets are events.
pub(crate) fn run(
    plan: &Plan,
    load: &'static Load,
    targets: &[Target],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    if targets.contains(&Target::Kernel) && !is_installed() {
        tell(Event::Note(load, "kernel libaio is left out: fio is not installed".into()));
    }
    let candidates = plan.candidates_of(load, targets);
    let shape = QueuedShape::new(plan.scale);
    let bench = Bench::new(plan, load, shape.image_bytes())?;
    let what = format!("one file of {:.2} GiB", shape.file_bytes as f64 / f64::from(1 << 30));
    bench.require_room(&what, shape.image_bytes(), "use --scale", tell)?;
    let mut queued = Queued::new(&bench, shape)?;
    for form in plan.forms_of(load) {
        for bs in plan.blocks_of(load) {
            let setting = Setting { form, threads: 1, bs };
            // Also where all rounds have ended: it forms their ratios.
            bench.all_rounds(&mut queued, setting, &candidates, tell)?;
        }
    }
    plan.go_on()
}

/// The load, in any form and size of requests.
struct Queued {
    shape: QueuedShape,
    image: PathBuf,
    /// Where the file lies before the first run, and so after each.
    place: FilePlace,
}

impl Experiment for Queued {
    type Outcome = QueuedOutcome;

    const RATIOS: &'static [Ratio] = &[
        Ratio::new((Target::Raw, DEFAULT), ["iops_ratio_raw", "iops_ratio_raw_lower"]),
        Ratio::new(
            (Target::Kernel, Beside::IO_URING),
            ["iops_ratio_io_uring", "iops_ratio_io_uring_lower"],
        ),
        Ratio::new(
            (Target::Kernel, Beside::LIBAIO),
            ["iops_ratio_libaio", "iops_ratio_libaio_lower"],
        ),
    ];

    fn start(&self, _candidate: &Candidate) -> StartImage<'_> {
        StartImage::Itself(&self.image)
    }

    fn perform(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<(QueuedOutcome, Figures)> {
        let job = QueuedJob {
            op: op_of(run),
            bytes: usize::try_from(run.bs).unwrap_or(usize::MAX),
            file_bytes: self.shape.file_bytes,
            time: bench.plan.duration,
            seed: u64::from(run.round) << 32 | u64::from(run.bs),
            place: &self.place,
            stop: &bench.plan.stop,
            timelines: bench.is_watching(),
        };
        match candidate.target {
            Target::Raw => {
                let scene = bench.scene(run, candidate, Served::Nothing, medium);
                scene.during(|| self.on_raw(bench, job, medium))
            }
            Target::Uext4 => {
                let volume = target::open(medium.path(), false, &candidate.options)?;
                let scene = bench.scene(run, candidate, Served::Volume(&volume), medium);
                let measured = scene.during(|| on_library(bench, &volume, job, medium))?;
                volume.close()?;
                Ok(measured)
            }
            _ => on_kernel(bench, candidate, run, job, medium),
        }
    }

    /// Both checkers; the file lies where it did; blocks that were written hold the last write.
    fn judge(
        &self,
        _bench: &Bench<'_>,
        _candidate: &Candidate,
        run: TargetRun,
        image: &Path,
        outcome: &QueuedOutcome,
    ) -> Result<Figures> {
        let (bytes, figures) = (u64::from(run.bs), Figures::new());
        let volume = check::clean(image)?;
        let place = FilePlace::of(&volume, NAME);
        volume.close()?;
        if place? != self.place {
            return Err(Error::new(format!("{NAME} lies elsewhere after it")));
        }
        if op_of(run) == Op::Read || outcome.more.by_block.is_empty() {
            return Ok(figures);
        }
        // Past all file systems: where the blocks are in the image.
        let image = File::open(image).doing("reading back")?;
        let mut data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let written = (0_u64..).zip(&outcome.more.by_block).filter(|(_, last)| **last > 0);
        let step = outcome.more.by_block.len().div_ceil(SAMPLE).max(1);
        for (block, last) in written.step_by(step) {
            let offset = block * bytes;
            let place = self.place.find(offset, bytes);
            let place = place.ok_or_else(|| Error::new("a write that lies in pieces"))?;
            image.read_exact_at(&mut data, place).doing("reading back")?;
            if read_stamp(&data, offset) != Some(u64::from(*last)) {
                return Err(Error::new(format!("{NAME}: the last write at {offset} is lost")));
            }
        }
        Ok(figures)
    }
}

impl Queued {
    fn new(bench: &Bench<'_>, shape: QueuedShape) -> Result<Self> {
        let image = queued_shape::make_image(bench.plan, &bench.stage, shape)?;
        let volume = target::open(&image, true, "")?;
        let place = FilePlace::of(&volume, NAME)?;
        volume.close()?;
        Ok(Self { shape, image, place })
    }

    /// The device that the library would use, without the library.
    fn on_raw(
        &self,
        bench: &Bench<'_>,
        job: QueuedJob<'_>,
        medium: &Medium,
    ) -> Result<(QueuedOutcome, Figures)> {
        let options = FileOptions::auto(Access::ReadWrite);
        let device = FileDevice::open_with(medium.path(), &options).doing("opening the image")?;
        let memory = submitter::memory(job.bytes)?;
        let mut ring = DeviceRing::new(device, self.place.clone(), &memory)?;
        let work = || submitter::run(&mut ring, job, memory);
        let work = || bench.watched(Subject::raw(medium), work);
        measure(|| Counters::of_kernel(None), job, work)
    }
}

/// What a run's requests do.
fn op_of(run: TargetRun) -> Op {
    if run.form == Some(Form::Read) { Op::Read } else { Op::Write }
}

/// The kernel's ext4, by a ring like ours or by fio.
fn on_kernel(
    bench: &Bench<'_>,
    candidate: &Candidate,
    run: TargetRun,
    job: QueuedJob<'_>,
    medium: &Medium,
) -> Result<(QueuedOutcome, Figures)> {
    let opened = candidate.target.start(bench.plan, &bench.stage, medium, &candidate.options)?;
    let Opened::Mount(mount) = &opened else { return Err(Error::new("not a mount")) };
    let file = mount.dir().join(NAME);
    let count = || Counters::of_kernel(medium.block_device());
    let subject = Subject::of(&opened, medium);
    let scene = bench.scene(run, candidate, Served::by(&opened), medium);
    let measured = if candidate.variant == Beside::LIBAIO {
        let log = bench.stage.source("fio.json");
        let work = || queued_fio::run(&file, &job, &log);
        let measured = scene.during(|| measure(count, job, || bench.watched(subject, work)))?;
        scene.keep_file("fio.json", &log)?;
        measured
    } else {
        let device = open_past_cache(&file)?;
        let place = FilePlace::identity(job.file_bytes);
        let memory = submitter::memory(job.bytes)?;
        let mut ring = DeviceRing::new(device, place, &memory)?;
        let work = || submitter::run(&mut ring, job, memory);
        scene.during(|| measure(count, job, || bench.watched(subject, work)))?
    };
    opened.end()?;
    Ok(measured)
}

fn on_library(
    bench: &Bench<'_>,
    volume: &Volume,
    job: QueuedJob<'_>,
    medium: &Medium,
) -> Result<(QueuedOutcome, Figures)> {
    let memory = submitter::memory(job.bytes)?;
    let mut ring = LibraryRing::new(volume, &memory)?;
    let count = || Counters::of_kernel(medium.block_device()).with_volume(volume);
    let deferred = || volume.stats().number("direct_completions_deferred").unwrap_or(0);
    let before = deferred();
    let work = || submitter::run(&mut ring, job, memory);
    let work = || bench.watched(Subject::volume(volume, medium), work);
    let (outcome, mut figures) = measure(count, job, work)?;
    let share = (deferred() - before) as f64 / outcome.operations as f64;
    figures.push(("deferred_per_op", share));
    Ok((outcome, figures))
}

/// A file of a mount, by a ring and past its page cache or not at all.
fn open_past_cache(file: &Path) -> Result<FileDevice> {
    let options = FileOptions {
        caching: Caching::Direct,
        submission: Submission::Uring,
        ..FileOptions::new(Access::ReadWrite)
    };
    let device = FileDevice::open_with(file, &options).doing("opening the file")?;
    match device.notice() {
        Some(notice) => Err(Error::new(notice)),
        None => Ok(device),
    }
}

fn measure(
    count: impl Fn() -> Counters,
    job: QueuedJob<'_>,
    work: impl FnOnce() -> Result<QueuedOutcome>,
) -> Result<(QueuedOutcome, Figures)> {
    let work = || {
        let before = machine::own_context_switches();
        let mut outcome = work()?;
        let switches = before.zip(machine::own_context_switches());
        let own = switches.map(|(then, now)| now.saturating_sub(then));
        outcome.more.context_switches = outcome.more.context_switches.or(own);
        Ok(outcome)
    };
    let (outcome, usage) = bench::measure(count, work)?;
    let counted = usage.counted;
    let figures = [
        ("iops", Some(outcome.rate())),
        ("bytes_per_s", Some(outcome.rate() * job.bytes as f64)),
        ("latency_p50_us", Some(outcome.latency.p50_us)),
        ("latency_p99_us", Some(outcome.latency.p99_us)),
        ("context_switches_per_op", outcome.each(outcome.more.context_switches)),
        ("system_context_switches_per_op", outcome.each(counted.context_switches)),
        ("transactions", counted.transactions.map(|count| count as f64)),
        ("cpu_s", usage.cpu_s),
        ("operations", Some(outcome.operations as f64)),
    ];
    Ok((outcome, known(figures).collect()))
}
