//! Where on an axis a value lies, and which values are marked.

/// Numbers beyond are drawn as if they were this, so that a scale stays finite.
const MOST: f64 = 1e300;

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// From 0 to a little more than the largest.
    pub(crate) fn zero(values: impl IntoIterator<Item = f64>) -> Self {
        let most = values.into_iter().filter(|v| v.is_finite()).fold(0.0, f64::max).min(MOST);
        let to = if most > 0.0 { most * 1.05 } else { 1.0 };
        Self { from: 0.0, to, is_log: false }
    }

    /// By logarithms, around all values above 0.
    pub(crate) fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let values = values.into_iter().filter(|v| v.is_finite() && *v > 0.0);
        let (least, most) =
            values.fold((f64::MAX, f64::MIN), |(least, most), v| (v.min(least), v.max(most)));
        let (least, most) = if least > most { (1.0, 10.0) } else { (least, most) };
        let (least, most) = (least.clamp(1.0 / MOST, MOST), most.clamp(1.0 / MOST, MOST));
        Self { from: least / 1.25, to: most * 1.25, is_log: true }
    }

    /// From 0 to exactly this.
    pub(crate) fn until(to: f64) -> Self {
        Self { from: 0.0, to: if to > 0.0 { to.min(MOST) } else { 1.0 }, is_log: false }
    }

    /// From one value to another.
    pub(crate) fn between(from: f64, to: f64) -> Self {
        let (from, to) = (from.clamp(-MOST, MOST), to.clamp(-MOST, MOST));
        let to = if to > from { to } else { from + from.abs().max(1.0) };
        Self { from, to, is_log: false }
    }

    /// Positions with nothing between them.
    pub(crate) fn places(count: usize) -> Self {
        Self { from: -0.4, to: count as f64 - 0.6, is_log: false }
    }

    /// Its place, from 0 to 1; what lies outside is drawn at the end.
    pub(crate) fn place(self, value: f64) -> f64 {
        let part = if self.is_log {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Values to mark, about so many.
    pub(crate) fn ticks(self, about: usize) -> Vec<f64> {
        let about = about.max(2);
        if self.is_log { self.log_ticks(about) } else { self.linear_ticks(about) }
    }

    fn linear_ticks(self, about: usize) -> Vec<f64> {
        let rough = (self.to - self.from) / about as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|by| by * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let (first, last) = ((self.from / step).ceil(), (self.to / step).floor());
        let count = (last - first).clamp(-1.0, 50.0);
        // A step that is lost beside the values it is added to marks one of them only.
        let mut ticks: Vec<f64> = (0..=count as i64).map(|at| (first + at as f64) * step).collect();
        ticks.dedup();
        ticks
    }

    fn log_ticks(self, about: usize) -> Vec<f64> {
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let within = |by: &[f64]| -> Vec<f64> {
            let all = (first..=last).flat_map(|p| by.iter().map(move |b| b * 10f64.powi(p)));
            all.filter(|v| (self.from..=self.to).contains(v)).collect()
        };
        let fine = [within(&[1.0, 2.0, 5.0]), within(&[1.0, 3.0]), within(&[1.0])];
        let fits = fine.iter().find(|ticks| ticks.len() <= about).cloned();
        let mut ticks = fits.unwrap_or_else(|| fine[2].clone());
        let every = ticks.len().div_ceil(about).max(1);
        let mut at = 0;
        ticks.retain(|_| {
            at += 1;
            (at - 1) % every == 0
        });
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_lie_within() {
        assert_eq!(Scale::zero([950.0]).ticks(5), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert_eq!(Scale::log([9.0, 40_000.0]).ticks(6), [10.0, 100.0, 1000.0, 10_000.0]);
        assert_eq!(Scale::log([0.9, 4.0]).ticks(6), [1.0, 2.0, 5.0]);
    }

    #[test]
    fn scales_of_nothing_have_a_length() {
        for scale in [Scale::zero([]), Scale::log([]), Scale::log([0.0, -1.0]), Scale::until(0.0)] {
            assert!(scale.place(0.5).is_finite());
            assert!(scale.ticks(5).len() < 60);
        }
        assert_eq!(Scale::zero([f64::INFINITY]).place(0.0), 0.0);
    }

    #[test]
    fn scales_of_extremes_end() {
        let extremes = [5e-324, f64::MAX, 1e300, f64::MIN, -5e-324];
        for a in extremes {
            for b in extremes {
                let scales = [Scale::log([a, b]), Scale::zero([a, b]), Scale::between(a, b)];
                for scale in scales {
                    assert!(scale.ticks(5).len() < 60, "{scale:?}");
                    assert!((0.0..=1.0).contains(&scale.place(a)), "{scale:?}");
                }
            }
        }
    }
}
