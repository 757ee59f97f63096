//! ext4 and jbd2 on-disk format: raw types, checksums, features, journal replay planning.
//!
//! What: this crate is about bytes only. It performs no I/O, takes no lock and has no cache. Every
//! structure has a reader and a writer, so the engine, mkfs, fsck and the tests share one
//! description of the format.
//!
//! On disk: the names of `Raw*` types and their fields are those of the kernel's format
//! documentation (Documentation/filesystems/ext4); `tests/offsets.txt` lists the offset of every
//! field.
//!
//! Invariants: no function panics, overflows, loops or allocates without bound on any input; a
//! structure that fails validation is reported as [`CorruptKind`], never repaired silently.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod num;
#[macro_use]
mod raw;

pub mod acl;
pub mod bitmap;
pub mod block_map;
pub mod casefold;
pub mod checksum;
pub mod dir_entry;
pub mod encryption;
pub mod error;
pub mod extent;
pub mod features;
pub mod file_kind;
pub mod group_desc;
pub mod hash;
pub mod htree;
pub mod inline_data;
pub mod inode;
pub mod journal;
pub mod layout;
pub mod mmp;
pub mod orphan;
pub mod quota;
pub mod superblock;
pub mod timestamp;
pub mod units;
pub mod verity;
pub mod xattr;

pub use checksum::{ChecksumKind, Checksums};
pub use error::{Corrupt, CorruptKind, FormatError, Place};
pub use features::{Compat, Features, Incompat, RoCompat, Support, uuid_text};
pub use file_kind::{FileKind, InodeFlags};
pub use group_desc::{GroupFlags, RawGroupDesc};
pub use inode::RawInode;
pub use layout::Layout;
pub use mmp::RawMmp;
pub use superblock::RawSuperblock;
pub use timestamp::Timestamp;
pub use units::{BlockNo, FileBlock, GroupNo, Ino, Tid};
