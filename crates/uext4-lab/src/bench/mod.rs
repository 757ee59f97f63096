//! The machinery that the measured loads share: E0 to E4 and S1.
//!
//! What: an [`Experiment`] has its load, its shape and its figures; a [`Bench`] has everything
//! else. It takes the players in turns and makes of each turn the same: an image to start from,
//! cold; the load, and what is counted meanwhile; an image that is closed, synced and judged.
//!
//! | module | what it is |
//! |---|---|
//! | `experiment` | what experiments differ in |
//! | `player` | the sides of a comparison |
//! | `turns` | rounds, turns, what is told |
//! | `image` | images to start from |
//! | `usage` | processor time and counters of a turn |
//! | `counters` | what the kernel and the engine count |
//! | `ratio` | uext4's default by its peers, over all rounds |
//! | `bootstrap` | how sure a ratio is |
//!
//! Invariants: a turn that fails, or leaves an image that is not what it must be, has no figure.
//! Images that are made for a turn are gone after it.

mod bootstrap;
mod counters;
mod experiment;
mod image;
mod player;
mod ratio;
mod turns;
mod usage;

pub(crate) use bootstrap::Interval;
pub(crate) use counters::{CAUSES, Counters};
pub(crate) use experiment::{Experiment, Figures, Start, known};
pub(crate) use image::{format, lay_out};
pub(crate) use player::Player;
pub(crate) use ratio::Ratio;
pub(crate) use turns::{Bench, Setting};
pub(crate) use usage::{Usage, watch};
