//! ext4 in user space: the journaled, multi-threaded engine.
//!
//! `ARCHITECTURE.md` has the map; `docs/journal.md`, `docs/locking.md` and `docs/durability.md`
//! the reasons.

#![forbid(unsafe_code)]

pub mod alloc;
pub mod cache;
pub mod config;
pub mod dir;
pub mod error;
pub mod extent;
pub mod inode;
pub mod journal;
pub mod sync;
pub mod xattr;

pub use config::MountOptions;
pub use error::{Error, ErrorKind, Result};
