//! Creates ext4 file systems: exactly those of mke2fs 1.47 with `-t ext4`, without e2fsprogs.
//!
//! What: [`format()`] lays a file system out in memory (`geometry`, `tables`, `inodes`) and writes
//! it to a device (`output`). With the same UUID, hash seed and time the image is the same byte for
//! byte. It is also the same as the image of mke2fs, except for the count of bytes written
//! (`s_kbytes_written`).
//!
//! Invariants: the superblock is written last, after a flush. If the device fails half-way, or
//! after a crash, no file system that looks complete is left. Zeros are not written to blocks that
//! are known to be zero, so that sparse files stay sparse.
//!
//! Kernel counterpart: none; e2fsprogs `misc/mke2fs.c`, `lib/ext2fs/{initialize,alloc_tables}.c`.

#![forbid(unsafe_code)]

mod block_map;
mod defaults;
mod error;
mod format;
mod geometry;
mod growth;
mod identity;
mod inodes;
mod journal;
mod journal_device;
mod options;
mod output;
mod plan;
pub mod populate;
mod profile;
mod quota;
mod space;
mod tables;

pub use defaults::{Errors, FsType, HashAlgorithm, Length};
pub use error::{MkfsError, Result};
pub use format::{Report, format, format_filled, format_with_journal};
pub use growth::NewGroups;
pub use identity::Identity;
pub use journal_device::JournalDevice;
pub use options::Options;
pub use profile::Profile;
