//! Credits of the steps that handles are made of, as the features of the file system make them.
//!
//! What: a handle asks for one credit for each metadata block that it may dirty. Steps that concern
//! one block alone (an inode's attributes, a directory block) count 1 where they are planned; what
//! a feature changes is here.
//! Kernel counterpart: `ext4_jbd2.h` (`EXT4_QUOTA_TRANS_BLOCKS`, `EXT4_DATA_TRANS_BLOCKS`).

use uext4_ondisk::{Features, RoCompat};

/// Credits of the steps that handles are made of.
#[derive(Clone, Copy, Debug)]
pub struct Credits {
    /// Marking blocks of one group used or freeing them: bitmap, descriptor, usage of the owner.
    pub blocks: u32,
    /// Marking an inode number used or freeing it: the same.
    pub inode_number: u32,
    /// Charging usage to the owners of one inode.
    pub usage: u32,
    /// Adding or removing an orphan: superblock, the inode, its predecessor in the list. An orphan
    /// file may be full, so it changes nothing.
    pub orphan: u32,
}

impl Credits {
    /// The credits on a file system with `features`.
    #[must_use]
    pub fn new(features: &Features) -> Self {
        // A block of the usage file of the user, of the group and of the project.
        let usage = if features.ro_compat.contains(RoCompat::QUOTA) { 3 } else { 0 };
        Self { blocks: 2 + usage, inode_number: 2 + usage, usage, orphan: 3 }
    }

    /// Worst case of one edit of an extent tree, the inode included, for a tree of any depth up to
    /// `depth` plus one.
    #[must_use]
    pub fn edit(&self, depth: u32) -> u32 {
        let node = 1 + self.blocks;
        // Nodes on the path; new nodes; freed nodes; the inode.
        (depth + 1) + node * (depth + 2) + node * depth + 1
    }

    /// Worst case of one edit of a block map, the inode included: three indirect blocks change, are
    /// added or are freed.
    #[must_use]
    pub fn map_edit(&self) -> u32 {
        3 * (2 + self.blocks) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_ondisk::{Compat, Incompat};

    #[test]
    fn features_change_the_credits_of_steps() {
        let of = |ro_compat| {
            let (compat, incompat) = (Compat::empty(), Incompat::empty());
            Credits::new(&Features { compat, incompat, ro_compat })
        };
        let plain = of(RoCompat::empty());
        assert_eq!(plain.map_edit(), 13);
        assert_eq!((plain.blocks, plain.inode_number, plain.edit(0), plain.edit(2)), (2, 2, 8, 22));
        let quota = of(RoCompat::QUOTA);
        assert_eq!(
            (quota.blocks, quota.inode_number, quota.edit(0), quota.edit(2)),
            (5, 5, 14, 40)
        );
    }
}
