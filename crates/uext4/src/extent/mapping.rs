//! Where the blocks of a file are: the one place that knows in which form an inode maps them.
//!
//! What: readers and writers ask "file block -> device block, length, state" here, and this module
//! asks the form that the inode has. [`find`] returns a place besides, from which a writer goes
//! on, and [`written_leaf`] what direct I/O learns. A new form (data in the inode) attaches to
//! [`Form`]: a variant, and an arm in each function below and where [`super::Edit`] begins. What
//! needs unwritten blocks or moves mappings ([`super::Spot::lengthen`], [`super::Shift`]) is for
//! trees alone.

use super::{Spot, block_map, tree};
use crate::error::Result;
use crate::inode::{Inode, WrittenLeaf};
use uext4_ondisk::block_map::{DIRECT, direct};
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, CorruptKind, FileBlock, Place};

/// The form in which an inode that has blocks maps them.
pub(super) enum Form {
    /// An extent tree.
    Tree,
    /// A block map of ext2 and ext3.
    BlockMap,
}

pub(super) fn form(inode: &Inode) -> Form {
    if inode.has_extent_tree() { Form::Tree } else { Form::BlockMap }
}

/// What a block of a file is mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing. Reads as zeroes.
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
    /// Blocks in this state from `first` on; at least 1.
    pub len: u32,
    /// Their state, with the block number of `first`.
    pub state: State,
}

impl Mapping {
    /// The block after the run.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        self.first.plus(self.len)
    }

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
pub fn lookup(inode: &Inode, at: FileBlock) -> Result<Mapping> {
    match form(inode) {
        Form::Tree => tree::lookup(inode, at),
        Form::BlockMap => block_map::lookup(inode, at),
    }
}

/// The first block of `from .. end` that is mapped, and where it is.
///
/// # Errors
/// The errors of [`lookup`].
pub fn first_mapped(
    inode: &Inode,
    from: FileBlock,
    end: FileBlock,
) -> Result<Option<(FileBlock, BlockNo)>> {
    let mut at = from;
    while at < end {
        let mapping = lookup(inode, at)?;
        if let State::Written(block) | State::Unwritten(block) = mapping.state {
            return Ok(Some((at, block)));
        }
        at = mapping.end();
    }
    Ok(None)
}

/// The mapping of block `at`, and the extent that contains the block, if there is one: the whole
/// one of a tree, the run from the block on of a block map.
///
/// # Errors
/// The errors of [`lookup`].
pub fn lookup_extent(inode: &Inode, at: FileBlock) -> Result<(Mapping, Option<Extent>)> {
    match form(inode) {
        Form::Tree => tree::lookup_extent(inode, at),
        Form::BlockMap => {
            let mapping = block_map::lookup(inode, at)?;
            let State::Written(start) = mapping.state else { return Ok((mapping, None)) };
            let run = Extent { first: at, len: mapping.len, start, unwritten: false };
            Ok((mapping, Some(run)))
        }
    }
}

/// The mapping of block `at`, and its place in the tree or map.
///
/// # Errors
/// The errors of [`lookup`].
pub fn find(inode: &Inode, at: FileBlock) -> Result<Spot> {
    match form(inode) {
        Form::Tree => tree::find(inode, at),
        Form::BlockMap => block_map::find(inode, at),
    }
}

/// The blocks of all nodes of a tree or map, ascending, without what is in the inode.
///
/// # Errors
/// A corrupt tree; a device failure.
pub(crate) fn all_nodes(inode: &Inode) -> Result<Vec<BlockNo>> {
    match form(inode) {
        Form::Tree => tree::node_blocks(inode),
        Form::BlockMap => block_map::indirect_blocks(inode),
    }
}

/// The indirect blocks that the inode itself leads to, or 0.
pub(crate) fn top_indirect(inode: &Inode) -> [BlockNo; 3] {
    match form(inode) {
        Form::Tree => [BlockNo(0); 3],
        Form::BlockMap => {
            let root = inode.tree().read();
            [0, 1, 2].map(|level| direct(&root.bytes, DIRECT + level))
        }
    }
}

/// Where block `at` of a directory is on the device.
///
/// # Errors
/// `Corrupt` for a hole, because a directory has none.
pub fn block_of(inode: &Inode, at: FileBlock) -> Result<BlockNo> {
    match lookup(inode, at)?.state {
        State::Written(block) => Ok(block),
        State::Hole | State::Unwritten(_) => {
            let kind = CorruptKind::Rule { what: "directory", why: "has a hole" };
            Err(kind.at(Place::FileBlock(inode.ino(), at)).into())
        }
    }
}

/// Whether an indirect block that leads to nothing is on the way to block `at`, which is a hole.
/// The removal of the block frees it.
///
/// # Errors
/// The errors of [`lookup`].
pub(crate) fn has_empty_node(inode: &Inode, at: FileBlock) -> Result<bool> {
    match form(inode) {
        Form::Tree => Ok(false),
        Form::BlockMap => block_map::has_empty_node(inode, at),
    }
}

/// Calls `visit` with each extent from block `from` on, in ascending order, until it returns false.
/// The first one may begin before `from`. Extents of a tree are listed as they are stored, so one
/// may continue the one before. Blocks of a block map are joined to runs. Blocks past the end of
/// the file, which fallocate leaves there, are listed too.
///
/// No lock is held while `visit` runs. Each leaf is listed in its state of one moment. If the file
/// changes meanwhile, extents that move to another leaf may be missing, but none is listed twice.
///
/// # Errors
/// A corrupt tree or map; a device failure.
pub fn list(inode: &Inode, from: FileBlock, visit: &mut dyn FnMut(Extent) -> bool) -> Result<()> {
    if !inode.has_blocks() {
        return Ok(());
    }
    match form(inode) {
        Form::Tree => tree::list(inode, from, visit),
        Form::BlockMap => block_map::list(inode, from, visit),
    }
}

/// The written runs of the leaf that block `at` belongs to. `None` if that leaf is empty.
///
/// # Errors
/// The errors of [`lookup`].
pub(crate) fn written_leaf(inode: &Inode, at: FileBlock) -> Result<Option<WrittenLeaf>> {
    match form(inode) {
        _ if !inode.has_blocks() => Ok(None),
        Form::Tree => tree::written_leaf(inode, at),
        Form::BlockMap => block_map::written_leaf(inode, at),
    }
}
