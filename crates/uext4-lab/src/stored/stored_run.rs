//! Runs of the load that stores.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use uext4::{OpenFile, Volume};
use uext4_device::{DaxDevice, DaxMemory};

use crate::bench::{
    self, Bench, Candidate, Counters, Experiment, Figures, FilePlace, Ratio, Setting, StartImage,
    known,
};
use crate::check;
use crate::error::{Doing, Error, Result};
use crate::evidence::{Served, TargetRun};
use crate::explain::Subject;
use crate::load::Load;
use crate::plan::{Event, Plan};
use crate::report::DEFAULT;
use crate::stage::{self, Loop, Medium};
use crate::stored::overwriters::{self, Blocks, StoredJob, StoredOutcome};
use crate::stored::stored_shape::{self, BLOCK, FILES, StoredShape, places};
use crate::target::Target;

/// Blocks that are read back after a run.
const SAMPLE: usize = 8192;

/// Why the kernel cannot be had.
pub(crate) fn obstacle(target: Target) -> Option<String> {
    if target != Target::Kernel {
        return None;
    }
    let has_one = (0..16).any(|number| Path::new(&format!("/dev/pmem{number}")).exists());
    Some(match has_one {
        true => "a pmem device may be in use: E2 does not format it".to_owned(),
        false => "DAX of the kernel needs a pmem device, and there is no /dev/pmem*".to_owned(),
    })
}

/// Space that a run takes at most, in bytes.
pub(crate) fn room(plan: &Plan) -> u64 {
    StoredShape::new(plan.scale).image_bytes()
}

/// All runs of the load on those targets.
///
/// # Errors
/// No room; a store that cannot be mapped; an early end. Failures of targets are events.
pub(crate) fn run(
    plan: &Plan,
    load: &'static Load,
    targets: &[Target],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    let candidates = plan.candidates_of(load, targets);
    let shape = StoredShape::new(plan.scale);
    let bench = Bench::new(plan, load, shape.image_bytes())?;
    let (need, free) = (shape.image_bytes(), stage::room(bench.stage.folder())?);
    let mib = |bytes: u64| bytes >> 20;
    let text = format!(
        "{FILES} files of {} MiB: needs {} MiB of memory for the image, {} free",
        mib(shape.file_bytes),
        mib(need),
        mib(free)
    );
    bench.admit(free >= need, text, "use --scale", tell)?;
    let mut stored = Stored::new(&bench, shape)?;
    for threads in plan.threads_of(load) {
        let setting = Setting { form: None, threads, bs: load.block_bytes };
        // Also where all rounds have ended: it forms their ratios.
        bench.all_rounds(&mut stored, setting, &candidates, tell)?;
    }
    Ok(())
}

/// The load, with any number of threads.
struct Stored {
    shape: StoredShape,
    image: PathBuf,
    /// Where the files lie before the first run, and so after each.
    places: Vec<FilePlace>,
}

impl Experiment for Stored {
    type Outcome = StoredOutcome;

    const RATIOS: &'static [Ratio] =
        &[Ratio::new((Target::Raw, DEFAULT), ["iops_ratio_raw", "iops_ratio_raw_lower"])];

    fn start(&self, _candidate: &Candidate) -> StartImage<'_> {
        StartImage::Itself(&self.image)
    }

    /// The image file, which is memory: there is nothing colder.
    fn medium(&self, _bench: &Bench<'_>, _candidate: &Candidate, image: &Path) -> Result<Medium> {
        Medium::new(image, Loop::None)
    }

    fn perform(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<(StoredOutcome, Figures)> {
        let job = StoredJob {
            threads: run.threads,
            shape: self.shape,
            time: bench.plan.duration,
            seed: run.round.into(),
            stop: &bench.plan.stop,
            timelines: bench.is_watching(),
        };
        if candidate.target != Target::Raw {
            return self.on_library(bench, candidate, run, job, medium);
        }
        let blocks =
            DeviceBlocks { device: stored_shape::map(medium.path())?, places: &self.places };
        self.warm_up(&blocks)?;
        let scene = bench.scene(run, candidate, Served::Nothing, medium);
        scene.during(|| measure(bench, Subject::raw(medium), &blocks, job))
    }

    /// Both checkers; the files lie where they did; blocks that were written hold the last write.
    fn judge(
        &self,
        _bench: &Bench<'_>,
        _candidate: &Candidate,
        _run: TargetRun,
        image: &Path,
        outcome: &StoredOutcome,
    ) -> Result<Figures> {
        let volume = check::clean(image)?;
        let after = places(&volume);
        volume.close()?;
        if after? != self.places {
            return Err(Error::new("the files lie elsewhere after it"));
        }
        // Past the file system: where the blocks are in the image.
        let image = File::open(image).doing("reading back")?;
        let mut data = vec![0; BLOCK];
        let blocks = self.shape.blocks();
        let step = outcome.more.last.len().div_ceil(SAMPLE).max(1);
        let written = outcome.more.last.iter().enumerate().filter(|(_, last)| **last > 0);
        for (place, last) in written.step_by(step) {
            let (file, offset) = (place / blocks, (place % blocks * BLOCK) as u64);
            let at = self.places[file].find(offset, BLOCK as u64);
            let at = at.ok_or_else(|| Error::new("a block that lies in pieces"))?;
            image.read_exact_at(&mut data, at).doing("reading back")?;
            if !overwriters::holds(&data, place, *last) {
                let (file, block) = (stored_shape::name(place / blocks), place % blocks);
                return Err(Error::new(format!("{file}: the last write of block {block} is lost")));
            }
        }
        Ok(Figures::new())
    }
}

