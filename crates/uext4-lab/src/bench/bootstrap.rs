//! How sure a ratio is.
//!
//! What: the rounds of a run are drawn again with replacement, many times; what the mean of the
//! draws seldom falls below is the lower bound. Ratios are averaged by their logarithms, so that
//! twice as good and half as good cancel. The draws are the same in every run.

use crate::tree::Random;

const DRAWS: usize = 10_000;
/// Part of the draws below the bound: one-sided, 95 %.
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
        let logs: Vec<f64> = ratios.iter().filter(|r| **r > 0.0).map(|r| r.ln()).collect();
        if logs.is_empty() {
            return None;
        }
        let count = logs.len() as f64;
        let mean = (logs.iter().sum::<f64>() / count).exp();
        if logs.len() == 1 {
            return Some(Self { mean, lower: None });
        }
        let mut random = Random(SEED);
        let mut draw = || {
            let pick = |random: &mut Random| logs[random.below(logs.len() as u64) as usize];
            (0..logs.len()).map(|_| pick(&mut random)).sum::<f64>() / count
        };
        let mut means: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
        means.sort_by(f64::total_cmp);
        let lower = means[(BELOW * DRAWS as f64) as usize].exp();
        Some(Self { mean, lower: Some(lower) })
    }
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
}
