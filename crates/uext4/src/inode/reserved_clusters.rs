//! Which clusters of a file have dirty pages over holes (bigalloc).
//!
//! What: space is reserved once for all such pages of a cluster, and given back with the last of
//! them. Where a cluster is one block nothing is kept: each page has its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use uext4_ondisk::{FileBlock, Layout};

/// Pages over holes for which space is reserved, by cluster.
#[derive(Debug)]
pub struct ReservedClusters {
    /// Blocks in a cluster.
    ratio: u32,
    pages: BTreeMap<u32, u32>,
}

impl ReservedClusters {
    pub(super) fn new(layout: &Layout) -> Self {
        Self { ratio: layout.cluster_blocks.max(1), pages: BTreeMap::new() }
    }

    /// How many clusters get their first of `count` pages `at`, which ascend.
    pub(crate) fn more_for(&self, at: impl Iterator<Item = FileBlock>, count: u32) -> u32 {
        if self.ratio == 1 {
            return count;
        }
        let mut more = 0;
        let mut last = None;
        for cluster in at.map(|at| at.get() / self.ratio) {
            more += u32::from(last != Some(cluster) && !self.pages.contains_key(&cluster));
            last = Some(cluster);
        }
        more
    }

    /// Notes pages for which space has been reserved.
    pub(crate) fn add(&mut self, pages: impl Iterator<Item = FileBlock>) {
        if self.ratio > 1 {
            pages.for_each(|at| *self.pages.entry(at.get() / self.ratio).or_insert(0) += 1);
        }
    }

    /// Takes off a page; returns how many blocks or clusters need no space any more: one or none.
    pub(crate) fn remove(&mut self, at: FileBlock) -> u32 {
        if self.ratio == 1 {
            return 1;
        }
        let Entry::Occupied(mut entry) = self.pages.entry(at.get() / self.ratio) else { return 0 };
        *entry.get_mut() -= 1;
        if *entry.get() > 0 {
            return 0;
        }
        entry.remove();
        1
    }
}

/// How many clusters of `ratio` blocks ascending blocks are in.
pub(crate) fn clusters_of(ratio: u32, blocks: impl Iterator<Item = FileBlock>) -> u32 {
    let mut last = None;
    let is_first = |at: FileBlock| last.replace(at.get() / ratio) != Some(at.get() / ratio);
    u32::try_from(blocks.map(is_first).filter(|&first| first).count()).unwrap_or(u32::MAX)
}

/// Bytes of a cluster, which is a block where there are no larger ones.
pub(crate) fn cluster_bytes(layout: &Layout) -> u64 {
    u64::from(layout.block_size) * u64::from(layout.cluster_blocks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(of: &[u32]) -> impl Iterator<Item = FileBlock> + Clone {
        of.iter().map(|&at| FileBlock(at))
    }

    #[test]
    fn a_cluster_counts_from_its_first_page_to_its_last() {
        let mut clusters = ReservedClusters { ratio: 4, pages: BTreeMap::new() };
        assert_eq!(clusters.more_for(blocks(&[1, 3, 4, 9]), 4), 3);
        clusters.add(blocks(&[1, 3, 4, 9]));
        assert_eq!(clusters.more_for(blocks(&[0, 11, 12]), 3), 1);
        let removed = [3, 4, 1, 9].map(|at| clusters.remove(FileBlock(at)));
        assert_eq!(removed, [0, 1, 1, 1]);
        assert!(clusters.pages.is_empty());
        assert_eq!(clusters_of(4, blocks(&[1, 3, 4, 9])), 3);
    }

    #[test]
    fn a_block_is_a_cluster_of_its_own() {
        let mut clusters = ReservedClusters { ratio: 1, pages: BTreeMap::new() };
        assert_eq!(clusters.more_for(blocks(&[1, 2]), 2), 2);
        clusters.add(blocks(&[1, 2]));
        assert_eq!((clusters.remove(FileBlock(1)), clusters.remove(FileBlock(2))), (1, 1));
    }
}
