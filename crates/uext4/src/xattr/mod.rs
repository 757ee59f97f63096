//! Extended attributes, in the inode and in a block beside it.
//!
//! What: [`get`] and [`list`] read attributes. [`AttributeChange`] sets and removes them, and frees
//! the block of a deleted inode. Names are full names (`user.x`). Access control lists have the
//! form of xattr(7). The caller checks permissions: the owner of the file may use `user.`, the
//! administrator `trusted.`.
//! On disk: entries and values are behind the extra fields of the inode. Those that do not fit
//! there are in one block, which several inodes may share (attributes.rst). With ea_inode a large
//! value is in an inode of its own.
//! Invariants: a name is in one of the two places. Of a shared block only the reference count
//! changes; any other change writes a new block. uext4 never shares blocks, so a count only falls,
//! and a block with one reference stays with its inode. Values in inodes are shared, and their
//! counts of references change in the handle that changes the entries.
//! Locking: a change is planned and applied under the caller's lock of the inode's content, held
//! exclusively. Under the attribute lock (rank `Xattr`) readers see no partial change. While there
//! is a plan the extra fields of the inode keep their length (`Inode::hold_fields`), because
//! another change of the inode would lengthen short ones.
//! Kernel counterpart: `fs/ext4/xattr.c`, `fs/ext4/acl.c`.

mod block_change;
mod change;
mod read;
mod stored;
mod value_counts;
mod value_inode;
mod value_store;

pub use change::{AttributeChange, AttributeEdit, Mode, Release};
pub use read::{get, list};
pub use uext4_ondisk::acl;
pub(crate) use value_counts::count_values;

/// Largest value, in bytes (xattr(7)).
pub const VALUE_MAX: usize = 65_536;
/// Longest full name, in bytes (xattr(7)).
pub const NAME_MAX: usize = 255;

#[cfg(test)]
mod tests;
