//! Making data reachable: the handles that insert the mappings of what a sweep has written.
//!
//! What: as many mappings of as many inodes go into one handle as a part of a transaction takes.
//! What they dirty is known before the handle starts, block by block, so a block that many share
//! (leaf, inode table, bitmap) is asked for once.
//! Invariants: data has no place behind the size at any commit: each handle sets the size that its
//! last mapping reaches. Mappings of an inode ascend.

use super::Files;
use super::batch::{Part, Pending, PendingBlocks, Run};
use super::ordered::Job;
use crate::config::WritebackMode;
use crate::error::{ErrorKind, Result};
use crate::extent::{Edit, NodeAllocations, NodeSource};
use crate::inode::Inode;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::FileBlock;
use uext4_ondisk::extent::Extent;

/// Most mappings that one handle makes.
const EDITS_PER_HANDLE: usize = 64;

/// One mapping of one part, or only its attributes.
struct Item {
    part: usize,
    pending: Option<Pending>,
    /// The size that may be set with it.
    size: u64,
}

impl Files {
    /// Makes the mappings of all parts and sets the sizes they reach; with `times` also brings
    /// changed times into a transaction.
    pub(super) fn map_parts(&self, parts: &mut [Part<'_>], times: bool) -> Result<()> {
        let mut items = Vec::new();
        for (index, part) in parts.iter_mut().enumerate() {
            let pending = std::mem::take(&mut part.pending);
            let attributes = part.inode.attributes();
            let late = attributes.disk_size < part.size || (times && attributes.times_dirty);
            drop(attributes);
            if pending.is_empty() && late {
                items.push(Item { part: index, pending: None, size: part.size });
            }
            let count = pending.len();
            items.extend(pending.into_iter().enumerate().map(|(n, pending)| {
                let end = u64::from(pending.end().get()) * self.block_size();
                let size = if n + 1 == count { part.size } else { part.size.min(end) };
                Item { part: index, pending: Some(pending), size }
            }));
        }
        items.chunks_mut(EDITS_PER_HANDLE).try_for_each(|items| self.map_items(parts, items))
    }

    /// Makes mappings in one handle, or in several if that would be too large, or if nodes of the
    /// trees cannot be allocated for all at once.
    fn map_items(&self, parts: &[Part<'_>], items: &mut [Item]) -> Result<()> {
        let credits_max = self.space.journal().credits_max() / 4;
        let half = items.len() / 2;
        match self.plan_handle(parts, items) {
            Ok((nodes, credits)) if credits <= credits_max || half == 0 => {
                self.map_in_handle(parts, items, nodes, credits)
            }
            Err(error) if half == 0 || *error.kind() != ErrorKind::NoSpace => Err(error),
            _ => {
                let (first, second) = items.split_at_mut(half);
                self.map_items(parts, first)?;
                self.map_items(parts, second)
            }
        }
    }

    /// What the mappings need besides their blocks, for each inode, and the blocks that they dirty.
    fn plan_handle(
        &self,
        parts: &[Part<'_>],
        items: &[Item],
    ) -> Result<(Vec<NodeAllocations>, u32)> {
        let mut all = Vec::new();
        let (mut dirtied, mut groups) = (Vec::new(), Vec::new());
        let mut credits = 0;
        for items in items.chunk_by(|a, b| a.part == b.part) {
            let pending = || items.iter().filter_map(|item| item.pending.as_ref());
            let places: Vec<FileBlock> = pending().map(|pending| pending.first).collect();
            let inode = parts[items[0].part].inode;
            let nodes =
                NodeAllocations::for_edits(&self.space, inode, &places, NodeSource::Reserved)?;
            credits += nodes.new_node_credits();
            dirtied.extend(nodes.blocks());
            let allocated = pending().filter(|p| matches!(p.blocks, PendingBlocks::Allocated(_)));
            groups.extend(allocated.filter_map(|p| self.space.layout().group_of(p.start())));
            all.push(nodes);
        }
        dirtied.sort_unstable();
        dirtied.dedup();
        let mut groups: Vec<u32> = groups.into_iter().map(|(group, _)| group.get()).collect();
        groups.sort_unstable();
        groups.dedup();
        // Bitmap and descriptor of each group.
        credits += u32::try_from(dirtied.len() + 2 * groups.len()).unwrap_or(u32::MAX / 2);
        Ok((all, credits))
    }

    fn map_in_handle(
        &self,
        parts: &[Part<'_>],
        items: &mut [Item],
        mut nodes: Vec<NodeAllocations>,
        credits: u32,
    ) -> Result<()> {
        let job = self.space.journal().run(credits, |handle| {
            let mut runs = Vec::new();
            let inodes = items.chunk_by_mut(|a, b| a.part == b.part).zip(&mut nodes);
            for (items, nodes) in inodes {
                let inode = parts[items[0].part].inode;
                for item in &mut *items {
                    let Some(pending) = &mut item.pending else { continue };
                    if !pending.data.is_empty() {
                        runs.push(pending.take_run());
                    }
                    self.map_one(handle, inode, pending, nodes, false)?;
                }
                let reached = items.last().map_or(0, |item| item.size);
                self.set_disk_size(inode, handle, reached)?;
            }
            Ok(self.order_data(handle, runs))
        })?;
        let Some(job) = job else { return Ok(()) };
        self.write_job(&job)?;
        let epoch = self.space.journal().flush_gate().epoch();
        for item in items {
            parts[item.part].inode.note_written(epoch);
        }
        Ok(())
    }

    /// With `writeback=ordered`, data that was mapped before it is written keeps the transaction
    /// from its commit.
    fn order_data(&self, handle: &Handle<'_>, runs: Vec<Run>) -> Option<Arc<Job>> {
        debug_assert!(runs.is_empty() || self.options.writeback == WritebackMode::Ordered);
        (!runs.is_empty()).then(|| self.ordered.add(handle.tid(), runs))
    }

    /// Inserts one mapping.
    pub(super) fn map_one(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        pending: &mut Pending,
        nodes: &mut NodeAllocations,
        unwritten: bool,
    ) -> Result<()> {
        let start = match &mut pending.blocks {
            PendingBlocks::Allocated(allocation) => {
                self.space.mark_used(handle, allocation, pending.len)?
            }
            PendingBlocks::Unwritten(block) => *block,
        };
        let new = Extent { first: pending.first, len: pending.len, start, unwritten };
        let edit = Edit { first: new.first, end: new.end(), new: Some(new) };
        edit.apply(&self.space, handle, inode, nodes)?;
        Ok(())
    }

    /// Brings the attributes to the inode table with a size that all data is below of.
    pub(super) fn set_disk_size(
        &self,
        inode: &Inode,
        handle: &mut Handle<'_>,
        size: u64,
    ) -> Result<()> {
        let grown = inode.update(handle, |attributes| {
            // The file may have been cut by a caller that waits for this sweep to end.
            let reached = attributes.disk_size.max(size.min(attributes.size));
            std::mem::replace(&mut attributes.disk_size, reached) < reached
        })?;
        if grown {
            inode.note_data_change(handle);
        }
        Ok(())
    }
}
