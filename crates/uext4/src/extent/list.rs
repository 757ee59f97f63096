//! All extents of a tree, in order.

use super::path::Path;
use crate::error::Result;
use crate::inode::Inode;
use uext4_ondisk::FileBlock;
use uext4_ondisk::extent::Extent;

/// The tree part of [`super::list`].
pub(super) fn list(
    inode: &Inode,
    from: FileBlock,
    visit: &mut dyn FnMut(Extent) -> bool,
) -> Result<()> {
    let mut listed_to = None;
    let mut next = Some(from);
    while let Some(at) = next {
        let path = {
            let root = inode.tree().read();
            Path::to(inode, &root, at)?
        };
        for &extent in &path.extents {
            let is_new = listed_to.is_none_or(|end| extent.first >= end);
            if extent.end() <= from || !is_new {
                continue;
            }
            inode.space().check_run(extent.start, u64::from(extent.len))?;
            listed_to = Some(extent.end());
            if !visit(extent) {
                return Ok(());
            }
        }
        next = path.next_leaf;
    }
    Ok(())
}
