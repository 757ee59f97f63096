//! Blocks of Merkle trees (fs-verity) that have been verified: a few for the whole volume.
//!
//! Memory: at most [`KEPT`] blocks of 4 KiB, however many files have a tree.
//! Locking: a leaf.

use crate::sync::{LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Blocks that are kept.
const KEPT: usize = 64;

/// A block of a tree: [`VerifiedBlocks::new_tree`], its level and the number in that.
pub(super) type TreeBlock = (u64, usize, u64);

/// The blocks that are kept.
#[derive(Debug)]
pub(super) struct VerifiedBlocks(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    next_tree: u64,
    /// The last used at the end.
    blocks: VecDeque<(TreeBlock, Arc<[u8]>)>,
}

impl VerifiedBlocks {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LockRank::Leaf, Kept::default()))
    }

    /// What tells a tree that has been read from all others since the volume was opened, also from
    /// those of earlier files with the same inode number.
    pub(super) fn new_tree(&self) -> u64 {
        let mut kept = self.0.lock();
        kept.next_tree += 1;
        kept.next_tree
    }

    /// A block that has been verified.
    pub(super) fn find(&self, block: TreeBlock) -> Option<Arc<[u8]>> {
        let mut kept = self.0.lock();
        let at = kept.blocks.iter().position(|(one, _)| *one == block)?;
        let found = kept.blocks.remove(at)?;
        let bytes = Arc::clone(&found.1);
        kept.blocks.push_back(found);
        Some(bytes)
    }

    /// Keeps a block that has been verified, in place of the one that was not used for longest.
    pub(super) fn keep(&self, block: TreeBlock, bytes: &Arc<[u8]>) {
        let mut kept = self.0.lock();
        if kept.blocks.len() >= KEPT {
            kept.blocks.pop_front();
        }
        kept.blocks.push_back((block, Arc::clone(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_all_trees_have_one_bound() {
        let verified = VerifiedBlocks::new();
        let trees: Vec<u64> = (0..2 * KEPT).map(|_| verified.new_tree()).collect();
        let bytes: Arc<[u8]> = Arc::from([7; 8]);
        for &tree in &trees {
            verified.keep((tree, 0, 1), &bytes);
            // The first one is used all the time.
            verified.find((trees[0], 0, 1));
        }
        let found: Vec<bool> =
            trees.iter().map(|&tree| verified.find((tree, 0, 1)).is_some()).collect();
        assert_eq!(found.iter().filter(|&&found| found).count(), KEPT);
        assert!(found[0] && !found[1] && found[2 * KEPT - 1]);
        assert!(verified.find((trees[0], 1, 1)).is_none(), "a block of another level");
        assert_eq!(Arc::strong_count(&bytes), KEPT + 1, "a block that is not found is kept");
    }
}
