//! The clock of a simulation.

use crate::scheduler;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;
pub use std::time::UNIX_EPOCH;

/// Where the calendar of every simulation begins: 2024-01-01.
const EPOCH: Duration = Duration::from_secs(1_704_067_200);

/// A moment of the simulation, with the interface of `std::time::Instant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The moment that it is. Outside a simulation always the same.
    #[must_use]
    pub fn now() -> Instant {
        Instant(Duration::from_nanos(scheduler::now()))
    }

    /// Time since then.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(*self)
    }

    /// Time from `earlier` to this moment.
    #[must_use]
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Time from `earlier` to this moment, zero if it is later.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, time: Duration) -> Instant {
        Instant(self.0.saturating_sub(time))
    }
}

/// The calendar of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct SystemTime;

impl SystemTime {
    /// The time that it is.
    #[must_use]
    pub fn now() -> std::time::SystemTime {
        UNIX_EPOCH + EPOCH + Duration::from_nanos(scheduler::now())
    }
}
