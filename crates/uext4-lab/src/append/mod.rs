//! The loads that allocate: E1a (`fallocate2`) and E1b (`append-frag`).
//!
//! What: threads grow files by fallocate, each its own. In E1a they truncate them again at 1 MiB
//! and go on for a time; in E1b each grows one file to its full length, on an empty file system or
//! on an aged one. Beside the speed stands how the files and the free space lie afterwards.
//! `docs/lab.md` says how the figures are taken.
//!
//! | module | what it is |
//! |---|---|
//! | `append_shape` | sizes, numbers, space |
//! | `appenders` | the threads |
//! | `age` | fills a file system and rewrites it at random |
//! | `layout` | how files and free space lie |
//! | `append_run` | the experiment, and its figures |
//!
//! Invariants: all targets run the same generator; in E1b and in ageing they make the same calls
//! with the same numbers.

mod age;
mod append_run;
mod append_shape;
mod appenders;
mod layout;

pub use age::Ageing;
pub(crate) use append_run::{length, room, run};
pub(crate) use append_shape::AppendKind;
pub(crate) use layout::neighbour_distance_kib;
