//! Runs of a job file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::bench::{Bench, Candidate, Experiment, Figures, Setting, StartImage};
use crate::check;
use crate::error::{Doing, Error, Result};
use crate::evidence::{Served, TargetRun, hash_of};
use crate::fio;
use crate::jobs::job_figures;
use crate::jobs::job_file::JobFile;
use crate::load::{How, Load};
use crate::loads::{MOUNTED, THREADS};
use crate::plan::{Event, Plan};
use crate::stage::{self, Medium};
use crate::target::{Opened, Target};

/// What a job file can be run on.
pub const FIO_TARGETS: &[Target] = MOUNTED;

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
    /// fio is missing or rejects the file; the file names files outside the file system under test;
    /// fio cannot be told where the engine is.
    pub fn read(path: &Path, engine: Option<&Path>, image_bytes: u64) -> Result<Self> {
        let file = JobFile::read(path)?;
        // Whatever its name begins with.
        let whole = fs::canonicalize(path).doing(path.display())?;
        fio::parse_only(&whole).doing(path.display())?;
        let engine = engine.map(fs::canonicalize).transpose().doing("the engine for fio")?;
        if let Some(engine) = engine.as_deref().filter(|path| !is_plain(path)) {
            let text =
                "fio cannot take a path with other characters than letters, digits and /._-+";
            return Err(Error::new(format!("the engine for fio: {}: {text}", engine.display())));
        }
        Ok(Self { path: path.to_owned(), file, engine, image_bytes })
    }

    /// The job file as a load, named after it. It lives as long as the process.
    #[must_use]
    pub fn load(&self) -> &'static Load {
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let no_engine = |target: Target| {
            (target == Target::Uext4)
                .then(|| "uext4's engine for fio is not at hand (--engine)".to_owned())
        };
        Box::leak(Box::new(Load {
            id: Box::leak(format!("fio:{name}").into_boxed_str()),
            what: "a job file of fio",
            metric: "iops",
            threads_max: 1,
            block_bytes: 0,
            space_bytes: self.image_bytes,
            targets: FIO_TARGETS,
            room: |plan, _, _, _| image_bytes(plan),
            length: |plan, _, _| image_bytes(plan),
            obstacle: if self.engine.is_some() { |_| None } else { no_engine },
            how: How::Bench(run),
            ..THREADS
        }))
    }

    /// What figures depend on, for `plan.json`.
    pub(crate) fn to_json(&self) -> Value {
        let engine = self.engine.as_deref();
        let built = engine.and_then(|path| hash_of(File::open(path).ok()?));
        json!({
            "file": self.path,
            "text": self.file.on_directory(Path::new("/")),
            "image_bytes": self.image_bytes,
            "engine": engine,
            "engine_sha256": built,
        })
    }
}

/// Length of the image of a run of the plan's job.
fn image_bytes(plan: &Plan) -> u64 {
    plan.job.as_ref().map_or(0, |job| job.image_bytes)
}

/// Whether fio reads a path in an option as it is.
fn is_plain(path: &Path) -> bool {
    let fits = |c: char| c.is_alphanumeric() || "/._-+,=@".contains(c);
    path.to_str().is_some_and(|text| text.chars().all(fits))
}

/// Runs the plan's job file on those targets, in turns, each time on an empty file system.
///
/// # Errors
/// No room; an early end. Failures of targets are events.
fn run(
    plan: &Plan,
    load: &'static Load,
    targets: &[Target],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    let job = plan.job.as_deref().ok_or_else(|| Error::new("no job file"))?;
    let bench = Bench::new(plan, load, job.image_bytes)?;
    bench.require_room("an image", job.image_bytes, "use --image-size", tell)?;
    for note in job.file.notes() {
        tell(Event::Note(load, note.clone()));
    }
    let base = bench.stage.image("base");
    stage::format(&base, job.image_bytes)?;
    let empty = Emptiness::of(&base)?;
    let candidates = plan.candidates_of(load, targets);
    let setting = Setting { form: None, threads: 1, bs: 0 };
    bench.all_rounds(&mut Job { job, base, empty }, setting, &candidates, tell)?;
    plan.go_on()
}

