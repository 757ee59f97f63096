//! What uext4 was built to reach.
//!
//! What: [`GOALS`] is a table; a row holds for a target in its default, of the usual form of a
//! load.
//!
//! Invariant: a goal is judged where it holds, and nowhere else: a ratio on any machine, a count of
//! E1b at the full size of the load, a time or a rate at that size on two processors (of about
//! 2 GHz) and a store in memory. What a run does not tell of itself counts as different.

use crate::evidence::Evidence;
use crate::metric::{counted, show, times};
use crate::panel::{Panel, Point, Series};
use crate::stats::{PAIRS_MIN, Spread};
use crate::verdict::Verdict;

/// How a goal is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Times as good as a peer (target and variant), at least, at each point.
    Beside(&'static str, &'static str),
    /// The same for the lower end of the interval of the ratio.
    SurelyBeside(&'static str, &'static str),
    /// The same target with another variant: how many times as good that is, at most.
    Ablation(&'static str),
    /// The figure itself, at each point.
    AtMost,
    /// The figure itself, at the most threads.
    AtLeast,
    /// So many times another figure of the same runs.
    TimesOf(&'static str),
}

/// A goal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) experiment: &'static str,
    pub(crate) target: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) kind: Kind,
    pub(crate) bound: f64,
}

const fn own(experiment: &'static str, metric: &'static str, kind: Kind, bound: f64) -> Goal {
    Goal { experiment, target: "uext4", metric, kind, bound }
}

const fn mount(experiment: &'static str, metric: &'static str, kind: Kind, bound: f64) -> Goal {
    Goal { experiment, target: "uext4-mount", metric, kind, bound }
}

use Kind::{Ablation, AtLeast, AtMost, Beside, SurelyBeside, TimesOf};

const KERNEL: Kind = Beside("kernel", "");
const RAW: Kind = Beside("raw", "");
/// The kernel's ways switched on together, in E0.
const AS_KERNEL: &str =
    "writeback=unwritten,journal_join=herd,journal_credits=worst,checkpoint=inline";

/// All goals, in the order of the experiments.
pub(crate) const GOALS: &[Goal] = &[
    own("E0", "iops", KERNEL, 4.0),
    own("E0", "iops", RAW, 0.9),
    own("E0", "latency_p99_us", TimesOf("latency_p50_us"), 4.0),
    own("E0", "log_space_wait_share", AtMost, 0.05),
    own("E0", "iops", Ablation(AS_KERNEL), 0.2),
    own("E1a", "ops_per_s", KERNEL, 2.0),
    own("E1a", "contended_per_kop", AtMost, 1.0),
    own("E1b", "bytes_per_s", KERNEL, 2.0),
    own("E1b", "extents_per_file", AtMost, 16.0),
    own("E1b", "frag_score", AtMost, 2.0),
    own("E1b", "free_extent_mean_kib", KERNEL, 0.8),
    own("E2", "iops", RAW, 0.8),
    own("E2", "handles_of_overwrites", AtMost, 0.0),
    own("E3", "iops", KERNEL, 1.0),
    own("E3", "iops", RAW, 0.95),
    own("E3", "latency_p99_us", KERNEL, 1.0),
    own("E3", "flushes_per_fsync", AtMost, 0.15),
    own("E4", "iops", SurelyBeside("raw", ""), 0.95),
    own("E4", "iops", Beside("kernel", "io_uring"), 1.0),
    own("E4", "iops", Beside("kernel", "libaio"), 1.0),
    own("M1", "wall_s", AtMost, 1.4),
    mount("M1", "wall_s", AtMost, 4.0),
    mount("M2", "wall_s", AtMost, 1.5),
    mount("M3", "wall_s", AtMost, 1.5),
    own("M4", "ops_per_s", AtLeast, 400_000.0),
    mount("M4", "ops_per_s", AtLeast, 30_000.0),
    own("M5", "ops_per_s", AtLeast, 2_000_000.0),
    own("M6", "ops_per_s", AtLeast, 400_000.0),
    mount("M6", "ops_per_s", AtLeast, 45_000.0),
    own("M7", "wall_s", AtMost, 1.0),
];

