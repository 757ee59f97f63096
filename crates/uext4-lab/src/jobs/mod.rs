//! Job files of the user's own, by real fio on every target.
//!
//! | module | what it is |
//! |---|---|
//! | `job_line` | a line of a job file, as fio reads it |
//! | `job_rules` | what may not stand in one |
//! | `job_file` | a job file, changed for a target |
//! | `job_figures` | what fio's JSON says |
//! | `job_run` | runs of it |

mod job_figures;
mod job_file;
mod job_line;
mod job_rules;
mod job_run;

pub use job_run::{FIO_TARGETS, FioJob};
