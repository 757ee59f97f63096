//! How fast two candidates are, and what stands behind that, in words.

use serde::Serialize;

use crate::bench::Interval;
use crate::explain::explanation::number;
use crate::explain::files::round;
use crate::explain::{Explained, times_as_fast};

/// Part of the draws outside an interval.
const OUTSIDE: f64 = 0.05;
/// Rounds that make an interval which says something.
const ROUNDS: usize = 5;
/// How much faster one is, in fewer rounds, before its difference is called the cause.
const FASTER: f64 = 1.2;

/// A figure of both.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rate {
    metric: &'static str,
    /// Medians of the rounds.
    a: f64,
    b: f64,
    /// How many times as fast b is as a: the mean of the rounds that both have; without any, by the
    /// runs that were looked at.
    ratio: f64,
    /// What that lies between, of two rounds and more.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<[f64; 2]>,
    rounds: usize,
    /// Whether rounds of a, and of b, were ended before they had done: it takes longer than that.
    cut_off: [bool; 2],
}

/// A ratio with what tells something: a small one is told by how many times slower.
fn digits(ratio: f64) -> f64 {
    if ratio < 0.1 { round(ratio * 1000.0) / 1000.0 } else { round(ratio) }
}

impl Rate {
    pub(super) fn of(a: &Explained, b: &Explained) -> Self {
        let rate = Self::by_rounds(a.metric, (a.rate(), b.rate()), &a.rates, &b.rates);
        rate.cut_off([a.is_cut_off, b.is_cut_off])
    }

    /// The same, of rounds that were ended before they had done: they bound it on one side only.
    fn cut_off(self, cut_off: [bool; 2]) -> Self {
        let interval = self.interval.filter(|_| cut_off == [false; 2]);
        Self { interval, cut_off, ..self }
    }

    fn by_rounds(
        metric: &'static str,
        (a, b): (f64, f64),
        of_a: &[Option<f64>],
        of_b: &[Option<f64>],
    ) -> Self {
        let both = of_a.iter().zip(of_b).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        let ratios: Vec<f64> = both
            .map(|(a, b)| times_as_fast(metric, a, b))
            .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
            .collect();
        let interval = Interval::of(&ratios, OUTSIDE);
        let ratio = match (&interval, &ratios[..]) {
            (Some(interval), _) => interval.mean,
            (None, [ratio, ..]) => *ratio,
            (None, []) => times_as_fast(metric, a, b),
        };
        let interval = interval.map(|interval| [interval.lower, interval.upper].map(digits));
        let (ratio, rounds) = (digits(ratio), ratios.len());
        Self { metric, a, b, ratio, interval, rounds, cut_off: [false; 2] }
    }

