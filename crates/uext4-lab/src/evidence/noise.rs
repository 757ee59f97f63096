//! How noisy the machine was while a run was taken, as its A/A rounds say.

use std::fmt::Write;

use crate::bench::Interval;

/// Part of the draws outside an interval.
const OUTSIDE: f64 = 0.05;
/// Noise below this is that of a quiet machine, above the other of one whose figures say little.
const QUIET: f64 = 1.05;
const USABLE: f64 = 1.15;
/// Pairs below this say nothing of the noise: their mean may lie anywhere.
const PAIRS_MIN: usize = 5;

/// How far apart two runs of the same thing lie, as a factor above 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Noise {
    /// `None` of too few pairs.
    factor: Option<f64>,
}

impl Noise {
    /// Of the ratios of A/A pairs: what their mean may lie away from 1.
    pub(super) fn of(ratios: &[f64]) -> Self {
        let interval = Interval::of(ratios, OUTSIDE).filter(|_| ratios.len() >= PAIRS_MIN);
        Self { factor: interval.map(|i| i.upper.max(1.0 / i.lower).max(1.0)) }
    }

    /// What a ratio with that interval means beside it.
    pub(super) fn judge(self, interval: Interval) -> &'static str {
        let Some(factor) = self.factor else { return "" };
        if interval.lower > factor {
            "better"
        } else if interval.upper < 1.0 / factor {
            "worse"
        } else {
            "within noise"
        }
    }

    /// A paragraph on the noise of all tables.
    pub(super) fn verdict(noises: &[(String, Self)]) -> String {
        let mut known: Vec<_> =
            noises.iter().filter_map(|(title, noise)| Some((noise.factor?, title))).collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(worst), Some(middle)) = (known.last(), known.get(known.len() / 2)) else {
            return match noises.is_empty() {
                true => {
                    "Noise: not measured: that takes rounds with the first own target twice in \
                         each (`aa`).\n"
                        .to_owned()
                }
                false => format!(
                    "Noise: too few rounds to tell the noise: that takes {PAIRS_MIN}. No ratio \
                     has a verdict.\n"
                ),
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
            "Noise: {word}. The same target twice in each round (`aa`) differs by at most {:.1} % \
             in the median of {} tables, and by {:.1} % in the worst ({}). A ratio whose interval \
             reaches into that is \"within noise\".",
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
        let noise = Noise::of(&[0.6, 1.5, 0.8, 1.3, 1.0]);
        let text = Noise::verdict(&[("E3".into(), noise)]);
        assert!(text.starts_with("Noise: noisy"), "{text}");
        let interval = Interval { mean: 1.1, lower: 1.08, upper: 1.12 };
        assert_eq!(noise.judge(interval), "within noise");
        assert_eq!(Noise::of(&[1.01, 0.99, 1.0, 1.0, 1.0]).judge(interval), "better");
        let interval = Interval { mean: 0.9, lower: 0.88, upper: 0.92 };
        assert_eq!(Noise::of(&[1.01, 0.99, 1.0, 1.0, 1.0]).judge(interval), "worse");
    }

    /// Fault model: two pairs that happen to agree make a machine quiet, and a ratio a verdict.
    #[test]
    fn few_pairs_tell_nothing() {
        let few = Noise::of(&[1.0, 1.0, 1.0, 1.0]);
        assert_eq!(few.judge(Interval { mean: 2.0, lower: 1.9, upper: 2.1 }), "");
        let text = Noise::verdict(&[("E3".into(), few)]);
        assert!(text.starts_with("Noise: too few rounds to tell the noise"), "{text}");
        assert!(Noise::verdict(&[]).starts_with("Noise: not measured"));
    }
}
