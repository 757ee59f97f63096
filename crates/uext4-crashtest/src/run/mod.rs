//! A test: the user's programs are run and recorded, and their check is run on each state.
//!
//! All images are in memory. Commands are run by `sh -c` with the mount as their working directory,
//! each in a process group of its own, and for a limited time; none of their processes is left
//! when they end, nor any mount when a test ends, by whatever error or interruption.

mod check;
mod command;
mod killed;
mod leftovers;
mod mounted;
mod place;
mod program;
mod room;
mod said;
mod smallest;
mod states;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uext4_device::MemoryDevice;
use uext4_fuse::FuseOptions;

use crate::error::{Error, Result};
use crate::model::{Explorer, Guarantees};
use crate::report::{Report, TimelineStep};
use check::{Checker, Verdict};
use place::Place;
pub use program::{Program, run_program};
use room::Room;
use smallest::{Smallest, smallest};
use states::Checked;

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
/// that a clean end leaves, before the states or after them. What goes wrong among the states, and
/// an interruption there, are in the report where it has a state that failed or the user has had
/// enough.
pub fn test(plan: &Plan, watch: &dyn Watch) -> Result<Outcome> {
    let begin = Instant::now();
    let _adopting = leftovers::adopt();
    let program = run_program(plan, watch)?;
    let place = Place::new()?;
    let checker = Checker::new(plan, &place, "first")?;
    let trace = &program.recorded.trace;
    let explorer = Explorer::new(&program.base, trace, plan.guarantees)?;
    let everything = explorer.everything(trace.steps.len());
    watch.begins("check");
    let judge_end = || checker.check(&program.end, &explorer.acknowledged(&everything));
    is_sound(&judge_end()?, "a clean end of the program")?;
    let room = Room {
        image: plan.image_size,
        stored: program.base.stored_bytes().max(program.end.stored_bytes()),
        written: trace.steps.iter().map(|step| step.call.bytes() as u64).sum(),
        jobs: plan.jobs.max(1),
    };
    room.check()?;
    watch.begins("states");
    let recorded_seconds = begin.elapsed().as_secs_f64();
    let (checked, smallest) = try_states(plan, &place, watch, (&explorer, &checker), &judge_end)?;
    let (failure, image) = smallest.map(|it| (it.failure, it.image)).unzip();
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
        is_exhaustive: checked.is_exhaustive
            && checked.cut_short.is_none()
            && !program.recorded.has_mapped_writes,
        cut_short: checked.cut_short.map(|error| error.to_string()),
        failure,
        timeline: TimelineStep::all(&explorer.describe(&everything), &program.recorded.processes),
        remarks: program.recorded.remarks.iter().map(|remark| (*remark).to_owned()).collect(),
    };
    Ok(Outcome { report, image })
}

/// Checks states, and makes the first that fails smaller.
fn try_states(
    plan: &Plan,
    place: &Place,
    watch: &dyn Watch,
    (explorer, checker): (&Explorer, &Checker<'_>),
    judge_end: &dyn Fn() -> Result<Verdict>,
) -> Result<(Checked, Option<Smallest>)> {
    let mut checked = states::check_states(plan, place, watch, explorer)?;
    let mut found = None;
    if let Some((number, state, verdict)) = checked.failure.take() {
        watch.begins("shrink");
        let mut smallest = smallest(plan, explorer, checker, number, (state, verdict))?;
        checked.cut_short = checked.cut_short.or(smallest.cut_short.take());
        found = Some(smallest);
    }
    let is_interrupted = || plan.stop.load(Ordering::Relaxed);
    let verdict = (!is_interrupted()).then(judge_end);
    // Asked once more: what the check says of a clean end counts only where nobody ended it.
    checked.cut_short = cut_short(checked.cut_short, found.is_some(), verdict, is_interrupted())?;
    Ok((checked, found))
}

/// What has ended the test before it was through, if anything has, beside what was found; an error
/// where that is all there is.
fn cut_short(
    before: Option<Error>,
    has_found: bool,
    verdict_of_end: Option<Result<Verdict>>,
    is_interrupted: bool,
) -> Result<Option<Error>> {
    if is_interrupted {
        return Ok(Some(Error::new("interrupted")));
    }
    let error = match verdict_of_end.transpose() {
        Ok(verdict) => {
            // A check that fails everywhere by now has judged the machine, not the states.
            let end = "a clean end of the program, and did not before";
            verdict.map_or(Ok(()), |verdict| is_sound(&verdict, end))?;
            before
        }
        Err(error) => before.or(Some(error)),
    };
    match error {
        Some(error) if !has_found => Err(error),
        error => Ok(error),
    }
}

/// The check has passed on the file system after some end of the program.
fn is_sound(verdict: &Verdict, end: &str) -> Result<()> {
    let Some(why) = &verdict.failure else { return Ok(()) };
    let last = verdict.said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let text = format!("check: fails on the file system after {end}: {why}: {last}");
    Err(Error::new(text.trim_end_matches(": ")))
}

fn failed(what: &str, why: &str) -> Error {
    Error::new(format!("{what} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_comes_before_what_the_check_says_at_the_end() {
        let fails = || Some(Ok(Verdict { failure: Some("exit status 1".into()), said: "".into() }));
        let text = |result: Result<Option<Error>>| match result {
            Ok(error) => error.map(|error| error.to_string()),
            Err(error) => Some(format!("nothing but: {error}")),
        };
        for has_found in [true, false] {
            let interrupted = cut_short(None, has_found, fails(), true);
            assert_eq!(text(interrupted).as_deref(), Some("interrupted"));
            let changed = text(cut_short(None, has_found, fails(), false)).unwrap();
            assert!(changed.contains("did not before"), "{changed}");
        }
        let full = || Some(Err(Error::new("full")));
        assert_eq!(text(cut_short(None, true, full(), false)).as_deref(), Some("full"));
        let first = Some(Error::new("first"));
        let both = text(cut_short(first, false, full(), false));
        assert_eq!(both.as_deref(), Some("nothing but: first"));
    }
}
