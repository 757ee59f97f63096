//! The load that stores: E2 (`dax-overwrite`).
//!
//! What: threads overwrite blocks at random places of 32 files that are written in full, on a
//! mapped image (`DaxDevice`), by the ordinary write of the library. `docs/lab.md` says how the
//! figures are taken.
//!
//! | module | what it is |
//! |---|---|
//! | `stored_shape` | sizes, the files and where they lie |
//! | `overwriters` | the threads, and what they write to |
//! | `stored_run` | the experiment, and its figures |
//!
//! Invariants: both targets run the same generator, stores of the same device, on the same blocks
//! of the same image, and end with the same flush. Overwrites leave the image as it was but for
//! data, so one image serves all runs; it is judged after each.

mod overwriters;
mod stored_run;
mod stored_shape;

pub(crate) use stored_run::{obstacle, room, run};
