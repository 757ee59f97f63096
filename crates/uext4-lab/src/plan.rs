//! What to run, and what is told meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::append::Ageing;
use crate::block_device::LentDevice;
use crate::error::{Error, Result};
use crate::evidence::{Resumed, RunName, TargetRun};
use crate::jobs::FioJob;
use crate::leftovers::Watch;
use crate::load::{Form, Forms, How, Load};
use crate::mkfs_option::MkfsOptions;
use crate::report::Measurement;
use crate::stage::{Route, Store};
use crate::storm;
use crate::target::Target;
use crate::tree_loads::Runner;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Loads, in order.
    pub loads: Vec<&'static Load>,
    /// Targets, in the order of their runs.
    pub targets: Vec<Target>,
    /// Where images lie.
    pub store: Store,
    /// Folder for them instead of the store's own.
    pub folder: Option<PathBuf>,
    /// How images are opened.
    pub route: Route,
    /// Block device that every target works on, instead of image files.
    pub lent: Option<Arc<LentDevice>>,
    /// Directory of the target `dir`.
    pub dir: Option<PathBuf>,
    /// Runs of each target.
    pub rounds: u32,
    /// Part of the loads' full size, above 0 and at most 1.
    pub scale: f64,
    /// Numbers of threads instead of the loads' own.
    pub threads: Vec<u32>,
    /// How long a run of a load that syncs, or of E1a, is to take.
    pub duration: Duration,
    /// Operations of each thread of E0 instead of as many as uext4 does in `duration`.
    pub operations: Option<u32>,
    /// Mount options of uext4, separated by commas, that loads that sync or allocate are run with
    /// beside the default.
    pub variants: Vec<String>,
    /// Mount options of the kernel's ext4, separated by commas, that loads are run with beside the
    /// default.
    pub kernel_variants: Vec<String>,
    /// Kinds of file systems that every target that works on an image is run on beside the usual.
    pub mkfs: Vec<MkfsOptions>,
    /// Whether each of them is run with every variant of the mount, instead of its default alone.
    pub combine: bool,
    /// Forms of the loads that have several; empty: both of E1a and E4, the usual one of M4,
    /// M6 and M7.
    pub forms: Vec<Form>,
    /// Sizes of a request of E4, in bytes, multiples of 4,096; empty: 4, 8, 12 and 16 KiB.
    pub blocks: Vec<u32>,
    /// Whether E1b runs on an aged file system.
    pub aged: bool,
    /// How that is aged.
    pub ageing: Ageing,
    /// Sizes of the journal of E0, in MiB.
    pub journals: Vec<u32>,
    /// Whether scale, time, rounds, threads and sizes are those that each load has for this.
    pub quick: bool,
    /// Whether the first own target runs a second time in each round, in variant `aa`: what the
    /// machine alone makes of it.
    pub aa: bool,
    /// The folder of evidence.
    pub out: Option<PathBuf>,
    /// What a run before this one has left in that folder.
    pub resumed: Arc<Resumed>,
    /// The uext4 command, for mounts and worker processes.
    pub command: Option<PathBuf>,
    /// Folder for what is seen of one more run of each candidate, which gives no figures: why it is
    /// as fast as it is.
    pub explain: Option<PathBuf>,
    /// The job file, where that is the load.
    pub job: Option<Arc<FioJob>>,
    /// Set by a caller that wants the run to end early.
    pub stop: Arc<AtomicBool>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            loads: Vec::new(),
            targets: Vec::new(),
            store: Store::Ram,
            folder: None,
            route: Route::Natural,
            lent: None,
            dir: None,
            rounds: 3,
            scale: 1.0,
            threads: Vec::new(),
            duration: Duration::from_secs(10),
            operations: None,
            variants: Vec::new(),
            kernel_variants: Vec::new(),
            mkfs: Vec::new(),
            combine: false,
            forms: Vec::new(),
            blocks: Vec::new(),
            aged: false,
            ageing: Ageing::default(),
            journals: vec![storm::JOURNAL_MIB],
            quick: false,
            aa: false,
            out: None,
            resumed: Arc::default(),
            command: None,
            explain: None,
            job: None,
            stop: Arc::default(),
        }
    }
}

