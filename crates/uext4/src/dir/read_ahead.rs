//! Reading the blocks of a directory before they are asked for.

use super::view::{Shape, View};
use crate::cache::BlockKind;
use crate::error::Result;
use crate::extent;
use crate::inode::Inode;
use uext4_ondisk::FileBlock;

/// Most bytes that are read ahead of a listing that begins.
pub(crate) const LISTED_BYTES: usize = 4 << 20;

/// Reads those of the first `bytes` of a directory that are not in memory, at the same time. The
/// caller holds the directory's lock, shared.
///
/// # Errors
/// Damage of the inode or its mapping; a device failure while the mapping is read. The blocks
/// themselves are checked when they are used.
pub(crate) fn read_ahead(dir: &Inode, bytes: usize) -> Result<()> {
    let view = View::of(dir)?;
    if view.shape == Shape::Inline {
        return Ok(());
    }
    let seed = dir.seed();
    let most = u32::try_from(bytes / view.block_size()).unwrap_or(1);
    let blocks = (0..view.blocks.min(most)).map(|at| {
        let is_root = at == 0 && view.shape == Shape::Indexed;
        // Nodes between root and leaves are few, and fail the checks of a leaf.
        let kind = if is_root { BlockKind::DirIndex { seed } } else { BlockKind::DirLeaf { seed } };
        Ok((extent::block_of(dir, FileBlock(at))?, kind))
    });
    let blocks = blocks.collect::<Result<Vec<_>>>()?;
    dir.cache().read_ahead(blocks);
    Ok(())
}
