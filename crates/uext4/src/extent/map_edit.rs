//! Changing a block map.
//!
//! What: an [`Edit`] sets or clears the numbers of blocks of one leaf: of the direct blocks, or of
//! one indirect block of the lowest level. Indirect blocks that are missing are added on the way
//! down, and those that become empty are freed on the way up.
//! Invariants: as for trees, blocks for new indirect blocks are allocated, and the blocks that
//! change are read and pinned, before the handle starts. An edit stays within its leaf, because
//! [`super::Spot::most_new`] and look-ups end there.
//! Kernel counterpart: `fs/ext4/indirect.c`.

use super::edit::{Edit, NodeAllocations, Removed};
use super::map_path::{MapPath, NodePlace, corrupt, push};
use crate::cache::{BlockKind, Buffer};
use crate::error::Result;
use crate::inode::{ExtentRoot, Inode};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::block_map::{entry, set_entry};
use uext4_ondisk::{BlockNo, FileBlock};

/// The number of indirect blocks that edits at `places` can add, and those that they change.
pub(super) fn plan(inode: &Inode, places: &[FileBlock]) -> Result<(usize, Vec<Arc<Buffer>>)> {
    let root = inode.tree().read();
    let (mut missing, mut pins) = (Vec::new(), Vec::new());
    for &at in places {
        let Some(path) = MapPath::to(inode, &root, at)? else { continue };
        pins.extend(path.indirect().map(|(buffer, _)| Arc::clone(buffer)));
        let there = path.nodes.len();
        missing.extend((there..there + path.missing()).map(|depth| path.place(depth)));
    }
    missing.sort_unstable();
    missing.dedup();
    Ok((missing.len(), pins))
}

/// The indirect blocks that removals at `places` can free.
///
/// # Errors
/// `Corrupt` if one of them has two places, because it would be freed twice.
pub(super) fn nodes_to_free(inode: &Inode, places: &[FileBlock]) -> Result<Vec<Arc<Buffer>>> {
    let root = inode.tree().read();
    let mut nodes: Vec<(Arc<Buffer>, NodePlace)> = Vec::new();
    for &at in places {
        let Some(path) = MapPath::to(inode, &root, at)? else { continue };
        nodes.extend(path.indirect().map(|(buffer, place)| (Arc::clone(buffer), place)));
    }
    nodes.sort_unstable_by_key(|(buffer, place)| (buffer.block(), *place));
    nodes.dedup_by_key(|(buffer, place)| (buffer.block(), *place));
    if let Some(pair) = nodes.windows(2).find(|pair| pair[0].0.block() == pair[1].0.block()) {
        return Err(corrupt(inode, pair[0].0.block(), "has two places"));
    }
    Ok(nodes.into_iter().map(|(buffer, _)| buffer).collect())
}

