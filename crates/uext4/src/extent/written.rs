//! The written blocks of a leaf, for direct I/O.

use super::path::Path;
use crate::error::Result;
use crate::inode::{Inode, WrittenLeaf};
use uext4_ondisk::FileBlock;

/// The tree part of [`super::written_leaf`].
pub(super) fn leaf(inode: &Inode, at: FileBlock) -> Result<Option<WrittenLeaf>> {
    let path = {
        let root = inode.tree().read();
        Path::to(inode, &root, at)?
    };
    let Some(first) = path.extents.first() else { return Ok(None) };
    for extent in &path.extents {
        inode.space().check_run(extent.start, u64::from(extent.len))?;
    }
    let end = path.next_leaf.unwrap_or(FileBlock::END);
    Ok(Some(WrittenLeaf::new(first.first, end, &path.extents)))
}
