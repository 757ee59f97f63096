//! Filling a new file system with a tree of files, without the engine.
//!
//! How: a [`Tree`] says what there is (`host.rs` reads one from a directory); [`Contents`] has the
//! bytes of its files. All is planned before anything is written: inode numbers in the order of
//! the tree (`number.rs`), directories as they will stand in their blocks (`directory.rs`), places
//! of all blocks in one sweep over the free ones (`sweep.rs`, `place.rs`). Then metadata is
//! written, and threads carry the content from the source to its places (`data.rs`).
//!
//! Invariants: an image depends on the tree, the contents and the options alone; neither on the
//! order in which the source lists names or numbers files, nor on the number of threads.

mod attributes;
mod data;
mod digest;
mod directory;
pub mod faked;
mod fit;
mod holes;
mod host;
mod number;
mod place;
mod sweep;
mod tree;

pub use digest::digest;
pub use fit::{Room, fitted};
pub use holes::DataRanges;
pub use host::HostTree;
pub use tree::{
    Attributes, Body, ContentId, Contents, FileBody, Node, NodeId, Piece, Tree, TreeError, Xattr,
};

use crate::error::Result;
use crate::inodes::LOST_AND_FOUND;

pub(crate) use data::{Carrier, Job};
pub(crate) use sweep::Sweep;

/// The orphan file and the quota of projects.
const OWN_INODES: u32 = 2;

/// What fills a new file system.
#[derive(Clone, Copy)]
pub struct Fill<'a> {
    /// What there is.
    pub tree: &'a Tree,
    /// The bytes of its files.
    pub contents: &'a dyn Contents,
    /// Whether the image is to depend on nothing but what the tree says of content, owners, modes
    /// and times of change: no time is later than that of making, which is that of all others.
    pub is_reproducible: bool,
    /// Threads that carry content; the image does not depend on it.
    pub threads: usize,
    /// Is told, now and then, how many more bytes of content have been written.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Fill<'_> {
    /// Inodes that the tree needs, with those that every file system may have of its own.
    pub(crate) fn inodes(&self) -> Result<u32> {
        let numbering = number::Numbering::new(self.tree, LOST_AND_FOUND, LOST_AND_FOUND)?;
        Ok(numbering.last.get().saturating_add(OWN_INODES))
    }
}

impl std::fmt::Debug for Fill<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fill").field("threads", &self.threads).finish_non_exhaustive()
    }
}
