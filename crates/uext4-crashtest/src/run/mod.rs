//! A test: the user's programs are run and recorded, and their check is run on each state.
//!
//! All images are in memory. Commands are run by `sh -c` with the mount as their working directory,
//! each in a process group of its own, and for a limited time; none of their processes is left
//! when they end, nor any mount when a test ends, by whatever error or interruption.

mod command;
mod leftovers;
mod mounted;
mod place;
mod program;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use uext4_fuse::FuseOptions;

use crate::error::Error;
use crate::model::Guarantees;
pub use program::{Program, run_program};

/// What is to be tested, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Makes what the program finds; its effects are durable.
    pub setup: Option<String>,
    /// The program.
    pub run: String,
    /// Whether a state is sound: exit status 0.
    pub check: String,
    /// Bytes of the image.
    pub image_size: u64,
    /// What the file system promises.
    pub guarantees: Guarantees,
    /// Options of the mounts.
    pub fuse: FuseOptions,
    /// Most states, if there is a limit.
    pub states: Option<u64>,
    /// Longest time for states, if there is a limit.
    pub time: Option<Duration>,
    /// Where chance begins.
    pub seed: u64,
    /// Longest time of each command.
    pub limit: Duration,
    /// Checks at a time.
    pub jobs: usize,
    /// Set when the user has had enough.
    pub stop: Arc<AtomicBool>,
}

/// Hears what a test does.
pub trait Watch: Sync {
    /// A part of it begins.
    fn begins(&self, _what: &str) {}
    /// The program prints this.
    fn prints(&self, _bytes: &[u8]) {}
    /// So many states are checked.
    fn checked(&self, _states: u64) {}
}

fn failed(what: &str, why: &str) -> Error {
    Error::new(format!("{what} {why}"))
}
