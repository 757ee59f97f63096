//! Rounds and runs.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::path::Path;

use crate::bench::candidate::Candidate;
use crate::bench::experiment::{Experiment, Figures, StartImage};
use crate::bench::ratio;
use crate::block_device::LentDevice;
use crate::error::{Doing, Error, Result};
use crate::evidence::{Scene, Served, TargetRun};
use crate::explain::{Seen, Timeline};
use crate::load::{Form, Load};
use crate::machine;
use crate::plan::{Event, Figure, Plan};
use crate::report::DEFAULT;
use crate::stage::{self, Loop, Medium, Route, Stage};
use crate::target::Target;

/// What runs of a load share.
pub(crate) struct Bench<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) load: &'static Load,
    pub(crate) stage: Stage,
    /// Whether the run of now is looked at.
    pub(super) watches: Cell<bool>,
    /// What was seen of it, its latencies, its operations.
    pub(super) seen: RefCell<Option<(Seen, Vec<Timeline>, u64)>>,
}

/// What is the same in the runs of all candidates and rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) form: Option<Form>,
    pub(crate) threads: u32,
    /// Bytes of one read or write, as figures name them.
    pub(crate) bs: u32,
}

impl<'a> Bench<'a> {
    /// With room for images of that length.
    pub(crate) fn new(plan: &'a Plan, load: &'static Load, image_bytes: u64) -> Result<Self> {
        let stage = Stage::new(plan.store, plan.folder.as_deref(), image_bytes)?;
        let (watches, seen) = (Cell::new(false), RefCell::default());
        Ok(Self { plan, load, stage, watches, seen })
    }

    /// Tells how much space the runs need at most, in bytes, and refuses them if it is not there.
    pub(crate) fn require_room(
        &self,
        what: &str,
        need: u64,
        advice: &str,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let free = stage::room(self.stage.folder())?;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let folder = self.stage.folder().parent().unwrap_or(self.stage.folder()).display();
        let (need_gib, free_gib) = (gib(need), gib(free));
        let text =
            format!("{what}: needs at most {need_gib:.1} GiB in {folder}, which has {free_gib:.1}");
        self.admit(free >= need, text, advice, tell)
    }

    /// Tells this of the space; refuses the runs if they do not fit.
    pub(crate) fn admit(
        &self,
        fits: bool,
        text: String,
        advice: &str,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        if !fits {
            return Err(Error::new(format!("{}: {text}: {advice}", self.load.id)));
        }
        tell(Event::Note(self.load, text));
        Ok(())
    }

    /// Runs all rounds: in each of them every candidate has one run. Failures of candidates are
    /// told.
    ///
    /// # Errors
    /// An early end.
    pub(crate) fn all_rounds<E: Experiment>(
        &self,
        experiment: &mut E,
        setting: Setting,
        candidates: &[Candidate],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let mut rates = vec![Vec::new(); candidates.len()];
        for round in 1..=self.plan.rounds {
            for place in 0..candidates.len() {
                // Another candidate is first in each round: the first may find another machine.
                let at = (place + round as usize - 1) % candidates.len();
                let (candidate, rates) = (&candidates[at], &mut rates[at]);
                self.plan.go_on()?;
                let run = self.run_of(setting, candidate.target, round);
                let name = run.named(&candidate.variant);
                if let Some(known) = self.plan.resumed.figures(&name.key()) {
                    rates.push(known.get(self.load.metric).copied());
                    continue;
                }
                tell(Event::Run(name));
                let prepared = experiment.prepare(self, candidate);
                match prepared.and_then(|()| self.run(experiment, candidate, run)) {
                    Ok((outcome, figures)) => {
                        if let Some(text) = experiment.remark(candidate, &outcome) {
                            tell(Event::Note(self.load, text));
                        }
                        let rate = figures.iter().find(|(metric, _)| *metric == self.load.metric);
                        rates.push(rate.map(|(_, value)| *value));
                        self.tell_figures(run, &candidate.variant, figures, tell);
                    }
                    Err(error) => {
                        self.plan.go_on()?;
                        rates.push(None);
                        tell(Event::Failed(name, error));
                    }
                }
            }
        }
        // Round 0: of all rounds together.
        let run = self.run_of(setting, Target::Uext4, 0);
        let (figures, notes) = ratio::over_rounds(E::RATIOS, candidates, &rates);
        notes.into_iter().for_each(|text| tell(Event::Note(self.load, text)));
        if !figures.is_empty() {
            self.tell_figures(run, DEFAULT, figures, tell);
        }
        self.explain_all(experiment, setting, candidates, &rates, tell)
    }

    /// Where the figures of a target's run belong.
    pub(crate) fn run_of(&self, setting: Setting, target: Target, round: u32) -> TargetRun {
        let Setting { form, threads, bs } = setting;
        TargetRun { load: self.load, target, form, threads, bs, round }
    }

