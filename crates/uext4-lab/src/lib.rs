//! The lab: loads that show how fast uext4 is, beside its peers on the same machine.
//!
//! What: a [`Load`] is an experiment or something a user does all day; a [`Target`] is what it is
//! done on: the library in this process, a uext4 mount, the kernel's ext4 on a loop device,
//! fuse2fs, no file system. [`run`] runs the targets one after the other, in rounds, and hands each
//! figure to its caller as a [`Measurement`].
//!
//! Invariants:
//! - All targets start from the same bytes and do the same operations; the clock stops when the
//!   result is on the image (unmounted, daemon ended, image synced), for every target.
//! - After each run the image is checked by e2fsck, where that is installed, and by uext4-fsck,
//!   and read back; a figure from an image that is not clean, or does not hold what the load put
//!   there, is never handed out.
//! - A peer that the machine cannot run is named with the reason.
//! - Whatever was mounted, attached or written is gone when the run ends, in success and failure.

#![forbid(unsafe_code)]

mod append;
mod archive;
mod bench;
mod block_device;
mod build;
mod cells;
mod check;
mod clock;
mod command;
mod compare;
mod counted;
mod directory;
mod disk;
mod error;
mod evidence;
pub mod explain;
mod fio;
mod fio_timelines;
pub mod guard;
mod jbd2_info;
mod jobs;
mod laps;
mod leftovers;
mod library;
mod load;
mod loads;
mod machine;
mod matrix;
mod mkfs_option;
mod mount;
mod mount_table;
mod mounted;
mod named_once;
mod plan;
mod queued;
mod record;
mod report;
#[cfg(feature = "peer-rust-fs-ext4")]
mod rust_fs_ext4;
mod slow_file;
mod stage;
mod stored;
mod storm;
mod target;
mod tree;
mod tree_explained;
mod tree_loads;
mod unused;
pub mod worker;

pub use append::Ageing;
pub use cells::Cell;
pub use compare::{Comparing, Comparison, Run, Verdict};
pub use counted::counted;
pub use error::{Error, Result};
pub use evidence::{Evidence, Resumed, RunName, TargetRun};
pub use jobs::{FIO_TARGETS, FioJob};
pub use load::{Form, Load};
pub use loads::LOADS;
pub use machine::describe as describe_machine;
pub use mkfs_option::{MkfsOptions, try_kernel_options};
pub use plan::{Event, Plan, run};
pub use report::{Measurement, Summary};
pub use stage::{Route, Store};
pub use target::{Target, distinct_variants, parse_options};
