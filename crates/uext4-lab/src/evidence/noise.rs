//! How noisy the machine was while a run was taken, as its A/A rounds say.

use std::fmt::Write;

use crate::bench::{Interval, PAIRS_MIN, noise};

/// Noise below this is that of a quiet machine, above the other of one whose figures say little.
const QUIET: f64 = 1.05;
const USABLE: f64 = 1.15;

/// How far apart two runs of the same thing lie: the ratios of such pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Noise {
    same: Vec<f64>,
}

impl Noise {
    /// Of the ratios of pairs of runs of the same.
    pub(super) fn of(same: Vec<f64>) -> Self {
        Self { same }
    }

    /// What the mean of the pairs themselves may be off 1, as a factor above 1; `None` of too few:
    /// their mean may lie anywhere.
    fn factor(&self) -> Option<f64> {
        let pairs = self.same.len();
        noise(&self.same, pairs).filter(|_| pairs >= PAIRS_MIN).map(f64::exp)
    }

    /// What the ratio of so many pairs means beside it. The report has the same rule: a verdict
    /// needs five pairs, an interval on one side of 1, and a mean beyond what chance makes of so
    /// many pairs of the same.
    pub(super) fn judge(&self, interval: Interval, pairs: usize) -> &'static str {
        if pairs < PAIRS_MIN {
            return "few rounds";
        }
        let is_beyond = interval.mean.ln().abs() > noise(&self.same, pairs).unwrap_or(0.0);
        match interval {
            _ if !is_beyond => "within noise",
            Interval { lower, upper, .. } if lower <= 1.0 && upper >= 1.0 => "within noise",
            Interval { mean, .. } if format!("{mean:.2}") == "1.00" => "little difference",
            Interval { mean, .. } if mean > 1.0 => "better",
            _ => "worse",
        }
    }

    /// A paragraph on the noise of all tables.
    pub(super) fn verdict(noises: &[(String, Self)]) -> String {
        let mut known: Vec<_> =
            noises.iter().filter_map(|(title, noise)| Some((noise.factor()?, title))).collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(worst), Some(middle)) = (known.last(), known.get(known.len() / 2)) else {
            return match noises.is_empty() {
                true => {
                    "Noise: not measured: that takes rounds with the first own target twice in \
                         each (`aa`).\n"
                        .to_owned()
                }
                false => {
                    format!("Noise: too few rounds to tell the noise: that takes {PAIRS_MIN}.\n")
                }
            };
        };
        let word = match middle.0 {
            factor if factor <= QUIET => "quiet",
            factor if factor <= USABLE => "usable",
            _ => "noisy",
        };
        let percent = |factor: f64| (factor - 1.0) * 100.0;
        let mut text = String::new();
        let _ = writeln!(
            text,
            "Noise: {word}. The same target twice in each round (`aa`) may differ by {:.1} % in \
             the median of {} tables, and by {:.1} % in the worst ({}). A ratio whose mean lies \
             within what two runs of its targets may differ by, or whose interval holds 1, is \
             \"within noise\"; any other that is written as 1.00x is a \"little difference\".",
            percent(middle.0),
            known.len(),
            percent(worst.0),
            worst.1
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noisy_machine_is_called_so() {
        let noise = Noise::of(vec![0.6, 1.5, 0.8, 1.3, 1.0]);
        let text = Noise::verdict(&[("E3".into(), noise.clone())]);
        assert!(text.starts_with("Noise: noisy"), "{text}");
        let interval = Interval { mean: 1.1, lower: 1.08, upper: 1.12 };
        assert_eq!(noise.judge(interval, 5), "within noise");
        let quiet = Noise::of(vec![1.01, 0.99, 1.0, 1.0, 1.0]);
        assert_eq!(quiet.judge(interval, 5), "better");
        assert_eq!(quiet.judge(Interval { lower: 0.99, ..interval }, 5), "within noise");
        let interval = Interval { mean: 0.9, lower: 0.88, upper: 0.92 };
        assert_eq!(quiet.judge(interval, 5), "worse");
        let still = Noise::of(vec![1.0; 5]);
        let near = Interval { mean: 1.003, lower: 1.002, upper: 1.004 };
        assert_eq!(still.judge(near, 5), "little difference");
        // Targets that did not run twice are judged by their interval.
        assert_eq!(Noise::default().judge(interval, 5), "worse");
    }

    /// Fault model: two pairs that happen to agree make a machine quiet, and a ratio a verdict.
    #[test]
    fn few_pairs_tell_nothing() {
        let few = Noise::of(vec![1.0, 1.0, 1.0, 1.0]);
        let interval = Interval { mean: 2.0, lower: 1.9, upper: 2.1 };
        assert_eq!(few.judge(interval, 4), "few rounds");
        let text = Noise::verdict(&[("E3".into(), few)]);
        assert!(text.starts_with("Noise: too few rounds to tell the noise"), "{text}");
        assert!(Noise::verdict(&[]).starts_with("Noise: not measured"));
    }
}
