//! Which clusters of a file have dirty pages over holes (bigalloc).
//!
//! What: space is reserved once for all such pages of a cluster, and only if the file does not have
//! the cluster. Where a cluster is one block nothing is kept: each page has its own.
//! Invariants: a cluster with such pages has space reserved, or blocks of the file. Whatever takes
//! the last of those blocks discards the pages with them, or has written them back before
//! (`Truncation::write_back_beside`). That a page's cluster has no blocks may be out of date when
//! it is noted; that it has some may not, because what removes them holds the file exclusively.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use uext4_ondisk::{FileBlock, Layout};

/// Pages over holes, by cluster; nothing where a cluster is one block.
#[derive(Debug)]
pub struct ReservedClusters(Option<Box<ByCluster>>);

#[derive(Debug)]
struct ByCluster {
    /// Blocks in a cluster.
    ratio: u32,
    of: BTreeMap<u32, Cluster>,
}

#[derive(Debug)]
struct Cluster {
    pages: u32,
    is_reserved: bool,
}

/// A page over a hole that is about to become dirty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HolePage {
    pub(crate) at: FileBlock,
    /// The file has blocks in its cluster.
    pub(crate) has_cluster: bool,
}

impl ReservedClusters {
    pub(super) fn new(layout: &Layout) -> Self {
        Self::with(layout.cluster_blocks)
    }

    fn with(ratio: u32) -> Self {
        Self((ratio > 1).then(|| Box::new(ByCluster { ratio, of: BTreeMap::new() })))
    }

    /// For how many clusters space has to be reserved before `count` pages, which ascend.
    pub(crate) fn more_for(&self, pages: impl Iterator<Item = HolePage>, count: u32) -> u32 {
        let Some(by) = &self.0 else { return count };
        let mut more = 0;
        let mut last = None;
        for page in pages.filter(|page| !page.has_cluster) {
            let cluster = page.at.get() / by.ratio;
            more += u32::from(last != Some(cluster) && !by.of.contains_key(&cluster));
            last = Some(cluster);
        }
        more
    }

    /// Notes pages for which space has been reserved.
    pub(crate) fn add(&mut self, pages: impl Iterator<Item = HolePage>) {
        let Some(by) = &mut self.0 else { return };
        for page in pages {
            let new = Cluster { pages: 0, is_reserved: !page.has_cluster };
            by.of.entry(page.at.get() / by.ratio).or_insert(new).pages += 1;
        }
    }

    /// Takes off a page, which is `written` or gone; returns how many blocks or clusters need no
    /// space any more: one or none.
    pub(crate) fn remove(&mut self, at: FileBlock, written: bool) -> u32 {
        let Some(by) = &mut self.0 else { return 1 };
        let Entry::Occupied(mut entry) = by.of.entry(at.get() / by.ratio) else { return 0 };
        let cluster = entry.get_mut();
        cluster.pages -= 1;
        let is_last = cluster.pages == 0;
        let ends = cluster.is_reserved && (written || is_last);
        cluster.is_reserved &= !ends;
        if is_last {
            entry.remove();
        }
        u32::from(ends)
    }

    /// Whether there are pages in the clusters that blocks `first .. end` share with others.
    pub(crate) fn are_beside(&self, first: FileBlock, end: FileBlock) -> bool {
        let Some(by) = &self.0 else { return false };
        let is_shared = |at: FileBlock| !at.get().is_multiple_of(by.ratio);
        let has_pages = |at: FileBlock| by.of.contains_key(&(at.get() / by.ratio));
        [first, end].into_iter().any(|at| is_shared(at) && has_pages(at))
    }
}

/// Bytes of a cluster, which is a block where there are no larger ones.
pub(crate) fn cluster_bytes(layout: &Layout) -> u64 {
    u64::from(layout.block_size) * u64::from(layout.cluster_blocks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(at: &[u32], has_cluster: bool) -> impl Iterator<Item = HolePage> + Clone {
        at.iter().map(move |&at| HolePage { at: FileBlock(at), has_cluster })
    }

    fn of_four() -> ReservedClusters {
        ReservedClusters::with(4)
    }

    fn is_empty(clusters: &ReservedClusters) -> bool {
        clusters.0.as_ref().is_none_or(|by| by.of.is_empty())
    }

    #[test]
    fn a_cluster_counts_from_its_first_page_to_its_last() {
        let mut clusters = of_four();
        assert_eq!(clusters.more_for(pages(&[1, 3, 4, 9], false), 4), 3);
        clusters.add(pages(&[1, 3, 4, 9], false));
        assert_eq!(clusters.more_for(pages(&[0, 11, 12], false), 3), 1);
        let removed = [3, 4, 1, 9].map(|at| clusters.remove(FileBlock(at), false));
        assert_eq!(removed, [0, 1, 1, 1]);
        assert!(is_empty(&clusters));
    }

    #[test]
    fn a_cluster_that_the_file_has_counts_no_more() {
        let mut clusters = of_four();
        clusters.add(pages(&[1, 2, 3], false));
        assert_eq!(clusters.remove(FileBlock(2), true), 1);
        assert_eq!(clusters.more_for(pages(&[0], true), 1), 0);
        clusters.add(pages(&[0, 5], true));
        let removed = [1, 0, 3, 5].map(|at| clusters.remove(FileBlock(at), at == 1));
        assert_eq!(removed, [0; 4]);
        assert!(is_empty(&clusters));
    }

    #[test]
    fn pages_beside_a_range_are_those_of_its_first_and_last_cluster() {
        let mut clusters = of_four();
        clusters.add(pages(&[5], true));
        let are_beside = |first, end| clusters.are_beside(FileBlock(first), FileBlock(end));
        assert!(are_beside(6, 12) && are_beside(0, 5));
        assert!(!are_beside(0, 4) && !are_beside(8, 12) && !are_beside(4, 8));
    }

    #[test]
    fn a_block_is_a_cluster_of_its_own() {
        let mut clusters = ReservedClusters::with(1);
        assert_eq!(clusters.more_for(pages(&[1, 2], false), 2), 2);
        clusters.add(pages(&[1, 2], false));
        assert_eq!(clusters.remove(FileBlock(1), true) + clusters.remove(FileBlock(2), false), 2);
    }
}
