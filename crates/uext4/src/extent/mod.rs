//! Extent trees: which block of a file stands where.
//!
//! What: [`lookup`] for readers, [`list`] for those who want all of it; [`Edit`] for whoever
//! changes a tree, [`Spot::lengthen`] for the most frequent change; [`Shift`] for whoever moves a
//! part of one along its file; [`Growth`] for directories.
//! On disk: `Documentation/filesystems/ext4/ifork.rst`. The root is `i_block`, other nodes are
//! blocks; depth at most 5.
//! Invariants: a tree changes only under its inode's writeback lock (a directory's content lock),
//! so what was planned from it holds until the change is applied. Every run that a look-up returns
//! lies in the data area, and so does every node. An index entry's key is the first block of what
//! is below it, and all of that lies before the next key: a look-up and a change meet the same
//! entry.
//! Locking: the tree's own lock is taken for the time of a look-up or a change, the latter inside a
//! handle; blocks of the tree are read under it.
//! Kernel counterpart: `fs/ext4/extents.c`.

mod edit;
mod growth;
mod lengthen;
mod list;
mod path;
mod shift;
mod written;

pub use edit::{Edit, NodeAllocations, NodeSource, Removed, edit_credits};
pub use growth::{Growth, allocate_growth, grow, grow_credits};
pub use lengthen::Spot;
pub use list::list;
pub use shift::{Distance, Shift, ShiftPins, leaves_from};
pub(crate) use written::written_leaf;

use crate::alloc::Space;
use crate::cache::BlockKind;
use crate::error::Result;
use crate::inode::Inode;
use uext4_ondisk::extent::{Extent, ExtentEntries, ExtentIndex, ExtentNode};
use uext4_ondisk::{BlockNo, CorruptKind, FileBlock, InodeFlags, Place};

/// What stands at a block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing: reads as zeroes.
    Hole,
    /// Blocks that read as zeroes until they are written.
    Unwritten(BlockNo),
    /// Data.
    Written(BlockNo),
}

/// A run of blocks of a file in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The block that was asked for.
    pub first: FileBlock,
    /// Blocks in this state from there on; at least 1.
    pub len: u32,
    /// Their state; the block number is that of `first`.
    pub state: State,
}

impl Mapping {
    /// The block after the run.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        self.first.plus(self.len)
    }
}

impl Mapping {
    /// The last `len` blocks of the run, which has at least as many.
    pub(crate) fn last_part(self, len: u32) -> Self {
        let skip = self.len - len;
        let block = |block: BlockNo| block.plus(u64::from(skip));
        let state = match self.state {
            State::Hole => State::Hole,
            State::Unwritten(start) => State::Unwritten(block(start)),
            State::Written(start) => State::Written(block(start)),
        };
        Self { first: self.first.plus(skip), len, state }
    }
}

/// The state of block `at` and of those that follow it in the same state.
///
/// # Errors
/// A corrupt tree; a device failure.
pub fn lookup(space: &Space, inode: &Inode, at: FileBlock) -> Result<Mapping> {
    Ok(lookup_extent(space, inode, at)?.0)
}

/// As [`lookup`], with the whole extent that block `at` lies in, if it does.
///
/// # Errors
/// As [`lookup`].
pub fn lookup_extent(
    space: &Space,
    inode: &Inode,
    at: FileBlock,
) -> Result<(Mapping, Option<Extent>)> {
    let spot = find(space, inode, at)?;
    Ok((spot.mapping, spot.before().filter(|extent| extent.contains(at))))
}

/// As [`lookup`], with what stands before block `at` in the same leaf.
///
/// # Errors
/// As [`lookup`].
pub fn find(space: &Space, inode: &Inode, at: FileBlock) -> Result<Spot> {
    let root = inode.tree().read();
    if !inode.attributes().flags.contains(InodeFlags::EXTENTS) {
        drop(root);
        let mapping = crate::extent::block_map::lookup(space, inode, at)?;
        return Ok(Spot { mapping, before: None, leaf: None });
    }
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
        let kind = BlockKind::ExtentNode { seed: inode.seed() };
        let buffer = inode.cache().read(child.child, kind)?;
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

/// The block on the device of block `at` of a directory.
///
/// # Errors
/// `Corrupt` for a hole: a directory has none.
pub fn block_of(space: &Space, inode: &Inode, at: FileBlock) -> Result<BlockNo> {
    match lookup(space, inode, at)?.state {
        State::Written(block) => Ok(block),
        State::Hole | State::Unwritten(_) => {
            let kind = CorruptKind::Rule { what: "directory", why: "has a hole" };
            Err(kind.at(Place::FileBlock(inode.ino(), at)).into())
        }
    }
}

enum Step {
    Down(ExtentIndex),
    Mapping(Mapping, Option<(usize, Extent)>),
}

/// One level down towards `at`, or the answer. `bound` is where the next subtree begins.
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
                // Before the first subtree there is nothing.
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

mod block_map;

#[cfg(test)]
#[path = "tests/rig.rs"]
pub(crate) mod rig;
