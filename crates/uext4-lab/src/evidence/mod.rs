//! What a run leaves for others to look at: a folder of evidence.
//!
//! | module | what it is |
//! |---|---|
//! | `run_name` | what a run is called, and its files |
//! | `scene` | a run while its load runs: where observers begin and end, what its tools said |
//! | `layout` | how an image lies after a run |
//! | `folder` | the folder: figures and events as they come |
//! | `line_file` | a file of lines that is appended to |
//! | `json_file` | a file of one value |
//! | `taken_up` | what a run that goes on knows of the one before it |
//! | `environment` | the machine and the command, for `env.json` |
//! | `identity` | whether a run that goes on is on the same build and machine |
//! | `plan_difference` | what a run that goes on was asked for otherwise |
//! | `noise` | how far apart two runs of the same thing lie |
//! | `summary` | `summary.md`: medians, ratios, how sure they are, how noisy the machine was |
//!
//! Invariants: a folder has one writer. `raw.jsonl` holds only whole runs, each written at once
//! when it has ended and durable before `runs.jsonl` says how far they reach, so whatever a crash
//! has left behind that is dropped when the run goes on; so are figures over all rounds, which
//! stand at the end and which each run that goes on forms anew.

mod environment;
mod folder;
mod identity;
mod json_file;
mod layout;
mod line_file;
mod noise;
mod plan_difference;
mod run_name;
mod scene;
mod summary;
mod taken_up;

pub(crate) use environment::hash_of;
pub use folder::Evidence;
pub(crate) use layout::keep_layout;
pub use run_name::{RunName, TargetRun};
pub(crate) use scene::{Scene, Served};
pub use taken_up::Resumed;
