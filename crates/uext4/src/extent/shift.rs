//! Moving extents along their file, to collapse or insert ranges.
//!
//! What: a [`Shift`] adds a distance to the first block of every extent that begins in a range of
//! the file. Nothing moves on the device, and no node is added or removed: entries and keys change
//! in place. A block of 4 KiB has about 340 extents, so one handle shifts most files completely.
//! Invariants: the caller has made room. The blocks that extents move over are a hole, no extent
//! crosses the start of the range, and its end is the end of the file or the start of a leaf.
//! Kernel counterpart: `ext4_ext_shift_extents`.

use super::tree_path::{TreePath, check_fit, parse_node, read_child, read_node};
use crate::cache::Buffer;
use crate::error::Result;
use crate::inode::Inode;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::extent::{Extent, ExtentIndex, ExtentNode, write_index, write_leaf};
use uext4_ondisk::{BlockNo, FileBlock};

/// How far extents move, in blocks, and in which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// Towards the start of the file.
    Down(u32),
    /// Towards its end.
    Up(u32),
}

/// A shift of the extents that begin in `from .. end`.
#[derive(Clone, Copy, Debug)]
pub struct Shift {
    /// First block of the file.
    pub from: FileBlock,
    /// The block after the last.
    pub end: FileBlock,
    /// How far they move.
    pub by: Distance,
}

/// The nodes that a shift changes, pinned in memory.
#[derive(Debug)]
pub struct ShiftPins {
    pins: Vec<Arc<Buffer>>,
    /// Credits of [`Shift::apply`], the inode included.
    pub credits: u32,
}

impl ShiftPins {
    /// Reads the nodes on the paths to `places`, one place in each leaf that changes, and the
    /// inode's block. No handle may be open.
    ///
    /// # Errors
    /// A corrupt tree; a device failure.
    pub fn read(inode: &Inode, places: impl IntoIterator<Item = FileBlock>) -> Result<Self> {
        let root = inode.tree().read();
        let mut nodes = Vec::new();
        for at in places {
            nodes.extend(TreePath::to(inode, &root, at)?.nodes());
        }
        nodes.sort_unstable();
        nodes.dedup();
        let mut pins = vec![inode.table_block()?];
        for node in nodes {
            pins.push(read_node(inode, node)?);
        }
        let credits = u32::try_from(pins.len()).unwrap_or(u32::MAX);
        Ok(Self { pins, credits })
    }

    /// Pinned blocks.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pins.len()
    }
}

impl Shift {
    /// Moves the extents.
    ///
    /// # Errors
    /// The journal is aborted; the tree is corrupt.
    pub fn apply(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let mut root = inode.tree().write();
        let mut entries = Entries::of(&parse_node(inode, None, &root.bytes, None)?);
        if !self.shift_entries(handle, inode, &mut entries, FileBlock::END)? {
            return Ok(());
        }
        check_fit(inode, entries.write(&mut root.bytes))?;
        inode.update_root(handle, &root, 0)
    }

    fn moved(&self, at: FileBlock) -> FileBlock {
        match self.by {
            Distance::Down(blocks) => FileBlock(at.get() - blocks),
            Distance::Up(blocks) => at.plus(blocks),
        }
    }
}

/// The entries of a node.
enum Entries {
    Leaf(Vec<Extent>),
    /// With the depth of the node.
    Index(u16, Vec<ExtentIndex>),
}

impl Entries {
    fn of(node: &ExtentNode<'_>) -> Self {
        match node.depth {
            0 => Self::Leaf(node.extents().collect()),
            depth => Self::Index(depth, node.children().collect()),
        }
    }

    /// Writes the entries into their node, which has room because there are no more than before.
    fn write(&self, bytes: &mut [u8]) -> bool {
        match self {
            Self::Leaf(extents) => write_leaf(bytes, extents),
            Self::Index(depth, children) => write_index(bytes, *depth, children),
        }
    }

    fn first(&self) -> Option<FileBlock> {
        match self {
            Self::Leaf(extents) => extents.first().map(|extent| extent.first),
            Self::Index(_, children) => children.first().map(|child| child.first),
        }
    }
}

impl Shift {
    /// Shifts the subtree of a node that ends before `bound`. True if an entry of the node changed.
    fn shift_entries(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        entries: &mut Entries,
        bound: FileBlock,
    ) -> Result<bool> {
        let mut is_changed = false;
        match entries {
            Entries::Leaf(extents) => {
                let moving = self.from..self.end;
                for extent in extents.iter_mut().filter(|e| moving.contains(&e.first)) {
                    extent.first = self.moved(extent.first);
                    is_changed = true;
                }
            }
            Entries::Index(depth, children) => {
                for index in 0..children.len() {
                    let end = children.get(index + 1).map_or(bound, |next| next.first);
                    let child = &mut children[index];
                    if end <= self.from || child.first >= self.end {
                        continue;
                    }
                    let first = self.shift_node(handle, inode, child.child, *depth - 1, end)?;
                    is_changed |= first.is_some_and(|first| first != child.first);
                    child.first = first.unwrap_or(child.first);
                }
            }
        }
        Ok(is_changed)
    }

    /// Shifts the subtree of a node in block `block`. Returns its first block afterwards.
    fn shift_node(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        block: BlockNo,
        depth: u16,
        bound: FileBlock,
    ) -> Result<Option<FileBlock>> {
        let buffer = read_child(inode, block)?;
        let node = Some(block);
        let mut entries = Entries::of(&parse_node(inode, node, &buffer.read(), Some(depth))?);
        if self.shift_entries(handle, inode, &mut entries, bound)? {
            let fits = entries.write(&mut handle.write(&buffer)?);
            check_fit(inode, fits)?;
        }
        Ok(entries.first())
    }
}