impl Stored {
    fn new(bench: &Bench<'_>, shape: StoredShape) -> Result<Self> {
        let image = stored_shape::make_image(&bench.stage, shape)?;
        let volume = stored_shape::open(&image, "")?;
        let places = places(&volume)?;
        volume.close()?;
        Ok(Self { shape, image, places })
    }

    /// Writes each block once: pages that the kernel maps when they are first touched, and what is
    /// learnt of each file, are no part of the rate.
    fn warm_up(&self, target: &dyn Blocks) -> Result<()> {
        let data = vec![0x32; BLOCK];
        let blocks = self.shape.blocks();
        (0..FILES * blocks)
            .try_for_each(|place| target.store(place / blocks, place % blocks, &data))
    }

    fn on_library(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        job: StoredJob<'_>,
        medium: &Medium,
    ) -> Result<(StoredOutcome, Figures)> {
        let volume = stored_shape::open(medium.path(), &candidate.options)?;
        let target = LibraryBlocks { files: stored_shape::files(&volume)?, volume: volume.clone() };
        self.warm_up(&target)?;
        volume.sync()?;
        let count = |name| volume.stats().number(name).unwrap_or(0);
        let names = [
            ("handles", "handles"),
            ("dax_overwrite_handles", "handles_of_overwrites"),
            ("dax_overwrites", "dax_overwrites"),
            ("transactions", "transactions"),
        ];
        let before = names.map(|(name, _)| count(name));
        let subject = Subject::volume(&volume, medium);
        let scene = bench.scene(run, candidate, Served::Volume(&volume), medium);
        let (outcome, mut figures) = scene.during(|| measure(bench, subject, &target, job))?;
        for ((name, metric), before) in names.into_iter().zip(before) {
            figures.push((metric, (count(name) - before) as f64));
        }
        let slow = outcome.more.writes - (count("dax_overwrites") - before[2]);
        figures.push(("slow_writes", slow as f64));
        drop(target);
        volume.close()?;
        Ok((outcome, figures))
    }
}

/// The ordinary write of the library.
struct LibraryBlocks {
    files: Vec<OpenFile>,
    volume: Volume,
}

impl Blocks for LibraryBlocks {
    fn store(&self, file: usize, block: usize, data: &[u8]) -> Result<()> {
        let count = self.files[file].write_at((block * BLOCK) as u64, data)?;
        if count == data.len() { Ok(()) } else { Err(Error::new("a write was short")) }
    }

    fn flush(&self) -> Result<()> {
        Ok(self.volume.sync()?)
    }
}

/// The stores alone, where the blocks lie.
struct DeviceBlocks<'a> {
    device: DaxDevice,
    places: &'a [FilePlace],
}

impl Blocks for DeviceBlocks<'_> {
    fn store(&self, file: usize, block: usize, data: &[u8]) -> Result<()> {
        let place = self.places[file].find((block * BLOCK) as u64, BLOCK as u64);
        let place = place.ok_or_else(|| Error::new("a block that lies in pieces"))?;
        self.device.store(place, data).doing("a store")
    }

    fn flush(&self) -> Result<()> {
        self.device.persist().doing("a flush")
    }
}

fn measure(
    bench: &Bench<'_>,
    subject: Subject<'_>,
    target: &dyn Blocks,
    job: StoredJob<'_>,
) -> Result<(StoredOutcome, Figures)> {
    let work = || bench.watched(subject, || overwriters::run(target, job));
    let (outcome, usage) = bench::measure(Counters::default, work)?;
    let (iops, latency) = (outcome.rate(), outcome.latency);
    let figures = [
        ("iops", Some(iops)),
        ("bytes_per_s", Some(iops * BLOCK as f64)),
        ("latency_p50_us", Some(latency.p50_us)),
        ("latency_p99_us", Some(latency.p99_us)),
        ("latency_p999_us", Some(latency.p999_us)),
        ("cpu_s", usage.cpu_s),
        ("operations", Some(outcome.operations as f64)),
        ("writes", Some(outcome.more.writes as f64)),
    ];
    Ok((outcome, known(figures).collect()))
}
