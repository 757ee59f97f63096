//! The load that queues: E4 (`aio-dio`).
//!
//! What: one thread keeps 64 direct requests in flight at random places of a file that is written
//! in full: overwrites, and reads. `docs/lab.md` says how the figures are taken.
//!
//! | module | what it is |
//! |---|---|
//! | `queued_shape` | sizes, the file and what its blocks hold |
//! | `ring` | what requests go to: a device, a file of the library |
//! | `submitter` | the thread |
//! | `queued_fio` | the same load by fio(1) with libaio |
//! | `queued_run` | the experiment, and its figures |
//!
//! Invariants: every target but libaio runs the same generator over the same kind of ring, and all
//! of them use the same blocks of the same image: no file system takes part on the raw target, but
//! its requests go where the file's blocks are. Overwrites leave the image as it was but for data,
//! so one image serves all runs; it is judged after each.

mod queued_fio;
mod queued_run;
mod queued_shape;
mod ring;
mod submitter;

pub(crate) use queued_run::{room, run};
