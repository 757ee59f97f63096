//! What a check returns.

use crate::problem::{Place, Problem, Severity};

/// One finding of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable code, as `inode.checksum`.
    pub code: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// Its place.
    pub place: Place,
    /// What is wrong, without the place.
    pub sentence: String,
    /// The problem with its numbers, for a repair.
    pub problem: Problem,
}

impl From<Problem> for Finding {
    fn from(problem: Problem) -> Self {
        Self {
            code: problem.code(),
            severity: problem.severity(),
            place: problem.place(),
            sentence: problem.sentence(),
            problem,
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} [{}]", self.place, self.sentence, self.code)
    }
}

/// What a check has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Inodes of the file system.
    pub inodes: u64,
    /// Inodes in use, reserved ones included.
    pub inodes_used: u64,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Files and directories whose blocks are not one run.
    pub fragmented: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub special: u64,
}

/// Outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Findings, at most `Options::findings_max`, in the order of the passes.
    pub findings: Vec<Finding>,
    /// Errors found, those beyond the limit included.
    pub errors: u64,
    /// Warnings found, those beyond the limit included.
    pub warnings: u64,
    /// The check stopped half-way, see the fatal finding.
    pub stopped: bool,
    /// What was counted.
    pub counts: Counts,
}

impl Report {
    /// Whether there is nothing to repair. Warnings do not count.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && !self.stopped
    }

    /// Whether a finding has this code.
    #[must_use]
    pub fn has(&self, code: &str) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }
}
