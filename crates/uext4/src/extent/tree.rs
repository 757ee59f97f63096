//! Looking a block up in an extent tree.

use super::lengthen::Spot;
use super::mapping::{Mapping, State};
use super::path;
use crate::alloc::Space;
use crate::error::Result;
use crate::inode::Inode;
use uext4_ondisk::extent::{Extent, ExtentEntries, ExtentIndex, ExtentNode};
use uext4_ondisk::{CorruptKind, FileBlock, Place};

/// The mapping of block `at`, and its place in the tree.
pub(super) fn find(inode: &Inode, at: FileBlock) -> Result<Spot> {
    let space = inode.space();
    let root = inode.tree().read();
    let mut bound = FileBlock::END;
    let at_inode = |kind: CorruptKind| kind.at(Place::Inode(inode.ino()));
    let blocks = 0..space.layout().blocks_count;
    let node = ExtentNode::parse(&root.bytes, None, blocks.clone()).map_err(at_inode)?;
    let mut step = step_down(&node, at, &mut bound);
    let mut depth = node.depth;
    let mut leaf = None;
    loop {
        let child = match step {
            Step::Mapping(mapping, before) => {
                check(space, &mapping)?;
                return Ok(Spot { mapping, before, leaf });
            }
            Step::Down(child) => child,
        };
        depth -= 1;
        space.check_run(child.child, 1)?;
        let buffer = path::read_node(inode, child.child)?;
        step = {
            let bytes = buffer.read();
            let here = |kind: CorruptKind| kind.at(Place::InodeBlock(inode.ino(), child.child));
            let node = ExtentNode::parse(&bytes, Some(depth), blocks.clone()).map_err(here)?;
            node.check_place(child.first, bound).map_err(here)?;
            step_down(&node, at, &mut bound)
        };
        leaf = Some(buffer);
    }
}

enum Step {
    Down(ExtentIndex),
    Mapping(Mapping, Option<(usize, Extent)>),
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

fn check(space: &Space, mapping: &Mapping) -> Result<()> {
    match mapping.state {
        State::Hole => Ok(()),
        State::Written(block) | State::Unwritten(block) => {
            Ok(space.check_run(block, u64::from(mapping.len))?)
        }
    }
}
