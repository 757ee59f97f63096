//! Reservation of blocks for the dirty pages of a file.
//!
//! What: one block for each page over a hole, and nodes for the worst case, in which each dirty
//! page over a hole or an unwritten extent becomes extents of its own, or has an indirect block of
//! its own in a block map. On a file system with clusters (bigalloc) it is one cluster for all
//! pages over holes of a cluster that the file does not have yet.

use crate::alloc::Space;
use crate::error::Result;
use crate::inode::{FilePages, HolePage, cluster_bytes};
use crate::quota::Amount;
use uext4_ondisk::FileBlock;
use uext4_ondisk::block_map::DIRECT;
use uext4_ondisk::extent::max_entries;

impl FilePages {
    /// Reserves for `pages` more pages over holes, `holes`, which ascend, and `conversions` more
    /// over unwritten extents. All of them are before block `end`.
    ///
    /// # Errors
    /// `NoSpace`, `QuotaExceeded`; nothing has changed.
    pub(super) fn reserve_pages(
        &mut self,
        holes: impl Iterator<Item = HolePage> + Clone,
        pages: u32,
        conversions: u32,
        end: FileBlock,
    ) -> Result<()> {
        let units = self.clusters.more_for(holes.clone(), pages);
        self.reserve(Need { units, pages, conversions }, end)?;
        self.clusters.add(holes);
        Ok(())
    }

    /// Reserves what an operation needs that has no pages in the cache, all of it before block
    /// `end`.
    ///
    /// # Errors
    /// `NoSpace`, `QuotaExceeded`; nothing has changed.
    pub(super) fn reserve(&mut self, more: Need, end: FileBlock) -> Result<()> {
        if more.pages + more.conversions == 0 {
            return Ok(());
        }
        let former = self.reserved_end;
        self.reserved_end = former.max(end);
        let reserved = self.set_reservation(Need {
            units: self.reserved + more.units,
            pages: self.hole_pages + more.pages,
            conversions: self.converting + more.conversions,
        });
        if reserved.is_err() {
            self.reserved_end = former;
        }
        reserved
    }

    /// Gives back what was reserved.
    pub(super) fn unreserve(&mut self, less: Need) {
        let smaller = self.set_reservation(Need {
            units: self.reserved.saturating_sub(less.units),
            pages: self.hole_pages.saturating_sub(less.pages),
            conversions: self.converting.saturating_sub(less.conversions),
        });
        debug_assert!(smaller.is_ok(), "a smaller reservation cannot fail");
    }

    /// Notes that `units` of what is reserved have been allocated, so that they are not counted
    /// twice. Only for an operation that has no pages in the cache and ends with
    /// [`FilePages::unreserve_allocated`]: what is allocated for pages is reserved again if writing
    /// it fails.
    pub(super) fn note_allocated(&mut self, units: u32) {
        let units =
            units.min(self.reserved.saturating_sub(self.allocated)).min(self.reservation.blocks());
        let smaller = self.reservation.try_resize(self.reservation.blocks() - units);
        debug_assert!(smaller.is_ok(), "a smaller reservation cannot fail");
        self.allocated += units;
    }

    /// Gives back what was reserved for an operation that may have allocated some of it.
    pub(super) fn unreserve_allocated(&mut self, less: Need) {
        self.allocated = 0;
        self.unreserve(less);
    }

    /// Sets the reservation to these needs.
    ///
    /// # Errors
    /// `NoSpace`; nothing has changed.
    fn set_reservation(&mut self, to: Need) -> Result<()> {
        let space = self.reservation.space();
        let pages = u64::from(to.pages) + u64::from(to.conversions);
        let mut nodes = nodes_for(space, pages);
        if self.by_block_map {
            // Its data may have been in the inode since, and the map may have become a tree then.
            nodes = nodes.max(indirect_for(space, pages, self.reserved_end));
        }
        let blocks = to.units.saturating_sub(self.allocated).saturating_add(nodes);
        if to.units > self.reserved {
            let more = self.room_of(to.units - self.reserved);
            self.quota.as_mut().map_or(Ok(()), |quota| quota.hold.grow(more))?;
            if let Err(error) = self.reservation.try_resize(blocks) {
                if let Some(quota) = &mut self.quota {
                    quota.hold.shrink(more);
                }
                return Err(error);
            }
        } else {
            // Conversions have to go on even if there is no space for data.
            match to.pages > self.hole_pages {
                true => self.reservation.try_resize(blocks)?,
                false => self.reservation.try_resize_with_nodes(blocks)?,
            }
            let fewer = self.reserved - to.units;
            let charged = self.charged.min(fewer);
            self.charged -= charged;
            let less = self.room_of(fewer - charged);
            if let Some(quota) = &mut self.quota {
                quota.hold.shrink(less);
            }
        }
        if pages == 0 {
            self.reserved_end = FileBlock(0);
        }
        (self.reserved, self.hole_pages, self.converting) = (to.units, to.pages, to.conversions);
        Ok(())
    }

    /// What `units` reserved blocks or clusters count for in quota.
    fn room_of(&self, units: u32) -> Amount {
        let space = u64::from(units) * cluster_bytes(self.reservation.space().layout());
        Amount { space, inodes: 0 }
    }
}

/// What is reserved for pages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    /// Blocks, or clusters, for the data.
    pub units: u32,
    /// Pages over holes.
    pub pages: u32,
    /// Pages over unwritten extents.
    pub conversions: u32,
}

/// Tree nodes that `pages` scattered pages can need: two entries each, in nodes that are half full
/// after a split, and a new level.
fn nodes_for(space: &Space, pages: u64) -> u32 {
    if pages == 0 {
        return 0;
    }
    let half = u64::from(max_entries(space.layout().block_size as usize)) / 2;
    let leaves = (2 * pages).div_ceil(half);
    let index = leaves.div_ceil(half) + 1;
    u32::try_from(leaves + index + 2).unwrap_or(u32::MAX)
}

/// Indirect blocks that `pages` pages before block `end` of a block map can need: each page one of
/// the lowest level, as far as the file has so many, and those above.
fn indirect_for(space: &Space, pages: u64, end: FileBlock) -> u32 {
    let per_block = u64::from(space.layout().block_size / 4);
    let behind = u64::from(end.get().saturating_sub(DIRECT));
    if pages == 0 || behind == 0 {
        return 0;
    }
    let lowest = pages.min(behind.div_ceil(per_block));
    let middle = pages.min(behind.div_ceil(per_block * per_block));
    u32::try_from(lowest + middle + 1).unwrap_or(u32::MAX)
}
