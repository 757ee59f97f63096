//! When dirty data is written back without anybody asking.

use crate::sync::state::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest time between two looks for old data.
pub(crate) const PERIOD_MAX: Duration = Duration::from_secs(5);
/// Shortest one that a change of the age brings: each look is a pass over all dirty inodes.
const PERIOD_MIN: Duration = Duration::from_secs(1);

/// The age at which dirty data is old, and how often the flusher looks for it.
#[derive(Debug)]
pub(crate) struct Expiry {
    age_ms: AtomicU64,
    period_ms: AtomicU64,
}

impl Expiry {
    /// As the mount options say. The flusher looks at its longest period, whatever they say.
    pub(super) fn new(age_ms: u64) -> Self {
        let period_ms = AtomicU64::new(millis(PERIOD_MAX));
        Self { age_ms: AtomicU64::new(age_ms), period_ms }
    }

    /// Data is old after `age` from now on, and looked for five times as often.
    pub(crate) fn set(&self, age: Duration) {
        let period = (age / 5).clamp(PERIOD_MIN, PERIOD_MAX);
        self.age_ms.store(millis(age), Ordering::Relaxed);
        self.period_ms.store(millis(period), Ordering::Relaxed);
    }

    /// Milliseconds after which dirty data is old.
    pub(super) fn age_ms(&self) -> u64 {
        self.age_ms.load(Ordering::Relaxed)
    }

    /// The interval at which the flusher looks for old data.
    pub(crate) fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms.load(Ordering::Relaxed))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_follows_the_age_within_bounds() {
        let expiry = Expiry::new(30_000);
        assert_eq!((expiry.age_ms(), expiry.period()), (30_000, PERIOD_MAX));
        for (age, period_ms) in [(1, 1_000), (5, 1_000), (10, 2_000), (30, 5_000), (900, 5_000)] {
            expiry.set(Duration::from_secs(age));
            let wanted = (age * 1_000, Duration::from_millis(period_ms));
            assert_eq!((expiry.age_ms(), expiry.period()), wanted);
        }
    }
}
