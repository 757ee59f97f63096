//! A concurrent histogram of durations.
//!
//! What: counts in buckets, eight to each power of two, so a quantile is off by at most one eighth.
//! An addition is one atomic addition to each of two words.
//! Invariants: a concurrent reader sees each addition in the counts or not at all. Sum and counts
//! may differ by additions in progress.

use crate::sync::time::Instant;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of a power of two, as a number of bits.
const STEP_BITS: u32 = 3;
const STEPS: u64 = 1 << STEP_BITS;
/// Values up to 2^44 ns, nearly five hours. Longer ones count as that.
const EXPONENTS: u32 = 44;
const BUCKETS: usize = ((EXPONENTS - STEP_BITS + 1) as usize) << STEP_BITS;

/// Counts of durations in nanoseconds.
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

/// The values of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    counts: Vec<u64>,
    /// Number of values.
    pub count: u64,
    /// Sum of the values, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram").field("sum_ns", &self.sum_ns).finish_non_exhaustive()
    }
}

impl Histogram {
    /// Adds a duration.
    pub fn add(&self, duration: Duration) {
        self.add_by(duration, |word, count| {
            word.fetch_add(count, Ordering::Relaxed);
        });
    }

    /// Adds a duration without a locked instruction. Only one thread may add to this histogram.
    pub(super) fn add_unshared(&self, duration: Duration) {
        self.add_by(duration, add_unshared);
    }

    fn add_by(&self, duration: Duration, add: impl Fn(&AtomicU64, u64)) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        add(&self.counts[bucket(ns)], 1);
        add(&self.sum_ns, ns);
    }

    /// Adds the time since `start`.
    pub fn add_since(&self, start: Instant) {
        self.add(start.elapsed());
    }

    /// The current values.
    #[must_use]
    pub fn read(&self) -> Reading {
        let counts: Vec<u64> = self.counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let count = counts.iter().sum();
        Reading { counts, count, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

impl Reading {
    /// Builds a reading from pairs (least value, count) and the sum of all values. The inverse of
    /// [`Reading::steps`], for a reading of another process.
    #[must_use]
    pub fn from_steps(steps: impl IntoIterator<Item = (u64, u64)>, sum_ns: u64) -> Self {
        let mut counts = vec![0_u64; BUCKETS];
        for (least, count) in steps {
            let place = &mut counts[bucket(least)];
            *place = place.saturating_add(count);
        }
        let count = counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count));
        Self { counts, count, sum_ns }
    }

    /// The buckets that are not empty, ascending: (least value in nanoseconds, count). A power of
    /// two has eight.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let some = self.counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        some.map(|(index, &count)| (lower(index), count))
    }

    /// Mean in nanoseconds; 0 without values.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// The quantile (0 to 1) in nanoseconds, rounded up to the end of its bucket; 0 without values.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let rank = (quantile * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return lower(index + 1) - 1;
            }
        }
        0
    }

    /// Counts by power of two, ascending: (least value in nanoseconds, count). Empty powers between
    /// the first and the last that is not empty are included.
    #[must_use]
    pub fn powers(&self) -> Vec<(u64, u64)> {
        let mut powers = [0; EXPONENTS as usize + 1];
        for (index, count) in self.counts.iter().enumerate() {
            let least = lower(index);
            powers[least.checked_ilog2().unwrap_or(0) as usize] += count;
        }
        let Some(first) = powers.iter().position(|&count| count > 0) else { return Vec::new() };
        let last = powers.iter().rposition(|&count| count > 0).unwrap_or(first);
        (first..=last).map(|exponent| (1 << exponent, powers[exponent])).collect()
    }

    /// Text in microseconds, in the format of funclatency(8).
    #[must_use]
    pub fn to_text(&self) -> String {
        const WIDTH: u64 = 40;
        // Values below a microsecond share the first line, as in funclatency.
        let mut lines: Vec<u64> = Vec::new();
        for (least, count) in self.steps() {
            let line = (least / 1000).max(1).ilog2() as usize;
            lines.resize(lines.len().max(line + 1), 0);
            lines[line] += count;
        }
        let most = lines.iter().copied().max().unwrap_or(1);
        let mut text = format!("     {:<19} : count     distribution\n", "usecs");
        for (line, count) in lines.into_iter().enumerate() {
            let bar = "*".repeat((count * WIDTH / most) as usize);
            let (first, last) = (if line == 0 { 0 } else { 1_u64 << line }, (2_u64 << line) - 1);
            let _ = writeln!(text, "{first:>10} -> {last:<10} : {count:<8} |{bar:<40}|");
        }
        text
    }

    /// Adds the values of another histogram.
    pub(super) fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
        self.sum_ns += other.sum_ns;
    }

    /// The values added after `earlier` was read.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |at: usize| earlier.counts.get(at).copied().unwrap_or(0);
        let numbered = self.counts.iter().enumerate();
        let counts: Vec<u64> = numbered.map(|(at, now)| now.saturating_sub(before(at))).collect();
        let count = counts.iter().sum();
        Self { counts, count, sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns) }
    }
}

