//! Block maps of ext2 and ext3: files without an extent tree, for reading.
//!
//! On disk: `i_block` holds 12 block numbers, then a singly, a doubly and a triply indirect
//! block. A number of 0 is a hole.
//! Invariants: such files are never changed: a file system without the `extent` feature is
//! read-only, and on one with it changes of such a file are refused.

use super::{Mapping, State};
use crate::alloc::Space;
use crate::cache::BlockKind;
use crate::error::Result;
use crate::inode::Inode;
use uext4_ondisk::block_map::{BlockPath, direct, entry, path};
use uext4_ondisk::{BlockNo, FileBlock};

pub(super) fn lookup(space: &Space, inode: &Inode, at: FileBlock) -> Result<Mapping> {
    let block_size = space.layout().block_size;
    let hole = |len| Mapping { first: at, len, state: State::Hole };
    let map = inode.attributes().block_map;
    let Some(BlockPath { root, steps }) = path(at, block_size) else {
        return Ok(hole(FileBlock::END.get().saturating_sub(at.get()).max(1)));
    };
    let per_block = block_size / 4;
    let mut block = direct(&map, root);
    for (done, &index) in steps.iter().enumerate() {
        if block.get() == 0 {
            return Ok(hole(rest_of_subtree(per_block, &steps[done..])));
        }
        space.check_run(block, 1)?;
        let buffer = space.cache().read(block, BlockKind::Plain)?;
        block = entry(&buffer.read(), index);
    }
    if block == BlockNo(0) {
        return Ok(hole(1));
    }
    space.check_run(block, 1)?;
    Ok(Mapping { first: at, len: 1, state: State::Written(block) })
}

/// Blocks from the one that `steps` lead to up to the end of the subtree in which they begin.
fn rest_of_subtree(per_block: u32, steps: &[u32]) -> u32 {
    let per_block = u64::from(per_block);
    let (mut size, mut before) = (1_u64, 0_u64);
    for &index in steps.iter().rev() {
        before += u64::from(index) * size;
        size *= per_block;
    }
    u32::try_from(size - before).unwrap_or(u32::MAX)
}
