//! The findings that a pass collects. Their number is bounded for any image.

use crate::problem::{Problem, Severity};

/// Problems found by one worker, in the order in which it found them.
#[derive(Debug, Default)]
pub(crate) struct Log {
    kept: Vec<Problem>,
    errors: u64,
    warnings: u64,
    fatal: bool,
    max: usize,
}

impl Log {
    /// A log that keeps at most `max` problems and counts the others.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Notes a problem.
    pub(crate) fn add(&mut self, problem: Problem) {
        match problem.severity() {
            Severity::Warning => self.warnings += 1,
            Severity::Error => self.errors += 1,
            Severity::Fatal => {
                self.errors += 1;
                self.fatal = true;
            }
        }
        if self.kept.len() < self.max {
            self.kept.push(problem);
        }
    }

    /// Adds the findings of another worker.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.errors += other.errors;
        self.warnings += other.warnings;
        self.fatal |= other.fatal;
        let room = self.max.saturating_sub(self.kept.len());
        self.kept.extend(other.kept.into_iter().take(room));
    }

    /// Whether the check must stop.
    pub(crate) fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// Errors so far.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// Problems kept, number of errors and of warnings.
    pub(crate) fn finish(self) -> (Vec<Problem>, u64, u64) {
        (self.kept, self.errors, self.warnings)
    }
}
