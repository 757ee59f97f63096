//! What an inode knows of its Merkle tree (fs-verity).
//!
//! Locking: a leaf for the blocks that are kept.

use crate::sync::{LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use uext4_ondisk::verity::{RawVerityDescriptor, Tree};

/// Verified blocks of a tree that an inode keeps.
const KEPT: usize = 8;

/// What is known of a file's tree.
#[derive(Debug)]
pub(crate) struct VerityInfo {
    pub(crate) descriptor: RawVerityDescriptor,
    pub(crate) tree: Tree,
    /// Blocks that have been verified, by level and number; the last used at the end.
    kept: Mutex<VecDeque<KeptBlock>>,
}

#[derive(Debug)]
struct KeptBlock {
    level: usize,
    number: u64,
    bytes: Arc<[u8]>,
}

impl VerityInfo {
    pub(crate) fn new(descriptor: RawVerityDescriptor, tree: Tree) -> Self {
        Self { descriptor, tree, kept: Mutex::new(LockRank::Leaf, VecDeque::new()) }
    }

    /// A block that has been verified.
    pub(crate) fn find(&self, level: usize, number: u64) -> Option<Arc<[u8]>> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|one| (one.level, one.number) == (level, number))?;
        let found = kept.remove(at)?;
        let bytes = Arc::clone(&found.bytes);
        kept.push_back(found);
        Some(bytes)
    }

    /// Keeps a block that has been verified, in place of the one that was not used for longest.
    pub(crate) fn keep(&self, level: usize, number: u64, bytes: &Arc<[u8]>) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(KeptBlock { level, number, bytes: Arc::clone(bytes) });
    }
}
