//! Removing blocks from a file.
//!
//! What: a [`Removal`] is the part of a range that one handle removes; a large range takes many.
//! Invariants: nothing that the handle needs can fail in it. Its nodes are allocated and its
//! bitmaps are in memory beforehand, and no block is mapped twice.
//! Locking: the caller holds the file exclusively and its writeback lock, and keeps direct I/O out.

use super::truncate::Truncation;
use crate::cache::Buffer;
use crate::error::{Error, Result};
use crate::extent::{
    Edit, Mapping, NodeAllocations, State, edit_credits, first_mapped, has_empty_node, lookup,
    top_indirect,
};
use crate::inode::{ExclusiveGuard, Inode};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, CorruptKind, FileBlock, Place};

/// Most extents that one handle removes.
const EXTENTS_PER_HANDLE: usize = 4;
/// Most metadata blocks (of a directory) that one handle frees, because each needs a revoke record.
const METADATA_BLOCKS_PER_HANDLE: u32 = 32;

/// The extents that one handle removes.
pub(super) struct Removal {
    pub(super) runs: Vec<Mapping>,
    pub(super) credits: u32,
    /// Where the next removal continues.
    pub(super) next: FileBlock,
    /// There is nothing left to remove behind these.
    pub(super) is_last: bool,
    /// With clusters: those that each run frees, as their first block and their number.
    clusters: Vec<(BlockNo, u32)>,
    /// Tree nodes for the removal.
    nodes: NodeAllocations,
    /// The bitmaps in which the blocks are freed.
    pins: Vec<Arc<Buffer>>,
}

impl Removal {
    pub(super) fn nothing() -> Self {
        Self {
            runs: Vec::new(),
            credits: 0,
            next: FileBlock::END,
            is_last: true,
            clusters: Vec::new(),
            nodes: NodeAllocations::default(),
            pins: Vec::new(),
        }
    }
}

impl Truncation {
    /// Removes the mappings of `first .. end` in as many handles as it takes, and frees the blocks.
    /// Pages go together with the blocks that they lie over, so a removal that fails leaves the
    /// rest of the file, including data that is only in memory.
    pub(super) fn remove_range(
        &self,
        inode: &Inode,
        drained: &ExclusiveGuard<'_>,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<()> {
        let mut at = first;
        loop {
            let mut removal = self.plan_removal(inode, drained, at, end)?;
            if !removal.runs.is_empty() {
                self.context.journal().run(removal.credits, |handle| {
                    inode.note_data_change(handle);
                    self.remove_planned(handle, inode, &mut removal)
                })?;
            }
            // A run that was shortened was removed from its end.
            for run in &removal.runs {
                self.discard_pages(inode, run.first, run.end());
            }
            if removal.is_last {
                self.discard_pages(inode, at, end);
                return Ok(());
            }
            // With clusters, to the end of the one that may be gone: its pages rely on it.
            let layout = self.context.space.layout();
            let within = layout.index_in_cluster(removal.next.get().into());
            let past = if within > 0 { layout.cluster_blocks - within } else { 0 };
            self.discard_pages(inode, at, removal.next.plus(past).min(end));
            at = removal.next;
        }
    }

