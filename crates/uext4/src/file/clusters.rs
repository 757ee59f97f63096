//! Places in clusters (bigalloc).
//!
//! What: the allocator gives clusters, and a file uses their blocks one by one. A hole is filled
//! from the cluster of its neighbours, if the file has one there, and else from new clusters. So
//! all blocks of a file that share a cluster in the file share one on the device, in the same
//! order. A cluster is freed with the last block that the file has in it (`removal.rs`).
//! Invariants: nothing but the extents says which clusters a file has, so a crash leaves nothing to
//! be found again. A block of a cluster is mapped at its own place in the cluster. The handle that
//! maps the first block of a cluster marks the cluster used and counts it (`i_blocks`).
//! Locking: the caller holds the lock under which the tree changes, and no handle.
//! Kernel counterpart: `get_implied_cluster_alloc` in `fs/ext4/extents.c`.

use super::placement::{HoleNeed, Placement};
use super::writeback::PendingBlocks;
use crate::alloc::Allocation;
use crate::error::Result;
use crate::extent::{Spot, first_mapped};
use crate::inode::Inode;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, FileBlock};

/// Where blocks of a hole go.
pub(super) struct ClusterPlace {
    pub(super) start: BlockNo,
    pub(super) len: u32,
    /// New clusters; `None` where the file has the cluster already.
    pub(super) clusters: Option<Allocation>,
}

impl ClusterPlace {
    /// What a mapping of the place is made of.
    pub(super) fn into_blocks(self) -> PendingBlocks {
        PendingBlocks::InClusters { start: self.start, clusters: self.clusters }
    }
}

/// Which clusters of a file have blocks of it, asked in the order of the file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnClusters {
    /// The last one asked for, and the answer.
    last: Option<(u32, bool)>,
}

impl OwnClusters {
    /// Whether the file has blocks in the cluster of `at`. No where a cluster is one block.
    ///
    /// # Errors
    /// Those of [`first_mapped`].
    pub(super) fn has(&mut self, inode: &Inode, at: FileBlock) -> Result<bool> {
        let layout = inode.space().layout();
        if !layout.has_clusters() {
            return Ok(false);
        }
        let first = at.get() - layout.index_in_cluster(at.get().into());
        if let Some((_, has_blocks)) = self.last.filter(|(of, _)| *of == first) {
            return Ok(has_blocks);
        }
        let first = FileBlock(first);
        let has_blocks = first_mapped(inode, first, first.plus(layout.cluster_blocks))?.is_some();
        self.last = Some((first.get(), has_blocks));
        Ok(has_blocks)
    }

    /// How many clusters of blocks `from .. end` the file does not have, or blocks. One that it was
    /// asked for just before is not counted again.
    ///
    /// # Errors
    /// Those of [`first_mapped`].
    pub(super) fn missing(
        &mut self,
        inode: &Inode,
        from: FileBlock,
        end: FileBlock,
    ) -> Result<u32> {
        let layout = inode.space().layout();
        if !layout.has_clusters() {
            return Ok(end.get() - from.get());
        }
        let (mut at, mut missing) = (from, 0);
        while at < end {
            let index = layout.index_in_cluster(at.get().into());
            let is_known = self.last.is_some_and(|(of, _)| of == at.get() - index);
            missing += u32::from(!is_known && !self.has(inode, at)?);
            at = at.plus(layout.cluster_blocks - index);
        }
        Ok(missing)
    }
}

impl Placement {
    /// Finds places for the first blocks of the hole at `spot`. `need.placed` is the mapping before
    /// the hole that is not in the tree yet.
    pub(super) fn allocate_in_clusters(
        &self,
        inode: &Inode,
        spot: &Spot,
        need: &HoleNeed,
    ) -> Result<ClusterPlace> {
        let layout = self.space().layout();
        let ratio = layout.cluster_blocks;
        let (at, hole_end) = (spot.mapping.first, spot.mapping.end());
        let index = layout.index_in_cluster(at.get().into());
        let end = at.get().saturating_add(need.want).min(hole_end.get());
        if let Some(start) = self.place_by_neighbours(inode, at, need.placed)? {
            let len = (ratio - index).min(end - at.get());
            return Ok(ClusterPlace { start, len, clusters: None });
        }
        let end = self.end_of_new(inode, at, FileBlock(end), hole_end)?;
        let goal = self.goal_of_hole(inode, spot, need);
        let wanted = layout.bits_for(index + (end.get() - at.get()));
        let clusters = match need.reserved {
            true => self.space().allocate_reserved(goal, wanted)?,
            false => self.space().allocate(goal, wanted)?,
        };
        let start = clusters.start().plus(index.into());
        let len = (clusters.len() * ratio - index).min(end.get() - at.get());
        Ok(ClusterPlace { start, len, clusters: Some(clusters) })
    }

    /// The place of block `at` if the file has its cluster: through a block that is mapped there,
    /// or through `placed`, which ends at or before `at`.
    fn place_by_neighbours(
        &self,
        inode: &Inode,
        at: FileBlock,
        placed: Option<Extent>,
    ) -> Result<Option<BlockNo>> {
        let layout = self.space().layout();
        let index = layout.index_in_cluster(at.get().into());
        let first = FileBlock(at.get() - index);
        if let Some(placed) = placed.filter(|placed| placed.end() > first && placed.first <= at) {
            return Ok(Some(placed.start.plus(u64::from(at.get() - placed.first.get()))));
        }
        let end = first.plus(layout.cluster_blocks);
        let Some((other, block)) = first_mapped(inode, first, end)? else { return Ok(None) };
        // Both are in one cluster, and the mapping was found to lie there as it does in the file.
        let cluster = block.get() - u64::from(layout.index_in_cluster(other.get().into()));
        Ok(Some(BlockNo(cluster + u64::from(index))))
    }

    /// Where blocks from `at` on that get new clusters end: at `end`, or before the last cluster if
    /// the file has that one behind the hole.
    fn end_of_new(
        &self,
        inode: &Inode,
        at: FileBlock,
        end: FileBlock,
        hole_end: FileBlock,
    ) -> Result<FileBlock> {
        let layout = self.space().layout();
        let index = layout.index_in_cluster(end.get().into());
        let last = FileBlock(end.get() - index);
        if index == 0 || last <= at || hole_end >= last.plus(layout.cluster_blocks) {
            return Ok(end);
        }
        let behind = first_mapped(inode, end, last.plus(layout.cluster_blocks))?;
        Ok(if behind.is_some() { last } else { end })
    }
}
