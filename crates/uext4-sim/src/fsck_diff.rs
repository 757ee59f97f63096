//! The checker beside e2fsck, on damaged images.
//!
//! The question is the verdict: clean or not. Where the two differ there must be a reason in
//! [`Reason`], or the case has failed.

use std::io;
use std::path::Path;
use std::time::Duration;

use uext4_device::MemoryDevice;
use uext4_fsck::{Finding, Options, Problem, Report};

use crate::anatomy::Anatomy;
use crate::oracle::{Oracle, TIMED_OUT, judge_within};
use crate::shape::{SHAPES, image};
use crate::structure_damage::Mutator;

/// Time for e2fsck: on some images it does not end.
const E2FSCK_TIME: Duration = Duration::from_secs(10);

/// Why the verdicts may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// e2fsck asks about descriptors and superblock before its first pass, and then forgets that
    /// it was told not to fix them: it exits 0. Ours stay errors.
    Forgotten,
    /// e2fsck itself fails: it tries to write to what it opened to read, or does not end.
    Fails,
    /// The log would start past the journal's end, or have no block: the kernel refuses to mount
    /// that, e2fsck does not look as long as the log is empty.
    LogStart,
    /// Names that are twice in a directory, in different blocks: e2fsck looks within a block.
    Duplicate,
    /// A quota tree that leads out of its file, or twice to a block: e2fsck leaves that branch
    /// out, and says nothing while usage is right without it. The kernel fails at such a block.
    QuotaTree,
    /// An extent tree whose nodes say that they are of another level than they are: e2fsck does
    /// not look, the kernel refuses the file.
    Depth,
    /// A map of the resize inode that is wrong: e2fsck looks at its first quarter.
    ResizeMap,
    /// An encryption context with another name index: e2fsck looks at the name alone, the kernel
    /// finds no context.
    ContextIndex,
    /// The attribute block of an inode without a name, such as the journal's or that of a value:
    /// e2fsck judges it where it meets a name.
    Unnamed,
    /// The size of a directory is wrong by a multiple of 2^32 blocks, which e2fsck cuts off.
    DirectorySize,
}

/// Findings that e2fsck does not have, by their codes and a part of their sentences, and why.
const UNKNOWN_TO_E2FSCK: [(&str, &str, Reason); 10] = [
    ("entry.duplicate", "", Reason::Duplicate),
    ("quota.file", "leads ", Reason::QuotaTree),
    ("quota.file", "is of the tree", Reason::QuotaTree),
    ("extent.header", "it is too deep", Reason::Depth),
    ("resize.blocks", "", Reason::ResizeMap),
    ("journal.superblock", "s_first", Reason::LogStart),
    ("journal.superblock", "s_maxlen", Reason::LogStart),
    ("inode.encryption", "has no encryption context", Reason::ContextIndex),
    ("xattr.place", "", Reason::Unnamed),
    ("dir.hole", "", Reason::DirectorySize),
];

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
    /// Why they may differ, where they do.
    pub reason: Option<Reason>,
}

impl Comparison {
    /// Whether the verdicts are the same, or there is a reason that they are not.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.ours == self.theirs || self.reason.is_some()
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
    let reason = match &checked {
        Ok(report) if ours != theirs => reason(report, &verdict.text, theirs),
        _ => None,
    };
    Ok(Comparison { what, ours, theirs, our_words, their_words: verdict.text, reason })
}

fn words(report: &Report) -> String {
    report.findings.iter().map(|finding| format!("{finding}\n")).collect()
}

fn reason(report: &Report, text: &str, theirs: bool) -> Option<Reason> {
    if !theirs {
        let fails = text.contains("Error writing block") || text.contains(TIMED_OUT);
        return fails.then_some(Reason::Fails);
    }
    let before = text.split("Pass 1:").next().unwrap_or_default();
    if before.contains("? no") || before.contains("IGNORED") {
        return Some(Reason::Forgotten);
    }
    let errors = report.findings.iter().filter(|f| f.severity > uext4_fsck::Severity::Warning);
    let mut reason = None;
    for finding in errors {
        let has = |code, part| finding.code == code && finding.sentence.contains(part);
        // What lies below such a node is missed where it is counted.
        if has("extent.header", "depth contradicts its parent") {
            return Some(Reason::Depth);
        }
        let known = UNKNOWN_TO_E2FSCK.iter().find(|(code, part, _)| has(code, part));
        reason = Some(match known {
            Some((_, _, reason)) => *reason,
            None if is_cut_off(finding) => Reason::DirectorySize,
            None => return None,
        });
    }
    reason
}

/// Whether the size of an inode is wrong in bits that e2fsck does not look at.
fn is_cut_off(finding: &Finding) -> bool {
    match finding.problem {
        Problem::InodeSize { found, want, .. } => (found ^ want).trailing_zeros() >= 42,
        _ => false,
    }
}
