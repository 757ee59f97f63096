//! When the baton is handed on although its holder could go on, and to whom.

use rand::Rng;
use rand::rngs::StdRng;
use std::panic::Location;
use std::time::Duration;

/// How the next thread is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any thread that can run.
    Random,
    /// The one with the highest priority. Priorities are random, and a thread that is preempted
    /// gets the lowest: few preemptions reach deep into a schedule.
    Priority,
}

/// How a seed chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The next thread.
    pub order: Order,
    /// Points between two preemptions, about.
    pub mean: u32,
    /// No preemption after so many: a failing run is shrunk by lowering it.
    pub preemptions_max: u64,
    /// Places of the source at which threads are stopped besides.
    pub stops: Option<Stops>,
}

/// Places of the source at which threads are stopped again and again: a window of two
/// instructions that is one of them is met as often as any other. Which places, and for how long, a
/// seed draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stops {
    /// One of so many places: a power of two.
    pub one_of: u32,
    /// Which of them.
    pub which: u32,
    /// Passages of such places between two stops, about.
    pub mean: u32,
    /// A thread that is stopped sleeps for as long at most, if it does not only come last.
    pub nap: Duration,
}

impl Stops {
    fn draw(rng: &mut impl Rng) -> Option<Stops> {
        let is_in = rng.random_range(0..4) > 0;
        let one_of: u32 = [4, 16, 64][rng.random_range(0..3)];
        let which = rng.random_range(0..one_of);
        let mean = [1, 3, 10, 40][rng.random_range(0..4)];
        let nap = Duration::from_micros([30, 1_000, 20_000][rng.random_range(0..3)]);
        is_in.then_some(Stops { one_of, which, mean, nap })
    }

    /// Whether a place is one of them. A place is its line: addresses differ between processes.
    #[inline]
    pub(crate) fn are_at(&self, place: &Location<'_>) -> bool {
        let place = place.line() * 127 + place.column() * 31 + place.file().len() as u32;
        place.wrapping_mul(0x9e37_79b9) >> 16 & (self.one_of - 1) == self.which
    }
}

/// Most points between two looks at the clock and at the bounds of the run.
const POINTS_MAX: u32 = 100_000;

impl Policy {
    /// Drawn.
    pub fn draw(rng: &mut impl Rng) -> Policy {
        let order = if rng.random_bool(0.5) { Order::Random } else { Order::Priority };
        let mean = [5, 20, 80, 300, 1_000, 5_000][rng.random_range(0..6)];
        Policy { order, mean, preemptions_max: u64::MAX, stops: Stops::draw(rng) }
    }

    /// Points until the next preemption.
    pub(crate) fn distance(self, rng: &mut StdRng) -> u32 {
        distance(rng, self.mean)
    }
}

/// Most are near, some far, so that they come in bursts.
pub(crate) fn distance(rng: &mut StdRng, mean: u32) -> u32 {
    let unit: f64 = rng.random_range(1e-6..1.0);
    let burst = if rng.random_ratio(1, 4) { 0.05 } else { 1.3 };
    // Exponential: at any point the next is as far.
    let points = -unit.ln() * burst * f64::from(mean);
    (points as u32).min(POINTS_MAX)
}
