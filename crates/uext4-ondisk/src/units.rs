//! Newtypes for the units of the format: a block number cannot be passed where a group number is
//! meant.
//!
//! Widths are those of the format: physical blocks are 48 bits in extents and 64 bits elsewhere,
//! logical blocks of a file, inodes, groups and transaction ids are 32 bits.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            /// The bare number.
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

unit!(
    /// Physical block on the device, in file-system blocks from its start.
    BlockNo(u64)
);
unit!(
    /// Logical block of a file, in file-system blocks from its start.
    FileBlock(u32)
);
unit!(
    /// Inode number; the first inode is 1, there is no inode 0.
    Ino(u32)
);
unit!(
    /// Block group number, from 0.
    GroupNo(u32)
);
unit!(
    /// Transaction id of the journal. Wraps around: compare with [`Tid::is_after`].
    Tid(u32)
);

impl BlockNo {
    /// The block `n` blocks after this one. Saturates, so that a hostile sum stays out of range.
    #[must_use]
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0.saturating_add(n))
    }
}

impl FileBlock {
    /// One past the last block a file can have.
    pub const END: Self = Self(u32::MAX);

    /// The block `n` blocks after this one, at most [`FileBlock::END`].
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.saturating_add(n))
    }
}

impl Ino {
    /// Inode of the root directory.
    pub const ROOT: Self = Self(2);
    /// Inode of the quota file of users.
    pub const USER_QUOTA: Self = Self(3);
    /// Inode of the quota file of groups.
    pub const GROUP_QUOTA: Self = Self(4);
    /// Inode that keeps blocks back for group descriptors (resize_inode).
    pub const RESIZE: Self = Self(7);
    /// Inode of the internal journal.
    pub const JOURNAL: Self = Self(8);
}

impl Tid {
    /// The id that follows this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether this id comes after `other`, with wrap-around (the journal never holds half the
    /// number space).
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_ids_compare_across_the_wrap() {
        assert!(Tid(1).is_after(Tid(u32::MAX)));
        assert!(!Tid(u32::MAX).is_after(Tid(1)));
        assert!(!Tid(7).is_after(Tid(7)));
    }
}
