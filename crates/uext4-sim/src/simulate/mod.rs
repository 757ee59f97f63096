//! One seed, the whole engine: `cargo xtask simulate`.
//!
//! # What
//! [`run`] takes a volume through several *lives* under the seeded scheduler of `uext4-schedule`:
//! callers, committer, checkpointer, flusher and the closing thread are threads of one
//! simulation, with its clock, on a simulated device ([`Medium`]). A life ends with a loss of
//! power, a close, or a close beside callers; the image that is left is recovered, checked and
//! compared with the model, and the next life goes on with it. The same [`Case`] gives the same
//! run to the byte: [`Report::trace`] is a hash of every decision and every request.
//!
//! | module | what it is |
//! |---|---|
//! | [`part`] | what may be in a run; a seed draws which |
//! | [`plan`], [`scene`] | everything else that a seed draws |
//! | [`medium`] | the device: latency, failures, loss of power |
//! | [`life`], [`caller`], [`tenant`] | the threads of one life that are waited for |
//! | [`neighbour`], [`onlooker`], [`racer`], [`refuse`] | those beside them |
//! | [`judge`] | what must be there afterwards |
//! | [`memory`] | what may be in memory |
//! | [`fault`] | which judge found a fault |
//! | [`coverage`] | what the runs have reached |
//! | [`campaign`] | many seeds in processes of their own, and the shrinking of one that fails |

mod around;
mod caller;
mod case;
pub mod coverage;
mod fault;
mod life;
mod life_judge;
mod medium;
mod memory;
mod neighbour;
mod onlooker;
pub mod part;
mod plan;
mod racer;
mod refuse;
mod scene;
pub mod seed_campaign;
mod tenant;

pub use case::Case;
pub use coverage::Coverage;
pub use medium::Medium;
pub use part::{Part, Parts};
pub use plan::SeedPlan;

use std::collections::BTreeMap;
use std::sync::Arc;
use uext4_schedule::{Settings, Waited};

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Hash of the whole run.
    pub trace: u64,
    /// Operations of the callers.
    pub operations: u64,
    /// Lives.
    pub lives: u64,
    /// Losses of power, those during a recovery among them.
    pub cuts: u64,
    /// Preemptions of the schedule.
    pub preemptions: u64,
    /// Times that a thread was chosen.
    pub switches: u64,
    /// What is wrong.
    pub faults: Vec<String>,
    /// What was reached.
    pub coverage: Coverage,
}

/// Waits at one place in one run that are no waits any more.
const BUSY: u64 = 1_000_000;

/// A thread that waits again and again, and for nothing.
fn busy(waits: &BTreeMap<Waited, u64>) -> Option<String> {
    let (at, count) = waits.iter().max_by_key(|(_, count)| **count)?;
    (*count > BUSY).then(|| format!("busy: {count} waits for {at}"))
}

/// Runs a case. A run with a fault may leave threads behind that sleep for ever: it should be the
/// last of its process.
#[must_use]
pub fn run(case: &Case) -> Report {
    uext4::injected_faults::inject(case.fault);
    let plan = Arc::new(SeedPlan::draw(case));
    let settings = Settings {
        seed: case.seed ^ 0x5c4e_d01e,
        policy: plan.policy,
        step: plan.step,
        patience: plan::PATIENCE,
        processors: plan.processors,
    };
    let progress = around::Progress::default();
    let seen = progress.clone();
    let outcome = uext4_schedule::run(settings, move || life::run(&plan, &progress));
    let mut report = seen.report();
    match outcome.result {
        Ok(Ok(())) => {}
        Ok(Err(faults)) => report.faults.extend(faults),
        Err(failure) => report.faults.push(failure.to_string()),
    }
    report.faults.extend(busy(&outcome.waits));
    report.trace = outcome.trace;
    report.preemptions = outcome.preemptions;
    report.switches = outcome.switches;
    report.coverage.waited(&outcome.waits);
    report.coverage.erred(&outcome.reached);
    report
}