impl Plan {
    /// The plan as it is for a load.
    pub(crate) fn of(&self, load: &Load) -> Self {
        let mut plan = self.clone();
        if self.quick {
            let quick = load.quick;
            (plan.scale, plan.rounds) = (quick.scale, quick.rounds);
            plan.duration = Duration::from_secs_f64(quick.seconds);
            if plan.threads.is_empty() {
                plan.threads = quick.threads.to_vec();
            }
            if plan.blocks.is_empty() {
                plan.blocks = quick.sizes.to_vec();
            }
        }
        plan
    }

    /// The device that every target works on.
    pub(crate) fn device(&self) -> Option<&Path> {
        self.lent.as_deref().map(LentDevice::path)
    }

    /// The option that makes what is too large smaller.
    pub(crate) fn advice(&self) -> &'static str {
        if self.job.is_some() { "--image-size" } else { "--scale" }
    }

    /// Kinds of file systems that loads are run on: the usual one, and those of options of mke2fs.
    pub(crate) fn kinds(&self) -> u32 {
        u32::try_from(1 + self.mkfs.len()).unwrap_or(u32::MAX)
    }

    /// Where runs have their images, as results name it.
    pub(crate) fn store_name(&self) -> &'static str {
        if self.lent.is_some() { "device" } else { self.store.name() }
    }

    /// Numbers of threads that a load is run with.
    #[must_use]
    pub fn threads_of(&self, load: &Load) -> Vec<u32> {
        if self.threads.is_empty() { load.threads.to_vec() } else { self.threads.clone() }
    }

    /// Sizes of a request that a load is run with.
    pub(crate) fn blocks_of(&self, load: &Load) -> Vec<u32> {
        match (load.sizes, &*self.blocks) {
            ([], _) => vec![load.block_bytes],
            (sizes, []) => sizes.to_vec(),
            (_, asked) => asked.to_vec(),
        }
    }

    /// Forms that a load is run in; `None`: the only one, or the usual one.
    pub(crate) fn forms_of(&self, load: &Load) -> Vec<Option<Form>> {
        let asked = |form: &Form| self.forms.contains(form);
        match load.forms {
            Forms::Each(all) => {
                let some: Vec<_> = all.iter().copied().filter(asked).collect();
                let forms = if some.is_empty() { all.to_vec() } else { some };
                forms.into_iter().map(Some).collect()
            }
            Forms::OnDemand(Form::Aged) => vec![self.aged.then_some(Form::Aged)],
            Forms::OnDemand(form) if asked(&form) => {
                let usual = asked(&Form::Own).then_some(None);
                usual.into_iter().chain([Some(form)]).collect()
            }
            Forms::OnDemand(_) | Forms::One => vec![None],
        }
    }

    /// # Errors
    /// Somebody wants the run to end.
    pub(crate) fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::new("interrupted")) } else { Ok(()) }
    }
}

