//! What an inode knows of its Merkle tree (fs-verity).

use uext4_ondisk::verity::{RawVerityDescriptor, Tree};

/// What is known of a file's tree.
#[derive(Debug)]
pub(crate) struct VerityInfo {
    pub(crate) descriptor: RawVerityDescriptor,
    pub(crate) tree: Tree,
    /// Tells its blocks from those of other trees.
    pub(crate) id: u64,
}
