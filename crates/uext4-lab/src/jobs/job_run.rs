//! Runs of a job file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::bench::{Bench, Candidate, Experiment, Figures, Setting, StartImage};
use crate::check;
use crate::error::{Doing, Error, Result};
use crate::evidence::{Served, TargetRun};
use crate::fio;
use crate::jobs::job_figures;
use crate::jobs::job_file::JobFile;
use crate::leftovers::Watch;
use crate::load::{How, Load};
use crate::loads::THREADS;
use crate::plan::{Event, Plan};
use crate::stage::{self, Medium};
use crate::target::{Opened, Target};

/// What a job file can be run on.
pub const FIO_TARGETS: &[Target] =
    &[Target::Uext4, Target::Uext4Mount, Target::Kernel, Target::Fuse2fs];

/// A job file of fio(1), which fio has parsed.
#[derive(Clone, Debug)]
pub struct FioJob {
    path: PathBuf,
    file: JobFile,
    engine: Option<PathBuf>,
    image_bytes: u64,
}

impl FioJob {
    /// Reads a job file. `engine` is uext4's engine for fio, for the library as a target.
    ///
    /// # Errors
    /// fio is missing or rejects the file; the file names files outside the file system under test.
    pub fn read(path: &Path, engine: Option<&Path>, image_bytes: u64) -> Result<Self> {
        let file = JobFile::read(path)?;
        fio::parse_only(path).doing(path.display())?;
        let engine = engine.map(fs::canonicalize).transpose().doing("the engine for fio")?;
        Ok(Self { path: path.to_owned(), file, engine, image_bytes })
    }

    /// The job file as a load, named after it. It lives as long as the process.
    #[must_use]
    pub fn load(&self) -> &'static Load {
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy();
        Box::leak(Box::new(Load {
            id: Box::leak(format!("fio:{name}").into_boxed_str()),
            what: "a job file of fio",
            metric: "iops",
            threads_max: 1,
            block_bytes: 0,
            space_bytes: self.image_bytes,
            targets: FIO_TARGETS,
            how: How::Bench(|_, _, _, _| Err(Error::new("a job file is run by run_fio"))),
            ..THREADS
        }))
    }
}

/// Runs a job file on the targets of the plan, in turns, each time on an empty file system.
///
/// # Errors
/// No room; an early end. Failures of targets are events.
pub fn run_fio(plan: &Plan, job: &FioJob, tell: &mut dyn FnMut(Event<'_>)) -> Result<()> {
    let _watch = plan.command.as_deref().map(Watch::start).transpose()?;
    let load = job.load();
    let mut targets = Vec::new();
    for &target in &plan.targets {
        let engine = || {
            let missing = target == Target::Uext4 && job.engine.is_none();
            missing.then(|| "uext4's engine for fio is not at hand (--engine)".to_owned())
        };
        match target.obstacle(plan).or_else(engine) {
            Some(reason) => tell(Event::Skipped(None, target, reason)),
            None => targets.push(target),
        }
    }
    let bench = Bench::new(plan, load, job.image_bytes)?;
    bench.require_room("an image", job.image_bytes, "use --image-size", tell)?;
    for note in job.file.notes() {
        tell(Event::Note(load, note.clone()));
    }
    let base = bench.stage.image("base");
    stage::format(&base, job.image_bytes)?;
    let candidates = plan.candidates_of(load, &targets);
    let setting = Setting { form: None, threads: 1, bs: 0 };
    bench.all_rounds(&mut Job { job, base }, setting, &candidates, tell)?;
    plan.go_on()
}

struct Job<'a> {
    job: &'a FioJob,
    base: PathBuf,
}

impl Experiment for Job<'_> {
    type Outcome = ();

    fn start(&self, _candidate: &Candidate) -> StartImage<'_> {
        StartImage::Copy(&self.base)
    }

    fn perform(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<((), Figures)> {
        if let (Target::Uext4, Some(engine)) = (candidate.target, &self.job.engine) {
            let text = self.job.file.on_image(engine, medium.path(), &candidate.options);
            let scene = bench.scene(run, candidate, Served::Nothing, medium);
            let figures = scene.during(|| call(bench, &text))?;
            scene.keep_file("fio.json", &bench.stage.source("fio.json"))?;
            return Ok(((), figures));
        }
        let opened =
            candidate.target.start(bench.plan, &bench.stage, medium, &candidate.options)?;
        let Opened::Mount(mount) = &opened else { return Err(Error::new("not a mount")) };
        let scene = bench.scene(run, candidate, Served::by(&opened), medium);
        let figures = scene.during(|| call(bench, &self.job.file.on_directory(mount.dir())))?;
        scene.keep_file("fio.json", &bench.stage.source("fio.json"))?;
        opened.end()?;
        Ok(((), figures))
    }

    fn judge(
        &self,
        _bench: &Bench<'_>,
        _candidate: &Candidate,
        _run: TargetRun,
        image: &Path,
        _outcome: &(),
    ) -> Result<Figures> {
        check::clean(image)?.close()?;
        Ok(Figures::new())
    }
}

/// Runs fio on a job file with this text.
fn call(bench: &Bench<'_>, text: &str) -> Result<Figures> {
    let job = bench.stage.source("job.fio");
    fs::write(&job, text).doing("writing a job file")?;
    let words = ["--output-format=json".to_owned(), job.display().to_string()];
    let said = fio::call(&words, &bench.stage.source("fio.json"), &bench.plan.stop)?;
    job_figures::parse(&said)
}
