//! The handles that insert mappings of data that writeback has written.
//!
//! What: mappings of many inodes go into one handle, as many as fit a part of a transaction. The
//! blocks that they dirty are known before the handle starts, so a block that many of them share
//! (leaf, inode table, bitmap) costs one credit.
//! Invariants: at any commit no data is mapped behind the size, because each handle sets the size
//! that its last mapping reaches. The mappings of an inode ascend.

use super::{Part, Pending, Writeback};
use crate::error::{ErrorKind, Result};
use crate::extent::{Edit, NodeAllocations, NodeSource};
use crate::inode::Inode;
use crate::journal::Handle;
use uext4_ondisk::FileBlock;
use uext4_ondisk::extent::Extent;

/// Most mappings that one handle makes.
const EDITS_PER_HANDLE: usize = 64;

/// One mapping of a part, or only its attributes.
pub(in crate::file) struct Item {
    pub(in crate::file) part: usize,
    pub(in crate::file) pending: Option<Pending>,
    /// The size that may be set with it.
    size: u64,
}

/// What one handle needs to make its mappings.
pub(in crate::file) struct HandlePlan {
    /// Tree nodes, for each inode.
    pub(in crate::file) nodes: Vec<NodeAllocations>,
    pub(in crate::file) credits: u32,
}

/// Makes the mappings of one handle.
pub(in crate::file) type MapHandle<'f> =
    &'f dyn Fn(&[Part<'_>], &mut [Item], HandlePlan) -> Result<()>;

impl Writeback {
    /// Makes the mappings of all parts and sets the sizes that they reach. With `times` also brings
    /// lazy timestamps into a transaction.
    pub(in crate::file) fn map(&self, parts: &mut [Part<'_>], times: bool) -> Result<()> {
        self.map_with(parts, times, &|parts, items, HandlePlan { nodes, credits }| {
            self.space.journal().run(credits, |handle| self.map_in(handle, parts, items, nodes))
        })
    }

    /// As [`Writeback::map`], with `map_handle` to make the mappings of each handle.
    pub(in crate::file) fn map_with(
        &self,
        parts: &mut [Part<'_>],
        times: bool,
        map_handle: MapHandle<'_>,
    ) -> Result<()> {
        let mut items = Vec::new();
        for (index, part) in parts.iter_mut().enumerate() {
            let pending = std::mem::take(&mut part.pending);
            let attributes = part.inode.attributes();
            let is_ahead = attributes.disk_size < part.size || (times && attributes.times_dirty);
            drop(attributes);
            if pending.is_empty() && is_ahead {
                items.push(Item { part: index, pending: None, size: part.size });
            }
            let count = pending.len();
            items.extend(pending.into_iter().enumerate().map(|(n, pending)| {
                let end = u64::from(pending.end().get()) * self.block_size();
                let size = if n + 1 == count { part.size } else { part.size.min(end) };
                Item { part: index, pending: Some(pending), size }
            }));
        }
        items
            .chunks_mut(EDITS_PER_HANDLE)
            .try_for_each(|items| self.map_items(parts, items, map_handle))
    }

    /// Makes mappings in one handle, or in several if one would be too large or if tree nodes
    /// cannot be allocated for all at once.
    fn map_items(
        &self,
        parts: &[Part<'_>],
        items: &mut [Item],
        map_handle: MapHandle<'_>,
    ) -> Result<()> {
        let credits_max = self.space.journal().credits_max() / 4;
        let half = items.len() / 2;
        match self.plan_handle(parts, items) {
            Ok(plan) if plan.credits <= credits_max || half == 0 => {
                return map_handle(parts, items, plan);
            }
            Err(error) if half == 0 || *error.kind() != ErrorKind::NoSpace => return Err(error),
            // What the plan allocated is released here: the halves need it.
            _ => {}
        }
        let (first, second) = items.split_at_mut(half);
        self.map_items(parts, first, map_handle)?;
        self.map_items(parts, second, map_handle)
    }

    /// The tree nodes that the mappings need, and one credit for each block that they dirty.
    fn plan_handle(&self, parts: &[Part<'_>], items: &[Item]) -> Result<HandlePlan> {
        let mut all = Vec::new();
        let (mut dirtied, mut groups) = (Vec::new(), Vec::new());
        let mut credits = 0;
        for items in items.chunk_by(|a, b| a.part == b.part) {
            let pending = || items.iter().filter_map(|item| item.pending.as_ref());
            let places: Vec<FileBlock> = pending().map(|pending| pending.first).collect();
            let inode = parts[items[0].part].inode;
            let nodes = NodeAllocations::for_edits(inode, &places, NodeSource::Reserved)?;
            // The usage of a group's blocks is that of one owner; each part may have others.
            credits += nodes.new_node_credits() + self.space.credits().usage;
            dirtied.extend(nodes.blocks());
            let allocated = pending().filter(|p| p.blocks.are_new());
            groups.extend(allocated.filter_map(|p| self.space.layout().group_of(p.start())));
            all.push(nodes);
        }
        dirtied.sort_unstable();
        dirtied.dedup();
        let mut groups: Vec<u32> = groups.into_iter().map(|(group, _)| group.get()).collect();
        groups.sort_unstable();
        groups.dedup();
        let groups = groups.len() * self.space.credits().blocks as usize;
        credits += u32::try_from(dirtied.len() + groups).unwrap_or(u32::MAX / 2);
        Ok(HandlePlan { nodes: all, credits })
    }

    /// Makes the mappings of all items in a handle, and sets the sizes that they reach.
    pub(in crate::file) fn map_in(
        &self,
        handle: &mut Handle<'_>,
        parts: &[Part<'_>],
        items: &mut [Item],
        mut nodes: Vec<NodeAllocations>,
    ) -> Result<()> {
        for (items, nodes) in items.chunk_by_mut(|a, b| a.part == b.part).zip(&mut nodes) {
            let inode = parts[items[0].part].inode;
            let keeps_count = inode.is_charged() || self.space.layout().has_clusters();
            for pending in items.iter_mut().filter_map(|item| item.pending.as_mut()) {
                let is_counted = keeps_count && pending.blocks.are_new();
                if is_counted {
                    inode.pages().begin_mapping(pending.new_units());
                }
                self.map_one(handle, inode, pending, nodes, false)?;
                if is_counted {
                    inode.pages().end_mapping();
                }
            }
            let reached = items.last().map_or(0, |item| item.size);
            self.set_disk_size(inode, handle, reached)?;
        }
        Ok(())
    }

    /// Inserts one mapping.
    pub(in crate::file) fn map_one(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        pending: &mut Pending,
        nodes: &mut NodeAllocations,
        unwritten: bool,
    ) -> Result<()> {
        let is_written = pending.data.is_empty();
        self.space.journal().check(is_written, "data is given to the device before its mapping")?;
        let (start, clusters) = pending.mark_used(&self.space, handle)?;
        let new = Extent { first: pending.first, len: pending.len, start, unwritten };
        Edit::insert(new).apply_with(handle, inode, nodes, clusters)?;
        Ok(())
    }

    /// Brings the attributes to the inode table, with a size below which all data is mapped.
    pub(in crate::file) fn set_disk_size(
        &self,
        inode: &Inode,
        handle: &mut Handle<'_>,
        size: u64,
    ) -> Result<()> {
        let grown = inode.update(handle, |attributes| {
            // The file may have been truncated by a caller that waits for this pass to end.
            let reached = attributes.disk_size.max(size.min(attributes.size));
            std::mem::replace(&mut attributes.disk_size, reached) < reached
        })?;
        if grown {
            inode.note_data_change(handle);
        }
        Ok(())
    }
}
