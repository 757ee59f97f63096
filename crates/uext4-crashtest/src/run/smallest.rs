//! The smallest state that fails, and how surely it does.

use std::time::Instant;

use uext4_device::MemoryDevice;

use super::Plan;
use super::check::{Checker, Verdict};
use super::states;
use crate::error::{Error, Result};
use crate::model::{Explorer, StateSpec};
use crate::report::Failure;

/// How often the smallest state is checked again.
const REPEATS: u64 = 3;

/// What is known of a state that failed.
pub(super) struct Smallest {
    pub(super) failure: Failure,
    pub(super) image: MemoryDevice,
    /// Why it may not be the smallest.
    pub(super) cut_short: Option<Error>,
}

/// Checks of states, as long as nothing goes wrong.
struct Checks<'a> {
    explorer: &'a Explorer,
    checker: &'a Checker<'a>,
    count: u64,
    /// Of the last state that failed.
    verdict: Verdict,
    cut_short: Option<Error>,
}

impl Checks<'_> {
    /// Whether a state fails. Once something went wrong none does: what was found stays.
    fn fails(&mut self, state: &StateSpec) -> bool {
        if self.cut_short.is_some() {
            return false;
        }
        match states::check(self.explorer, self.checker, state) {
            Ok(verdict) => {
                self.count += 1;
                let fails = verdict.failure.is_some();
                if fails {
                    self.verdict = verdict;
                }
                fails
            }
            Err(error) => {
                self.cut_short = Some(error);
                false
            }
        }
    }

    /// How often a state fails, and how often it was checked.
    fn repeat(&mut self, state: &StateSpec) -> (u64, u64) {
        let before = self.count;
        let failed = (0..REPEATS).filter(|_| self.fails(state)).count() as u64;
        (failed, self.count - before)
    }
}

/// Makes a failing state smaller, as long as it fails.
pub(super) fn smallest(
    plan: &Plan,
    explorer: &Explorer,
    checker: &Checker<'_>,
    number: u64,
    (first, verdict): (StateSpec, Verdict),
) -> Result<Smallest> {
    let until = plan.time.map(|time| Instant::now() + time);
    let verdict_of_first = verdict.clone();
    let mut checks = Checks { explorer, checker, count: 0, verdict, cut_short: None };
    let mut state = first.clone();
    if checks.fails(&first) {
        let is_over = || until.is_some_and(|until| Instant::now() > until);
        state = explorer.shrink(&first, &mut |state| Ok(!is_over() && checks.fails(state)))?;
    }
    let made_smaller = checks.count;
    // A check that depends on more than the state takes shrinking anywhere.
    let (mut failed, mut repeated) = checks.repeat(&state);
    if failed == 0 && repeated > 0 && state != first {
        (state, checks.verdict) = (first, verdict_of_first);
        (failed, repeated) = checks.repeat(&state);
    }
    let failure = Failure {
        number,
        description: explorer.describe(&state),
        status: checks.verdict.failure.unwrap_or_default(),
        said: checks.verdict.said,
        printed: String::from_utf8_lossy(&explorer.acknowledged(&state)).into_owned(),
        checks: made_smaller,
        failed,
        repeated,
        fails_again: failed > 0,
        state,
    };
    let image = explorer.image(&failure.state)?;
    Ok(Smallest { failure, image, cut_short: checks.cut_short })
}