/// By what it is seen that nobody has made a file, not even one that has gone since.
#[derive(Debug, PartialEq)]
struct Emptiness {
    inodes_free: u64,
    root_changed: uext4::Timestamp,
}

impl Emptiness {
    /// Of an image that nobody has open; it must be clean.
    fn of(image: &Path) -> Result<Self> {
        let volume = check::clean(image)?;
        let root = volume.root()?;
        let (inodes_free, root_changed) = (volume.stat_fs().inodes_free, volume.attr(&root).mtime);
        drop(root);
        volume.close()?;
        Ok(Self { inodes_free, root_changed })
    }
}

struct Job<'a> {
    job: &'a FioJob,
    base: PathBuf,
    /// The file system that runs start from.
    empty: Emptiness,
}

/// What a run of a job did.
struct Done {
    /// Whether fio says that it has written.
    wrote: bool,
    /// When the folder was changed before, where there is no image to look at.
    changed_before: Option<SystemTime>,
}

impl Experiment for Job<'_> {
    type Outcome = Done;

    fn start(&self, _candidate: &Candidate) -> StartImage<'_> {
        StartImage::Copy(&self.base)
    }

    fn perform(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<(Done, Figures)> {
        if let (Target::Uext4, Some(engine)) = (candidate.target, &self.job.engine) {
            let text = self.job.file.on_image(engine, medium.path(), &candidate.options);
            let scene = bench.scene(run, candidate, Served::Nothing, medium);
            let (wrote, figures) = scene.during(|| call(bench, &text))?;
            scene.keep_file("fio.json", &bench.stage.source("fio.json"))?;
            return Ok((Done { wrote, changed_before: None }, figures));
        }
        let opened =
            candidate.target.start(bench.plan, &bench.stage, medium, &candidate.options)?;
        let Opened::Mount(mount) = &opened else { return Err(Error::new("not a mount")) };
        let scene = bench.scene(run, candidate, Served::by(&opened), medium);
        let changed_before = changed(mount.dir());
        let text = self.job.file.on_directory(mount.dir());
        let (wrote, figures) = scene.during(|| call(bench, &text))?;
        scene.keep_file("fio.json", &bench.stage.source("fio.json"))?;
        opened.end()?;
        Ok((Done { wrote, changed_before }, figures))
    }

    fn judge(
        &self,
        _bench: &Bench<'_>,
        _candidate: &Candidate,
        _run: TargetRun,
        image: &Path,
        done: &Done,
    ) -> Result<Figures> {
        done.require_files(Emptiness::of(image)? == self.empty).map(|()| Figures::new())
    }

    fn judge_folder(&self, dir: &Path, done: &Done) -> Result<()> {
        // Files that are gone have changed the folder as well.
        done.require_files(changed(dir) == done.changed_before)
    }
}

impl Done {
    fn require_files(&self, is_empty: bool) -> Result<()> {
        if self.wrote && is_empty {
            let text = "fio says that it has written, and the file system is as empty as before";
            return Err(Error::new(format!("{text}: which engine has the job?")));
        }
        Ok(())
    }
}

/// When names in a directory were last made or removed.
fn changed(dir: &Path) -> Option<SystemTime> {
    fs::metadata(dir).and_then(|found| found.modified()).ok()
}

/// Runs fio on a job file with this text.
fn call(bench: &Bench<'_>, text: &str) -> Result<(bool, Figures)> {
    let job = bench.stage.source("job.fio");
    fs::write(&job, text).doing("writing a job file")?;
    let words = ["--output-format=json".to_owned(), job.display().to_string()];
    let said = fio::call(&words, &bench.stage.source("fio.json"), &bench.plan.stop)?;
    let is_mixed = bench.plan.job.as_deref().is_some_and(|job| job.file.is_mixed());
    Ok((job_figures::has_written(&said)?, job_figures::parse(&said, is_mixed)?))
}