/// What happens in a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// A run of a target begins.
    Run(RunName<'a>),
    /// A target is left out of all loads, or of one, for this reason.
    Skipped(Option<&'static Load>, Target, String),
    /// Something to know about the figures that follow.
    Note(&'static Load, String),
    /// A figure.
    Measured(&'a Measurement),
    /// A run failed, or left an image that is not clean: it has no figure.
    Failed(RunName<'a>, Error),
    /// A run has had all its figures.
    Ended(RunName<'a>),
    /// A number that all rounds of a load go by, found before the first.
    Found(&'a str, u32),
}

/// Runs the plan; each event is told as it happens.
///
/// # Errors
/// What lies outside the targets: no room, no archive; an early end. Failures of targets are
/// events.
pub fn run(plan: &Plan, tell: &mut dyn FnMut(Event<'_>)) -> Result<()> {
    let _watch = Watch::start(plan.command.as_deref())?;
    let ended = run_loads(plan, tell);
    let given_back = plan.lent.as_ref().map_or(Ok(()), |device| device.give_back());
    both(ended, given_back)
}

/// What ends a run, and what keeps its device from being given back.
fn both(ended: Result<()>, given_back: Result<()>) -> Result<()> {
    match (ended, given_back) {
        (Err(ended), Err(kept)) => Err(Error::new(format!("{ended}; {kept}"))),
        (ended, given_back) => ended.and(given_back),
    }
}

fn run_loads(plan: &Plan, tell: &mut dyn FnMut(Event<'_>)) -> Result<()> {
    let mut targets = Vec::new();
    for &target in &plan.targets {
        if !plan.loads.iter().any(|load| target.takes(load)) {
            continue;
        }
        match target.obstacle(plan) {
            Some(reason) => tell(Event::Skipped(None, target, reason)),
            None => targets.push(target),
        }
    }
    // Loads on the tree share its images, and so its scale.
    let tree = plan.loads.iter().find(|load| matches!(load.how, How::Tree(..)));
    let tree_plan = tree.map(|load| plan.of(load));
    let mut runner = None;
    for &load in &plan.loads {
        let plan = &plan.of(load);
        let mut takers = targets.clone();
        takers.retain(|target| target.takes(load));
        takers.retain(|&target| {
            let reason = load.left_out(plan, target);
            let is_in = reason.is_none();
            reason.into_iter().for_each(|why| tell(Event::Skipped(Some(load), target, why)));
            is_in
        });
        if takers.is_empty() {
            continue;
        }
        if let Some(dir) = plan.dir.as_deref().filter(|_| takers.contains(&Target::Dir)) {
            let text = format!(
                "dir is {} as it is mounted: nothing is formatted, mounted or checked by e2fsck",
                dir.display()
            );
            tell(Event::Note(load, text));
        }
        let (work, start) = match load.how {
            How::Bench(run) => {
                run(plan, load, &takers, tell)?;
                continue;
            }
            How::Tree(work, start) => (work, start),
        };
        if runner.is_none() {
            runner = tree_plan.as_ref().map(Runner::new).transpose()?;
        }
        if let Some(runner) = &mut runner {
            runner.run(plan, load, (work, start), &takers, tell)?;
        }
    }
    Ok(())
}

/// A figure before it knows its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) variant: String,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
}

impl Plan {
    pub(crate) fn measurement(&self, run: TargetRun, figure: &Figure) -> Measurement {
        Measurement {
            experiment: run.load.id,
            target: run.target.name(),
            variant: figure.variant.clone(),
            store: self.store_name(),
            path: self.route.name(),
            threads: run.threads,
            bs: run.bs,
            form: run.form.map(Form::name),
            metric: figure.metric,
            value: figure.value,
            unit: crate::report::unit(figure.metric),
            round: run.round,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loads::LOADS;
    use crate::target::Target;

    /// Fault model: a run that was interrupted leaves its file system on a device, without a word.
    #[test]
    fn a_device_that_is_not_given_back_is_told_beside_what_ended_the_run() {
        let error = |text: &str| Err(Error::new(text.to_owned()));
        let told = both(error("interrupted"), error("sdz: in use")).unwrap_err();
        assert_eq!(told.to_string(), "interrupted; sdz: in use");
        assert_eq!(both(Ok(()), error("in use")).unwrap_err().to_string(), "in use");
        assert!(both(Ok(()), Ok(())).is_ok() && both(error("interrupted"), Ok(())).is_err());
    }

    #[test]
    fn all_loads_fit_into_a_quarter_of_an_hour_if_they_have_to() {
        let plan = Plan {
            loads: LOADS.iter().collect(),
            // Whatever this machine can run of the usual ones: others run where they are named.
            targets: Target::ALL
                .into_iter()
                .filter(|target| !matches!(target, Target::Bindfs | Target::RustFsExt4))
                .collect(),
            quick: true,
            aa: true,
            ..Plan::default()
        };
        let seconds: f64 = plan.cells().iter().map(|cell| cell.seconds).sum();
        assert!(seconds < 720.0, "{seconds}");
        // Loads on the tree share its images.
        let trees = LOADS.iter().filter(|load| matches!(load.how, How::Tree(..)));
        let scales: Vec<_> = trees.map(|load| load.quick.scale).collect();
        assert!(scales.iter().all(|scale| *scale == scales[0]), "{scales:?}");
        assert!(LOADS.iter().all(|load| load.quick.rounds > 1));
    }
}
