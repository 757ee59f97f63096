//! The command on damaged images and archives, verb by verb.
//!
//! # Fault model
//! Images of every shape with structures that say anything, sealed or not ([`images`]); archives
//! with changed headers, changed data and cut ends ([`archives`]). One process a call, as a script
//! would.
//!
//! # What is judged
//! A call ends within its time and memory, with a status of the documented ones, without a panic;
//! a failure is told; a verb that reads leaves the bytes of the image; and nothing but the target
//! that was named is written ([`Yard`]).
//!
//! # Not covered
//! What a damaged file shows: that is the checker's affair (`fsck-diff`). Mounts.

pub mod archives;
pub mod images;
mod yard;

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
    /// Calls of the command.
    pub calls: u64,
    /// Of these, the ones that ended with status 0.
    pub succeeded: u64,
    /// What is wrong.
    pub faults: Vec<String>,
}
