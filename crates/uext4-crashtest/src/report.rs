//! What came of a test, as it is kept: `crash.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{Description, Guarantees, StateSpec};

/// A test and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command line that made what the program found.
    pub setup: Option<String>,
    /// The command line of the program.
    pub run: String,
    /// The command line that judged.
    pub check: String,
    /// What the file system promised.
    pub guarantees: Guarantees,
    /// Bytes of the image.
    pub image_size: u64,
    /// Where chance began.
    pub seed: u64,
    /// Calls that were recorded.
    pub steps: usize,
    /// Seconds until the first state.
    pub recorded_seconds: f64,
    /// Seconds of all.
    pub seconds: f64,
    /// States that were checked, each different from all others.
    pub states: u64,
    /// The same by what they lacked.
    pub states_by_kind: BTreeMap<String, u64>,
    /// No other states were found, by thousands of random choices.
    pub is_exhaustive: bool,
    /// Why the test ended before it was through.
    pub cut_short: Option<String>,
    /// The smallest state that failed.
    pub failure: Option<Failure>,
    /// All calls of the program.
    pub timeline: Vec<TimelineStep>,
    /// What the program did that was not recorded.
    pub remarks: Vec<String>,
}

/// A state that the check found unsound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Its number among the states that were tried, before it was made smaller.
    pub number: u64,
    /// What it is.
    pub description: Description,
    /// How the check ended.
    pub status: String,
    /// The end of what the check printed.
    pub said: String,
    /// What the program had printed.
    pub printed: String,
    /// Checks that made it smaller.
    pub checks: u64,
    /// How often the check failed on this state when it was repeated at the end.
    pub failed: u64,
    /// How often it was repeated.
    pub repeated: u64,
    /// It failed again at all. If not each time, the check depends on more than the state.
    pub fails_again: bool,
    /// How it is made.
    pub state: StateSpec,
}

/// A call of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineStep {
    /// Its index.
    pub step: usize,
    /// Microseconds from the begin.
    pub started_us: u64,
    /// Microseconds from the begin.
    pub returned_us: u64,
    /// The thread that called; 0 for the kernel itself.
    pub pid: u32,
    /// Its program, if it is known.
    pub process: Option<String>,
    /// The call, with paths.
    pub call: String,
}

impl TimelineStep {
    /// The steps of the state that has all of them.
    pub(crate) fn all(everything: &Description, processes: &BTreeMap<u32, String>) -> Vec<Self> {
        let steps = everything.steps.iter().map(|line| Self {
            step: line.step,
            started_us: line.started_us,
            returned_us: line.returned_us,
            pid: line.pid,
            process: processes.get(&line.pid).cloned(),
            call: line.call.clone(),
        });
        steps.collect()
    }
}
