//! Runs of a load that allocates.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use uext4::Volume;

use crate::append::age;
use crate::append::append_shape::{AppendKind, AppendShape};
use crate::append::appenders::{self, AppendOutcome};
use crate::append::layout::{self, Files};
use crate::bench::{
    self, Bench, Candidate, Counters, Experiment, Figures, Limits, Setting, StartImage, Usage,
    files, format, known,
};
use crate::check;
use crate::counted::counted;
use crate::error::{Doing, Error, Result};
use crate::evidence::{Served, TargetRun, keep_layout};
use crate::explain::Subject;
use crate::load::{Form, Load};
use crate::machine;
use crate::mkfs_option::MkfsOptions;
use crate::plan::{Event, Plan};
use crate::stage::{self, Medium};
use crate::target::{Opened, Target};

/// Space that a run takes at most, in bytes, with what so many candidates have aged.
pub(crate) fn room(
    kind: AppendKind,
    plan: &Plan,
    form: Option<Form>,
    threads: u32,
    candidates: u32,
) -> u64 {
    let shape = AppendShape::new(kind, form, threads, plan.scale);
    // In a mounted directory what is allocated is taken, as in no sparse image.
    let taken = plan.dir.as_ref().map_or(0, |_| u64::from(shape.files()) * shape.file_bytes);
    shape.space_bytes(bases(plan, form, candidates)) + taken
}

/// Images that runs start from: one of each kind, and one that each candidate has aged.
fn bases(plan: &Plan, form: Option<Form>, candidates: u32) -> u32 {
    plan.kinds() + if form == Some(Form::Aged) { candidates } else { 0 }
}

/// Length of the image of a run, in bytes.
pub(crate) fn length(kind: AppendKind, plan: &Plan, form: Option<Form>, threads: u32) -> u64 {
    AppendShape::new(kind, form, threads, plan.scale).image_bytes
}

/// All runs of a load on those targets.
///
/// # Errors
/// No room; a target that cannot age its image; an early end. Failures of targets are events.
pub(crate) fn run(
    kind: AppendKind,
    plan: &Plan,
    load: &'static Load,
    targets: &[Target],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    for form in plan.forms_of(load) {
        for threads in plan.threads_of(load) {
            plan.go_on()?;
            let shape = AppendShape::new(kind, form, threads, plan.scale);
            let candidates = plan.candidates_of(load, targets);
            let bench = Bench::new(plan, load, shape.image_bytes)?;
            let setting = Setting { form, threads, bs: load.block_bytes };
            if bench.is_done(setting, &candidates) {
                continue;
            }
            let mut append = Append::new(&bench, shape, candidates.len(), tell)?;
            bench.all_rounds(&mut append, setting, &candidates, tell)?;
        }
    }
    plan.go_on()
}

/// A load in a form with a number of threads.
struct Append {
    shape: AppendShape,
    /// The empty file systems, by what they are made with.
    bases: HashMap<Option<MkfsOptions>, PathBuf>,
    /// Bytes free on the usual one.
    free_bytes: u64,
    /// Candidates with an aged image of their own.
    aged: Vec<Aged>,
}

/// A candidate's aged image, which stays for all rounds, and how it lies.
struct Aged {
    candidate: Candidate,
    image: PathBuf,
    figures: Figures,
}

impl Experiment for Append {
    type Outcome = AppendOutcome;

    fn prepare(&mut self, bench: &Bench<'_>, candidate: &Candidate) -> Result<()> {
        if let Some(mkfs) =
            candidate.mkfs.as_ref().filter(|_| !self.bases.contains_key(&candidate.mkfs))
        {
            let base = bench.stage.image(&MkfsOptions::file_name("base", Some(mkfs)));
            format(&base, self.shape.image_bytes, Some(mkfs))?;
            self.bases.insert(candidate.mkfs.clone(), base);
        }
        if self.shape.form != Some(Form::Aged) || self.aged_by(candidate).is_some() {
            return Ok(());
        }
        let image = bench.stage.image(&format!("aged-{}", self.aged.len()));
        let aged = self.age(bench, candidate, &image);
        // Without an aged image no run of it would count.
        let failed = |error| Error::new(format!("ageing: {}: {error}", candidate.variant));
        let figures = aged.map_err(failed)?;
        self.aged.push(Aged { candidate: candidate.clone(), image, figures });
        Ok(())
    }

