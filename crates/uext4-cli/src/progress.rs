//! Progress of long verbs: a line on a terminal, nothing in a pipe.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::verbosity::{self, Verbosity, remark};

/// A spinner with a count of bytes and of files. Draws to standard error, and only on a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    files: u64,
}

impl Progress {
    /// Starts to count the work of `verb`.
    pub(crate) fn bytes(verb: &'static str) -> Self {
        let style = "{spinner} {prefix}: {bytes} in {msg} files, {bytes_per_sec}";
        Self::start(verb, style)
    }

    /// Starts to count the bytes of an image that `verb` makes.
    pub(crate) fn image(verb: &'static str) -> Self {
        Self::start(verb, "{spinner} {prefix}: {bytes} written, {bytes_per_sec}")
    }

    /// Starts to count the names that `verb` looks at.
    pub(crate) fn names(verb: &'static str) -> Self {
        Self::start(verb, "{spinner} {prefix}: {human_pos} names ({elapsed})")
    }

    /// Shows that `what` is waited for.
    pub(crate) fn wait(verb: &'static str, what: String) -> Self {
        let progress = Self::start(verb, "{spinner} {prefix}: {msg} ({elapsed})");
        progress.bar.set_message(what);
        progress
    }

    /// Counts runs, each of which is expected to take so long.
    pub(crate) fn runs(verb: &'static str, expected: Vec<f64>, done: usize) -> Runs {
        let progress = Self::start(verb, "{spinner} {prefix}: {msg} ({elapsed})");
        Runs { progress, expected, place: done, began: Instant::now(), first: done }
    }

    /// Shows something else that is waited for.
    pub(crate) fn change(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Does what prints to the terminal.
    pub(crate) fn aside(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Prints a line beside it.
    pub(crate) fn tell(&self, line: &str) {
        self.bar.suspend(|| remark(line));
    }

    fn start(verb: &'static str, template: &str) -> Self {
        let target = match verbosity::given() {
            Verbosity::Quiet => ProgressDrawTarget::hidden(),
            _ => ProgressDrawTarget::stderr(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(verb);
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar, files: 0 }
    }

    /// Counts bytes.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Counts what is counted.
    pub(crate) fn add(&self, count: usize) {
        self.bar.inc(count as u64);
    }

    /// Counts a file.
    pub(crate) fn add_file(&mut self) {
        self.files += 1;
        if !self.bar.is_hidden() {
            self.bar.set_message(self.files.to_string());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs of a plan: which one it is, and about how long the rest takes.
pub(crate) struct Runs {
    progress: Progress,
    /// Expected time of each, in seconds, in their order.
    expected: Vec<f64>,
    /// Number of the run that comes next, and of the first one.
    place: usize,
    first: usize,
    began: Instant,
}

impl Runs {
    /// The next run begins.
    pub(crate) fn begin(&mut self, what: &str) {
        let at = self.place.min(self.expected.len());
        let sum = |runs: &[f64]| runs.iter().sum::<f64>();
        let (done, left) = (sum(&self.expected[self.first.min(at)..at]), sum(&self.expected[at..]));
        // The plan is right until runs say otherwise.
        let slower = match done {
            done if done >= 5.0 => self.began.elapsed().as_secs_f64() / done,
            _ => 1.0,
        };
        let (number, all) = (at + 1, self.expected.len());
        let left = (left * slower / 60.0).ceil();
        let text = match all {
            0 => what.to_owned(),
            _ => format!("run {number} of {all}, about {left:.0} min left: {what}"),
        };
        self.progress.bar.set_message(text);
        self.place += 1;
    }

    /// Prints something beside it.
    pub(crate) fn beside(&self, print: impl FnOnce()) {
        self.progress.bar.suspend(print);
    }

    /// Ends it: nothing is drawn any more.
    pub(crate) fn end(&self) {
        self.progress.bar.finish_and_clear();
    }
}
