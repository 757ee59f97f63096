//! Reading an extent tree: a block, all extents in order, and the written blocks of a leaf.

use super::lengthen::Spot;
use super::mapping::{Mapping, State};
use super::tree_path::{TreePath, parse_child, parse_node, read_child};
use crate::alloc::Space;
use crate::cache::Buffer;
use crate::error::Result;
use crate::inode::{Inode, WrittenLeaf};
use std::sync::Arc;
use uext4_ondisk::extent::{Extent, ExtentEntries, ExtentIndex, ExtentNode};
use uext4_ondisk::{BlockNo, FileBlock};

/// The mapping of block `at`, and its place in the tree.
pub(super) fn find(inode: &Inode, at: FileBlock) -> Result<Spot> {
    descend(inode, at, Spot::in_tree)
}

/// The mapping of block `at`.
pub(super) fn lookup(inode: &Inode, at: FileBlock) -> Result<Mapping> {
    descend(inode, at, |mapping, _, _| mapping)
}

/// The mapping of block `at`, and the whole extent that contains the block, if there is one.
pub(super) fn lookup_extent(inode: &Inode, at: FileBlock) -> Result<(Mapping, Option<Extent>)> {
    descend(inode, at, |mapping, before, _| {
        (mapping, before.map(|(_, extent)| extent).filter(|extent| extent.contains(at)))
    })
}

/// The last extent that does not begin after a block, and its position in the leaf.
type Before = Option<(usize, Extent)>;

/// Goes down to the leaf that block `at` belongs to (`None`: it is in the inode), and makes the
/// result of what is found there. Inlined, so that a look-up copies nothing that it does not want.
#[inline]
fn descend<R>(
    inode: &Inode,
    at: FileBlock,
    result: impl FnOnce(Mapping, Before, Option<Arc<Buffer>>) -> R,
) -> Result<R> {
    let root = inode.tree().read();
    let mut bound = FileBlock::END;
    let node = parse_node(inode, None, &root.bytes, None)?;
    let mut step = step_down(&node, at, &mut bound);
    let mut depth = node.depth;
    let mut leaf = None;
    loop {
        let child = match step {
            Step::Mapping(mapping, before) => {
                check(inode.space(), &mapping)?;
                return Ok(result(mapping, before, leaf));
            }
            Step::Down(child) => child,
        };
        depth -= 1;
        let buffer = read_child(inode, child.child)?;
        step = {
            let bytes = buffer.read();
            let node = parse_child(inode, &child, &bytes, depth, bound)?;
            step_down(&node, at, &mut bound)
        };
        leaf = Some(buffer);
    }
}

enum Step {
    Down(ExtentIndex),
    Mapping(Mapping, Before),
}

/// Descends one level towards `at`, or returns the mapping. `bound` is the start of the next
/// subtree.
fn step_down(node: &ExtentNode<'_>, at: FileBlock, bound: &mut FileBlock) -> Step {
    let position = node.position(at);
    let next = position.map_or(0, |p| p + 1);
    match node.entries {
        ExtentEntries::Index(entries) => {
            if let Some(after) = entries.get(next) {
                *bound = ExtentIndex::from(after).first;
            }
            match position {
                Some(position) => Step::Down(ExtentIndex::from(&entries[position])),
                // Before the first subtree there is a hole.
                None => Step::Mapping(hole(at, *bound), None),
            }
        }
        ExtentEntries::Leaf(entries) => {
            if let Some(after) = entries.get(next) {
                *bound = Extent::from(after).first;
            }
            let before = position.map(|p| (p, Extent::from(&entries[p])));
            let extent = before.map(|(_, extent)| extent).filter(|extent| extent.contains(at));
            let mapping = extent.map_or_else(|| hole(at, *bound), |extent| inside(&extent, at));
            Step::Mapping(mapping, before)
        }
    }
}

fn hole(at: FileBlock, bound: FileBlock) -> Mapping {
    Mapping { first: at, len: (bound.get() - at.get()).max(1), state: State::Hole }
}

fn inside(extent: &Extent, at: FileBlock) -> Mapping {
    let skip = at.get() - extent.first.get();
    let block = extent.start.plus(u64::from(skip));
    let state = if extent.unwritten { State::Unwritten(block) } else { State::Written(block) };
    Mapping { first: at, len: extent.len - skip, state }
}

#[inline]
fn check(space: &Space, mapping: &Mapping) -> Result<()> {
    match mapping.state {
        State::Hole => Ok(()),
        State::Written(block) | State::Unwritten(block) => {
            Ok(space.check_mapping(mapping.first, block, u64::from(mapping.len))?)
        }
    }
}

fn check_extent(inode: &Inode, extent: &Extent) -> Result<()> {
    Ok(inode.space().check_mapping(extent.first, extent.start, u64::from(extent.len))?)
}

/// The path to the leaf where block `at` is or would be, read under the tree's lock.
fn path_to(inode: &Inode, at: FileBlock) -> Result<TreePath> {
    TreePath::to(inode, &inode.tree().read(), at)
}

/// The tree part of [`super::list`].
pub(super) fn list(
    inode: &Inode,
    from: FileBlock,
    visit: &mut dyn FnMut(Extent) -> bool,
) -> Result<()> {
    let mut listed_to = None;
    let mut next = Some(from);
    while let Some(at) = next {
        let path = path_to(inode, at)?;
        for &extent in &path.extents {
            let is_new = listed_to.is_none_or(|end| extent.first >= end);
            if extent.end() <= from || !is_new {
                continue;
            }
            check_extent(inode, &extent)?;
            listed_to = Some(extent.end());
            if !visit(extent) {
                return Ok(());
            }
        }
        next = path.next_leaf;
    }
    Ok(())
}

/// The tree part of [`super::written_leaf`].
pub(super) fn written_leaf(inode: &Inode, at: FileBlock) -> Result<Option<WrittenLeaf>> {
    let path = path_to(inode, at)?;
    let Some(first) = path.extents.first() else { return Ok(None) };
    for extent in &path.extents {
        check_extent(inode, extent)?;
    }
    let end = path.next_leaf.unwrap_or(FileBlock::END);
    Ok(Some(WrittenLeaf::new(first.first, end, &path.extents)))
}

/// The starts of the leaves for blocks from `from` on: `from` itself, then the key of each leaf
/// behind it. The caller holds the lock under which the tree changes.
///
/// # Errors
/// A corrupt tree; a device failure.
pub fn leaves_from(inode: &Inode, from: FileBlock) -> Result<Vec<FileBlock>> {
    let mut leaves = Vec::new();
    let mut next = Some(from);
    while let Some(at) = next {
        leaves.push(at);
        next = path_to(inode, at)?.next_leaf.filter(|&leaf| leaf > at);
    }
    Ok(leaves)
}

/// The blocks of all nodes but the root. The caller holds the lock under which the tree changes.
///
/// # Errors
/// A corrupt tree; a device failure.
pub fn node_blocks(inode: &Inode) -> Result<Vec<BlockNo>> {
    let mut nodes = Vec::new();
    let mut next = Some(FileBlock(0));
    while let Some(at) = next {
        let path = path_to(inode, at)?;
        next = path.next_leaf.filter(|&leaf| leaf > at);
        nodes.extend(path.nodes());
    }
    nodes.sort_unstable();
    nodes.dedup();
    Ok(nodes)
}
