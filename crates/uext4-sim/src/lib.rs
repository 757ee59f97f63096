//! Test kit of uext4: generated loads, recorded runs, crash states.
//!
//! | module | what it is |
//! |---|---|
//! | [`category`] | mixes of operations |
//! | [`format`](mod@format) | forms of the file system that loads run on |
//! | [`operation`], [`generator`] | what a load does, and a seeded source of it |
//! | [`namespace`], [`content`], [`model`] | what must and may be found after a crash |
//! | [`target`] | a load on a volume in this process or on a mounted one |
//! | [`run`], [`crash`], [`broken_syncs`] | recorded runs, crash states, syncs that do nothing |
//! | [`growth`] | growths of a file system, cut by a loss of power |
//! | [`fsx`] | random operations on the bytes of one file, every read compared |
//! | [`bit_flips`] | damaged metadata that must not be believed |
//! | [`reference`] | a file system in memory to compare with |
//! | [`linear`] | linearizability of names |
//! | [`load`], [`kill9`], [`freeze`] | loads on mounted volumes, and what is done to them |
//! | [`tree`] | directory trees: made, changed, compared |
//! | [`mount`], [`daemon_mount`] | mounts by uext4 and by the kernel, taken away at the end |
//! | [`programs`] | programs that people run, on a mount |
//! | [`soak`] | mounts under load for long |
//! | [`remote`], [`nbd_file`] | the same on network block devices, whose servers are killed |
//! | [`shape`], [`anatomy`], [`structure_damage`] | small images, taken apart and damaged |
//! | [`fsck_diff`] | the checker's verdict on them beside e2fsck's |
//! | [`hostile`] | every verb of the command on such images, and on damaged archives |
//! | [`feature_mix`] | combinations of the format's features, each written and read back |
//! | [`view`], [`oracle`] | what a volume shows, and what e2fsck says of it |
//! | `simulate` | the whole engine from one seed (feature of that name) |
//! | [`watchdog`] | ends a test whose threads wait for ever |

#![forbid(unsafe_code)]

pub mod anatomy;
pub mod bit_flips;
pub mod broken_syncs;
pub mod category;
pub mod content;
pub mod crash;
pub mod daemon_mount;
pub mod encrypted;
pub mod external;
pub mod feature_mix;
pub mod folded;
pub mod format;
pub mod freeze;
pub mod fsck_diff;
pub mod fsx;
pub mod generator;
pub mod growth;
mod host_target;
pub mod hostile;
pub mod kill9;
pub mod linear;
pub mod load;
pub mod model;
pub mod mount;
pub mod namespace;
pub mod nbd_file;
pub mod operation;
pub mod oracle;
mod overlaid;
pub mod programs;
pub mod reference;
pub mod remote;
pub mod run;
pub mod shape;
#[cfg(feature = "simulate")]
pub mod simulate;
pub mod soak;
pub mod structure_damage;
pub mod target;
pub mod tree;
pub mod view;
mod volume_target;
pub mod watchdog;

pub use host_target::HostTarget;
pub use volume_target::{Excuse, VolumeTarget, set_up};
