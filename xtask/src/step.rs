//! Steps with a name, a result and a time, and the table that closes a run.

use std::time::{Duration, Instant};

/// What came of a step.
pub(crate) enum Outcome {
    /// Done; a remark for the table, perhaps empty.
    Passed(String),
    /// Not done, and why.
    Skipped(String),
    /// Tried and failed.
    Failed(String),
}

/// The steps of a run so far.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<(&'static str, Outcome, Duration)>,
}

impl Steps {
    /// Announces a step, runs it and keeps its result and time.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> Outcome) {
        println!("==> {name}");
        let start = Instant::now();
        let outcome = step();
        self.done.push((name, outcome, start.elapsed()));
    }

    /// Prints the table; an error if a step failed.
    pub(crate) fn close(&self) -> Result<(), String> {
        println!("\nSummary");
        for (name, outcome, time) in &self.done {
            let (word, remark) = match outcome {
                Outcome::Passed(remark) => ("ok", remark),
                Outcome::Skipped(remark) => ("skipped", remark),
                Outcome::Failed(remark) => ("FAILED", remark),
            };
            let line = format!("  {word:<8}{name:<22}{:>7.1} s  {remark}", time.as_secs_f64());
            println!("{}", line.trim_end());
        }
        let total: Duration = self.done.iter().map(|(_, _, time)| *time).sum();
        println!("  {:<30}{:>7.1} s", "total", total.as_secs_f64());
        let failed: Vec<&str> = self
            .done
            .iter()
            .filter(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
            .map(|(name, _, _)| *name)
            .collect();
        if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
    }
}
