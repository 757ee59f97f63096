//! A path from the root of an extent tree to a leaf, decoded so that it can be changed.

use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{ExtentRoot, Inode};
use std::sync::Arc;
use uext4_ondisk::extent::{Extent, ExtentIndex, ExtentNode, ROOT_ENTRIES, max_entries};
use uext4_ondisk::{BlockNo, FileBlock, Place};

/// An index node on the path.
#[derive(Debug)]
pub(super) struct Level {
    /// `None` is the root.
    pub(super) block: Option<BlockNo>,
    pub(super) children: Vec<ExtentIndex>,
    /// Index of the child on the path.
    pub(super) position: usize,
}

/// Index nodes from the root down, then a leaf.
#[derive(Debug)]
pub(super) struct TreePath {
    pub(super) levels: Vec<Level>,
    /// Levels of index nodes in the tree. A change may shorten `levels`.
    pub(super) depth: u16,
    /// `None`: the root is the leaf.
    pub(super) leaf_block: Option<BlockNo>,
    pub(super) extents: Vec<Extent>,
    /// First block of the file in the next leaf.
    pub(super) next_leaf: Option<FileBlock>,
}

impl TreePath {
    /// The path to the leaf where block `at` is or would be.
    pub(super) fn to(inode: &Inode, root: &ExtentRoot, at: FileBlock) -> Result<Self> {
        let node = parse_node(inode, None, &root.bytes, None)?;
        let mut path = Self {
            levels: Vec::with_capacity(usize::from(node.depth)),
            depth: node.depth,
            leaf_block: None,
            extents: node.extents().collect(),
            next_leaf: None,
        };
        let mut depth = node.depth;
        let mut down = path.descend(None, &node, at);
        while let Some(child) = down {
            depth -= 1;
            let buffer = read_child(inode, child.child)?;
            let bytes = buffer.read();
            let bound = path.next_leaf.unwrap_or(FileBlock::END);
            let node = parse_child(inode, &child, &bytes, depth, bound)?;
            if depth == 0 {
                path.leaf_block = Some(child.child);
                path.extents = node.extents().collect();
            }
            down = path.descend(Some(child.child), &node, at);
        }
        Ok(path)
    }

    /// Blocks of the nodes on the path.
    pub(super) fn nodes(&self) -> impl Iterator<Item = BlockNo> {
        self.levels.iter().filter_map(|level| level.block).chain(self.leaf_block)
    }

    fn descend(
        &mut self,
        block: Option<BlockNo>,
        node: &ExtentNode<'_>,
        at: FileBlock,
    ) -> Option<ExtentIndex> {
        if node.depth == 0 {
            return None;
        }
        let children: Vec<ExtentIndex> = node.children().collect();
        // A block before the first subtree would be inserted into it.
        let position = node.position(at).unwrap_or(0);
        let child = children[position];
        if let Some(next) = children.get(position + 1) {
            self.next_leaf = Some(next.first);
        }
        self.levels.push(Level { block, children, position });
        Some(child)
    }
}

pub(super) fn node_kind(inode: &Inode) -> BlockKind {
    BlockKind::ExtentNode { seed: inode.seed() }
}

/// Reads a node that is not the root.
pub(super) fn read_node(inode: &Inode, block: BlockNo) -> Result<Arc<Buffer>> {
    inode.cache().read(block, node_kind(inode))
}

/// Reads a node that an index entry leads to.
pub(super) fn read_child(inode: &Inode, block: BlockNo) -> Result<Arc<Buffer>> {
    inode.space().check_run(block, 1)?;
    read_node(inode, block)
}

/// The node with these bytes: the root (`None`), or the one in a block. `depth` is its depth, if
/// that is known.
pub(super) fn parse_node<'b>(
    inode: &Inode,
    block: Option<BlockNo>,
    bytes: &'b [u8],
    depth: Option<u16>,
) -> Result<ExtentNode<'b>> {
    let blocks = 0..inode.space().layout().blocks_count;
    let node = ExtentNode::parse(bytes, depth, blocks);
    Ok(node.map_err(|kind| kind.at(node_place(inode, block)))?)
}

/// The node with these bytes that `child` leads to. Its subtree ends before `bound`.
pub(super) fn parse_child<'b>(
    inode: &Inode,
    child: &ExtentIndex,
    bytes: &'b [u8],
    depth: u16,
    bound: FileBlock,
) -> Result<ExtentNode<'b>> {
    let block = Some(child.child);
    let node = parse_node(inode, block, bytes, Some(depth))?;
    let checked = node.check_place(child.first, bound);
    checked.map_err(|kind| kind.at(node_place(inode, block)))?;
    Ok(node)
}

fn node_place(inode: &Inode, block: Option<BlockNo>) -> Place {
    block.map_or(Place::Inode(inode.ino()), |block| Place::InodeBlock(inode.ino(), block))
}

/// Entries that a node can have.
pub(super) fn capacity(inode: &Inode, block: Option<BlockNo>) -> usize {
    match block {
        None => usize::from(ROOT_ENTRIES),
        Some(_) => usize::from(max_entries(inode.space().layout().block_size as usize)),
    }
}

/// Fails if entries did not fit into their node, which they always do: they are counted before.
pub(super) fn check_fit(inode: &Inode, fits: bool) -> Result<()> {
    inode.space().journal().check(fits, "the entries of an extent node fit into it")
}

/// The tree cannot grow because it is as deep as the format allows.
pub(super) fn too_deep(inode: &Inode) -> Error {
    Error::new(ErrorKind::FileTooBig, format!("inode {}: extent tree too deep", inode.ino()))
}
