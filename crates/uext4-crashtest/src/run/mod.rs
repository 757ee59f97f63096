//! A test: the user's programs are run and recorded, and their check is run on each state.
//!
//! All images are in memory. Commands are run by `sh -c` with the mount as their working directory,
//! each in a process group of its own, and for a limited time; none of their processes is left
//! when they end, nor any mount when a test ends, by whatever error or interruption.

mod check;
mod command;
mod leftovers;
mod mounted;
mod place;
mod program;
mod states;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uext4_device::MemoryDevice;
use uext4_fuse::FuseOptions;

use crate::error::{Error, Result};
use crate::model::{Explorer, Guarantees, StateSpec};
use crate::report::{Failure, Report, TimelineStep};
use check::{Checker, Verdict};
use place::Place;
pub use program::{Program, run_program};

/// What is to be tested, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Makes what the program finds; its effects are durable.
    pub setup: Option<String>,
    /// The program.
    pub run: String,
    /// Whether a state is sound: exit status 0.
    pub check: String,
    /// Bytes of the image.
    pub image_size: u64,
    /// What the file system promises.
    pub guarantees: Guarantees,
    /// Options of the mounts.
    pub fuse: FuseOptions,
    /// Most states, if there is a limit.
    pub states: Option<u64>,
    /// Longest time for states, if there is a limit; as long again a failing one is made smaller.
    pub time: Option<Duration>,
    /// Where chance begins.
    pub seed: u64,
    /// Longest time of each command.
    pub limit: Duration,
    /// Checks at a time.
    pub jobs: usize,
    /// Set when the user has had enough.
    pub stop: Arc<AtomicBool>,
}

/// Hears what a test does.
pub trait Watch: Sync {
    /// A part of it begins.
    fn begins(&self, _what: &str) {}
    /// The program prints this.
    fn prints(&self, _bytes: &[u8]) {}
    /// So many states are checked.
    fn checked(&self, _states: u64) {}
}

/// What came of a test.
pub struct Outcome {
    /// All of it.
    pub report: Report,
    /// The smallest state that fails, if one does.
    pub image: Option<MemoryDevice>,
}

/// Tests a program.
///
/// # Errors
/// One line: nothing can be mounted, a command that fails, a check that fails on the file system
/// that a clean end leaves, an interruption.
pub fn test(plan: &Plan, watch: &dyn Watch) -> Result<Outcome> {
    let begin = Instant::now();
    let program = run_program(plan, watch)?;
    let place = Place::new()?;
    let checker = Checker::new(plan, &place, "first")?;
    let trace = &program.recorded.trace;
    let explorer = Explorer::new(&program.base, trace, plan.guarantees)?;
    let everything = explorer.everything(trace.steps.len());
    watch.begins("check");
    let verdict = checker.check(&program.end, &explorer.acknowledged(&everything))?;
    if let Some(why) = verdict.failure {
        let last = verdict.said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let where_ = "check: fails on the file system after a clean end of the program:";
        return Err(Error::new(
            format!("{where_} {why}: {last}").trim_end_matches(": ").to_owned(),
        ));
    }
    watch.begins("states");
    let recorded_seconds = begin.elapsed().as_secs_f64();
    let mut checked = states::check_states(plan, &place, watch, &explorer)?;
    let failure = match checked.failure.take() {
        Some((number, state, verdict)) => {
            watch.begins("shrink");
            Some(smallest(plan, &explorer, &checker, number, (state, verdict))?)
        }
        None => None,
    };
    if plan.stop.load(Ordering::Relaxed) {
        return Err(Error::new("interrupted"));
    }
    let (failure, image) = failure.unzip();
    let report = Report {
        setup: plan.setup.clone(),
        run: plan.run.clone(),
        check: plan.check.clone(),
        guarantees: plan.guarantees,
        image_size: plan.image_size,
        seed: plan.seed,
        steps: trace.steps.len(),
        recorded_seconds,
        seconds: begin.elapsed().as_secs_f64(),
        states: checked.count(),
        states_by_kind: checked.by_kind.iter().map(|(kind, n)| ((*kind).to_owned(), *n)).collect(),
        is_exhaustive: checked.is_exhaustive && !program.recorded.has_mapped_writes,
        failure,
        timeline: TimelineStep::all(&explorer.describe(&everything), &program.recorded.processes),
        remarks: program.recorded.remarks.iter().map(|remark| (*remark).to_owned()).collect(),
    };
    Ok(Outcome { report, image })
}

/// Makes a failing state smaller, as long as it fails.
fn smallest(
    plan: &Plan,
    explorer: &Explorer,
    checker: &Checker<'_>,
    number: u64,
    found: (StateSpec, Verdict),
) -> Result<(Failure, MemoryDevice)> {
    let until = plan.time.map(|time| Instant::now() + time);
    let (first, mut verdict) = found;
    let mut checks = 0;
    let mut fails = |state: &StateSpec| {
        if until.is_some_and(|until| Instant::now() > until) {
            return Ok(false);
        }
        checks += 1;
        let now = states::check(explorer, checker, state)?;
        let fails = now.failure.is_some();
        if fails {
            verdict = now;
        }
        Ok(fails)
    };
    let fails_again = fails(&first)?;
    let state = match fails_again {
        true => explorer.shrink(&first, &mut fails)?,
        false => first,
    };
    let failure = Failure {
        number,
        description: explorer.describe(&state),
        status: verdict.failure.unwrap_or_default(),
        said: verdict.said,
        printed: String::from_utf8_lossy(&explorer.acknowledged(&state)).into_owned(),
        checks,
        fails_again,
        state,
    };
    let image = explorer.image(&failure.state)?;
    Ok((failure, image))
}

fn failed(what: &str, why: &str) -> Error {
    Error::new(format!("{what} {why}"))
}
