//! Makes ext4 file systems: exactly what mke2fs 1.47 makes with `-t ext4`, without e2fsprogs.
//!
//! What: [`format()`] lays a file system out in memory (`geometry`, `tables`, `inodes`) and
//! writes it to a device (`output`). With the same UUID, hash seed and time the image is the
//! same byte for byte, and the same as mke2fs's but for the count of bytes written
//! (`s_kbytes_written`).
//!
//! Invariants: the superblock is written last, after a flush; a device that fails half-way, or a
//! crash, leaves no file system that looks whole. Blocks that the device is known to hold as
//! zeros are never written as zeros, so that sparse files stay sparse.
//!
//! Kernel counterpart: none; e2fsprogs `misc/mke2fs.c`, `lib/ext2fs/{initialize,alloc_tables}.c`.

#![forbid(unsafe_code)]

mod error;
mod format;
mod geometry;
mod inodes;
mod journal;
mod options;
mod output;
mod space;
mod tables;

pub use error::{MkfsError, Result};
pub use format::{Report, format};
pub use options::{Options, Usage};
