//! All extents of a file, in order.

use super::block_map;
use super::path::Path;
use crate::alloc::Space;
use crate::error::Result;
use crate::inode::Inode;
use uext4_ondisk::FileBlock;
use uext4_ondisk::extent::Extent;

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
pub fn list(
    space: &Space,
    inode: &Inode,
    from: FileBlock,
    visit: &mut dyn FnMut(Extent) -> bool,
) -> Result<()> {
    if !inode.has_blocks() {
        return Ok(());
    }
    if !inode.has_extent_tree() {
        return block_map::list(space, inode, from, visit);
    }
    let mut listed_to = None;
    let mut next = Some(from);
    while let Some(at) = next {
        let path = {
            let root = inode.tree().read();
            Path::to(space, inode, &root, at)?
        };
        for &extent in &path.extents {
            let is_new = listed_to.is_none_or(|end| extent.first >= end);
            if extent.end() <= from || !is_new {
                continue;
            }
            space.check_run(extent.start, u64::from(extent.len))?;
            listed_to = Some(extent.end());
            if !visit(extent) {
                return Ok(());
            }
        }
        next = path.next_leaf;
    }
    Ok(())
}
