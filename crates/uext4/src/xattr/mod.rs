//! Extended attributes, in the inode and in a block beside it.
//!
//! What: [`get`] and [`list`] read, [`Change`] sets and removes, [`Release`] gives the block of an
//! inode that is deleted back. Names are full names (`user.x`); access control lists go in and
//! out in the form of xattr(7). Who may do what is the caller's: the owner of the file for
//! `user.`, the administrator for `trusted.`.
//! On disk: entries and values of one inode stand behind its extra fields and, when they do not
//! fit there, in one block, which several inodes may share (attributes.rst).
//! Invariants: a name stands in one of the two places. A shared block never changes but in its
//! reference count: a change writes a block of its own. Blocks are never shared by uext4, so a
//! count only falls, and a block with one reference stays with its inode.
//! Locking: a change is planned and applied under the caller's lock of the inode's content, held
//! exclusively; the attribute lock (rank `Xattr`) keeps readers from half a change. While there is
//! a plan the extra fields of the inode keep their length (`Inode::hold_fields`): another change of
//! the inode would lengthen short ones.
//! Kernel counterpart: `fs/ext4/xattr.c`, `fs/ext4/acl.c`.

mod change;
mod read;
mod stored;

pub use change::{Change, Edit, Mode, Release};
pub use read::{get, list};
pub use uext4_ondisk::acl;

/// Largest value, in bytes (xattr(7)).
pub const VALUE_MAX: usize = 65_536;
/// Longest full name, in bytes (xattr(7)).
pub const NAME_MAX: usize = 255;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
