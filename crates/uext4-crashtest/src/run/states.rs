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
use crate::model::{Content, Explorer, Rest, StateSpec};

/// What came of checking states.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// How many, by kind.
    pub(super) by_kind: BTreeMap<&'static str, u64>,
    /// The first state that failed, in the order in which they are made, and its number.
    pub(super) failure: Option<(u64, StateSpec, Verdict)>,
    /// There is no further state.
    pub(super) is_exhaustive: bool,
}

/// States that are still to be checked, and what came of those that are.
struct Work<S> {
    states: S,
    begun: u64,
    checked: Checked,
    error: Option<Error>,
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
    let work = Mutex::new(Work { states, begun: 0, checked, error: None });
    let next = || {
        let mut work = work.lock();
        let is_enough = plan.states.is_some_and(|most| work.begun >= most);
        if is_enough || work.error.is_some() || work.checked.failure.is_some() || is_over() {
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
            let mut work = work.lock();
            match verdict {
                Ok(verdict) => work.checked.add(number, state, verdict),
                Err(error) => work.error = Some(error),
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
    let work = work.into_inner();
    work.error.map_or(Ok(work.checked), Err)
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

    fn add(&mut self, number: u64, state: StateSpec, verdict: Verdict) {
        *self.by_kind.entry(kind(&state)).or_default() += 1;
        // Those before the first one to fail were begun before it, so all of them are seen: which
        // one is reported does not depend on who was faster.
        let is_first = self.failure.as_ref().is_none_or(|(first, ..)| number < *first);
        if verdict.failure.is_some() && is_first {
            self.failure = Some((number, state, verdict));
        }
    }
}

/// What sort of a loss a state is.
fn kind(state: &StateSpec) -> &'static str {
    let has = |wanted: fn(&Content) -> bool| state.blocks.iter().any(|it| wanted(&it.content));
    let is_stale = state.rest_of_blocks == Rest::Stale || has(|it| *it == Content::Stale);
    let lacks_data = state.rest_of_blocks != Rest::Newest
        || state.rest_of_sizes != Rest::Newest
        || !state.blocks.is_empty()
        || !state.sizes.is_empty();
    match state.committed < state.crash {
        _ if has(|it| matches!(it, Content::Torn { .. })) => "torn writes",
        _ if is_stale => "stale blocks",
        true if lacks_data => "metadata and data missing",
        true => "metadata missing",
        false if lacks_data => "data missing",
        false => "nothing missing",
    }
}
