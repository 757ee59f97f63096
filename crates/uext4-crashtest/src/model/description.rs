//! A state in words and figures, for a timeline.

use serde::{Deserialize, Serialize};

use crate::model::guarantees::Guarantees;

/// What a state is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The options that allow it.
    pub guarantees: Guarantees,
    /// The steps that had taken effect before the crash.
    pub steps: Vec<StepLine>,
    /// How many steps had not begun.
    pub not_begun: usize,
    /// What is not on the medium as the program saw it.
    pub losses: Vec<Loss>,
    /// Bytes that the program had printed.
    pub acknowledged: usize,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLine {
    /// Its index in the trace.
    pub step: usize,
    /// Microseconds from the begin of the recording.
    pub started_us: u64,
    /// Microseconds from the begin of the recording.
    pub returned_us: u64,
    /// The process.
    pub pid: u32,
    /// The call as text, such as `write(/a/b, offset 0, 4096 bytes)`.
    pub call: String,
    /// Where it was when the power failed.
    pub progress: Progress,
    /// Its metadata is in the journal; `None` if it changes none.
    pub committed: Option<bool>,
    /// Only a part of that is there.
    #[serde(default)]
    pub in_part: bool,
}

/// Where a step was when the power failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// The program had got the answer.
    Returned,
    /// It had taken effect and the answer was on its way.
    InFlight,
}

/// Something that is not on the medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The step that wrote it.
    pub step: usize,
    /// The path of the file when the power failed; `None` if it had no name.
    pub path: Option<String>,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// How.
    pub how: How,
}

/// How bytes are not on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The range has the content of before.
    Older,
    /// The range reads as zeros.
    Zeros,
    /// The range has bytes that were never in this file.
    Stale,
    /// The range is old in part.
    Torn,
    /// The file ends before the range.
    BeyondEnd,
}