    /// Plans the removal of the next extents in one handle. The caller keeps direct I/O out until
    /// that handle has ended.
    pub(super) fn plan_removal(
        &self,
        inode: &Inode,
        _drained: &ExclusiveGuard<'_>,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<Removal> {
        let mut removal = self.choose_removal(inode, first, end)?;
        let has_clusters = self.context.space.layout().has_clusters();
        if has_clusters {
            removal.clusters = self.clusters_of(inode, &removal.runs)?;
            self.check_disjoint(inode, removal.clusters.iter().copied())?;
        }
        self.check_disjoint(inode, removal.runs.iter().filter_map(place_of))?;
        let places: Vec<FileBlock> = removal.runs.iter().map(|run| run.first).collect();
        // Splitting an extent in two adds an entry.
        let splits = end != FileBlock::END;
        removal.nodes = NodeAllocations::for_removal(inode, &places, splits)?;
        let freed: Vec<_> = match has_clusters {
            true => removal.clusters.clone(),
            false => removal.runs.iter().filter_map(place_of).collect(),
        };
        // The attribute block is freed in the same handle as the last data, and goes on in use
        // otherwise. So do indirect blocks beside the way to the runs; those below the top ones are
        // compared when all of a file goes (`super::delete`).
        let attributes = BlockNo(inode.attributes().file_acl);
        let top = top_indirect(inode);
        let is_shared = attributes != BlockNo(0)
            && (top.contains(&attributes) || removal.nodes.blocks().any(|node| node == attributes));
        if is_shared {
            return Err(corrupt(inode, "has its attribute block as a node"));
        }
        for (start, len) in freed.into_iter().filter(|&(_, len)| len > 0) {
            let run = start..start.plus(len.into());
            if run.contains(&attributes) {
                return Err(corrupt(inode, "maps its attribute block"));
            }
            if removal.nodes.blocks().chain(top).any(|node| run.contains(&node)) {
                return Err(corrupt(inode, "maps a block that is a node of it"));
            }
            removal.pins.extend(self.context.space.pin_run(start, len)?);
        }
        Ok(removal)
    }