    fn start(&self, candidate: &Candidate) -> StartImage<'_> {
        StartImage::Copy(
            self.aged_by(candidate)
                .map_or_else(|| &self.bases[&candidate.mkfs], |aged| &aged.image),
        )
    }

    fn perform(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<(AppendOutcome, Figures)> {
        let opened =
            candidate.target.start(bench.plan, &bench.stage, medium, &candidate.options)?;
        let count = || {
            let counters = Counters::of_kernel(medium.block_device());
            match &opened {
                Opened::Library(volume) => counters.with_volume(volume),
                Opened::Mount(_) => counters,
            }
        };
        let (time, stop, timelines) = (bench.plan.duration, &bench.plan.stop, bench.is_watching());
        let limits = Limits { operations: None, time, stop, timelines };
        let work = || appenders::run(&*files::of(&opened), &self.shape, limits);
        let work = || bench.watched(Subject::of(&opened, medium), work);
        let scene = bench.scene(run, candidate, Served::by(&opened), medium);
        let (outcome, usage) = scene.during(|| bench::measure(count, work))?;
        let peak = match &opened {
            Opened::Library(_) => machine::peak_rss_kib(),
            Opened::Mount(_) => opened.peak_rss_kib(),
        };
        opened.end()?;
        let mut figures = self.speed(&outcome, &usage);
        figures.extend(peak.map(|kib| ("peak_rss_kib", kib as f64)));
        Ok((outcome, figures))
    }

    /// Both checkers; whether each file has the blocks that its size asks for; how they lie.
    fn judge(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        image: &Path,
        _outcome: &AppendOutcome,
    ) -> Result<Figures> {
        let volume = check::clean(image)?;
        let figures = self.layout(&volume);
        volume.close()?;
        keep_layout(bench.plan, run.named(&candidate.variant), image)?;
        let mut figures = figures?;
        figures.extend(self.aged_by(candidate).into_iter().flat_map(|aged| &aged.figures));
        Ok(figures)
    }

    fn judge_folder(&self, dir: &Path, _outcome: &AppendOutcome) -> Result<()> {
        judge_folder(&self.shape, dir)
    }
}

/// Whether each file of the load is there, in a length that the load can leave.
fn judge_folder(shape: &AppendShape, dir: &Path) -> Result<()> {
    (0..shape.files()).try_for_each(|number| {
        let name = AppendShape::name(number);
        let found = std::fs::symlink_metadata(dir.join(&name)).doing(&name)?;
        match found.is_file() && shape.can_leave(found.len()) {
            true => Ok(()),
            false => Err(Error::new(format!("{name} has {} bytes", found.len()))),
        }
    })
}

