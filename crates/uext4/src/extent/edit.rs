//! Changing an extent tree.
//!
//! What: an [`Edit`] replaces the blocks `first .. end` of a file, as far as they are in one leaf,
//! by one new extent or by nothing. It begins here for every form of mapping, and goes on in
//! [`super::map_edit`] for block maps. Insertion, conversion and removal are all edits. Adjacent
//! extents are merged, leaves that overflow are split, leaves that become empty are freed, and keys
//! are corrected.
//! Invariants: before the handle starts, the blocks for new nodes are allocated, and the nodes and
//! bitmaps that change are read and pinned ([`NodeAllocations`]). Therefore an edit in a handle
//! cannot fail because the device is full or broken, or because the tree cannot grow.

use super::map_edit;
use super::mapping::{Form, form};
use super::tree_path::{Level, TreePath, capacity, check_fit, node_kind, read_node, too_deep};
use crate::alloc::{Allocation, Space};
use crate::cache::Buffer;
use crate::error::Result;
use crate::inode::{ExtentRoot, Inode};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::extent::{
    Extent, ExtentIndex, MAX_DEPTH, RawExtentHeader, write_index, write_leaf,
};
use uext4_ondisk::{BlockNo, FileBlock};

/// A change of the mapping of `first .. end`.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// First block of the file.
    pub first: FileBlock,
    /// The block after the last.
    pub end: FileBlock,
    /// The extent that is there afterwards, inside `first .. end`.
    pub new: Option<Extent>,
}

/// What an edit removed from the tree.
#[derive(Debug, Default)]
pub struct Removed {
    /// Runs on the device that were mapped before.
    pub runs: Vec<(BlockNo, u32)>,
    /// The start of the next leaf, if the edit extends into it.
    pub next: Option<FileBlock>,
}

/// What edits need besides credits: allocations for the nodes that they may add, and the blocks
/// that they change, pinned in memory.
#[derive(Debug, Default)]
pub struct NodeAllocations {
    allocations: Vec<Allocation>,
    pins: Vec<Arc<Buffer>>,
}

/// Where blocks for new nodes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSource {
    /// Reserved blocks.
    Reserved,
    /// The node pool too. For edits that remove or convert blocks, which must not fail.
    Pool,
    /// Free blocks, as for data.
    Free,
}

/// Worst case of blocks that one edit dirties, the inode included: for a tree of any depth up to
/// that of the root plus one, and for any block map.
#[must_use]
pub fn edit_credits(inode: &Inode) -> u32 {
    if matches!(form(inode), Form::BlockMap) {
        return inode.space().credits().map_edit();
    }
    let root = inode.tree().read();
    let header = RawExtentHeader::ref_from_prefix(&root.bytes);
    let depth = header.map_or(0, |header| u32::from(header.eh_depth.get().min(MAX_DEPTH)));
    inode.space().credits().edit(depth)
}

impl NodeAllocations {
    /// Allocates and reads what edits at `places` may need if they free no node. The caller holds
    /// the lock under which the tree changes, and no handle.
    ///
    /// # Errors
    /// `NoSpace`; `FileTooBig` for a tree that cannot grow; a corrupt tree; a device failure.
    pub fn for_edits(inode: &Inode, places: &[FileBlock], source: NodeSource) -> Result<Self> {
        let space = inode.space();
        let mut pins = vec![inode.table_block()?];
        let count = match form(inode) {
            Form::Tree => {
                let root = inode.tree().read();
                let paths = paths_to(inode, &root, places)?;
                for path in &paths {
                    for node in path.nodes() {
                        pins.push(read_node(inode, node)?);
                    }
                }
                nodes_needed(inode, &paths)?
            }
            Form::BlockMap => {
                let (count, changed) = map_edit::plan(inode, places)?;
                pins.extend(changed);
                count
            }
        };
        let goal = inode.goal();
        let allocate = |_| match source {
            NodeSource::Reserved => space.allocate_reserved(goal, 1),
            NodeSource::Pool => space.allocate_node(goal),
            NodeSource::Free => space.allocate(goal, 1),
        };
        Ok(Self { allocations: (0..count).map(allocate).collect::<Result<_>>()?, pins })
    }