    /// What is known of rounds that were ended before they had done.
    fn bound_in_words(&self, what: &str, a: &str, b: &str) -> Option<String> {
        let (faster, slower) = (self.ratio, 1.0 / self.ratio);
        let (which, said) = match self.cut_off {
            [false, false] => return None,
            [true, true] => {
                return Some("both were ended before they had done: no ratio is known.".into());
            }
            [true, false] if faster >= 1.0 => (a, format!("at least {faster:.1} times as fast")),
            [true, false] => (a, format!("at most {slower:.1} times slower")),
            [false, true] if faster >= 1.0 => (b, format!("at most {faster:.1} times as fast")),
            [false, true] => (b, format!("at least {slower:.1} times slower")),
        };
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("{rounds} rounds"),
        };
        Some(format!(
            "with {what} it was {said} in {rounds}: {which} was ended before it had done."
        ))
    }

    /// What makes how much faster, and how sure that is. `a` and `b` are their names.
    pub(super) fn in_words(&self, what: &str, a: &str, b: &str) -> String {
        let rates = format!("{}: {a} {}, {b} {}", self.metric, number(self.a), number(self.b));
        if let Some(bound) = self.bound_in_words(what, a, b).filter(|_| self.rounds > 0) {
            return format!("{rates}; {bound}");
        }
        let (rounds, ratio) = (self.rounds, self.ratio);
        if let Some([lower, upper]) = self.interval.filter(|_| rounds >= ROUNDS) {
            let basis = |lower: f64, upper: f64| {
                format!("({lower:.2} to {upper:.2}; {rounds} rounds, 95 %)")
            };
            return if lower > 1.0 {
                let basis = basis(lower, upper);
                format!("{rates}; {what} makes it {ratio:.2} times as fast {basis}.")
            } else if upper < 1.0 && lower > 0.0 {
                let basis = basis(1.0 / upper, 1.0 / lower);
                format!("{rates}; {what} makes it {:.2} times slower {basis}.", 1.0 / ratio)
            } else {
                let basis = basis(lower, upper);
                format!("{rates}; {what} makes no difference that is shown {basis}.")
            };
        }
        let basis = match (rounds, self.interval) {
            // What was measured of one side has nothing to stand beside.
            (0, _) => return format!("{rates}; no round has figures of both."),
            (1, _) | (_, None) => "in one run of each".to_owned(),
            (_, Some(_)) => format!("in {rounds} rounds, fewer than five"),
        };
        if ratio >= FASTER {
            format!("{rates}; with {what} it was about {ratio:.1} times as fast {basis}.")
        } else if ratio > 0.0 && 1.0 / ratio >= FASTER {
            format!("{rates}; with {what} it was about {:.1} times slower {basis}.", 1.0 / ratio)
        } else {
            format!("{rates}; with {what} there was little difference {basis}.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(metric: &'static str, a: &[f64], b: &[f64]) -> String {
        let some = |of: &[f64]| -> Vec<Option<f64>> { of.iter().copied().map(Some).collect() };
        let first = |of: &[f64]| of.first().copied().unwrap_or(1.0);
        let rate = Rate::by_rounds(metric, (first(a), first(b)), &some(a), &some(b));
        let words = rate.in_words("x", "A", "B");
        words.split_once("; ").map_or(words.clone(), |(_, said)| said.to_owned())
    }

    /// Fault model: a ratio of few rounds is told as if it were sure.
    #[test]
    fn words_say_what_stands_behind_them() {
        let one = said("iops", &[100.0], &[300.0]);
        assert_eq!(one, "with x it was about 3.0 times as fast in one run of each.");
        let looked = said("iops", &[], &[]);
        assert_eq!(looked, "no round has figures of both.");
        let few = said("iops", &[300.0; 4], &[100.0; 4]);
        let expected = "with x it was about 3.0 times slower in 4 rounds, fewer than five.";
        assert_eq!(few, expected);
        let many = said("iops", &[100.0; 5], &[300.0; 5]);
        assert_eq!(many, "x makes it 3.00 times as fast (3.00 to 3.00; 5 rounds, 95 %).");
        // Seconds are better the fewer they are.
        let seconds = said("wall_s", &[100.0; 5], &[50.0; 5]);
        assert_eq!(seconds, "x makes it 2.00 times as fast (2.00 to 2.00; 5 rounds, 95 %).");
        let unsure = said("iops", &[1.0, 1.0, 1.0, 1.0, 1.0], &[0.7, 1.4, 0.9, 1.2, 1.0]);
        assert!(unsure.starts_with("x makes no difference that is shown (0."), "{unsure}");
    }

    /// Fault model: seconds of a run that was ended are taken for those of its work.
    #[test]
    fn what_was_ended_early_bounds_a_ratio_on_one_side() {
        let some = [Some(1.0); 5];
        let said = |b: f64, cut_off| {
            let rate = Rate::by_rounds("wall_s", (1.0, b), &some, &[Some(b); 5]).cut_off(cut_off);
            assert_eq!(rate.interval, None);
            rate.in_words("x", "A", "B").split_once("; ").unwrap().1.to_owned()
        };
        let b_ended = "with x it was at least 120.0 times slower in 5 rounds: B was ended before \
                       it had done.";
        assert_eq!(said(120.0, [false, true]), b_ended);
        let a_ended = said(0.5, [true, false]);
        assert!(a_ended.starts_with("with x it was at least 2.0 times as fast"), "{a_ended}");
        assert!(said(2.0, [true, false]).starts_with("with x it was at most 2.0 times slower"));
        assert!(said(2.0, [true, true]).starts_with("both were ended"));
    }

    #[test]
    fn rounds_that_failed_pair_with_nothing() {
        let (a, b) = ([Some(1.0), None, Some(1.0)], [Some(2.0), Some(9.0), Some(2.0)]);
        let rate = Rate::by_rounds("iops", (1.0, 2.0), &a, &b);
        assert_eq!((rate.ratio, rate.rounds, rate.interval), (2.0, 2, Some([2.0, 2.0])));
    }
}