    /// Checks that `runs` have no block twice: to free it a second time would fail in the middle of
    /// the handle and abort the journal.
    fn check_disjoint(
        &self,
        inode: &Inode,
        runs: impl Iterator<Item = (BlockNo, u32)>,
    ) -> Result<()> {
        let mut places: Vec<_> = runs
            .filter(|&(_, len)| len > 0)
            .map(|(start, len)| (start.get(), start.get() + u64::from(len)))
            .collect();
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err(corrupt(inode, "maps a block twice"));
        }
        Ok(())
    }

    /// The clusters in which the file has no block any more once each of the `runs`, which ascend,
    /// and those before it are removed. As their first block, and their number in blocks.
    fn clusters_of(&self, inode: &Inode, runs: &[Mapping]) -> Result<Vec<(BlockNo, u32)>> {
        let layout = self.context.space.layout();
        let ratio = layout.cluster_blocks;
        let mut freed = Vec::with_capacity(runs.len());
        for (n, run) in runs.iter().enumerate() {
            let Some((start, len)) = place_of(run) else {
                freed.push((BlockNo(0), 0));
                continue;
            };
            let before = layout.index_in_cluster(run.first.get().into());
            let lowest = FileBlock(run.first.get() - before);
            let keeps_first = before > 0 && has_more(inode, lowest, run.first, &runs[..n])?;
            let behind = layout.index_in_cluster(run.end().get().into());
            let keeps_last = behind > 0 && {
                let end = run.end().plus(ratio - behind);
                first_mapped(inode, run.end(), end)?.is_some()
            };
            let all = layout.bits_for(before + len);
            let (first, last) = (u32::from(keeps_first), u32::from(keeps_last));
            let kept = if all == 1 { first | last } else { first + last };
            let skipped = u64::from(first) * u64::from(ratio);
            let cluster = BlockNo(start.get() - u64::from(before) + skipped);
            freed.push((cluster, (all - kept) * ratio));
        }
        Ok(freed)
    }

    fn choose_removal(&self, inode: &Inode, first: FileBlock, end: FileBlock) -> Result<Removal> {
        let mut removal = Removal { credits: 1, next: first, is_last: false, ..Removal::nothing() };
        let is_metadata = inode.has_metadata_blocks();
        let mut blocks_left = METADATA_BLOCKS_PER_HANDLE;
        let mut revokes_left = self.journaled.revokes_per_handle();
        let (edit, credits_per_group) = (edit_credits(inode), self.context.space.credits().blocks);
        let most = self.context.journal().credits_max() / 2;
        let mut at = first;
        while at < end {
            let mut mapping = lookup(inode, at)?;
            mapping.len = mapping.len.min(end.get() - at.get());
            let hole_at = (mapping.state == State::Hole).then_some(at);
            at = mapping.end();
            if let Some(hole_at) = hole_at {
                if !has_empty_node(inode, hole_at)? {
                    continue;
                }
                if removal.runs.len() == EXTENTS_PER_HANDLE || removal.credits + edit > most {
                    return Ok(removal);
                }
                // A run that leads to nothing: its indirect blocks go.
                removal.credits += edit;
                removal.runs.push(mapping);
                removal.next = at;
                continue;
            }
            if removal.runs.len() == EXTENTS_PER_HANDLE || blocks_left == 0 {
                return Ok(removal);
            }
            if is_metadata {
                mapping.len = mapping.len.min(blocks_left);
                blocks_left -= mapping.len;
                removal.credits += mapping.len;
            }
            // A run through many small groups is shortened to what a handle can change.
            let per_group = self.context.space.layout().blocks_per_group;
            let groups_max = most.saturating_sub(removal.credits + edit) / credits_per_group;
            if groups_max < 3 && !removal.runs.is_empty() {
                return Ok(removal);
            }
            let most_blocks = (groups_max.max(3) - 2).saturating_mul(per_group);
            let mut is_whole = mapping.len <= most_blocks;
            if !is_whole {
                // From its end, because the rest of the extent is then one piece and needs no new
                // entry.
                mapping = mapping.last_part(most_blocks);
            }
            if !is_metadata {
                let Some(revokes) = self.journaled.limit_to_revokes(&mut mapping, revokes_left)
                else {
                    return Ok(removal);
                };
                revokes_left -= revokes.count;
                removal.credits += revokes.count;
                is_whole &= !revokes.was_shortened;
            }
            removal.credits += edit + credits_per_group * (mapping.len / per_group + 2);
            removal.runs.push(mapping);
            if !is_whole {
                return Ok(removal);
            }
            at = mapping.end();
            removal.next = at;
        }
        removal.is_last = true;
        Ok(removal)
    }

    pub(super) fn remove_planned(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        removal: &mut Removal,
    ) -> Result<()> {
        let is_metadata = inode.has_metadata_blocks();
        let has_clusters = self.context.space.layout().has_clusters();
        let ratio = self.context.space.layout().cluster_blocks;
        for (n, run) in removal.runs.iter().enumerate() {
            let edit = Edit { first: run.first, end: run.end(), new: None };
            let (cluster, freed) = removal.clusters.get(n).copied().unwrap_or((BlockNo(0), 0));
            let lost = -i64::from(freed / ratio);
            let removed = edit.apply_with(handle, inode, &mut removal.nodes, lost)?;
            let mut at = run.first;
            for (start, len) in removed.runs {
                let mut is_logged = is_metadata;
                if is_metadata {
                    for i in 0..u64::from(len) {
                        handle.forget(start.plus(i))?;
                    }
                } else {
                    for block in self.context.journal().logged_data(start, len) {
                        handle.forget(block)?;
                        is_logged = true;
                    }
                }
                if has_clusters {
                    continue;
                }
                if is_logged || !self.context.ablations.recycles_blocks() {
                    self.context.space.free(handle, start, len)?;
                } else {
                    self.context.space.free_or_recycle(
                        handle,
                        &inode.preallocation,
                        at,
                        (start, len),
                    )?;
                }
                at = at.plus(len);
            }
            if freed > 0 {
                self.context.space.free(handle, cluster, freed)?;
            }
        }
        Ok(())
    }
}

/// A map that no removal can follow: freeing a block twice would fail in the middle of a handle.
pub(super) fn corrupt(inode: &Inode, why: &'static str) -> Error {
    let kind = CorruptKind::Rule { what: "block mapping", why };
    kind.at(Place::Inode(inode.ino())).into()
}

/// Where a run that is no hole is on the device.
fn place_of(run: &Mapping) -> Option<(BlockNo, u32)> {
    match run.state {
        State::Written(start) | State::Unwritten(start) => Some((start, run.len)),
        State::Hole => None,
    }
}

/// Whether a block of `from .. end` is mapped that none of the `runs` removes.
fn has_more(inode: &Inode, from: FileBlock, end: FileBlock, runs: &[Mapping]) -> Result<bool> {
    let mut at = from;
    while at < end {
        let mapping = lookup(inode, at)?;
        let to = mapping.end().min(end);
        let removes = |run: &Mapping| run.first <= at && to <= run.end();
        if mapping.state != State::Hole && !runs.iter().any(removes) {
            return Ok(true);
        }
        at = to;
    }
    Ok(false)
}
