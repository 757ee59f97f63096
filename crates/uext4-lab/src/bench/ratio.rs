//! uext4's default by its peers, over all rounds.

use crate::bench::bootstrap::{Bound, with_logarithm};
use crate::bench::candidate::Candidate;
use crate::bench::experiment::Figures;
use crate::report::DEFAULT;
use crate::target::Target;

/// A peer that uext4's default is compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    pub(crate) target: Target,
    pub(crate) variant: &'static str,
    /// Metric of the mean of the rounds.
    pub(crate) mean: &'static str,
    /// Metric of its lower bound.
    pub(crate) lower: &'static str,
}

impl Ratio {
    pub(crate) const fn new(
        (target, variant): (Target, &'static str),
        [mean, lower]: [&'static str; 2],
    ) -> Self {
        Self { target, variant, mean, lower }
    }
}

/// The ratios, paired by round: of each the mean, and its lower bound where that can be had; and
/// in words which rounds have no ratio. `rates` has those of each candidate by round, `None` where
/// it failed.
pub(super) fn over_rounds(
    ratios: &[Ratio],
    candidates: &[Candidate],
    rates: &[Vec<Option<f64>>],
) -> (Figures, Vec<String>) {
    let of = |target: Target, variant: &str| {
        let at = candidates.iter().position(|p| p.target == target && p.variant == variant)?;
        rates.get(at)
    };
    let (mut figures, mut notes) = (Vec::new(), Vec::new());
    let Some(own) = of(Target::Uext4, DEFAULT) else { return (figures, notes) };
    for ratio in ratios {
        let Some(peer) = of(ratio.target, ratio.variant) else { continue };
        let pairs = own.iter().zip(peer).filter_map(|(own, peer)| Some(((*own)?, (*peer)?)));
        let by_round: Vec<f64> = pairs.map(|(own, peer)| own / peer).collect();
        if let Some(bound) = Bound::of(&by_round) {
            figures.push((ratio.mean, bound.mean));
            figures.extend(bound.lower.map(|value| (ratio.lower, value)));
        }
        let without = by_round.len() - with_logarithm(&by_round).len();
        if without > 0 {
            let (mean, all) = (ratio.mean, by_round.len());
            notes.push(format!("{mean}: {without} of {all} rounds have a rate of 0 and no ratio"));
        }
    }
    (figures, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_failed_pair_with_nothing() {
        let raw = (Target::Raw, DEFAULT);
        let ratios = [
            Ratio::new((Target::Kernel, DEFAULT), ["iops_ratio_kernel", "no_run"]),
            Ratio::new(raw, ["iops_ratio_raw", "iops_ratio_raw_lower"]),
        ];
        let candidates = [Candidate::new(Target::Uext4, DEFAULT), Candidate::new(raw.0, raw.1)];
        let rates = [vec![Some(1.0), None, Some(2.0)], vec![Some(2.0), Some(1.0), Some(4.0)]];
        let half = vec![("iops_ratio_raw", 0.5), ("iops_ratio_raw_lower", 0.5)];
        assert_eq!(over_rounds(&ratios, &candidates, &rates), (half, vec![]));
        assert_eq!(over_rounds(&ratios, &candidates[1..], &rates[1..]), (vec![], vec![]));
        // One round tells nothing about itself.
        let rates = [vec![Some(2.0), None], vec![Some(4.0), Some(1.0)]];
        let one = vec![("iops_ratio_raw", 0.5)];
        assert_eq!(over_rounds(&ratios, &candidates, &rates), (one, vec![]));
        // A rate of 0 is no ratio, and does not go without a word.
        let rates = [vec![Some(0.0), Some(2.0)], vec![Some(4.0), Some(4.0)]];
        let (figures, notes) = over_rounds(&ratios, &candidates, &rates);
        assert_eq!(figures, [("iops_ratio_raw", 0.5)]);
        assert_eq!(notes, ["iops_ratio_raw: 1 of 2 rounds have a rate of 0 and no ratio"]);
    }
}
