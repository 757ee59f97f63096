//! Which target wins, and by how much.
//!
//! Invariant: a verdict needs five rounds, an interval that lies on one side of 1, and a difference
//! beyond the noise of the run itself; without all of them there is none.

use crate::evidence::REPEATED;
use crate::metric::{ALSO, times_as_good};
use crate::panel::{Panel, Point, Series};
use crate::stats::{Interval, PAIRS_MIN, noise};

/// What two series say about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Wins,
    Loses,
    /// No difference is shown.
    Even,
    /// So few rounds say nothing about chance.
    FewRounds,
}

impl Outcome {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Wins => "wins",
            Self::Loses => "loses",
            Self::Even => "no difference shown",
            Self::FewRounds => "few rounds",
        }
    }

    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Wins => "win",
            Self::Loses => "loss",
            Self::Even | Self::FewRounds => "even",
        }
    }
}

/// How a series compares with another by a metric.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) own: Series,
    pub(crate) peer: Series,
    pub(crate) point: Point,
    pub(crate) metric: &'static str,
    /// How many times as good `own` is.
    pub(crate) ratio: Interval,
    /// What two runs of the same would differ by, as a part.
    pub(crate) noise: Option<f64>,
    pub(crate) outcome: Outcome,
    /// Rounds in which a figure is 0 or less, so that there is no ratio.
    pub(crate) without_ratio: usize,
}

impl Verdict {
    pub(crate) fn of(
        panel: &Panel<'_>,
        own: &Series,
        peer: &Series,
        point: Point,
        metric: &'static str,
    ) -> Option<Self> {
        let mine = panel.rounds(own, point, metric);
        let theirs = panel.rounds(peer, point, metric);
        let pairs = mine.iter().filter_map(|(round, mine)| Some((*mine, *theirs.get(round)?)));
        let ratios: Vec<f64> = pairs.map(|(own, peer)| times_as_good(metric, own, peer)).collect();
        let ratio = Interval::of(&ratios)?;
        let without_ratio = ratios.len() - ratio.pairs;
        let same = [own, peer].map(|series| panel.repeated(series, point, metric)).concat();
        let noise = noise(&same, ratio.pairs);
        let beyond = ratio.mean.ln().abs() > noise.unwrap_or(0.0);
        let outcome = match ratio.bounds {
            _ if ratio.pairs < PAIRS_MIN => Outcome::FewRounds,
            None => Outcome::FewRounds,
            Some((lower, _)) if lower > 1.0 && beyond => Outcome::Wins,
            Some((_, upper)) if upper < 1.0 && beyond => Outcome::Loses,
            Some(_) => Outcome::Even,
        };
        let noise = noise.map(|noise| noise.exp() - 1.0);
        let (own, peer) = (own.clone(), peer.clone());
        Some(Self { own, peer, point, metric, ratio, noise, outcome, without_ratio })
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
                let of = |point: &Point| Verdict::of(panel, own, peer, *point, metric);
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
