//! Latencies of the operations of a load.

/// Quantiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Latencies {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    pub(crate) mean_us: f64,
}

impl Latencies {
    /// Of latencies in nanoseconds, in any order.
    pub(crate) fn of<N: Copy + Ord + Into<u64>>(mut all: Vec<N>) -> Self {
        all.sort_unstable();
        let Some(&max) = all.last() else { return Self::default() };
        let us = |ns: N| ns.into() as f64 / 1000.0;
        // The least latency that this part of all does not exceed.
        let at = |part: f64| {
            let rank = (part * all.len() as f64).ceil() as usize;
            us(all[rank.clamp(1, all.len()) - 1])
        };
        let sum: u64 = all.iter().map(|&ns| ns.into()).sum();
        let mean_us = sum as f64 / all.len() as f64 / 1000.0;
        Self { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us: us(max), mean_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact() {
        let found = Latencies::of((1..=200_u32).rev().map(|us| us * 1000).collect());
        assert_eq!((found.p50_us, found.p99_us, found.max_us), (100.0, 198.0, 200.0));
        assert_eq!(Latencies::of(Vec::<u64>::new()), Latencies::default());
    }
}
