//! The second half of a test: states are made, mounted and checked, several at a time.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;

use super::check::{Checker, Verdict};
use super::place::Place;
use super::{Plan, Watch};
use crate::error::{Error, Result};
use crate::model::{Explorer, StateSpec};

/// What came of checking states.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// How many, by kind.
    pub(super) by_kind: BTreeMap<&'static str, u64>,
    /// The first state that failed, in the order in which they are made, and its number.
    pub(super) failure: Option<(u64, StateSpec, Verdict)>,
    /// There is no further state.
    pub(super) is_exhaustive: bool,
    /// What ended it before it was through.
    pub(super) cut_short: Option<Error>,
}

/// States that are still to be checked, and what came of those that are.
struct Work<S> {
    states: S,
    begun: u64,
    checked: Checked,
}

/// Checks states until one fails, there are no more, or what the plan allows is used up.
pub(super) fn check_states(
    plan: &Plan,
    place: &Place,
    watch: &dyn Watch,
    explorer: &Explorer,
) -> Result<Checked> {
    let begin = Instant::now();
    let is_over = || {
        plan.stop.load(Ordering::Relaxed) || plan.time.is_some_and(|time| begin.elapsed() > time)
    };
    let states = explorer.states(plan.seed);
    let checked = Checked::default();
    let work = Mutex::new(Work { states, begun: 0, checked });
    let next = || {
        let mut work = work.lock();
        let is_enough = plan.states.is_some_and(|most| work.begun >= most);
        let Checked { failure, cut_short, .. } = &work.checked;
        if is_enough || cut_short.is_some() || failure.is_some() || is_over() {
            return None;
        }
        let state = work.states.next();
        work.checked.is_exhaustive |= state.is_none();
        work.begun += 1;
        state.map(|state| (work.begun, state))
    };
    let serve = |checker: &Checker<'_>| {
        while let Some((number, state)) = next() {
            let verdict = check(explorer, checker, &state);
            let kind = explorer.kind(&state);
            let mut work = work.lock();
            match verdict {
                Ok(verdict) => work.checked.add(kind, number, state, verdict),
                // Of a failure that another one finds, nothing is lost.
                Err(error) => work.checked.cut_short = Some(error),
            }
            watch.checked(work.checked.count());
        }
    };
    let checkers = (0..plan.jobs.max(1)).map(|job| Checker::new(plan, place, &format!("{job}")));
    let checkers = checkers.collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        for checker in &checkers {
            let serve = &serve;
            scope.spawn(move || serve(checker));
        }
    });
    Ok(work.into_inner().checked)
}

/// Makes a state, and checks it.
pub(super) fn check(
    explorer: &Explorer,
    checker: &Checker<'_>,
    state: &StateSpec,
) -> Result<Verdict> {
    checker.check(&explorer.image(state)?, &explorer.acknowledged(state))
}

impl Checked {
    /// States that were checked.
    pub(super) fn count(&self) -> u64 {
        self.by_kind.values().sum()
    }

    fn add(&mut self, kind: &'static str, number: u64, state: StateSpec, verdict: Verdict) {
        *self.by_kind.entry(kind).or_default() += 1;
        // Those before the first one to fail were begun before it, so all of them are seen: which
        // one is reported does not depend on who was faster.
        let is_first = self.failure.as_ref().is_none_or(|(first, ..)| number < *first);
        if verdict.failure.is_some() && is_first {
            self.failure = Some((number, state, verdict));
        }
    }
}
