//! Directories: from names to inodes, in plain blocks and in hash trees.
//!
//! What: [`lookup`] finds a name, [`Insertion`] adds one, [`FoundEntry::remove`] and
//! [`FoundEntry::set_ino`] change one, [`read`] lists a directory from a cursor, [`init`] creates
//! the first block of a new one. The caller updates times, link counts and change counters of the
//! inodes.
//! On disk: blocks of records. With the dir_index feature a directory that outgrows its first block
//! becomes a hash tree, and that block becomes its root (directory.rst).
//! Invariants: a directory never shrinks and its blocks never move, so a buffer found under the
//! directory's lock stays the buffer of its block. A name in a hash tree is in the leaf whose range
//! has its hash. Names whose hash is the upper bound of a leaf may continue in the next leaf.
//! Locking: the caller holds the directory's lock (rank `Directory`): shared to look up and to
//! read, exclusive from the plan of a change to its end. No buffer is locked while a visitor runs.
//! Kernel counterpart: `fs/ext4/namei.c`, `fs/ext4/dir.c`.

mod empty_tree;
mod hash_path;
mod inline;
mod insert;
mod leaf;
mod listing;
mod lookup;
mod names;
mod read_ahead;
mod strays;
mod view;
mod wanted;

pub(crate) use empty_tree::EmptyTree;
pub use insert::Insertion;
pub(crate) use insert::leave_inode;
pub use listing::{DirEntry, read};
pub use lookup::{FoundEntry, init, init_credits, is_empty, is_respelling, lookup, parent_entry};
pub(crate) use read_ahead::{LISTED_BYTES, read_ahead};

#[cfg(test)]
mod tests;