    fn tell_figures(
        &self,
        run: TargetRun,
        variant: &str,
        figures: Figures,
        tell: &mut dyn FnMut(Event<'_>),
    ) {
        for (metric, value) in figures {
            let figure = Figure { variant: variant.to_owned(), metric, value };
            tell(Event::Measured(&self.plan.measurement(run, &figure)));
        }
        tell(Event::Ended(run.named(variant)));
    }

    /// Whether a run before this one has left all figures of these candidates.
    pub(crate) fn is_done(&self, setting: Setting, candidates: &[Candidate]) -> bool {
        let is_done = |candidate: &Candidate, round| {
            let run = self.run_of(setting, candidate.target, round);
            self.plan.resumed.has(&run.named(&candidate.variant).key())
        };
        let mut rounds = 1..=self.plan.rounds;
        rounds.all(|round| candidates.iter().all(|candidate| is_done(candidate, round)))
            && self.is_explained(setting, candidates)
    }

    /// A run that is about to be measured.
    pub(crate) fn scene<'s>(
        &'s self,
        run: TargetRun,
        candidate: &'s Candidate,
        served: Served<'s>,
        medium: &'s Medium,
    ) -> Scene<'s> {
        let name = run.named(&candidate.variant);
        Scene { plan: self.plan, name, served, device: medium.block_device() }
    }

    /// One run, from an image to a judged one.
    pub(crate) fn run<E: Experiment>(
        &self,
        experiment: &E,
        candidate: &Candidate,
        run: TargetRun,
    ) -> Result<(E::Outcome, Figures)> {
        if candidate.target == Target::Dir {
            return self.run_in_folder(experiment, candidate, run);
        }
        let start = experiment.start(candidate);
        if let Some(device) = &self.plan.lent {
            begin_on_device(start, device)?;
            return self.run_on(experiment, candidate, run, device.path());
        }
        if let StartImage::Itself(image) = start {
            return self.run_on(experiment, candidate, run, image);
        }
        let image = self.stage.image("run");
        let done =
            begin(start, &image).and_then(|()| self.run_on(experiment, candidate, run, &image));
        // It may hold tens of GiB: gone before the next one is made.
        if image.exists() {
            fs::remove_file(&image).doing("removing an image")?;
        }
        done
    }

    fn run_on<E: Experiment>(
        &self,
        experiment: &E,
        candidate: &Candidate,
        run: TargetRun,
        image: &Path,
    ) -> Result<(E::Outcome, Figures)> {
        let medium = experiment.medium(self, candidate, image)?;
        let (outcome, mut figures) = experiment.perform(self, candidate, run, &medium)?;
        medium.sync()?;
        medium.release()?;
        self.plan.go_on()?;
        figures.extend(experiment.judge(self, candidate, run, image, &outcome)?);
        Ok((outcome, figures))
    }

    /// One run in a directory that is mounted already.
    fn run_in_folder<E: Experiment>(
        &self,
        experiment: &E,
        candidate: &Candidate,
        run: TargetRun,
    ) -> Result<(E::Outcome, Figures)> {
        let dir = self.plan.dir.as_deref().ok_or_else(|| Error::new("no directory is given"))?;
        let medium = Medium::folder_in(dir)?;
        experiment.fill(self, medium.path())?;
        medium.sync()?;
        machine::drop_caches();
        let (outcome, figures) = experiment.perform(self, candidate, run, &medium)?;
        medium.sync()?;
        self.plan.go_on()?;
        experiment.judge_folder(medium.path(), &outcome)?;
        medium.release()?;
        Ok((outcome, figures))
    }

    /// Makes sure that nobody starts with a part of the image in a cache.
    pub(crate) fn cool(&self, image: &Path) -> Result<()> {
        stage::drop_cached(image)?;
        machine::drop_caches();
        Ok(())
    }

    /// The image as the plan lets a candidate open it: on the same kind of device as all others, or
    /// as its user would.
    pub(crate) fn medium(&self, candidate: &Candidate, image: &Path) -> Result<Medium> {
        let by_loop = match (self.plan.route, candidate.target) {
            (Route::Device, _) => Loop::Direct,
            (Route::Natural, target) if target.is_kernel() => Loop::Cached,
            (Route::Natural, _) => Loop::None,
        };
        Medium::of(self.plan, image, by_loop)
    }
}

/// Makes the image of one run.
fn begin(start: StartImage<'_>, image: &Path) -> Result<()> {
    match start {
        StartImage::Copy(base) => stage::copy_image(base, image),
        StartImage::Empty(bytes) => {
            let file = File::create(image).and_then(|file| file.set_len(bytes));
            file.doing("making an image")
        }
        StartImage::Itself(_) => Ok(()),
    }
}

/// Makes it on a device, which no image is on by itself.
fn begin_on_device(start: StartImage<'_>, device: &LentDevice) -> Result<()> {
    match start {
        StartImage::Copy(base) | StartImage::Itself(base) => device.write_image(base),
        StartImage::Empty(bytes) => device.clear(bytes),
    }
}