/// Adds to a word that only the calling thread writes, without a locked instruction.
#[inline]
pub(super) fn add_unshared(word: &AtomicU64, count: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << EXPONENTS) - 1);
    if ns < STEPS {
        return ns as usize;
    }
    let shift = ns.ilog2() - STEP_BITS;
    ((u64::from(shift) << STEP_BITS) + (ns >> shift)) as usize
}

/// Least value of a bucket, in nanoseconds.
fn lower(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let shift = (index >> STEP_BITS) - 1;
    (STEPS + index % STEPS) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_no_gaps() {
        for index in 0..BUCKETS {
            assert_eq!(bucket(lower(index)), index);
            assert_eq!(bucket(lower(index + 1) - 1), index);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_bucket() {
        let histogram = Histogram::default();
        (1..=1000).for_each(|us| histogram.add(Duration::from_micros(us)));
        let read = histogram.read();
        assert_eq!((read.count, read.mean_ns()), (1000, 500_500));
        for (quantile, us) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let found = read.quantile_ns(quantile);
            assert!(found >= us && found <= us + us / 8, "{quantile}: {found}");
        }
        assert_eq!(Histogram::default().read().quantile_ns(0.5), 0);
    }

    #[test]
    fn the_text_has_the_format_of_funclatency() {
        let histogram = Histogram::default();
        for us in [3, 3, 9] {
            histogram.add(Duration::from_micros(us));
        }
        histogram.add(Duration::from_nanos(10));
        let text = histogram.read().to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "     usecs               : count     distribution");
        assert_eq!(lines[1], format!("{:>10} -> {:<10} : {:<8} |{:<40}|", 0, 1, 1, "*".repeat(20)));
        assert_eq!(lines[2], format!("{:>10} -> {:<10} : {:<8} |{:<40}|", 2, 3, 2, "*".repeat(40)));
        assert_eq!(lines[3], format!("{:>10} -> {:<10} : {:<8} |{:<40}|", 4, 7, 0, ""));
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn the_difference_of_two_readings_is_what_was_added_between() {
        let histogram = Histogram::default();
        histogram.add(Duration::from_micros(5));
        let before = histogram.read();
        histogram.add(Duration::from_micros(7));
        let between = histogram.read().since(&before);
        assert_eq!((between.count, between.sum_ns), (1, 7_000));
        assert_eq!(between.powers(), vec![(4096, 1)]);
    }

    #[test]
    fn a_reading_can_be_rebuilt_from_its_steps() {
        let histogram = Histogram::default();
        for ns in [3, 900, 900, 70_000, u64::MAX >> 24] {
            histogram.add(Duration::from_nanos(ns));
        }
        let read = histogram.read();
        assert_eq!(Reading::from_steps(read.steps(), read.sum_ns), read);
        assert_eq!(read.steps().count(), 4);
    }
}
