//! Which target wins, and by how much.
//!
//! Invariant: a verdict needs five rounds, an interval that lies on one side of 1, and a difference
//! beyond the noise of the run itself; without all of them there is none. A ratio that is written
//! as 1 is neither won nor lost.

use crate::evidence::REPEATED;
use crate::metric::{ALSO, is_written_as_one, plain, times_as_good};
use crate::panel::{Panel, Point, Series};
use crate::stats::{Interval, PAIRS_MIN, noise};

/// Pairs of rounds that the verdicts of a report are drawn from at most.
const ROUNDS_MAX: usize = 200_000;

/// What two series say about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Wins,
    Loses,
    /// A difference that is shown, but so small that the ratio is written as 1.
    Slight,
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
            Self::Slight => "little difference",
            Self::Even => "no difference shown",
            Self::FewRounds => "few rounds",
        }
    }

    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Wins => "win",
            Self::Loses => "loss",
            Self::Slight | Self::Even | Self::FewRounds => "even",
        }
    }
}

/// How a series compares with another by a metric.
#[derive(Clone, Debug)]
pub(crate) struct Verdict<'a> {
    pub(crate) own: Series,
    pub(crate) peer: Series,
    pub(crate) point: Point,
    pub(crate) metric: &'a str,
    /// How many times as good `own` is.
    pub(crate) ratio: Interval,
    /// What two runs of the same would differ by, as a part.
    pub(crate) noise: Option<f64>,
    pub(crate) outcome: Outcome,
    /// Rounds in which a figure is 0 or less, so that there is no ratio.
    pub(crate) without_ratio: usize,
}

/// What two series are compared at.
#[derive(Clone, Copy)]
struct Question<'s, 'a> {
    own: &'s Series,
    peer: &'s Series,
    point: Point,
    metric: &'a str,
}

/// The verdicts of a panel.
#[derive(Debug, Default)]
pub(crate) struct Verdicts<'a> {
    /// By its headlines, and by other metrics that both have: each own target in its default beside
    /// each peer, at each point.
    pub(crate) beside: Vec<Verdict<'a>>,
    /// Each series with options beside the same target without: `own` has the options.
    pub(crate) options: Vec<Verdict<'a>>,
}

impl<'a> Verdict<'a> {
    /// The verdict of a panel, which may have been made already.
    pub(crate) fn of(
        panel: &Panel<'_>,
        own: &Series,
        peer: &Series,
        point: Point,
        metric: &'a str,
    ) -> Option<Self> {
        let made = panel.verdicts.beside.iter().chain(&panel.verdicts.options);
        let is_it = |v: &&Verdict<'_>| {
            v.own == *own && v.peer == *peer && v.point == point && v.metric == metric
        };
        if let Some(made) = made.into_iter().find(is_it) {
            return Some(Self { metric, ..made.clone() });
        }
        let question = Question { own, peer, point, metric };
        question.answer(panel, &question.ratios(panel))
    }
}

