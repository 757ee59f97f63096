//! Block maps of ext2 and ext3: files without an extent tree, for reading.
//!
//! On disk: `i_block` holds 12 block numbers, then a singly, a doubly and a triply indirect
//! block. A number of 0 is a hole.
//! Invariants: such files are never changed. A file system without the `extent` feature is
//! read-only. On one with the feature, changes of such a file are refused.

use super::{Mapping, State};
use crate::cache::BlockKind;
use crate::error::Result;
use crate::inode::Inode;
use std::collections::HashSet;
use uext4_ondisk::block_map::{BlockPath, direct, entry, path};
use uext4_ondisk::extent::{Extent, MAX_WRITTEN_LEN};
use uext4_ondisk::{BlockNo, CorruptKind, FileBlock, Place};

pub(super) fn lookup(inode: &Inode, at: FileBlock) -> Result<Mapping> {
    let space = inode.space();
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
        let buffer = inode.cache().read(block, BlockKind::Plain)?;
        block = entry(&buffer.read(), index);
    }
    if block == BlockNo(0) {
        return Ok(hole(1));
    }
    space.check_run(block, 1)?;
    Ok(Mapping { first: at, len: 1, state: State::Written(block) })
}

/// Number of blocks from the one that `steps` lead to, up to the end of the subtree.
fn rest_of_subtree(per_block: u32, steps: &[u32]) -> u32 {
    let per_block = u64::from(per_block);
    let (mut size, mut before) = (1_u64, 0_u64);
    for &index in steps.iter().rev() {
        before += u64::from(index) * size;
        size *= per_block;
    }
    u32::try_from(size - before).unwrap_or(u32::MAX)
}

/// Slots of `i_block`.
const SLOTS: u32 = 15;

/// Calls `visit` with the runs of a block map from block `from` on, until it returns false. Runs
/// are as long as those of an extent can be.
pub(super) fn list(
    inode: &Inode,
    from: FileBlock,
    visit: &mut dyn FnMut(Extent) -> bool,
) -> Result<()> {
    let map = inode.attributes().block_map;
    let per_block = u64::from(inode.space().layout().block_size / 4);
    let nodes = HashSet::new();
    let mut walk = Walk { inode, per_block, from, visit, nodes, run: None };
    let mut first = 0;
    for slot in 0..SLOTS {
        // The last three slots lead to blocks by one, two and three levels.
        let levels = slot.saturating_sub(SLOTS - 4);
        if !walk.subtree(direct(&map, slot), levels, first)? {
            return Ok(());
        }
        first += per_block.pow(levels);
    }
    if let Some(last) = walk.run.take() {
        (walk.visit)(last);
    }
    Ok(())
}

/// A walk over a block map in the order of the file.
struct Walk<'a> {
    inode: &'a Inode,
    /// Block numbers in an indirect block.
    per_block: u64,
    from: FileBlock,
    visit: &'a mut dyn FnMut(Extent) -> bool,
    /// Indirect blocks seen so far. Each may occur once. Otherwise a hostile map of a few blocks
    /// could refer to billions.
    nodes: HashSet<BlockNo>,
    /// The last run, which the next block may continue.
    run: Option<Extent>,
}

impl Walk<'_> {
    /// Walks the blocks of the file from `first` on, which `block` leads to by `levels` indirect
    /// blocks. False if the visitor wants no more.
    fn subtree(&mut self, block: BlockNo, levels: u32, first: u64) -> Result<bool> {
        let span = self.per_block.pow(levels);
        let is_before = first + span <= u64::from(self.from.get());
        let is_past = first >= u64::from(FileBlock::END.get());
        if block == BlockNo(0) || is_before || is_past {
            return Ok(true);
        }
        self.inode.space().check_run(block, 1)?;
        if levels == 0 {
            return Ok(self.push(FileBlock(u32::try_from(first).unwrap_or(u32::MAX)), block));
        }
        if !self.nodes.insert(block) {
            let kind = CorruptKind::Rule { what: "indirect block", why: "has two places" };
            return Err(kind.at(Place::InodeBlock(self.inode.ino(), block)).into());
        }
        // A copy, because the visitor must not be called with the block locked.
        let buffer = self.inode.cache().read(block, BlockKind::Plain)?;
        let bytes: Box<[u8]> = buffer.read()[..].into();
        let below = span / self.per_block;
        let mut at = first;
        for index in 0..u32::try_from(self.per_block).unwrap_or(u32::MAX) {
            if !self.subtree(entry(&bytes, index), levels - 1, at)? {
                return Ok(false);
            }
            at += below;
        }
        Ok(true)
    }

    fn push(&mut self, at: FileBlock, block: BlockNo) -> bool {
        let new = Extent { first: at, len: 1, start: block, unwritten: false };
        match &mut self.run {
            Some(run)
                if run.end() == at
                    && run.start.plus(u64::from(run.len)) == block
                    && run.len < MAX_WRITTEN_LEN =>
            {
                run.len += 1;
                true
            }
            run => run.replace(new).is_none_or(|done| (self.visit)(done)),
        }
    }
}
