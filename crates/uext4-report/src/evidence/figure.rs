//! A figure of a run, as `lab run --json` prints it.

use serde::Deserialize;

/// The variant in which nothing is different.
pub(crate) const DEFAULT: &str = "default";
/// The variant of a target that runs a second time, to measure the noise.
pub(crate) const REPEATED: &str = "aa";

/// A line of `raw.jsonl`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Figure {
    pub(crate) experiment: String,
    pub(crate) target: String,
    #[serde(default = "default_variant")]
    pub(crate) variant: String,
    #[serde(default)]
    pub(crate) store: String,
    #[serde(default)]
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) threads: u32,
    #[serde(default)]
    pub(crate) bs: u32,
    #[serde(default)]
    pub(crate) form: String,
    pub(crate) metric: String,
    pub(crate) value: f64,
    #[serde(default)]
    pub(crate) unit: String,
    /// From 1; 0 for a figure over all rounds.
    #[serde(default)]
    pub(crate) round: u32,
}

fn default_variant() -> String {
    DEFAULT.to_owned()
}

impl Figure {
    /// What the names of files of its runs begin with; the number of a run follows. A run that was
    /// looked at has a number beyond the rounds.
    pub(crate) fn key(&self) -> String {
        let form = if self.form.is_empty() { "one" } else { &self.form };
        let Self { experiment, threads, bs, target, variant, .. } = self;
        let key = format!("{experiment}-{form}-{threads}-{bs}-{target}-{variant}-r");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._=-".contains(c);
        key.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
    }
}
