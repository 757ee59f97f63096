//! Directories: from names to inodes, in plain blocks and in hash trees.
//!
//! What: [`lookup`] finds a name, [`Insertion`] adds one, [`Entry::remove`] and [`Entry::set_ino`]
//! change one, [`read`] lists a directory from a cursor, [`init`] makes the first block of a new
//! one. Times, link counts and the change counter of the inodes concerned are the caller's.
//! On disk: blocks of records; with the dir_index feature a directory that outgrows its first block
//! becomes a hash tree, whose root takes that block's place (directory.rst).
//! Invariants: a directory never shrinks and its blocks never move, so a buffer found under the
//! directory's lock stays its block's buffer. Names of a hash tree stand in the leaf that covers
//! their hash; names whose hash is a leaf's upper bound may continue in the next.
//! Locking: the caller holds the directory's lock (rank `Directory`): shared to look up and to
//! read, exclusive from the plan of a change to its end. No buffer stays locked while a visitor
//! runs.
//! Kernel counterpart: `fs/ext4/namei.c`, `fs/ext4/dir.c`.

mod insert;
mod leaf;
mod lookup;
mod path;
mod read;
mod view;

pub use insert::Insertion;
pub use lookup::{Entry, init, init_credits, is_empty, lookup, parent_entry};
pub use read::{DirEntry, read};

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
