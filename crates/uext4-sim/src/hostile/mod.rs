//! The command on damaged images and archives, verb by verb.
//!
//! # Fault model
//! Images of every shape with structures that say anything, sealed or not ([`images`]); overlays
//! of such images ([`overlays`]); images whose checksums are right and whose names and inodes are
//! made to get out of the directory that they are exported into ([`exports`]); archives with
//! changed headers, changed data and cut ends, and well-formed ones that are made to do harm
//! ([`archives`]). One process a call, as a script would.
//!
//! # What is judged
//! A call ends within its time and memory, with a status of the documented ones, without a panic;
//! a failure is told; a verb that reads leaves the bytes of the image; and nothing but the target
//! that was named is written ([`Yard`]). What an archive was unpacked into is a sound image.
//!
//! # Not covered
//! What a damaged file shows: that is the checker's affair (`fsck-diff`). Mounts.

pub mod archives;
pub mod exports;
pub mod images;
pub mod overlays;
mod sound;
mod tally;
mod verbs;
mod yard;

pub use self::tally::Tally;
pub use self::verbs::{UNTRIED, calls, has_actions};
pub use self::yard::Yard;

/// What a verb may do to the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Its bytes stay.
    Reads,
    /// It may change.
    Changes,
}

/// What came of a case.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was done to the image or archive.
    pub what: String,
    /// The calls of the command.
    pub tally: Tally,
    /// What is wrong.
    pub faults: Vec<String>,
}
