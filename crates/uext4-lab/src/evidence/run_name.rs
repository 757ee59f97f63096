//! What a run is called, in events, in the folder of evidence and for whatever looks at runs.

use std::fmt;

use crate::load::{Form, Load};
use crate::target::Target;

/// Where a figure belongs, but for its variant.
#[derive(Clone, Copy, Debug)]
pub struct TargetRun {
    /// The load.
    pub load: &'static Load,
    /// What it runs on.
    pub target: Target,
    /// Its form, where there are several.
    pub form: Option<Form>,
    /// Processes or threads.
    pub threads: u32,
    /// Bytes of one read or write; 0 where programs choose.
    pub bs: u32,
    /// From 1; 0 for what is over all rounds.
    pub round: u32,
}

/// One run of a candidate. Its text is its key: what its files in the folder of evidence are
/// called.
#[derive(Clone, Copy, Debug)]
pub struct RunName<'a> {
    /// The load, the target and their setting.
    pub run: TargetRun,
    /// `default`, or what is different.
    pub variant: &'a str,
}

/// Bytes of a key before its round. A name of a file has 255, and endings follow.
const STEM_MAX: usize = 200;
/// Those of a hash, with the letter before it.
const HASH_BYTES: usize = 17;

impl TargetRun {
    /// The run in a variant.
    pub(crate) fn named(self, variant: &str) -> RunName<'_> {
        RunName { run: self, variant }
    }
}

impl RunName<'_> {
    /// Its key: fit for the name of a file. One that is too long ends in a hash before its round.
    #[must_use]
    pub fn key(&self) -> String {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._=-".contains(c);
        let stem = self.stem();
        let mut stem: String = stem.chars().map(|c| if fits(c) { c } else { '_' }).collect();
        if stem.len() > STEM_MAX {
            let hash = hash(&stem);
            stem.truncate(STEM_MAX - HASH_BYTES);
            stem += &format!("_{hash:016x}");
        }
        format!("{stem}-r{}", self.run.round)
    }

    /// All of it but the round.
    fn stem(&self) -> String {
        let TargetRun { load, target, form, threads, bs, round: _ } = self.run;
        let (id, form, target) = (load.id, form.map_or("one", Form::name), target.name());
        format!("{id}-{form}-{threads}-{bs}-{target}-{}", self.variant)
    }
}

/// A hash of a text (FNV-1a), by which long names are told apart.
fn hash(text: &str) -> u64 {
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

impl fmt::Display for RunName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-r{}", self.stem(), self.run.round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_documented_ones() {
        let run = TargetRun {
            load: Load::find("E4").unwrap(),
            target: Target::Uext4,
            form: Some(Form::Read),
            threads: 1,
            bs: 4096,
            round: 2,
        };
        assert_eq!(run.named("default").key(), "E4-read-1-4096-uext4-default-r2");
        let run = TargetRun { form: None, ..run };
        let key = run.named("a=b,c/..").key();
        assert_eq!(key, "E4-one-1-4096-uext4-a=b_c_..-r2");
        // As the report has it.
        let long = "x".repeat(300);
        let key = run.named(&long).key();
        assert_eq!(key.len(), STEM_MAX + "-r2".len());
        assert!(key.ends_with("x_2d14a36b7678a755-r2"), "{key}");
        assert_ne!(key, run.named(&(long + "y")).key());
    }
}
