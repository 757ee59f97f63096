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
/// instructions that is one of them is met as often as any other. Which places, which threads, and
/// for how long, a seed draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stops {
    /// Which places.
    pub places: Places,
    /// Threads whose number leaves this rest, divided by the first number: the others go on.
    pub threads: (u32, u32),
    /// Passages of such places between two stops, about.
    pub mean: u32,
    /// A thread that is stopped sleeps for as long at most, if it does not only come last.
    pub nap: Duration,
    /// Or until so many iterations of others have ended, at most. 0: never.
    pub iterations: u32,
}

/// A part of the places of the source: the rest of a hash, divided by a power of two. The place of
/// a lock counts when it is taken and when it is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Single lines.
    Lines {
        /// One of so many.
        one_of: u32,
        /// Which of them.
        which: u32,
    },
    /// All lines of some files.
    Files {
        /// One of so many.
        one_of: u32,
        /// Which of them.
        which: u32,
    },
}

impl Places {
    fn draw(rng: &mut impl Rng) -> Places {
        let is_of_files = rng.random_range(0..4) == 0;
        let one_of: u32 = [4, 16, 64][rng.random_range(0..3)];
        let which = rng.random_range(0..one_of);
        if is_of_files { Places::Files { one_of, which } } else { Places::Lines { one_of, which } }
    }

    /// Whether a place is one of them. A place is its line: addresses differ between processes.
    #[inline]
    fn has(self, place: &Location<'_>) -> bool {
        let (number, one_of, which) = match self {
            Places::Lines { one_of, which } => (
                place.line() * 127 + place.column() * 31 + place.file().len() as u32,
                one_of,
                which,
            ),
            Places::Files { one_of, which } => (of_file(place.file()), one_of, which),
        };
        number.wrapping_mul(0x9e37_79b9) >> 16 & (one_of - 1) == which
    }
}

/// From the end of the name, where names differ.
fn of_file(name: &str) -> u32 {
    let end = name.as_bytes().iter().rev().skip(3).take(8);
    end.fold(name.len() as u32, |hash, byte| hash.wrapping_mul(31) + u32::from(*byte))
}

impl Stops {
    fn draw(rng: &mut impl Rng) -> Option<Stops> {
        let is_in = rng.random_range(0..4) > 0;
        let places = Places::draw(rng);
        let divisor = [1, 1, 2, 4][rng.random_range(0..4)];
        let threads = (divisor, rng.random_range(0..divisor));
        let mean = [1, 3, 10, 40][rng.random_range(0..4)];
        let nap = Duration::from_micros([30, 1_000, 20_000][rng.random_range(0..3)]);
        let iterations = [0, 3, 12, 40][rng.random_range(0..4)];
        is_in.then_some(Stops { places, threads, mean, nap, iterations })
    }

    /// Whether thread `index` may be stopped at a place.
    #[inline]
    pub(crate) fn are_at(&self, index: usize, place: &Location<'_>) -> bool {
        let (divisor, rest) = self.threads;
        self.places.has(place) && index as u32 % divisor == rest
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
}

/// Most are near, some far, so that they come in bursts.
pub(crate) fn distance(rng: &mut StdRng, mean: u32) -> u32 {
    let unit: f64 = rng.random_range(1e-6..1.0);
    let burst = if rng.random_ratio(1, 4) { 0.05 } else { 1.3 };
    // Exponential: at any point the next is as far.
    let points = -unit.ln() * burst * f64::from(mean);
    (points as u32).min(POINTS_MAX)
}
