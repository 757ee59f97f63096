//! A figure of a run, as it was printed.

use serde::Deserialize;

use crate::error::{Doing, Result};

/// A line of a run's figures.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Record {
    pub(crate) experiment: String,
    pub(crate) target: String,
    pub(crate) variant: String,
    pub(crate) store: String,
    pub(crate) path: String,
    pub(crate) threads: u32,
    pub(crate) bs: u32,
    #[serde(default)]
    pub(crate) form: String,
    pub(crate) metric: String,
    pub(crate) value: f64,
    /// From 1; 0 for a figure over all rounds.
    pub(crate) round: u32,
}

/// The figures in `text`: one object of JSON a line, as `lab run --json` prints them. Lines that
/// are empty are skipped; any other is an error.
pub(crate) fn parse(text: &str) -> Result<Vec<Record>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let record = |(at, line)| {
        serde_json::from_str(line).doing(format_args!(
            "line {} is no figure of a run (`lab run --json` prints them)",
            at + 1
        ))
    };
    lines.map(record).collect()
}
