//! What differs between two candidates of an experiment: counters, waits, functions.
//!
//! What: counts are compared by the operation. A difference is ranked by its ratio, and small
//! numbers count for little in it, as chance moves them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::explain::Explained;
use crate::explain::files::round;
use crate::explain::tasks::Part;

/// Counters that are told of a pair.
const COUNTERS: usize = 40;
/// Causes, and functions.
const TOLD: usize = 12;
/// Least ratio of a counter that is told.
const RATIO_MIN: f64 = 1.25;
/// Least difference of two shares that is told.
const SHARE_MIN: f64 = 0.01;
/// What counts and means are moved from nothing by, so that small ones have small ratios.
const SMALL: f64 = 8.0;
const SMALL_MEAN: f64 = 1.0;
/// Of the rank of a number.
const WEIGHT_OF_TIME: f64 = 0.5;
/// Time that threads do not wait.
pub(super) const RUNNING: &str = "running";

/// A number of two candidates.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(super) struct Moved {
    pub(super) name: String,
    /// `operation`: a count by the operations; `mean`: as it is.
    pub(super) per: &'static str,
    pub(super) a: f64,
    pub(super) b: f64,
    /// b by a; none where a is nothing.
    pub(super) ratio: Option<f64>,
    #[serde(skip)]
    pub(super) score: f64,
}

/// A share of the time, or of the processor, of two candidates.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(super) struct Share {
    pub(super) name: String,
    pub(super) a_share: f64,
    pub(super) b_share: f64,
}

impl Share {
    fn difference(&self) -> f64 {
        (self.a_share - self.b_share).abs()
    }
}

/// The counters that differ, the most moved first.
pub(super) fn counters(a: &Explained, b: &Explained) -> Vec<Moved> {
    let (ops_a, ops_b) = (a.operations.max(1) as f64, b.operations.max(1) as f64);
    let least = ops_a.min(ops_b);
    let (of_a, of_b) = (&a.seen.counts, &b.seen.counts);
    let count = |(name, a, b): (&String, f64, f64)| {
        let (a, b) = (a / ops_a, b / ops_b);
        let score = weighed(name, ((b * least + SMALL) / (a * least + SMALL)).ln());
        Moved { name: name.clone(), per: "operation", a, b, ratio: ratio(a, b), score }
    };
    let mean = |(name, a, b): (&String, f64, f64)| {
        let score = weighed(name, ((b + SMALL_MEAN) / (a + SMALL_MEAN)).ln());
        Moved { name: name.clone(), per: "mean", a, b, ratio: ratio(a, b), score }
    };
    let counts = both(&of_a.counts, &of_b.counts).map(count);
    let means = both(&of_a.means, &of_b.means).map(mean);
    let mut moved: Vec<Moved> = counts.chain(means).collect();
    moved.retain(|moved| moved.score.abs() >= RATIO_MIN.ln());
    moved.sort_by(|a, b| b.score.abs().total_cmp(&a.score.abs()));
    moved.truncate(COUNTERS);
    moved
}

/// Times depend on the machine and on chance, numbers on what is done.
fn weighed(name: &str, score: f64) -> f64 {
    let is_time = name.ends_with("_us") || name.ends_with("_time_used");
    if is_time { score * WEIGHT_OF_TIME } else { score }
}

fn ratio(a: f64, b: f64) -> Option<f64> {
    (a > 0.0).then(|| round(b / a))
}

/// What both tell.
fn both<'m>(
    a: &'m BTreeMap<String, f64>,
    b: &'m BTreeMap<String, f64>,
) -> impl Iterator<Item = (&'m String, f64, f64)> {
    a.iter().filter_map(|(name, a)| Some((name, *a, *b.get(name)?)))
}

/// The causes that threads of the load waited for, as shares of their time.
pub(super) fn waits(a: &Explained, b: &Explained) -> Vec<Share> {
    shares(&wait_shares(a), &wait_shares(b))
}

/// By cause: its share of the time of the threads of the load.
pub(super) fn wait_shares(of: &Explained) -> BTreeMap<String, f64> {
    let Some(load) = of.seen.sampled.parts.get(&Part::Load) else { return BTreeMap::new() };
    let waits = load.waits.iter().map(|(name, tally)| (name.clone(), tally.ms));
    let all = waits.chain([(RUNNING.to_owned(), load.running_ms)]);
    all.map(|(name, ms)| (name, ms / load.ms.max(f64::MIN_POSITIVE))).collect()
}

/// Looks at threads of the load.
pub(super) fn looks(of: &Explained) -> u64 {
    of.seen.sampled.parts.get(&Part::Load).map_or(0, |load| load.looks)
}

/// Stacks of the profile.
pub(super) fn stacks(of: &Explained) -> u64 {
    let lines = of.seen.profile.iter().flat_map(|folded| folded.lines());
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

/// The functions that the processors ran, as shares of the time that the run used of them.
pub(super) fn functions(a: &Explained, b: &Explained) -> Vec<Share> {
    shares(&function_shares(a), &function_shares(b))
}

/// By function: its share of the stacks at whose end it is.
fn function_shares(of: &Explained) -> BTreeMap<String, f64> {
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    let mut total = 0.0;
    for line in of.seen.profile.iter().flat_map(|folded| folded.lines()) {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let count: f64 = count.parse().unwrap_or(0.0);
        let last = stack.rsplit(';').next().unwrap_or_default();
        *counts.entry(last.to_owned()).or_default() += count;
        total += count;
    }
    counts.values_mut().for_each(|count| *count /= total);
    counts
}

/// Those that differ, the most first.
fn shares(a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>) -> Vec<Share> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let part = |of: &BTreeMap<String, f64>, name: &str| round(of.get(name).copied().unwrap_or(0.0));
    let share = |name: &String| Share {
        name: name.clone(),
        a_share: part(a, name),
        b_share: part(b, name),
    };
    let mut shares: Vec<Share> = names.into_iter().map(share).collect();
    shares.retain(|share| share.difference() >= SHARE_MIN);
    shares.sort_by(|a, b| b.difference().total_cmp(&a.difference()));
    shares.truncate(TOLD);
    shares
}
