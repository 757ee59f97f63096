//! Latencies of a run by phase and over time.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Length of a step of a series.
const STEP_S: f64 = 0.5;
/// Most steps: an hour. What comes later belongs to the last one.
const STEPS_MAX: usize = 7200;
/// Significant digits of a latency.
const DIGITS: u8 = 2;
/// An hour. Longer ones count as that.
const NS_MAX: u64 = 3_600_000_000_000;

/// The latencies of a phase: a call that a load makes again and again.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    phase: String,
    all: Histogram<u64>,
    steps: Vec<Histogram<u64>>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(NS_MAX, DIGITS).expect("bounds that are allowed")
}

impl Timeline {
    /// Without any latency yet.
    pub(crate) fn new(phase: &str) -> Self {
        Self { phase: phase.to_owned(), all: histogram(), steps: Vec::new() }
    }

    /// Adds a latency, in nanoseconds, of a call that ended at that time after the start.
    pub(crate) fn add(&mut self, end_s: f64, ns: u64) {
        self.all.saturating_record(ns);
        self.step(end_s).saturating_record(ns);
    }

    /// Adds so many latencies of which the time is not known.
    pub(crate) fn add_many(&mut self, ns: u64, count: u64) {
        self.all.saturating_record_n(ns, count);
    }

    /// Adds so many latencies of calls that ended about that time to the series only.
    pub(crate) fn add_step(&mut self, end_s: f64, ns: u64, count: u64) {
        self.step(end_s).saturating_record_n(ns, count);
    }

    fn step(&mut self, end_s: f64) -> &mut Histogram<u64> {
        // What is told of half a second at its end belongs to it.
        let step = ((end_s - STEP_S / 100.0).max(0.0) / STEP_S) as usize;
        let step = step.min(STEPS_MAX - 1);
        if self.steps.len() <= step {
            self.steps.resize_with(step + 1, histogram);
        }
        &mut self.steps[step]
    }

    /// Lines of JSON: the histogram, and each step of the series.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let us = |ns: u64| ns as f64 / 1000.0;
        let buckets: Vec<(f64, u64)> = self
            .all
            .iter_recorded()
            .map(|step| (us(step.value_iterated_to()), step.count_since_last_iteration()))
            .collect();
        let histogram = json!({"kind": "histogram", "phase": self.phase, "unit": "us",
            "buckets": buckets});
        let step = |(at, step): (usize, &Histogram<u64>)| {
            json!({"kind": "series", "phase": self.phase, "t_s": (at + 1) as f64 * STEP_S,
                "ops": step.len(), "p50": us(step.value_at_quantile(0.5)),
                "p99": us(step.value_at_quantile(0.99)), "max": us(step.max())})
        };
        let steps = self.steps.iter().enumerate().map(step);
        if self.all.is_empty() {
            Vec::new()
        } else {
            std::iter::once(histogram).chain(steps).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_by_bucket_and_by_time() {
        let mut timeline = Timeline::new("fsync");
        assert!(timeline.lines().is_empty());
        for (end_s, ns) in [(0.1, 1000), (0.4, 3000), (1.2, 1000)] {
            timeline.add(end_s, ns);
        }
        let lines = timeline.lines();
        assert_eq!(lines.len(), 4);
        let counts: Vec<u64> = lines[0]["buckets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|bucket| bucket[1].as_u64().unwrap())
            .collect();
        assert_eq!((counts, lines[0]["phase"].as_str()), (vec![2, 1], Some("fsync")));
        let ops: Vec<u64> = lines[1..].iter().map(|line| line["ops"].as_u64().unwrap()).collect();
        assert_eq!(ops, [2, 0, 1]);
        assert_eq!(lines[1]["t_s"], 0.5);
        let max = lines[1]["max"].as_f64().unwrap();
        assert!((2.9..3.1).contains(&max), "{max}");
    }
}
