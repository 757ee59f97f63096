//! The checker beside e2fsck, on damaged images.
//!
//! The question is the verdict: clean or not. Where the two differ there must be a reason in
//! [`Reason`], or the case has failed.

mod reason;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use uext4_device::MemoryDevice;
use uext4_fsck::{Options, Report};

pub use self::reason::Reason;
use crate::anatomy::Anatomy;
use crate::oracle::{Oracle, judge_within};
use crate::shape::{SHAPES, image};
use crate::structure_damage::Mutator;

/// Time for e2fsck: on some images it does not end.
const E2FSCK_TIME: Duration = Duration::from_secs(10);

/// The verdicts on one image.
#[derive(Debug)]
pub struct Comparison {
    /// What was done to the image.
    pub what: String,
    /// Ours: clean or not.
    pub ours: bool,
    /// e2fsck's: clean or not.
    pub theirs: bool,
    /// Ours in words.
    pub our_words: String,
    /// e2fsck's words.
    pub their_words: String,
    /// Why they may differ, where they do: a reason for each of our errors.
    pub reasons: BTreeSet<Reason>,
}

impl Comparison {
    /// Whether the verdicts are the same, or there is a reason that they are not.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.ours == self.theirs || !self.reasons.is_empty()
    }
}

/// Damaged images by number.
#[derive(Debug)]
pub struct Cases {
    bases: Vec<(&'static str, MemoryDevice, Anatomy)>,
    oracle: Oracle,
}

impl Cases {
    /// Makes the sound images.
    ///
    /// # Errors
    /// e2fsprogs are missing or fail.
    pub fn new() -> io::Result<Self> {
        Self::with("")
    }

    /// Makes those whose mke2fs options contain `word`.
    ///
    /// # Errors
    /// None of them does; e2fsprogs are missing or fail.
    pub fn with(word: &str) -> io::Result<Self> {
        let shapes: Vec<_> = SHAPES.iter().filter(|(shape, _)| shape.contains(word)).collect();
        if shapes.is_empty() {
            return Err(io::Error::other(format!("no image is made with {word:?}")));
        }
        let mut bases = Vec::new();
        for (shape, mib) in shapes {
            let device = image(shape, *mib)?;
            let anatomy = Anatomy::of(&device);
            bases.push((*shape, device, anatomy));
        }
        Ok(Self { bases, oracle: Oracle::new()? })
    }

    /// The sound images and their names.
    pub fn bases(&self) -> impl Iterator<Item = (&'static str, &MemoryDevice)> {
        self.bases.iter().map(|(shape, device, _)| (*shape, device))
    }

    /// The image of a case, and what was done to it.
    #[must_use]
    pub fn damaged(&self, case: u64) -> (MemoryDevice, String) {
        let mut mutator = Mutator::new(case);
        let (shape, device, anatomy) = mutator.pick(&self.bases);
        let device = device.snapshot();
        let what = mutator.damage(&device, anatomy);
        (device, format!("case {case} ({shape}): {what}"))
    }

    /// Compares the verdicts on a case.
    ///
    /// # Errors
    /// e2fsck cannot be run.
    pub fn compare(&self, case: u64) -> io::Result<Comparison> {
        let (device, what) = self.damaged(case);
        let path = self.oracle.put(&device, "image")?;
        compare(&device, &path, what)
    }
}

/// Compares the verdicts on an image, which is also in a file.
///
/// # Errors
/// e2fsck cannot be run.
pub fn compare(device: &MemoryDevice, path: &Path, what: String) -> io::Result<Comparison> {
    let verdict = judge_within(path, "-fn", E2FSCK_TIME)?;
    let theirs = verdict.code == 0;
    let checked = uext4_fsck::check(device, &Options::default(), &mut ());
    let (ours, our_words) = match &checked {
        Ok(report) => (report.is_clean(), words(report)),
        Err(error) => (false, error.to_string()),
    };
    let reasons = match &checked {
        Ok(report) if ours != theirs => reason::all(device, report, &verdict.text, theirs),
        _ => BTreeSet::new(),
    };
    Ok(Comparison { what, ours, theirs, our_words, their_words: verdict.text, reasons })
}

fn words(report: &Report) -> String {
    report.findings.iter().map(|finding| format!("{finding}\n")).collect()
}
