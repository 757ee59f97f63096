//! The written blocks of a leaf, for direct I/O.

use super::path::Path;
use crate::alloc::Space;
use crate::error::Result;
use crate::inode::{Inode, WrittenLeaf};
use uext4_ondisk::FileBlock;

/// The written runs of the leaf that block `at` belongs to. `None` if that leaf is empty, or the
/// file has a block map.
///
/// # Errors
/// A corrupt tree; a device failure.
pub(crate) fn written_leaf(
    space: &Space,
    inode: &Inode,
    at: FileBlock,
) -> Result<Option<WrittenLeaf>> {
    if !inode.has_blocks() || !inode.has_extent_tree() {
        return Ok(None);
    }
    let path = {
        let root = inode.tree().read();
        Path::to(space, inode, &root, at)?
    };
    let Some(first) = path.extents.first() else { return Ok(None) };
    for extent in &path.extents {
        space.check_run(extent.start, u64::from(extent.len))?;
    }
    let end = path.next_leaf.unwrap_or(FileBlock::END);
    Ok(Some(WrittenLeaf::new(first.first, end, &path.extents)))
}
