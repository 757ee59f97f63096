//! Which target wins, and by how much.
//!
//! Invariant: a verdict needs an interval that lies on one side of 1, and a difference beyond the
//! noise of the run itself; without both there is none.

use crate::evidence::REPEATED;
use crate::metric::{ALSO, times_as_good};
use crate::panel::{Panel, Series};
use crate::stats::{Interval, noise};

/// Fewest pairs of rounds that give a verdict without a reservation.
const PAIRS_MIN: usize = 5;

/// What two series say about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Wins,
    Loses,
    /// No difference is shown.
    Even,
    /// One round says nothing about itself.
    OneRound,
}

impl Outcome {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Wins => "wins",
            Self::Loses => "loses",
            Self::Even => "no difference shown",
            Self::OneRound => "one round only",
        }
    }

    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Wins => "win",
            Self::Loses => "loss",
            Self::Even | Self::OneRound => "even",
        }
    }
}

/// How a series compares with another by a metric.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) own: Series,
    pub(crate) peer: Series,
    pub(crate) point: (u32, u32),
    pub(crate) metric: &'static str,
    /// How many times as good `own` is.
    pub(crate) ratio: Interval,
    /// What two runs of the same would differ by, as a part.
    pub(crate) noise: Option<f64>,
    pub(crate) outcome: Outcome,
}

impl Verdict {
    pub(crate) fn of(
        panel: &Panel<'_>,
        own: &Series,
        peer: &Series,
        point: (u32, u32),
        metric: &'static str,
    ) -> Option<Self> {
        let mine = panel.rounds(own, point, metric);
        let theirs = panel.rounds(peer, point, metric);
        let pairs = mine.iter().filter_map(|(round, mine)| Some((*mine, *theirs.get(round)?)));
        let ratios: Vec<f64> = pairs.map(|(own, peer)| times_as_good(metric, own, peer)).collect();
        let ratio = Interval::of(&ratios)?;
        let same = [own, peer].map(|series| panel.repeated(series, point, metric)).concat();
        let noise = noise(&same, ratio.pairs);
        let beyond = ratio.mean.ln().abs() > noise.unwrap_or(0.0);
        let outcome = match ratio.bounds {
            None => Outcome::OneRound,
            Some((lower, _)) if lower > 1.0 && beyond => Outcome::Wins,
            Some((_, upper)) if upper < 1.0 && beyond => Outcome::Loses,
            Some(_) => Outcome::Even,
        };
        let noise = noise.map(|noise| noise.exp() - 1.0);
        let (own, peer) = (own.clone(), peer.clone());
        Some(Self { own, peer, point, metric, ratio, noise, outcome })
    }

    /// Whether it stands on few rounds.
    pub(crate) const fn is_weak(&self) -> bool {
        self.ratio.pairs < PAIRS_MIN
    }
}

/// The verdicts of a panel by its headline, and by other metrics that both have: each own target in
/// its default beside each peer, at each point.
pub(crate) fn verdicts(panel: &Panel<'_>) -> Vec<Verdict> {
    let metrics = panel.headline().into_iter().chain(ALSO.iter().copied());
    let mut all = Vec::new();
    for metric in metrics {
        for own in panel.series.iter().filter(|s| s.is_own() && s.is_default()) {
            for peer in panel.series.iter().filter(|s| !s.is_own()) {
                let of = |point: &(u32, u32)| Verdict::of(panel, own, peer, *point, metric);
                all.extend(panel.points.iter().filter_map(of));
            }
        }
    }
    all
}

/// Each series with options beside the same target without: `own` has the options.
pub(crate) fn ablations(panel: &Panel<'_>) -> Vec<Verdict> {
    let Some(metric) = panel.headline() else { return Vec::new() };
    let with = panel.series.iter().filter(|s| !s.is_default() && s.variant != REPEATED);
    let of = |own: &Series| {
        let plain = Series { variant: String::new(), ..own.clone() };
        let point = *panel.points.last()?;
        Verdict::of(panel, own, &plain, point, metric)
    };
    with.filter_map(of).collect()
}

/// What uext4 is to reach in an experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) experiment: &'static str,
    pub(crate) metric: &'static str,
    /// Beside which peer; `None`: the figure itself.
    pub(crate) peer: Option<(&'static str, &'static str)>,
    /// Least ratio, or the bound of the figure.
    pub(crate) bound: f64,
}

const fn beside(
    experiment: &'static str,
    metric: &'static str,
    peer: (&'static str, &'static str),
    bound: f64,
) -> Goal {
    Goal { experiment, metric, peer: Some(peer), bound }
}

const fn at_most(experiment: &'static str, metric: &'static str, bound: f64) -> Goal {
    Goal { experiment, metric, peer: None, bound }
}

const KERNEL: (&str, &str) = ("kernel", "");
const RAW: (&str, &str) = ("raw", "");

/// What uext4 (the library, in its default) was built to reach.
pub(crate) const GOALS: &[Goal] = &[
    beside("E0", "iops", KERNEL, 4.0),
    beside("E0", "iops", RAW, 0.9),
    at_most("E0", "log_space_wait_share", 0.05),
    beside("E1a", "ops_per_s", KERNEL, 2.0),
    at_most("E1a", "contended_per_kop", 1.0),
    beside("E1b", "bytes_per_s", KERNEL, 2.0),
    at_most("E1b", "extents_per_file", 16.0),
    at_most("E1b", "frag_score", 2.0),
    beside("E1b", "free_extent_mean_kib", KERNEL, 0.8),
    beside("E2", "iops", RAW, 0.8),
    at_most("E2", "handles_of_overwrites", 0.0),
    beside("E3", "iops", KERNEL, 1.0),
    beside("E3", "iops", RAW, 0.95),
    beside("E3", "latency_p99_us", KERNEL, 1.0),
    at_most("E3", "flushes_per_fsync", 0.15),
    beside("E4", "iops", RAW, 0.95),
    beside("E4", "iops", ("kernel", "io_uring"), 1.0),
    beside("E4", "iops", ("kernel", "libaio"), 1.0),
];

/// The goal of a verdict.
pub(crate) fn goal(experiment: &str, verdict: &Verdict) -> Option<&'static Goal> {
    let is_default = verdict.own.target == "uext4" && verdict.own.is_default();
    GOALS.iter().find(|goal| {
        is_default
            && goal.experiment == experiment
            && goal.metric == verdict.metric
            && goal.peer == Some((&*verdict.peer.target, &*verdict.peer.variant))
    })
}
