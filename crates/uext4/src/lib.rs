//! ext4 in user space: the journaled, multi-threaded engine.
//!
//! `ARCHITECTURE.md` is the map of the code. `docs/journal.md`, `docs/locking.md` and
//! `docs/durability.md` have the arguments.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod cache;
pub mod config;
pub mod crypt;
pub mod dir;
pub mod error;
pub mod extent;
pub mod file;
pub mod injected_faults;
pub mod inode;
pub mod invariants;
pub mod journal;
pub mod quota;
pub mod stats;
pub mod sync;
pub mod vfs;
pub mod volume;
pub mod xattr;

pub use alloc::{DiscardStats, FreeRun, PreallocationStats, as_user};
pub use config::MountOptions;
pub use crypt::MasterKey;
pub use dir::DirEntry;
pub use error::{Error, ErrorKind, Result};
pub use file::{
    AllocateMode, DIRECT_ALIGNMENT, DirectDone, DirectFile, DirectOp, DirectOptions, DirectQueue,
    DirectRequest, Trouble, Unlinked, without_access_times,
};
pub use inode::InodeRef;
pub use vfs::{
    Attr, Device, NewInode, OpenFile, Owner, Privs, RenameMode, SetAttr, SetTime, removing_privs,
};
pub use volume::{
    Growth, LastLink, PathEnd, RecoveryReport, Resolved, SYMLINKS_MAX, StatFs, Volume, VolumeStats,
    clear_mmp, growth_blocks, mmp_holder,
};
pub use xattr::Mode as XattrMode;

pub use uext4_device::{IoBuf, IoMemory, SleepHook, on_sleep};
pub use uext4_ondisk::extent::Extent;
pub use uext4_ondisk::verity::Parameters as VerityParameters;
pub use uext4_ondisk::{BlockNo, FileBlock, FileKind, GroupNo, Ino, Timestamp};
