//! Medians, and how sure a ratio is.
//!
//! The lab's summary has the same rules; a test of the command holds them together.

/// Fewest rounds that give an interval and a verdict.
pub(crate) const PAIRS_MIN: usize = 5;
/// Fewest rounds that are drawn from: of fewer the interval of a bootstrap is too short (of five
/// rounds it holds the mean in 85 % of all runs, of ten in 91 %).
const DRAWN_MIN: usize = 40;
/// Student's t of 95 %, two-sided, of the fewest rounds and of each one more below those.
#[rustfmt::skip]
const STUDENT: [f64; DRAWN_MIN - PAIRS_MIN] = [
    2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157, 2.228_139,
    2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905, 2.109_816,
    2.100_922, 2.093_024, 2.085_963, 2.079_614, 2.073_873, 2.068_658, 2.063_899,
    2.059_539, 2.055_529, 2.051_831, 2.048_407, 2.045_230, 2.042_272, 2.039_513,
    2.036_933, 2.034_515, 2.032_245, 2.030_108, 2.028_094, 2.026_192, 2.024_394,
];
/// Draws of the bootstrap.
const DRAWS: usize = 10_000;
/// Part of the draws outside an interval.
const OUTSIDE: f64 = 0.05;
const SEED: u64 = 0x7565_7874_3462_6f6f;
/// Standard errors that two runs of the same build may differ by.
const NOISE_SIGMAS: f64 = 2.0;

/// Median, least and most of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) count: usize,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, most, count) = (*values.first()?, *values.last()?, values.len());
        let middle = count / 2;
        let median = if count.is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self { median, least, most, count })
    }
}

/// Mean of the ratios of rounds, and what it lies between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) mean: f64,
    /// With 95 %; of fewer rounds than [`PAIRS_MIN`] the least and the most; `None` of one.
    pub(crate) bounds: Option<(f64, f64)>,
    pub(crate) pairs: usize,
}

impl Interval {
    /// By Student's distribution of the logarithms: twice and half as good cancel. Of many rounds
    /// by the percentile bootstrap, which asks for no distribution.
    pub(crate) fn of(ratios: &[f64]) -> Option<Self> {
        let logs = logarithms(ratios);
        let of_logs = mean(&logs)?;
        let mean = of_logs.exp();
        let range = logs
            .iter()
            .fold((f64::MAX, f64::MIN), |(least, most), log| (log.min(least), log.max(most)));
        if logs.len() < PAIRS_MIN {
            let bounds = (logs.len() > 1).then_some((range.0.exp(), range.1.exp()));
            return Some(Self { mean, bounds, pairs: logs.len() });
        }
        if let Some(t) = STUDENT.get(logs.len() - PAIRS_MIN) {
            let squares: f64 = logs.iter().map(|log| (log - of_logs).powi(2)).sum();
            let half = t * (squares / (logs.len() - 1) as f64 / logs.len() as f64).sqrt();
            let bounds = Some(((of_logs - half).exp(), (of_logs + half).exp()));
            return Some(Self { mean, bounds, pairs: logs.len() });
        }
        let bounds = Some({
            let mut random = Random(SEED);
            let mut draw = || {
                let drawn = (0..logs.len()).map(|_| logs[random.below(logs.len())]);
                drawn.sum::<f64>() / logs.len() as f64
            };
            let mut means: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
            means.sort_by(f64::total_cmp);
            let at = |part: f64| means[((part * DRAWS as f64) as usize).min(DRAWS - 1)].exp();
            (at(OUTSIDE / 2.0), at(1.0 - OUTSIDE / 2.0))
        });
        Some(Self { mean, bounds, pairs: logs.len() })
    }
}

impl Interval {
    /// Whether its bounds are the least and the most.
    pub(crate) const fn is_range(&self) -> bool {
        self.pairs < PAIRS_MIN
    }
}

/// What the mean ratio of so many pairs may be off 1 for two runs of the same, as a logarithm: from
/// ratios of a target to itself.
pub(crate) fn noise(same: &[f64], pairs: usize) -> Option<f64> {
    let logs = logarithms(same);
    let squares = mean(&logs.iter().map(|log| log * log).collect::<Vec<_>>())?;
    (pairs > 0).then(|| NOISE_SIGMAS * (squares / pairs as f64).sqrt())
}

fn logarithms(ratios: &[f64]) -> Vec<f64> {
    let positive = ratios.iter().filter(|ratio| **ratio > 0.0 && ratio.is_finite());
    positive.map(|ratio| ratio.ln()).collect()
}

fn mean(logs: &[f64]) -> Option<f64> {
    (!logs.is_empty()).then(|| logs.iter().sum::<f64>() / logs.len() as f64)
}

/// The same draws in every report, and in the lab's summary (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % end as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.least, spread.most, spread.count), (2.5, 1.0, 4.0, 4));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn an_interval_holds_its_mean_and_one_round_has_none() {
        let interval = Interval::of(&[0.5, 2.0, 1.0, 1.1, 0.9]).unwrap();
        let (lower, upper) = interval.bounds.unwrap();
        // Mean of the logarithms -0.002, standard deviation 0.496.
        assert!((0.538..0.540).contains(&lower), "{interval:?}");
        assert!((1.845..1.847).contains(&upper), "{interval:?}");
        let drawn = Interval::of(&[0.5, 2.0, 1.0, 1.1, 0.9].repeat(2)).unwrap();
        let (lower, upper) = drawn.bounds.unwrap();
        assert!(0.5 < lower && lower < drawn.mean && drawn.mean < upper && upper < 2.0);
        let range = Interval::of(&[0.5, 2.0, 1.0, 1.1]).unwrap();
        let (least, most) = range.bounds.unwrap();
        assert!((least - 0.5).abs() < 1e-9 && (most - 2.0).abs() < 1e-9, "{range:?}");
        assert!(range.is_range() && !interval.is_range());
        assert_eq!(Interval::of(&[2.0]).unwrap().bounds, None);
        // A figure of 0 has no ratio.
        assert_eq!(Interval::of(&[f64::INFINITY, 0.0, f64::NAN]), None);
    }

    #[test]
    fn noise_falls_with_the_number_of_pairs() {
        let few = noise(&[1.1, 0.9], 2).unwrap();
        assert!(noise(&[1.1, 0.9], 8).unwrap() < few);
        assert_eq!(noise(&[], 3), None);
    }
}
