//! Placement: choosing blocks for a hole.
//!
//! Policy: a file that grows at its end takes blocks from its preallocation, which grows with it.
//! For any other write, blocks are preallocated for the range around it, in units of the file's
//! size: 16 KiB for a file of up to 16 KiB, 32 KiB for one of up to 32 KiB, and so on up to 8 MiB.
//! The goal of a block is the place that continues the extent before it, at its distance, or else
//! the extent behind it.
//! Kernel counterpart: `ext4_ext_find_goal`, `ext4_mb_normalize_request`.

use super::block_from;
use super::locality::Localities;
use super::writeback::{Part, Pending, PendingBlocks};
use crate::alloc::{Allocation, Need, Space};
use crate::config::AllocOptions;
use crate::error::Result;
use crate::extent::{Spot, State, lookup};
use crate::inode::Inode;
use std::sync::Arc;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, FileBlock};

/// Bytes of the smallest and of the largest range that is preallocated around a write.
const RANGE_BYTES: [u64; 2] = [16 << 10, 8 << 20];

/// Files of fewer blocks begin where their group begins, larger files at a place of their own.
const LONE_BLOCKS: u32 = 256;

/// A request for blocks of a hole.
pub(super) struct HoleNeed {
    /// Most blocks.
    pub(super) want: u32,
    /// They are reserved already.
    pub(super) reserved: bool,
    /// The extent that was placed last and is not in the tree yet.
    pub(super) placed: Option<Extent>,
    /// The goal if the file has no block yet.
    pub(super) origin: BlockNo,
}

/// Chooses blocks for holes.
#[derive(Debug)]
pub(super) struct Placement {
    space: Arc<Space>,
    /// Preallocations of small files.
    localities: Localities,
    /// Blocks from which on a file is a stream rather than a small file.
    stream_blocks: u32,
}

impl Placement {
    pub(super) fn new(space: &Arc<Space>, options: &AllocOptions) -> Self {
        Self {
            space: Arc::clone(space),
            localities: Localities::new(options.group_prealloc),
            stream_blocks: options.stream_req,
        }
    }

    /// Allocates blocks for a hole: side by side for small files, by itself for any other. Returns
    /// them and their number.
    pub(super) fn allocate_for(
        &self,
        part: &Part<'_>,
        spot: &Spot,
        want: u32,
    ) -> Result<(PendingBlocks, u32)> {
        let inode = part.inode;
        let blocks = block_from(&self.space, part.size).get();
        let has_clusters = self.space.layout().has_clusters();
        if blocks < self.stream_blocks && !has_clusters {
            let allocation = self.localities.allocate(inode, want)?;
            let len = allocation.len();
            return Ok((PendingBlocks::Allocated(allocation), len));
        }
        let origin = if blocks < LONE_BLOCKS { inode.goal() } else { inode.stream_goal() };
        let placed = part.pending.last().map(Pending::extent);
        let hole = HoleNeed { want, reserved: true, placed, origin };
        self.place(inode, spot, &hole)
    }

    /// Allocates blocks for the hole at `spot` as [`Placement::allocate_hole`] does, or in
    /// clusters. Returns them and their number.
    pub(super) fn place(
        &self,
        inode: &Inode,
        spot: &Spot,
        hole: &HoleNeed,
    ) -> Result<(PendingBlocks, u32)> {
        if self.space.layout().has_clusters() {
            let place = self.allocate_in_clusters(inode, spot, hole)?;
            let len = place.len;
            return Ok((place.into_blocks(), len));
        }
        let allocation = self.allocate_hole(inode, spot, hole)?;
        let len = allocation.len();
        Ok((PendingBlocks::Allocated(allocation), len))
    }

    pub(super) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The goal for the hole at `spot`.
    pub(super) fn goal_of_hole(&self, inode: &Inode, spot: &Spot, hole: &HoleNeed) -> BlockNo {
        let before = [spot.before(), hole.placed].into_iter().flatten().max_by_key(|e| e.first);
        self.goal_of(inode, spot, before, hole.origin)
    }

    /// Allocates blocks for the hole at `spot`. The caller holds the writeback lock and no handle.
    pub(super) fn allocate_hole(
        &self,
        inode: &Inode,
        spot: &Spot,
        hole: &HoleNeed,
    ) -> Result<Allocation> {
        let (first, hole_end) = (spot.mapping.first, spot.mapping.end());
        let before = [spot.before(), hole.placed].into_iter().flatten().max_by_key(|e| e.first);
        let start = before.map_or(spot.leaf_first(), |extent| extent.end());
        let goal = self.goal_of(inode, spot, before, hole.origin);
        let (key, want) = (first.get(), hole.want);
        let need = Need { key, want, ahead: 0, goal, reserved: hole.reserved };
        if hole_end == FileBlock::END && first == start {
            return self.space.allocate_from(&inode.preallocation, need, true);
        }
        let blocks = self.range_blocks(inode.size());
        let from = key - key % blocks;
        let to = (from.saturating_add(blocks)).min(block_from(&self.space, inode.size()).get());
        let to = to.max(key.saturating_add(want)).min(hole_end.get());
        self.space.allocate_around(&inode.preallocation, need, from.max(start.get())..to)
    }

    fn goal_of(
        &self,
        inode: &Inode,
        spot: &Spot,
        before: Option<Extent>,
        origin: BlockNo,
    ) -> BlockNo {
        let (first, hole_end) = (spot.mapping.first, spot.mapping.end());
        if let Some(before) = before {
            let at = before.start.plus(u64::from(first.get() - before.first.get()));
            let end = before.start.plus(u64::from(before.len));
            return if self.is_on_device(at) { at } else { end };
        }
        if let Some(behind) = self.block_behind(inode, hole_end) {
            let distance = u64::from(hole_end.get() - first.get());
            let at = behind.get().checked_sub(distance).map(BlockNo);
            return at.filter(|&at| self.is_on_device(at)).unwrap_or(origin);
        }
        let origin = self.with_room(origin, block_from(&self.space, inode.size()).get());
        let at = origin.plus(u64::from(first.get()));
        if self.is_on_device(at) { at } else { origin }
    }

    /// The place of the extent that a hole ends at. A leaf that cannot be read only leads to a
    /// worse goal; the operation that needs the leaf meets the error.
    fn block_behind(&self, inode: &Inode, hole_end: FileBlock) -> Option<BlockNo> {
        if hole_end == FileBlock::END {
            return None;
        }
        match lookup(inode, hole_end).ok()?.state {
            State::Written(behind) | State::Unwritten(behind) => Some(behind),
            State::Hole => None,
        }
    }

    /// A place at or before `origin` from which `blocks` blocks fit into its group, or else the
    /// begin of the group.
    fn with_room(&self, origin: BlockNo, blocks: u32) -> BlockNo {
        let layout = self.space.layout();
        let Some((group, bit)) = layout.group_of(origin) else { return origin };
        let last = layout.blocks_in_group(group).saturating_sub(blocks);
        layout.group_first_block(group).plus(u64::from(bit.min(last)))
    }

    fn is_on_device(&self, block: BlockNo) -> bool {
        self.space.layout().group_of(block).is_some()
    }

    fn range_blocks(&self, size: u64) -> u32 {
        let [least, most] = RANGE_BYTES;
        let bytes = size.min(most).next_power_of_two().max(least);
        u32::try_from(bytes / u64::from(self.space.layout().block_size)).unwrap_or(1).max(1)
    }
}