/// The least ratio that a verdict should have.
pub(crate) fn of_verdict(panel: &Panel<'_>, verdict: &Verdict<'_>) -> Option<f64> {
    let peer = (verdict.peer.target.as_str(), verdict.peer.variant.as_str());
    let is_beside = |goal: &&Goal| match goal.kind {
        Beside(target, variant) | SurelyBeside(target, variant) => (target, variant) == peer,
        _ => false,
    };
    let is_own = verdict.own.is_default() && panel.is_usual();
    let mut of = GOALS.iter().filter(|goal| {
        is_own
            && goal.experiment == panel.experiment
            && goal.target == verdict.own.target
            && goal.metric == verdict.metric
    });
    of.find(is_beside).map(|goal| goal.bound)
}

/// A goal beside what was measured.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) goal: &'static Goal,
    /// What is to be reached, and what was.
    pub(crate) wanted: String,
    pub(crate) measured: String,
    pub(crate) is_met: bool,
    /// Fewest rounds that it stands on.
    pub(crate) rounds: usize,
}

impl Measured {
    /// Whether there are rounds enough to say that it is met or missed.
    pub(crate) const fn is_sure(&self) -> bool {
        self.rounds >= PAIRS_MIN
    }
}

/// What a figure depends on, beside the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ground {
    /// Nothing: a ratio.
    Nothing,
    /// How much the load does.
    Size,
    /// That and the machine: a time or a rate.
    Machine,
}

/// The threads of a load that goals are for where they do not say how a peer does.
const THREADS: &[(&str, u32)] =
    &[("E0", 2048), ("E1a", 64), ("E1b", 64), ("E3", 16), ("M4", 2), ("M5", 2), ("M6", 2)];
/// Processors and store of the machine whose times and rates the goals have.
const PROCESSORS: u64 = 2;
const STORE: &str = "ram";

/// Why the size of a run's loads is not the full one, as far as is known.
fn other_size(evidence: &Evidence) -> Option<String> {
    if evidence.env.is_empty() {
        return Some("without env.json neither size nor machine is known".to_owned());
    }
    let options = evidence.env.get("options").unwrap_or(&serde_json::Value::Null);
    if options["quick"] == true {
        return Some("a quick run makes its loads smaller".to_owned());
    }
    match options["scale"].as_f64() {
        Some(1.0) => None,
        Some(scale) => Some(format!("this run has the scale {}", show(scale, ""))),
        None => Some("env.json does not tell the scale of the run".to_owned()),
    }
}

/// Why a run's machine or store is none that goals have times of.
fn other_machine(evidence: &Evidence, panel: &Panel<'_>) -> Option<String> {
    match evidence.env.get("cpus").and_then(serde_json::Value::as_u64) {
        Some(PROCESSORS) => {}
        Some(count) => return Some(format!("this machine has {}", counted(count, "processor"))),
        None => return Some("env.json does not tell the number of processors".to_owned()),
    }
    let of_run = evidence.env.get("store").and_then(serde_json::Value::as_str);
    let other = [Some(panel.store), of_run].into_iter().flatten().find(|store| *store != STORE);
    other.map(|store| match store {
        "" => "the store is not known".to_owned(),
        store => format!("the store is {store}"),
    })
}

impl Goal {
    const fn ground(&self) -> Ground {
        match (self.kind, self.experiment.as_bytes()) {
            (AtMost | AtLeast, [b'M', ..]) => Ground::Machine,
            (AtMost | AtLeast, b"E1b") => Ground::Size,
            _ => Ground::Nothing,
        }
    }

    /// Why the figures of a panel are no judgement of it; `None` if they are.
    pub(crate) fn not_judged(&self, evidence: &Evidence, panel: &Panel<'_>) -> Option<String> {
        let size = || (self.ground() >= Ground::Size).then(|| other_size(evidence)).flatten();
        let machine =
            || (self.ground() == Ground::Machine).then(|| other_machine(evidence, panel)).flatten();
        size().or_else(machine).or_else(|| self.fewer_threads(panel))
    }

    /// A goal that is one for the most threads says nothing about fewer.
    fn fewer_threads(&self, panel: &Panel<'_>) -> Option<String> {
        if matches!(self.kind, Beside(..) | SurelyBeside(..)) {
            return None;
        }
        let (_, wanted) = THREADS.iter().find(|(name, _)| *name == self.experiment)?;
        let own = Series { target: self.target.to_owned(), variant: String::new() };
        let (threads, _) = panel.points.iter().rev().find(|point| panel.has_run(&own, **point))?;
        (threads < wanted).then(|| {
            let wanted = counted(*wanted, "thread");
            format!("it ran with {threads} of {wanted}")
        })
    }

