//! What the measured loads share: E0 to E4 and S1.
//!
//! What: an [`Experiment`] is a load with its shape and its figures; a [`Bench`] has everything
//! else. It runs the candidates one after the other and makes of each run the same: an image to
//! start from, cold; the load, and what is counted meanwhile; an image that is closed, synced and
//! judged.
//!
//! | module | what it is |
//! |---|---|
//! | `experiment` | what experiments differ in |
//! | `candidate` | targets with their mount options |
//! | `rounds` | rounds, runs, what is told |
//! | `explained` | runs that are looked at |
//! | `image` | images to start from |
//! | `files` | what threads call: the library, or system calls on a mount |
//! | `threads` | threads that start together, and when they stop |
//! | `measure` | what a run did, and used meanwhile |
//! | `latencies` | quantiles |
//! | `counters` | what the kernel and the engine count |
//! | `stamp` | words that name a write in its data |
//! | `place` | where a file lies on its device |
//! | `ratio` | uext4's default by its peers, over all rounds |
//! | `bootstrap` | how sure a ratio is |
//!
//! Invariants: a run that fails, or leaves an image that is not what it must be, has no figure.
//! Images that are made for a run are gone after it.

mod bootstrap;
mod candidate;
mod counters;
mod experiment;
mod explained;
pub(crate) mod files;
mod image;
mod latencies;
mod measure;
mod place;
mod ratio;
mod rounds;
pub(crate) mod stamp;
pub(crate) mod threads;

pub(crate) use bootstrap::{Interval, PAIRS_MIN, noise, with_logarithm};
pub(crate) use candidate::Candidate;
pub(crate) use counters::{CAUSES, Counters};
pub(crate) use experiment::{Experiment, Figures, StartImage, known};
pub(crate) use image::{format, format_with, lay_out};
pub(crate) use latencies::Latencies;
pub(crate) use measure::{Outcome, Usage, measure};
pub(crate) use place::FilePlace;
pub(crate) use ratio::Ratio;
pub(crate) use rounds::{Bench, Setting};
pub(crate) use threads::{Limits, Thread};
