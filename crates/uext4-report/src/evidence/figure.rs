//! A figure of a run, as `lab run --json` prints it.

use serde::Deserialize;

/// The variant in which nothing is different.
pub(crate) const DEFAULT: &str = "default";
/// The variant of a target that runs a second time, to measure the noise.
pub(crate) const REPEATED: &str = "aa";

/// Bytes of a key before its round, and those of a hash with the letter before it, as the lab has
/// them.
const STEM_MAX: usize = 200;
const HASH_BYTES: usize = 17;

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
    /// One of E0 for tests.
    #[cfg(test)]
    pub(crate) fn of_a_test(target: &str, variant: &str, round: u32) -> Self {
        Self {
            experiment: "E0".into(),
            target: target.into(),
            variant: variant.into(),
            store: "ram".into(),
            path: "device".into(),
            threads: 1,
            bs: 4096,
            form: String::new(),
            metric: "iops".into(),
            value: 1.0,
            unit: "1/s".into(),
            round,
        }
    }

    /// What the names of files of its runs begin with; the number of a run follows. A run that was
    /// looked at has a number beyond the rounds.
    pub(crate) fn key(&self) -> String {
        let form = if self.form.is_empty() { "one" } else { &self.form };
        let Self { experiment, threads, bs, target, variant, .. } = self;
        let stem = format!("{experiment}-{form}-{threads}-{bs}-{target}-{variant}");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._=-".contains(c);
        let mut stem: String = stem.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        if stem.len() > STEM_MAX {
            let hash = hash(&stem);
            stem.truncate(STEM_MAX - HASH_BYTES);
            stem += &format!("_{hash:016x}");
        }
        stem + "-r"
    }
}

/// A hash of a text (FNV-1a), by which long names are told apart.
fn hash(text: &str) -> u64 {
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a long variant whose files the report does not find.
    #[test]
    fn long_keys_are_those_of_the_lab() {
        let text = format!(
            r#"{{"experiment":"E4","target":"uext4","threads":1,"bs":4096,"metric":"iops",
                "value":1,"variant":"{}"}}"#,
            "x".repeat(300)
        );
        let figure: Figure = serde_json::from_str(&text).unwrap();
        let key = figure.key();
        assert!(key.ends_with("x_2d14a36b7678a755-r"), "{key}");
        assert_eq!(key.len(), STEM_MAX + "-r".len());
    }
}