    /// Allocates and reads what edits at `places` may need that remove blocks, and thereby free
    /// nodes. With `splits` they may split an extent in two.
    ///
    /// # Errors
    /// The errors of [`NodeAllocations::for_edits`].
    pub fn for_removal(inode: &Inode, places: &[FileBlock], splits: bool) -> Result<Self> {
        if matches!(form(inode), Form::BlockMap) {
            return Self::for_map_removal(inode, places);
        }
        let mut nodes = match splits {
            true => Self::for_edits(inode, places, NodeSource::Pool)?,
            false => Self { allocations: Vec::new(), pins: vec![inode.table_block()?] },
        };
        let root = inode.tree().read();
        for path in paths_to(inode, &root, places)? {
            for node in path.nodes() {
                nodes.pins.push(read_node(inode, node)?);
                nodes.pins.extend(inode.space().pin_run(node, 1)?);
            }
        }
        Ok(nodes)
    }

    fn for_map_removal(inode: &Inode, places: &[FileBlock]) -> Result<Self> {
        let freed = map_edit::nodes_to_free(inode, places)?;
        let mut nodes = Self { allocations: Vec::new(), pins: vec![inode.table_block()?] };
        for buffer in &freed {
            nodes.pins.extend(inode.space().pin_run(buffer.block(), 1)?);
        }
        nodes.pins.extend(freed);
        Ok(nodes)
    }

    /// Pinned blocks that the edits change, including the inode's. Some may occur twice.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNo> {
        self.pins.iter().map(|buffer| buffer.block())
    }

    /// Worst case of blocks that new nodes dirty: themselves, their bitmaps, and descriptors.
    #[must_use]
    pub fn new_node_credits(&self) -> u32 {
        3 * u32::try_from(self.allocations.len()).unwrap_or(u32::MAX / 3)
    }

    pub(super) fn take(&mut self, space: &Space, handle: &mut Handle<'_>) -> Result<BlockNo> {
        let journal = space.journal();
        let mut allocation = self
            .allocations
            .pop()
            .ok_or_else(|| journal.broken("the nodes that an edit adds are allocated"))?;
        space.mark_used(handle, &mut allocation, 1)
    }
}

fn paths_to(inode: &Inode, root: &ExtentRoot, places: &[FileBlock]) -> Result<Vec<TreePath>> {
    places.iter().map(|&at| TreePath::to(inode, root, at)).collect()
}

/// Nodes that the edits at `paths`, which ascend, can add. Each edit adds at most two entries to
/// its leaf, and each split adds one to the level above. The first entry splits a node that may be
/// full. A split in the middle leaves two nodes half full. A split at the end of a file leaves a
/// full node, but the edits that follow are behind it. Therefore another split needs half a node of
/// further entries.
fn nodes_needed(inode: &Inode, paths: &[TreePath]) -> Result<usize> {
    let room = capacity(inode, Some(BlockNo(0)));
    let splits = |entries: usize| 1 + entries / (room / 2 - 2);
    let mut full_leaves = Vec::new();
    for edits in paths.chunk_by(|a, b| a.leaf_block == b.leaf_block) {
        let (path, entries) = (&edits[0], 2 * edits.len());
        let after = path.extents.len() + entries;
        if after <= capacity(inode, path.leaf_block) {
            continue;
        }
        if path.leaf_block.is_none() {
            // The root moves down into a block.
            return Ok(if after <= room { 1 } else { 2 + splits(entries) });
        }
        full_leaves.push((path, splits(entries)));
    }
    // Leaves that are split may have the same parent.
    let added: usize = full_leaves.iter().map(|(_, new)| new).sum();
    let mut needed = added;
    for (path, new) in full_leaves {
        let is_full = |level: &&Level| level.children.len() + added > capacity(inode, level.block);
        let full = path.levels.iter().rev().take_while(is_full).count();
        if full == path.levels.len() && path.depth >= MAX_DEPTH {
            return Err(too_deep(inode));
        }
        needed += full * splits(new);
    }
    Ok(needed)
}

impl Edit {
    /// Maps the blocks of `new`, whatever was there.
    #[must_use]
    pub fn insert(new: Extent) -> Self {
        Self { first: new.first, end: new.end(), new: Some(new) }
    }

    /// Applies the edit. Costs [`edit_credits`].
    ///
    /// # Errors
    /// The journal is aborted, or the tree is not the one that was planned for.
    pub fn apply(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        nodes: &mut NodeAllocations,
    ) -> Result<Removed> {
        self.apply_with(handle, inode, nodes, 0)
    }

