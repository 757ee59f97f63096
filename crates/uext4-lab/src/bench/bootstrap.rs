//! How sure a ratio is.
//!
//! What: the rounds of a run are drawn again with replacement, many times (the percentile bootstrap
//! of Efron and Tibshirani, "An Introduction to the Bootstrap", 1993); between the quantiles of the
//! means of these draws lies the mean. Ratios are averaged by their logarithms, so that twice as
//! good and half as good cancel. The draws are the same in every run.

use crate::tree::Random;

const DRAWS: usize = 10_000;
/// Part of the draws below a lower bound: one-sided, 95 %.
const BELOW: f64 = 0.05;
const SEED: u64 = 0x7565_7874_3462_6f6f;

/// Mean of ratios, and its lower bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bound {
    pub(crate) mean: f64,
    /// `None` of a single ratio, which tells nothing about itself.
    pub(crate) lower: Option<f64>,
}

impl Bound {
    /// Of the ratios of rounds, all above 0.
    pub(crate) fn of(ratios: &[f64]) -> Option<Self> {
        let logs = logarithms(ratios);
        let mean = mean(&logs)?.exp();
        let lower = (logs.len() > 1).then(|| quantile(&means(&logs), BELOW).exp());
        Some(Self { mean, lower })
    }
}

/// Mean of ratios, and what it lies between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) mean: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

impl Interval {
    /// Of two and more ratios of rounds, all above 0. `outside` is the part of the draws that may
    /// lie outside, half of it on each side.
    pub(crate) fn of(ratios: &[f64], outside: f64) -> Option<Self> {
        let logs = logarithms(ratios);
        let mean = mean(&logs).filter(|_| logs.len() > 1)?.exp();
        let means = means(&logs);
        let [lower, upper] =
            [outside / 2.0, 1.0 - outside / 2.0].map(|part| quantile(&means, part).exp());
        Some(Self { mean, lower, upper })
    }
}

fn logarithms(ratios: &[f64]) -> Vec<f64> {
    ratios.iter().filter(|ratio| **ratio > 0.0).map(|ratio| ratio.ln()).collect()
}

fn mean(logs: &[f64]) -> Option<f64> {
    (!logs.is_empty()).then(|| logs.iter().sum::<f64>() / logs.len() as f64)
}

/// Means of the draws, in order.
fn means(logs: &[f64]) -> Vec<f64> {
    let mut random = Random(SEED);
    let mut draw = || {
        let pick = |random: &mut Random| logs[random.below(logs.len() as u64) as usize];
        (0..logs.len()).map(|_| pick(&mut random)).sum::<f64>() / logs.len() as f64
    };
    let mut means: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
    means.sort_by(f64::total_cmp);
    means
}

fn quantile(ordered: &[f64], part: f64) -> f64 {
    ordered[((part * DRAWS as f64) as usize).min(DRAWS - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_lies_below_the_mean_and_is_nearer_the_more_rounds_there_are() {
        let few = [0.9, 1.1, 1.0, 0.95];
        let many: Vec<f64> = few.iter().copied().cycle().take(40).collect();
        let (few, many) = (Bound::of(&few).unwrap(), Bound::of(&many).unwrap());
        assert!((few.mean - many.mean).abs() < 1e-9);
        let (near, far) = (many.lower.unwrap(), few.lower.unwrap());
        assert!(0.9 < far && far < near && near < many.mean, "{far} {near}");
        assert_eq!(Bound::of(&[0.5, 2.0]).unwrap().mean, 1.0);
        assert_eq!(Bound::of(&[2.0]), Some(Bound { mean: 2.0, lower: None }));
        assert_eq!(Bound::of(&[]), None);
    }

    #[test]
    fn an_interval_is_wider_the_less_may_lie_outside() {
        let ratios = [0.8, 0.9, 1.0, 1.1, 1.25, 1.05, 0.95, 1.0];
        let (wide, narrow) =
            (Interval::of(&ratios, 0.01).unwrap(), Interval::of(&ratios, 0.2).unwrap());
        assert!(wide.lower < narrow.lower && narrow.lower < narrow.mean, "{wide:?} {narrow:?}");
        assert!(narrow.mean < narrow.upper && narrow.upper < wide.upper, "{wide:?} {narrow:?}");
        assert_eq!(Interval::of(&[2.0], 0.05), None);
    }
}
