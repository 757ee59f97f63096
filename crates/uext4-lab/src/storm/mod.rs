//! The loads that sync: E0 (`fsync-storm`), E3 (`fsync-batch`) and S1 (appends).
//!
//! What: threads write 16 KiB through the page cache and fsync after each write; in E0 very many,
//! at random places, each into a file of its own that was only allocated; in E3 all into one file
//! that was written before; in S1 at the end of a new file. `docs/lab.md` says how the figures are
//! taken.
//!
//! | module | what it is |
//! |---|---|
//! | `storm_shape` | sizes and names of files, space |
//! | `journals` | candidates, by the journals that they are run with |
//! | `base` | the image that every target starts from |
//! | `syncers` | threads that write and sync |
//! | `raw` | the baseline: the same bytes and flushes, batched by hand |
//! | `storm_fio` | the same load by fio(1) |
//! | `content` | what a block must hold, and whether it does |
//! | `judge` | what an image must hold after a run |
//! | `storm_run` | the experiment, and its figures |
//!
//! Invariants: every target of E0 does the same number of operations for each thread, as the cost
//! depends on how much of a file is written; a target that is cut off by the time limit is named.

mod base;
mod content;
mod journals;
mod judge;
mod raw;
mod storm_fio;
mod storm_run;
mod storm_shape;
mod syncers;

pub(crate) use journals::{runs_with, variant_name};
pub(crate) use storm_run::{length, room, run};
pub(crate) use storm_shape::{JOURNAL_MIB, StormKind};
