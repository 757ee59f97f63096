//! How sure a ratio is.
//!
//! What: the rounds of a run are drawn again with replacement, many times (the percentile bootstrap
//! of Efron and Tibshirani, "An Introduction to the Bootstrap", 1993); between the quantiles of the
//! means of these draws lies the mean. Ratios are averaged by their logarithms, so that twice as
//! good and half as good cancel. The draws are the same in every run.
//!
//! Of few rounds such an interval is too short: of five it holds the mean in 85 % of all runs and
//! of ten in 91 %, not in 95 %; and what lies far out, as many intervals together ask for, it does
//! not know at all. Below forty, and for those, it is Student's, of the logarithms.
//!
//! Ratios that are 0, or no number, have no logarithm and are left out; callers count them.

use crate::tree::Random;

/// Fewest rounds of a verdict.
pub(crate) const PAIRS_MIN: usize = 5;
/// Fewest rounds that are drawn from.
const DRAWN_MIN: usize = 40;
/// What a bootstrap can tell may miss the mean: no less.
const OUTSIDE_MIN: f64 = 0.05;
/// Standard errors that two runs of the same may differ by.
const NOISE_SIGMAS: f64 = 2.0;
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
    /// Of two and more ratios of rounds, all above 0. `outside` is the part of all such intervals
    /// that may miss the mean, half of it on each side.
    pub(crate) fn of(ratios: &[f64], outside: f64) -> Option<Self> {
        let logs = logarithms(ratios);
        let mean = mean(&logs).filter(|_| logs.len() > 1)?;
        let [lower, upper] = if logs.len() < DRAWN_MIN || outside < OUTSIDE_MIN {
            let half = student(outside, logs.len() as u32 - 1) * standard_error(&logs, mean);
            [mean - half, mean + half]
        } else {
            let means = means(&logs);
            [outside / 2.0, 1.0 - outside / 2.0].map(|part| quantile(&means, part))
        };
        Some(Self { mean: mean.exp(), lower: lower.exp(), upper: upper.exp() })
    }
}

/// What the mean ratio of so many pairs may be off 1 for two runs of the same, as a logarithm: from
/// ratios of the same.
pub(crate) fn noise(same: &[f64], pairs: usize) -> Option<f64> {
    let squares: Vec<f64> = logarithms(same).iter().map(|log| log * log).collect();
    let of_a_pair = mean(&squares)?;
    (pairs > 0).then(|| NOISE_SIGMAS * (of_a_pair / pairs as f64).sqrt())
}

/// The ratios that have a logarithm.
pub(crate) fn with_logarithm(ratios: &[f64]) -> Vec<f64> {
    ratios.iter().copied().filter(|ratio| *ratio > 0.0 && ratio.is_finite()).collect()
}

fn logarithms(ratios: &[f64]) -> Vec<f64> {
    with_logarithm(ratios).into_iter().map(f64::ln).collect()
}

/// Of the mean of at least two logarithms.
fn standard_error(logs: &[f64], mean: f64) -> f64 {
    let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
    (squares / (logs.len() - 1) as f64 / logs.len() as f64).sqrt()
}

/// Student's t: the part `outside` of its distribution lies beyond it on both sides together.
fn student(outside: f64, freedom: u32) -> f64 {
    let (mut low, mut high) = (0.0, 1e9);
    // As near as numbers can be.
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if 1.0 - within(middle, freedom) > outside { low = middle } else { high = middle }
    }
    high
}

/// The part of Student's distribution within `t` on both sides: Abramowitz and Stegun, 26.7.3 and
/// 26.7.4.
fn within(t: f64, freedom: u32) -> f64 {
    let angle = (t / f64::from(freedom).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    let first = if is_odd { cos } else { 1.0 };
    // Each term has the next factor: 2/3, 4/5 ... or 1/2, 3/4 ...
    let start = if is_odd { 2 } else { 1 };
    let factors = (start..freedom.saturating_sub(1)).step_by(2);
    let (sum, _) = factors.fold((first, first), |(sum, term), factor| {
        let term = term * cos * cos * f64::from(factor) / f64::from(factor + 1);
        (sum + term, term)
    });
    match freedom {
        1 => angle * 2.0 / std::f64::consts::PI,
        _ if is_odd => (angle + sin * sum) * 2.0 / std::f64::consts::PI,
        _ => sin * sum,
    }
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

    #[test]
    fn quantiles_of_student_are_those_of_the_tables() {
        let table = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306];
        for (freedom, wanted) in (1..).zip(table) {
            let found = student(0.05, freedom);
            assert!((found - wanted).abs() < 0.001, "{freedom}: {found}");
        }
        assert!(
            (student(0.01, 5) - 4.032).abs() < 0.001 && (student(0.1, 4) - 2.132).abs() < 0.001
        );
    }

    /// Fault model: intervals of few rounds that are too short. Of normal logarithms, with a seed.
    #[test]
    fn an_interval_holds_the_mean_as_often_as_it_says() {
        const RUNS: u32 = 2000;
        let mut random = Random(18);
        // A sum of twelve is near enough to normal.
        let mut normal = || (0..12).map(|_| random.below(1 << 20) as f64).sum::<f64>();
        let scale = f64::from(1 << 20);
        let mut ratio = || ((normal() / scale - 6.0) * 0.1).exp();
        for rounds in [2, 5, 9, 10, 20] {
            let holds = (0..RUNS).filter(|_| {
                let ratios: Vec<f64> = (0..rounds).map(|_| ratio()).collect();
                let interval = Interval::of(&ratios, 0.05).unwrap();
                interval.lower <= 1.0 && 1.0 <= interval.upper
            });
            let part = holds.count() as f64 / f64::from(RUNS);
            assert!((0.935..0.965).contains(&part), "{rounds} rounds: {part}");
        }
    }

    /// Fault model: a rate of 0, or one by 0, makes a mean that is no number.
    #[test]
    fn ratios_without_a_logarithm_are_left_out() {
        let some = [2.0, f64::INFINITY, 0.0, f64::NAN, 2.0];
        assert_eq!(with_logarithm(&some), [2.0, 2.0]);
        let interval = Interval::of(&some, 0.05).unwrap();
        assert!((interval.mean - 2.0).abs() < 1e-9 && interval.upper.is_finite(), "{interval:?}");
        assert!(Bound::of(&some).unwrap().mean.is_finite());
    }
}