/// Applies an edit to the block map of `inode`.
pub(super) fn apply(
    edit: &Edit,
    handle: &mut Handle<'_>,
    inode: &Inode,
    nodes: &mut NodeAllocations,
) -> Result<Removed> {
    let mut root = inode.tree().write();
    let journal = inode.space().journal();
    let known = "an edit of a block map is inside it";
    let path = MapPath::to(inode, &root, edit.first)?.ok_or_else(|| journal.broken(known))?;
    let (first, end) = (path.leaf_first(), path.leaf_end());
    let fits = edit.new.is_none_or(|new| !new.unwritten && new.end() <= end);
    journal.check(fits, "an edit of a block map gives one leaf written blocks")?;
    let mut removed = Removed::default();
    if edit.end > end {
        removed.next = Some(end);
    }
    let is_missing = path.missing() > 0;
    if edit.new.is_none() && is_missing && !path.has_empty_node() {
        return Ok(removed);
    }
    let mut update = MapUpdate { handle, inode, nodes, root: &mut root, path, blocks: 0 };
    if edit.new.is_none() && is_missing {
        let last = update.path.nodes.len() - 1;
        update.free_empty(last)?;
        let blocks = update.blocks;
        inode.update_root(handle, &root, blocks)?;
        return Ok(removed);
    }
    update.add_missing()?;
    let change = edit.first.get() - first.get()..edit.end.min(end).get() - first.get();
    let leaf = update.path.nodes.len() - 1;
    let mut old = Vec::new();
    let mut is_empty = true;
    let is_set = update.write(leaf, |bytes, entries| {
        for index in change.clone() {
            let at = first.plus(index);
            let former = entry(bytes, index);
            if former != BlockNo(0) {
                push(&mut old, at, former);
            }
            let new = edit.new.filter(|new| new.contains(at));
            let number =
                new.map_or(BlockNo(0), |new| new.start.plus(u64::from(at.get() - new.first.get())));
            if !set_entry(bytes, index, number) {
                return false;
            }
        }
        is_empty = (0..entries).all(|index| entry(bytes, index) == BlockNo(0));
        true
    })?;
    journal.check(is_set, "a block number of a block map has 32 bits")?;
    removed.runs = old.iter().map(|run| (run.start, run.len)).collect();
    if is_empty {
        update.free_empty(leaf)?;
    }
    let unmapped: u32 = old.iter().map(|run| run.len).sum();
    let mapped = edit.new.map_or(0, |extent| extent.len);
    let blocks = update.blocks + i64::from(mapped) - i64::from(unmapped);
    inode.update_root(handle, &root, blocks)?;
    Ok(removed)
}

/// An edit that is being applied.
struct MapUpdate<'a, 'j> {
    handle: &'a mut Handle<'j>,
    inode: &'a Inode,
    nodes: &'a mut NodeAllocations,
    root: &'a mut ExtentRoot,
    path: MapPath,
    /// Indirect blocks that the map gets, less those that it loses.
    blocks: i64,
}

impl MapUpdate<'_, '_> {
    /// Changes the bytes of node number `depth` of the way. `change` gets the number of entries of
    /// its level besides.
    fn write<T>(&mut self, depth: usize, change: impl FnOnce(&mut [u8], u32) -> T) -> Result<T> {
        let per_block = self.inode.space().layout().block_size / 4;
        Ok(match &self.path.nodes[depth].buffer {
            Some(buffer) => change(&mut self.handle.write(buffer)?, per_block),
            None => change(&mut self.root.bytes, uext4_ondisk::block_map::DIRECT),
        })
    }

    /// Adds the indirect blocks on the way that are missing.
    fn add_missing(&mut self) -> Result<()> {
        while self.path.missing() > 0 {
            let depth = self.path.nodes.len();
            let block = self.nodes.take(self.inode.space(), self.handle)?;
            let buffer = self.handle.create(block, BlockKind::Indirect)?;
            self.blocks += 1;
            let index = self.path.index(depth - 1);
            let is_set = self.write(depth - 1, |bytes, _| set_entry(bytes, index, block))?;
            let journal = self.inode.space().journal();
            journal.check(is_set, "an indirect block has its number in its parent")?;
            self.path.push_node(buffer);
        }
        Ok(())
    }

    /// Frees the node at `depth`, which is empty, and those above it that become empty by that.
    fn free_empty(&mut self, mut depth: usize) -> Result<()> {
        while let Some(buffer) = self.path.nodes[depth].buffer.clone() {
            self.handle.forget(buffer.block())?;
            self.inode.space().free(self.handle, buffer.block(), 1)?;
            self.blocks -= 1;
            depth -= 1;
            let index = self.path.index(depth);
            let is_empty = self.write(depth, |bytes, entries| {
                set_entry(bytes, index, BlockNo(0));
                (0..entries).all(|index| entry(bytes, index) == BlockNo(0))
            })?;
            if !is_empty {
                break;
            }
        }
        Ok(())
    }
}
