//! When the baton is handed on although its holder could go on, and to whom.

use rand::Rng;
use rand::rngs::StdRng;

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
    /// Who is next.
    pub order: Order,
    /// Points between two preemptions, about.
    pub mean: u32,
    /// No preemption after so many: a failing run is shrunk by lowering it.
    pub preemptions_max: u64,
}

/// Most points between two looks at the clock and at the bounds of the run.
const POINTS_MAX: u32 = 100_000;

impl Policy {
    /// Drawn.
    pub fn draw(rng: &mut impl Rng) -> Policy {
        let order = if rng.random_bool(0.5) { Order::Random } else { Order::Priority };
        let mean = [5, 20, 80, 300, 1_000, 5_000][rng.random_range(0..6)];
        Policy { order, mean, preemptions_max: u64::MAX }
    }

    /// Points until the next preemption: most are near, some far, so that they come in bursts.
    pub(crate) fn distance(self, rng: &mut StdRng) -> u32 {
        let unit: f64 = rng.random_range(1e-6..1.0);
        let burst = if rng.random_ratio(1, 4) { 0.05 } else { 1.3 };
        // Exponential: at any point the next is as far.
        let points = -unit.ln() * burst * f64::from(self.mean);
        (points as u32).min(POINTS_MAX)
    }
}
