//! What a run leaves for others to look at: a folder of evidence.
//!
//! | module | what it is |
//! |---|---|
//! | `run_name` | what a run is called, and its files |
//! | `scene` | a run while its load runs: where observers begin and end, what its tools said |
//! | `layout` | how an image lies after a run |
//! | `folder` | the folder: figures and events as they come, and what a run that goes on knows |
//! | `environment` | the machine and the command, for `env.json` |
//! | `noise` | how far apart two runs of the same thing lie |
//! | `summary` | `summary.md`: medians, ratios, how sure they are, how noisy the machine was |
//!
//! Invariants: `raw.jsonl` holds only whole runs, each written at once when it has ended;
//! `runs.jsonl` says how far they reach, so whatever a crash has left behind that is dropped when
//! the run goes on.

mod environment;
mod folder;
mod layout;
mod noise;
mod run_name;
mod scene;
mod summary;

pub use folder::{Evidence, Resumed};
pub(crate) use layout::keep_layout;
pub use run_name::{RunName, TargetRun};
pub(crate) use scene::{Scene, Served};