    /// Applies the edit as [`Edit::apply`] does, where the file gets so many `clusters` with it, or
    /// loses them. Without clusters in the file system they are not looked at, because the blocks
    /// that are mapped tell the count.
    ///
    /// # Errors
    /// The errors of [`Edit::apply`].
    pub fn apply_with(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        nodes: &mut NodeAllocations,
        clusters: i64,
    ) -> Result<Removed> {
        if matches!(form(inode), Form::BlockMap) {
            return map_edit::apply(self, handle, inode, nodes);
        }
        let mut root = inode.tree().write();
        let path = TreePath::to(inode, &root, self.first)?;
        let mut removed =
            Removed { runs: Vec::new(), next: path.next_leaf.filter(|&next| next < self.end) };
        let old_first = path.extents.first().map(|extent| extent.first);
        let extents = self.replace(&path.extents, &mut removed.runs);
        let is_end = |new: Extent| extents.last().is_some_and(|last| last.end() == new.end());
        let appends = path.next_leaf.is_none() && self.new.is_some_and(is_end);
        let root = &mut root;
        let mut update = TreeUpdate { handle, inode, nodes, root, blocks: 0, path, appends };
        update.write(extents, old_first)?;
        let layout = inode.space().layout();
        let blocks = if layout.has_clusters() {
            (update.blocks + clusters) * i64::from(layout.cluster_blocks)
        } else {
            let unmapped: u32 = removed.runs.iter().map(|&(_, len)| len).sum();
            let mapped = self.new.map_or(0, |extent| extent.len);
            update.blocks + i64::from(mapped) - i64::from(unmapped)
        };
        inode.update_root(handle, root, blocks)?;
        Ok(removed)
    }

    /// The leaf's extents after the edit.
    fn replace(&self, extents: &[Extent], removed: &mut Vec<(BlockNo, u32)>) -> Vec<Extent> {
        let mut result = Vec::with_capacity(extents.len() + 2);
        let mut new = self.new;
        for extent in extents {
            if let Some(insert) = new.filter(|new| new.first < extent.first) {
                push_merged(&mut result, insert);
                new = None;
            }
            let cut_from = extent.first.max(self.first);
            let cut_to = extent.end().min(self.end);
            if cut_from >= cut_to {
                push_merged(&mut result, *extent);
                continue;
            }
            removed.push((
                extent.start.plus(u64::from(cut_from.get() - extent.first.get())),
                cut_to.get() - cut_from.get(),
            ));
            if extent.first < cut_from {
                push_merged(&mut result, part(extent, extent.first, cut_from));
            }
            if let Some(insert) = new.take_if(|new| new.first < extent.end()) {
                push_merged(&mut result, insert);
            }
            if cut_to < extent.end() {
                push_merged(&mut result, part(extent, cut_to, extent.end()));
            }
        }
        if let Some(insert) = new {
            push_merged(&mut result, insert);
        }
        result
    }
}

fn part(extent: &Extent, from: FileBlock, to: FileBlock) -> Extent {
    Extent {
        first: from,
        len: to.get() - from.get(),
        start: extent.start.plus(u64::from(from.get() - extent.first.get())),
        unwritten: extent.unwritten,
    }
}

/// Appends an extent. If it continues the last one, that one becomes longer.
fn push_merged(extents: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = extents.last_mut()
        && last.unwritten == extent.unwritten
        && last.end() == extent.first
        && last.start.plus(u64::from(last.len)) == extent.start
        && last.len + extent.len <= Extent::max_len(last.unwritten)
    {
        last.len += extent.len;
    } else {
        extents.push(extent);
    }
}

/// An edit that is being applied.
struct TreeUpdate<'a, 'j> {
    handle: &'a mut Handle<'j>,
    inode: &'a Inode,
    nodes: &'a mut NodeAllocations,
    root: &'a mut ExtentRoot,
    /// Nodes that the tree gets, less those that it loses.
    blocks: i64,
    path: TreePath,
    /// The edit adds to the end of the file.
    appends: bool,
}

impl TreeUpdate<'_, '_> {
    /// Writes the leaf's new extents. Splits or frees the leaf and corrects keys as needed.
    fn write(&mut self, extents: Vec<Extent>, old_first: Option<FileBlock>) -> Result<()> {
        let fits = extents.len() <= capacity(self.inode, self.path.leaf_block);
        match self.path.leaf_block {
            None if fits => self.write_leaf(None, &extents),
            None => self.push_root_leaf_down(extents),
            Some(block) if extents.is_empty() => self.free_leaf(block),
            Some(block) => {
                let first = extents[0].first;
                let at = if fits { extents.len() } else { self.split_point(extents.len()) };
                let (lower, upper) = extents.split_at(at);
                self.write_leaf(Some(block), lower)?;
                if old_first != Some(first) {
                    self.correct_keys(first)?;
                }
                let Some(first) = upper.first().map(|extent| extent.first) else { return Ok(()) };
                let block = self.new_node()?;
                self.write_leaf(Some(block), upper)?;
                let lowest = self.path.levels.len() - 1;
                self.add_child(lowest, ExtentIndex { first, child: block })
            }
        }
    }