    /// What the figures of a panel say about it.
    pub(crate) fn measure(&'static self, panel: &Panel<'_>) -> Option<Measured> {
        if self.experiment != panel.experiment || !panel.is_usual() {
            return None;
        }
        let series = Series { target: self.target.to_owned(), variant: String::new() };
        match self.kind {
            Beside(target, variant) => self.beside(panel, &series, target, variant, false),
            SurelyBeside(target, variant) => self.beside(panel, &series, target, variant, true),
            Ablation(variant) => self.ablation(panel, &series, variant),
            TimesOf(other) => self.times_of(panel, &series, other),
            AtMost | AtLeast => self.figure(panel, &series),
        }
    }

    fn done(
        &'static self,
        wanted: String,
        measured: String,
        is_met: bool,
        rounds: usize,
    ) -> Measured {
        Measured { goal: self, wanted, measured, is_met, rounds }
    }

    /// A ratio beside the bound: one that is missed by less than two digits show has more of them.
    fn told(&self, ratio: f64) -> String {
        match times(ratio) {
            text if text == times(self.bound) && ratio != self.bound => format!("{ratio:.4}x"),
            text => text,
        }
    }

    fn beside(
        &'static self,
        panel: &Panel<'_>,
        own: &Series,
        target: &str,
        variant: &str,
        is_lower: bool,
    ) -> Option<Measured> {
        let peer = Series { target: target.to_owned(), variant: variant.to_owned() };
        let of = |point: &Point| Verdict::of(panel, own, &peer, *point, self.metric);
        let all: Vec<Verdict<'_>> = panel.points.iter().filter_map(of).collect();
        let rounds = all.iter().map(|verdict| verdict.ratio.pairs).min()?;
        let ratio = |verdict: &Verdict<'_>| match verdict.ratio.bounds {
            Some((lower, _)) if is_lower => lower,
            _ => verdict.ratio.mean,
        };
        let least = all.iter().map(ratio).fold(f64::MAX, f64::min);
        let by = if is_lower { ", surely (95 %)" } else { "" };
        let wanted = format!("at least {} of {}{by}", times(self.bound), peer.name());
        Some(self.done(wanted, self.told(least), least >= self.bound, rounds))
    }

    fn ablation(&'static self, panel: &Panel<'_>, own: &Series, variant: &str) -> Option<Measured> {
        let with = Series { variant: variant.to_owned(), ..own.clone() };
        let verdict = Verdict::of(panel, &with, own, *panel.points.last()?, self.metric)?;
        let wanted = format!("at most {} with {variant}", times(self.bound));
        let mean = verdict.ratio.mean;
        Some(self.done(wanted, self.told(mean), mean <= self.bound, verdict.ratio.pairs))
    }

    fn times_of(&'static self, panel: &Panel<'_>, own: &Series, other: &str) -> Option<Measured> {
        let point = *panel.points.last()?;
        let [of, by] = [self.metric, other].map(|metric| panel.rounds(own, point, metric));
        let ratios = of.iter().filter_map(|(round, of)| Some(of / by.get(round)?));
        let ratios = Spread::of(ratios.filter(|ratio| ratio.is_finite()))?;
        let wanted = format!("at most {} the median", times(self.bound));
        let is_met = ratios.median <= self.bound;
        Some(self.done(wanted, self.told(ratios.median), is_met, ratios.count))
    }

    fn figure(&'static self, panel: &Panel<'_>, own: &Series) -> Option<Measured> {
        let unit = panel.unit(self.metric);
        let bound = show(self.bound, unit);
        let of = |point: &Point| panel.spread(own, *point, self.metric);
        let (wanted, spread) = if self.kind == AtLeast {
            let last = panel.points.iter().rev().find_map(of)?;
            (format!("at least {bound}"), last)
        } else {
            let worst = panel.points.iter().filter_map(of);
            let worst = worst.max_by(|a, b| a.median.total_cmp(&b.median))?;
            (format!("at most {bound}"), worst)
        };
        let median = spread.median;
        let is_met = if self.kind == AtLeast { median >= self.bound } else { median <= self.bound };
        Some(self.done(wanted, show(median, unit), is_met, spread.count))
    }
}
