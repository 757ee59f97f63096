//! Time and processor time of a measured part, less what is done aside.

use std::time::{Duration, Instant};

use crate::machine;

/// A clock that runs, but for what is done [`aside`](Self::aside).
pub(crate) struct Clock {
    began: Instant,
    cpu_s: Option<f64>,
    aside: Duration,
    aside_cpu_s: f64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let cpu_s = machine::processor_seconds();
        Self { began: Instant::now(), cpu_s, aside: Duration::ZERO, aside_cpu_s: 0.0 }
    }

    /// Does what does not belong to the measured part.
    pub(crate) fn aside<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (began, cpu_s) = (Instant::now(), machine::processor_seconds());
        let done = work();
        self.aside_cpu_s += since(cpu_s).unwrap_or(0.0);
        self.aside += began.elapsed();
        done
    }

    /// Seconds so far.
    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().saturating_sub(self.aside).as_secs_f64()
    }

    /// Processor time of the whole system so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        since(self.cpu_s).map(|used| (used - self.aside_cpu_s).max(0.0))
    }
}

fn since(before: Option<f64>) -> Option<f64> {
    before.zip(machine::processor_seconds()).map(|(before, after)| after - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: evidence that is kept while the clock of a load runs.
    #[test]
    fn what_is_done_aside_takes_no_time() {
        let pause = Duration::from_millis(30);
        let around = Instant::now();
        let mut clock = Clock::start();
        assert_eq!(clock.aside(|| std::thread::sleep(pause)), ());
        let measured = clock.seconds();
        // However slow the machine is: what was measured is less than all by the pause.
        assert!(measured <= around.elapsed().as_secs_f64() - pause.as_secs_f64(), "{measured}");
        assert!(clock.cpu_seconds().is_none_or(|cpu| cpu >= 0.0));
    }
}
