//! Blocks that hold the file system's own metadata and can never belong to a file.
//!
//! What: superblocks, group descriptors and their reserve, bitmaps, inode tables and the journal,
//! as sorted, merged runs. A corrupt extent that points there is caught before anything is written
//! through it.
//! Invariants: no block has two uses. An image in which one has is not opened, as in the kernel,
//! because a bitmap inside an inode table would change with the inodes.
//! Kernel counterpart: `fs/ext4/block_validity.c`.

use crate::error::Result;
use uext4_ondisk::{BlockNo, CorruptKind, GroupNo, Layout, Place, RawGroupDesc};

#[derive(Debug)]
pub(super) struct SystemZone {
    /// Disjoint, ascending (first block, one past the last).
    runs: Box<[(u64, u64)]>,
}

impl SystemZone {
    pub(super) fn new(
        layout: &Layout,
        groups: &[RawGroupDesc],
        journal_runs: &[(BlockNo, u32)],
    ) -> Result<Self> {
        let table_blocks = u64::from(layout.inode_table_blocks());
        let mut runs = vec![(0, layout.first_data_block.get())];
        for (group, desc) in (0..).map(GroupNo).zip(groups) {
            let first = layout.group_first_block(group).get();
            runs.push((first, first + u64::from(layout.base_meta_blocks(group))));
            runs.push((desc.block_bitmap().get(), desc.block_bitmap().get() + 1));
            runs.push((desc.inode_bitmap().get(), desc.inode_bitmap().get() + 1));
            runs.push((desc.inode_table().get(), desc.inode_table().get() + table_blocks));
        }
        runs.extend(
            journal_runs.iter().map(|&(start, len)| (start.get(), start.get() + u64::from(len))),
        );
        // A group without a copy of the superblock has no metadata at its start.
        runs.retain(|(start, end)| start < end);
        runs.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in runs {
            match merged.last_mut() {
                Some(last) if start < last.1 => {
                    let why = "lies in two structures of the file system";
                    let kind = CorruptKind::Rule { what: "metadata", why };
                    return Err(kind.at(Place::Block(BlockNo(start))).into());
                }
                Some(last) if start == last.1 => last.1 = end,
                _ => merged.push((start, end)),
            }
        }
        if layout.has_clusters() {
            merged = in_clusters(layout, &merged);
        }
        Ok(Self { runs: merged.into() })
    }

    pub(super) fn overlaps(&self, start: BlockNo, len: u64) -> bool {
        let end = start.get().saturating_add(len);
        let after = self.runs.partition_point(|&(first, _)| first < end);
        after.checked_sub(1).is_some_and(|i| self.runs[i].1 > start.get())
    }
}

/// The runs widened to whole clusters: what shares a cluster with metadata cannot be a file's.
fn in_clusters(layout: &Layout, runs: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let ratio = u64::from(layout.cluster_blocks);
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
    for &(start, end) in runs {
        let (start, end) = (start - start % ratio, end.next_multiple_of(ratio));
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_overlap_if_they_have_a_common_block() {
        let zone = SystemZone { runs: [(0, 10), (20, 21), (30, 40)].into() };
        let check = |start, len| zone.overlaps(BlockNo(start), len);
        assert!(check(9, 1) && check(5, 100) && check(15, 6) && check(39, 1) && check(35, 1));
        assert!(!check(10, 10) && !check(21, 9) && !check(40, 1000) && !check(15, 5));
    }
}
