//! Progress of long verbs: a line on a terminal, nothing in a pipe.

use std::time::Duration;

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
