//! Why a candidate is as fast as it is: what the processors ran, what threads waited for, what was
//! counted.
//!
//! What: after the rounds each candidate has one more run that is looked at ([`watch`]) and gives
//! no figures. What was seen is written beside the figures, and pairs of candidates that differ by
//! one option or target are compared in words: docs/explain.md.
//!
//! | module | what it is |
//! |---|---|
//! | `watch` | a run that is looked at |
//! | `profiler` | what takes the CPU profile of a run |
//! | `stacks` | CPU profiles by perf(1) |
//! | `inside` | CPU profiles by a sampler in this process (feature `sampler`) |
//! | `sampler` | what threads wait for |
//! | `tasks` | which threads there are |
//! | `causes` | functions of the kernel as causes |
//! | `counts` | what is counted |
//! | `timeline` | latencies by phase and over time |
//! | `files` | profile, waits and latencies of a run as files |
//! | `difference` | what differs between two candidates |
//! | `explanation` | pairs, in words |
//! | `rate` | how much faster one of a pair is, and how sure that is |
//! | `cases` | options that are known to move a counter |

pub mod cases;
mod causes;
mod counts;
mod difference;
mod explanation;
mod files;
#[cfg(feature = "sampler")]
mod inside;
mod profiler;
mod rate;
mod sampler;
mod stacks;
mod tasks;
mod timeline;
mod watch;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::bench::Candidate;
use crate::error::{Doing, Result};
use crate::evidence::TargetRun;
use crate::report::Spread;

pub(crate) use timeline::Timeline;
pub(crate) use watch::{Seen, Subject, watch};

/// The file of all explanations.
pub const FILE: &str = "explain.json";

/// A candidate whose run was looked at.
pub(crate) struct Explained {
    pub(crate) candidate: Candidate,
    pub(crate) run: TargetRun,
    /// How files of this run are named.
    pub(crate) key: String,
    /// The figure that candidates are compared by.
    pub(crate) metric: &'static str,
    pub(crate) operations: u64,
    /// That figure in this run.
    pub(crate) watched_rate: f64,
    /// It in each round, in which nobody looked; `None` where the run failed.
    pub(crate) rates: Vec<Option<f64>>,
    /// Whether some were ended before they had done.
    pub(crate) is_cut_off: bool,
    pub(crate) seen: Seen,
    pub(crate) timelines: Vec<Timeline>,
}

impl Explained {
    /// The median of the rounds.
    fn usual_rate(&self) -> Option<f64> {
        Spread::of(self.rates.iter().flatten().copied()).map(|spread| spread.median)
    }

    fn rate(&self) -> f64 {
        self.usual_rate().unwrap_or(self.watched_rate)
    }

    /// Part of the speed that looking costs.
    fn overhead(&self) -> Option<f64> {
        let usual = self.usual_rate().filter(|rate| *rate > 0.0)?;
        Some(1.0 - times_as_fast(self.metric, usual, self.watched_rate))
    }

    fn to_json(&self) -> Value {
        let counts = &self.seen.counts;
        let profile = self.seen.profile.as_ref().map(|_| &self.seen.profiled_by);
        let missing = self.seen.profile.is_none().then_some(&self.seen.profiled_by);
        json!({
            "key": self.key,
            "experiment": self.run.load.id,
            "form": self.run.form.map(crate::load::Form::name),
            "threads": self.run.threads,
            "bs": self.run.bs,
            "target": self.candidate.target.name(),
            "variant": self.candidate.variant,
            "metric": self.metric,
            "rate": self.usual_rate(),
            "rounds": self.rates.iter().flatten().count(),
            "rate_while_watched": self.watched_rate,
            "overhead": self.overhead().map(files::round),
            "operations": self.operations,
            "seconds": files::round(self.seen.sampled.seconds),
            "looking_cpu_s": files::round(self.seen.looking_cpu_s),
            "profile_by": profile,
            "profile_missing": missing,
            "counters": counts.counts,
            "means": counts.means,
            "wait_shares": difference::wait_shares(self),
        })
    }
}

/// How many times as fast b is as a, by a figure of both: seconds are better the fewer they are.
fn times_as_fast(metric: &str, a: f64, b: f64) -> f64 {
    if metric.ends_with("_s") && !metric.ends_with("_per_s") { a / b } else { b / a }
}

/// The runs that were looked at, as that folder says.
pub(crate) fn keys(folder: &Path) -> BTreeSet<String> {
    let text = fs::read(folder.join(FILE)).unwrap_or_default();
    let all: Value = serde_json::from_slice(&text).unwrap_or_default();
    let runs = all["runs"].as_array().map_or(&[][..], Vec::as_slice);
    runs.iter().filter_map(|run| run["key"].as_str().map(str::to_owned)).collect()
}

/// Writes what was seen of the candidates of an experiment, and adds what it says of their
/// differences to those of the experiments before. Returns it in words.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write(folder: &Path, all: &[Explained]) -> Result<Vec<String>> {
    for one in all {
        files::write(folder, &one.key, &one.seen, &one.timelines, one.operations)?;
    }
    let path = folder.join(FILE);
    let mut before = match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).doing(format_args!("{}", path.display()))?,
        Err(_) => json!({"runs": [], "pairs": []}),
    };
    let pairs = explanation::pairs(all);
    let words = pairs.iter().flat_map(|pair| pair.words()).cloned().collect();
    let mut add = |to: &str, values: Vec<Value>| {
        before[to].as_array_mut().into_iter().for_each(|list| list.extend(values.clone()));
    };
    add("runs", all.iter().map(Explained::to_json).collect());
    let pairs: serde_json::Result<Vec<Value>> = pairs.iter().map(serde_json::to_value).collect();
    add("pairs", pairs.doing("an explanation")?);
    // Whole at every moment: an interrupted run leaves what it had.
    let whole = path.with_extension("json.new");
    fs::write(&whole, format!("{before:#}\n")).doing("writing the explanation")?;
    fs::rename(&whole, &path).doing("writing the explanation")?;
    Ok(words)
}