/// Gives panels their verdicts, each made once, and returns whether some are missing: an interval
/// takes thousands of draws from all its rounds, so there is a bound.
pub(crate) fn judge(panels: &mut [Panel<'_>]) -> bool {
    judge_within(panels, ROUNDS_MAX)
}

fn judge_within(panels: &mut [Panel<'_>], most: usize) -> bool {
    let mut judge = Judge { left: most, is_over: false };
    for panel in panels {
        panel.verdicts = Verdicts { beside: judge.beside(panel), options: judge.options(panel) };
    }
    judge.is_over
}

struct Judge {
    /// Pairs of rounds that may still be drawn from.
    left: usize,
    /// Whether that were not enough.
    is_over: bool,
}

impl Judge {
    fn beside<'a>(&mut self, panel: &Panel<'a>) -> Vec<Verdict<'a>> {
        let mut all = Vec::new();
        for metric in panel.headlines().into_iter().chain(also(panel)) {
            for own in panel.series.iter().filter(|s| s.is_own() && s.is_default()) {
                for peer in panel.series.iter().filter(|s| !s.is_own()) {
                    for point in &panel.points {
                        let question = Question { own, peer, point: *point, metric };
                        all.extend(self.answer(panel, question));
                    }
                }
            }
        }
        all
    }

    fn options<'a>(&mut self, panel: &Panel<'a>) -> Vec<Verdict<'a>> {
        let Some(point) = panel.points.last().copied() else { return Vec::new() };
        let mut all = Vec::new();
        for metric in panel.headlines() {
            for own in panel.series.iter().filter(|s| !s.is_default() && s.variant != REPEATED) {
                let peer = &Series { variant: String::new(), ..own.clone() };
                all.extend(self.answer(panel, Question { own, peer, point, metric }));
            }
        }
        all
    }

    fn answer<'a>(&mut self, panel: &Panel<'a>, of: Question<'_, 'a>) -> Option<Verdict<'a>> {
        if self.is_over {
            return None;
        }
        let ratios = of.ratios(panel);
        if ratios.len() > self.left {
            self.is_over = true;
            return None;
        }
        self.left -= ratios.len();
        of.answer(panel, &ratios)
    }
}

/// The metrics of a panel that have a verdict beside its headlines.
fn also<'a>(panel: &Panel<'a>) -> Vec<&'a str> {
    let of = |name: &'static str| panel.metrics().filter(move |metric| plain(metric) == name);
    ALSO.iter().copied().flat_map(of).collect()
}

impl<'a> Question<'_, 'a> {
    /// How many times as good `own` is, in each round that both have.
    fn ratios(&self, panel: &Panel<'_>) -> Vec<f64> {
        let mine = panel.rounds(self.own, self.point, self.metric);
        let theirs = panel.rounds(self.peer, self.point, self.metric);
        let pairs = mine.iter().filter_map(|(round, mine)| Some((*mine, *theirs.get(round)?)));
        pairs.map(|(own, peer)| times_as_good(self.metric, own, peer)).collect()
    }

    fn answer(self, panel: &Panel<'_>, ratios: &[f64]) -> Option<Verdict<'a>> {
        let Self { own, peer, point, metric } = self;
        let ratio = Interval::of(ratios)?;
        let without_ratio = ratios.len() - ratio.pairs;
        let same = [own, peer].map(|series| panel.repeated(series, point, metric)).concat();
        let noise = noise(&same, ratio.pairs);
        let beyond = ratio.mean.ln().abs() > noise.unwrap_or(0.0);
        let outcome = match ratio.bounds {
            _ if ratio.pairs < PAIRS_MIN => Outcome::FewRounds,
            None => Outcome::FewRounds,
            Some((lower, upper)) if !beyond || (lower <= 1.0 && upper >= 1.0) => Outcome::Even,
            Some(_) if is_written_as_one(ratio.mean) => Outcome::Slight,
            Some(_) if ratio.mean > 1.0 => Outcome::Wins,
            Some(_) => Outcome::Loses,
        };
        let noise = noise.map(|noise| noise.exp() - 1.0);
        let (own, peer) = (own.clone(), peer.clone());
        Some(Verdict { own, peer, point, metric, ratio, noise, outcome, without_ratio })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Figure;
    use crate::panel::panels;

    /// Fault model: so many targets and rounds that their intervals would take hours.
    #[test]
    fn verdicts_are_drawn_from_so_many_rounds() {
        let mut figures = Vec::new();
        for number in 0..9 {
            for round in 1..=6 {
                let target = if number == 0 { "uext4" } else { &format!("peer {number}") };
                figures.push(Figure::of_a_test(target, "default", round));
            }
        }
        let made = |most| {
            let mut panels = panels(&figures).0;
            let is_over = judge_within(&mut panels, most);
            let pairs: usize = panels[0].verdicts.beside.iter().map(|v| v.ratio.pairs).sum();
            (is_over, pairs)
        };
        assert_eq!(made(20), (true, 18));
        assert_eq!(made(48), (false, 48));
    }
}