    /// Where a leaf that overflows is split. When the file is appended to this is near the end of
    /// the leaf, so that leaves stay full. Else it is in the middle, so that both halves have room
    /// for what the same handle inserts later.
    fn split_point(&self, count: usize) -> usize {
        if self.appends { count - 2 } else { count / 2 }
    }

    fn push_root_leaf_down(&mut self, extents: Vec<Extent>) -> Result<()> {
        let block = self.new_node()?;
        let first = extents[0].first;
        self.write_leaf(Some(block), &extents)?;
        self.write_index(None, 1, &[ExtentIndex { first, child: block }])
    }

    /// Inserts a child behind the child on the path.
    fn add_child(&mut self, level: usize, child: ExtentIndex) -> Result<()> {
        let node = &mut self.path.levels[level];
        node.children.insert(node.position + 1, child);
        if node.children.len() <= capacity(self.inode, node.block) {
            return self.write_level(level);
        }
        let new = self.new_node()?;
        let depth = self.depth_of(level);
        let node = &mut self.path.levels[level];
        if node.block.is_none() {
            // The plan has checked this.
            let journal = self.inode.space().journal();
            journal.check(
                depth < MAX_DEPTH,
                "an extent tree has at most five levels of index nodes",
            )?;
            // The root moves down and points to its former content.
            let children = std::mem::take(&mut node.children);
            let first = children[0].first;
            self.write_index(Some(new), depth, &children)?;
            return self.write_index(None, depth + 1, &[ExtentIndex { first, child: new }]);
        }
        let upper = node.children.split_off(node.children.len() / 2);
        let first = upper[0].first;
        self.write_index(Some(new), depth, &upper)?;
        self.write_level(level)?;
        self.add_child(level - 1, ExtentIndex { first, child: new })
    }

    /// Removes an empty leaf from the tree, and the nodes that become empty by that.
    fn free_leaf(&mut self, leaf: BlockNo) -> Result<()> {
        let mut empty = leaf;
        for level in (0..self.path.levels.len()).rev() {
            self.free_node(empty)?;
            let node = &mut self.path.levels[level];
            node.children.remove(node.position);
            if let Some(first) = node.children.first().map(|child| child.first) {
                let was_first = node.position == 0;
                self.write_level(level)?;
                if was_first && level > 0 {
                    self.path.levels.truncate(level);
                    self.correct_keys(first)?;
                }
                return Ok(());
            }
            match node.block {
                Some(block) => empty = block,
                None => self.write_leaf(None, &[])?,
            }
        }
        Ok(())
    }

    /// Corrects the keys on the path after its first block changed.
    fn correct_keys(&mut self, first: FileBlock) -> Result<()> {
        for level in (0..self.path.levels.len()).rev() {
            let node = &mut self.path.levels[level];
            let position = node.position;
            node.children[position].first = first;
            self.write_level(level)?;
            if position > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Levels from an index node of the path down to the leaves.
    fn depth_of(&self, level: usize) -> u16 {
        self.path.depth - u16::try_from(level).unwrap_or(0)
    }

    fn write_level(&mut self, level: usize) -> Result<()> {
        let depth = self.depth_of(level);
        let Level { block, children, .. } = &self.path.levels[level];
        let (block, children) = (*block, children.clone());
        self.write_index(block, depth, &children)
    }

    fn write_leaf(&mut self, block: Option<BlockNo>, extents: &[Extent]) -> Result<()> {
        self.write_node(block, |bytes| write_leaf(bytes, extents))
    }

    fn write_index(
        &mut self,
        block: Option<BlockNo>,
        depth: u16,
        children: &[ExtentIndex],
    ) -> Result<()> {
        self.write_node(block, |bytes| write_index(bytes, depth, children))
    }

    /// Writes the root (`None`) or the node in a block.
    fn write_node(
        &mut self,
        block: Option<BlockNo>,
        write: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<()> {
        let fits = match block {
            None => write(&mut self.root.bytes),
            Some(block) => write(&mut self.handle.write(&read_node(self.inode, block)?)?),
        };
        check_fit(self.inode, fits)
    }

    fn new_node(&mut self) -> Result<BlockNo> {
        let block = self.nodes.take(self.inode.space(), self.handle)?;
        self.handle.create(block, node_kind(self.inode))?;
        self.blocks += 1;
        Ok(block)
    }

    fn free_node(&mut self, block: BlockNo) -> Result<()> {
        self.handle.forget(block)?;
        self.inode.space().free(self.handle, block, 1)?;
        self.blocks -= 1;
        Ok(())
    }
}
