//! A whole extent tree, built from the bottom.
//!
//! Invariants: the nodes are written to blocks that nothing refers to yet, past the log, so they
//! have to be durable before a handle makes a root of the tree the inode's
//! ([`super::super::file`]'s conversion of block maps is the only caller).

use super::tree_path::capacity;
use crate::error::{Error, Result};
use crate::inode::Inode;
use uext4_ondisk::BlockNo;
use uext4_ondisk::extent::{
    Extent, ExtentIndex, ROOT_ENTRIES, seal_extent_block, write_index, write_leaf,
};

/// Nodes besides the root that a tree of so many extents has.
#[must_use]
pub fn nodes_for(inode: &Inode, extents: usize) -> usize {
    let room = capacity(inode, Some(BlockNo(0)));
    let (mut entries, mut nodes) = (extents, 0);
    while entries > usize::from(ROOT_ENTRIES) {
        entries = entries.div_ceil(room);
        nodes += entries;
    }
    nodes
}

/// Writes the nodes of a tree with `extents`, which ascend, for `inode` to the first
/// [`nodes_for`] of `blocks`, which are on the device and not in the cache. Returns its root.
///
/// # Errors
/// A device failure; too few blocks.
pub fn build(inode: &Inode, extents: &[Extent], blocks: &[BlockNo]) -> Result<[u8; 60]> {
    let room = capacity(inode, Some(BlockNo(0)));
    let mut root = [0; 60];
    if write_leaf(&mut root, extents) {
        return Ok(root);
    }
    let mut blocks = blocks.iter().copied();
    let mut put = |first, write: &dyn Fn(&mut [u8]) -> bool| {
        let journal = inode.space().journal();
        let block = blocks.next().ok_or_else(|| journal.broken("a tree has blocks for its nodes"));
        let child = block?;
        put_node(inode, child, write)?;
        Ok::<ExtentIndex, Error>(ExtentIndex { first, child })
    };
    let mut level = Vec::new();
    for chunk in extents.chunks(room) {
        level.push(put(chunk[0].first, &|bytes: &mut [u8]| write_leaf(bytes, chunk))?);
    }
    let mut depth = 1;
    while !write_index(&mut root, depth, &level) {
        let mut above = Vec::new();
        for chunk in level.chunks(room) {
            let write = |bytes: &mut [u8]| write_index(bytes, depth, chunk);
            above.push(put(chunk[0].first, &write)?);
        }
        (level, depth) = (above, depth + 1);
    }
    Ok(root)
}

fn put_node(inode: &Inode, block: BlockNo, write: &dyn Fn(&mut [u8]) -> bool) -> Result<()> {
    let layout = inode.space().layout();
    let mut bytes = vec![0; layout.block_size as usize];
    inode
        .space()
        .journal()
        .check(write(&mut bytes), "the entries of an extent node fit into it")?;
    if layout.has_metadata_csum() {
        seal_extent_block(&mut bytes, inode.seed());
    }
    let written = inode.cache().device().write_at(layout.byte_of(block), &bytes);
    written.map_err(|error| Error::io(format!("writing block {block}"), error))
}