impl Append {
    /// Makes the empty file system, which so many candidates start from.
    fn new(
        bench: &Bench<'_>,
        mut shape: AppendShape,
        candidates: usize,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<Self> {
        let ageing = &bench.plan.ageing;
        // Each candidate ages an image of its own; it stays for all rounds.
        let is_aged = shape.form == Some(Form::Aged);
        let candidates = u32::try_from(candidates).unwrap_or(u32::MAX);
        let bases = bases(bench.plan, shape.form, candidates);
        let gib = shape.image_bytes as f64 / f64::from(1 << 30);
        let what =
            format!("{}: an image of {gib:.1} GiB, sparse", counted(shape.threads, "thread"));
        bench.require_room(&what, shape.space_bytes(bases), "use --scale", tell)?;
        let base = bench.stage.image("base");
        format(&base, shape.image_bytes, None)?;
        let volume = check::clean(&base)?;
        let stat = volume.stat_fs();
        let free_bytes = stat.blocks_available * u64::from(stat.block_size);
        volume.close()?;
        if is_aged {
            let left = free_bytes as f64 * (1.0 - ageing.full);
            shape = shape.within(left as u64);
            let text = format!(
                "filled to {:.0} %, {:.2} times rewritten (seed {}); then {} files of {} MiB",
                ageing.full * 100.0,
                ageing.churn,
                ageing.seed,
                shape.files(),
                shape.file_bytes >> 20
            );
            tell(Event::Note(bench.load, text));
        }
        let bases = HashMap::from([(None, base)]);
        Ok(Self { shape, bases, free_bytes, aged: Vec::new() })
    }

    fn aged_by(&self, candidate: &Candidate) -> Option<&Aged> {
        self.aged.iter().find(|aged| aged.candidate == *candidate)
    }

    /// An aged image, made by the target that is to go on with it; returns how it lies.
    fn age(&self, bench: &Bench<'_>, candidate: &Candidate, image: &Path) -> Result<Figures> {
        stage::copy_image(&self.bases[&candidate.mkfs], image)?;
        let medium = bench.medium(candidate, image)?;
        let plan = bench.plan;
        let opened = candidate.target.start(plan, &bench.stage, &medium, &candidate.options)?;
        age::age(&*files::of(&opened), self.free_bytes, &plan.ageing, &plan.stop)?;
        opened.end()?;
        medium.sync()?;
        medium.release()?;
        let volume = check::clean(image)?;
        let mut files = Files::default();
        age::dirs().try_for_each(|dir| files.add_dir(&volume, &dir))?;
        let figures = vec![
            ("aged_extents_per_file", files.extents_per_file()),
            ("aged_frag_score", files.score()),
            ("aged_free_extent_mean_kib", layout::free_extent_mean_kib(&volume)?),
        ];
        volume.close()?;
        stage::drop_cached(image)?;
        Ok(figures)
    }

    fn speed(&self, outcome: &AppendOutcome, usage: &Usage) -> Figures {
        let counted = &usage.counted;
        let bytes = (outcome.more.0 * self.shape.append_bytes) as f64;
        let figures = [
            ("ops_per_s", Some(outcome.rate())),
            ("bytes_per_s", Some(bytes / outcome.seconds)),
            ("contended_per_kop", outcome.each(counted.contended).map(|each| each * 1000.0)),
            ("context_switches_per_op", outcome.each(counted.context_switches)),
            ("transactions", counted.transactions.map(|count| count as f64)),
            ("operations", Some(outcome.operations as f64)),
            ("cpu_s", usage.cpu_s),
        ];
        known(figures).collect()
    }

    fn layout(&self, volume: &Volume) -> Result<Figures> {
        let (root, mut files) = (volume.root()?, Files::default());
        for number in 0..self.shape.files() {
            let name = AppendShape::name(number);
            let inode = volume.lookup(&root, name.as_bytes())?;
            let before = files.blocks();
            files.add(volume, &inode)?;
            let size = volume.attr(&inode).size;
            let blocks = files.blocks() - before;
            let wanted = size.div_ceil(u64::from(volume.layout().block_size));
            if !self.shape.can_leave(size) || blocks != wanted {
                return Err(Error::new(format!("{name} has {size} bytes and {blocks} blocks")));
            }
        }
        let mut figures = vec![("free_extent_mean_kib", layout::free_extent_mean_kib(volume)?)];
        if self.shape.kind == AppendKind::Fill {
            figures.extend([
                ("extents_per_file", files.extents_per_file()),
                ("runs_per_file", files.runs_per_file()),
                ("frag_score", files.score()),
            ]);
        }
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// Fault model: a file of the load that is missing, cut off or longer than it can be.
    #[test]
    fn files_that_the_load_cannot_have_left_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let shape = |kind| AppendShape::new(kind, None, 2, 0.000_1);
        let (fill, recycle) = (shape(AppendKind::Fill), shape(AppendKind::Recycle));
        let is_right = |shape, sizes: [u64; 2]| {
            for (number, size) in (0..).zip(sizes) {
                let file = File::create(dir.path().join(AppendShape::name(number))).unwrap();
                file.set_len(size).unwrap();
            }
            judge_folder(shape, dir.path()).is_ok()
        };
        assert!(judge_folder(&fill, dir.path()).is_err());
        let (whole, piece) = (fill.file_bytes, recycle.append_bytes);
        assert!(is_right(&fill, [whole, whole]) && !is_right(&fill, [whole, whole - 4096]));
        assert!(is_right(&recycle, [0, recycle.file_bytes]));
        assert!(!is_right(&recycle, [piece, piece - 1]));
        assert!(!is_right(&recycle, [piece, recycle.file_bytes + piece]));
    }
}
