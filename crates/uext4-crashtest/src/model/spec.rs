//! A state that a loss of power could leave, as choices.
//!
//! Invariant: a choice that the model does not allow, or that says nothing about the state, is not
//! an error: the nearest allowed one is taken. So a spec can be changed freely to shrink it.

use serde::{Deserialize, Serialize};

use crate::trace::FileId;

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StateSpec {
    /// The power failed when the steps before this index had taken effect.
    pub crash: usize,
    /// Metadata of the steps before this index is in the journal; at most `crash`.
    pub committed: usize,
    /// Of the last committed step only so many parts are in the journal. The parts of a write are
    /// its blocks, where it goes there block by block; those of a zeroed range whose ends lie
    /// within blocks its size, the marks of its whole blocks, and its ends.
    pub part: Option<u64>,
    /// The sizes that `sizes` does not name.
    pub rest_of_sizes: Rest,
    /// The blocks that `blocks` does not name.
    pub rest_of_blocks: Rest,
    /// Sizes of files.
    pub sizes: Vec<SizeChoice>,
    /// Blocks of files.
    pub blocks: Vec<BlockChoice>,
}

/// What has no choice of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rest {
    /// As the program saw it when the power failed.
    Newest,
    /// As little as is guaranteed.
    Oldest,
    /// As little as is guaranteed, with stale bytes where those may be.
    Stale,
}

/// The size of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SizeChoice {
    /// The file.
    pub file: FileId,
    /// Bytes.
    pub size: u64,
}

/// The content of a block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockChoice {
    /// The file.
    pub file: FileId,
    /// The block, counted in the file.
    pub block: u64,
    /// What it holds.
    pub content: Content,
}

/// What a block holds on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Zeros: never allocated, or allocated and not written.
    Zeros,
    /// What was in it before it was allocated to this file.
    Stale,
    /// What the file had in it after this step; `None`: what it had before the first step that
    /// changed it.
    After(Option<usize>),
    /// A newer version was being written over an older one.
    Torn {
        /// The step of the older version, as in `After`.
        old: Option<usize>,
        /// The step of the newer one.
        new: usize,
        /// The pieces that are of the newer version: bit `i` is the `i`th of at most 64 equal
        /// parts of the block, none shorter than 512 bytes.
        sectors: u64,
    },
    /// The same, written over what was in the block before it was allocated to this file.
    PartlyStale {
        /// The step of the version, as in `After`.
        new: Option<usize>,
        /// The pieces that are of it.
        sectors: u64,
    },
}
