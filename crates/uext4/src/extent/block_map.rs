//! Reading a block map of ext2 and ext3: a block, all runs in order, and the written blocks of a
//! leaf.
//!
//! On disk: `i_block` holds 12 block numbers, then a singly, a doubly and a triply indirect block.
//! A number of 0 is a hole. There are no unwritten blocks.

use super::lengthen::Spot;
use super::map_path::{MapPath, NodePlace, corrupt};
use super::{Mapping, State};
use crate::error::Result;
use crate::inode::{Inode, WrittenLeaf};
use std::collections::HashMap;
use uext4_ondisk::extent::{Extent, MAX_WRITTEN_LEN};
use uext4_ondisk::{BlockNo, FileBlock};

/// The state of block `at`, and of those that follow it in the same state and leaf.
pub(super) fn lookup(inode: &Inode, at: FileBlock) -> Result<Mapping> {
    let root = inode.tree().read();
    let Some(path) = MapPath::to(inode, &root, at)? else {
        let len = FileBlock::END.get().saturating_sub(at.get()).max(1);
        return Ok(Mapping { first: at, len, state: State::Hole });
    };
    if path.block == BlockNo(0) {
        let len = (path.hole_end(&root).get() - at.get()).max(1);
        return Ok(Mapping { first: at, len, state: State::Hole });
    }
    let start = path.block;
    let skip = at.get() - path.leaf_first().get();
    let len = path.with_leaf(&root, |bytes| {
        let end = path.leaf_end().get() - path.leaf_first().get();
        let numbers = (skip..end).map(|index| uext4_ondisk::block_map::entry(bytes, index).get());
        numbers.zip(start.get()..).take_while(|(number, want)| number == want).count() as u32
    });
    let len = len.unwrap_or(1).max(1);
    inode.space().check_run(start, u64::from(len))?;
    Ok(Mapping { first: at, len, state: State::Written(start) })
}

/// The mapping of block `at`, with what a writer needs to place blocks there.
pub(super) fn find(inode: &Inode, at: FileBlock) -> Result<Spot> {
    let mapping = lookup(inode, at)?;
    let mut spot = Spot::in_map(mapping, at, 1);
    if mapping.state != State::Hole {
        return Ok(spot);
    }
    let root = inode.tree().read();
    let Some(path) = MapPath::to(inode, &root, at)? else { return Ok(spot) };
    let (first, end) = (path.leaf_first(), path.leaf_end());
    let is_before = |extent: &Extent| extent.first < at;
    let before = path.runs(inode, &root, first)?.into_iter().take_while(is_before).last();
    spot = Spot::in_map(mapping, first, end.get() - at.get());
    spot.before = before.map(|extent| (0, extent));
    if spot.before.is_none()
        && at == first
        && let Some(last) = at.get().checked_sub(1)
        && let Some(path) = MapPath::to(inode, &root, FileBlock(last))?
        && path.block != BlockNo(0)
    {
        let (first, start) = (FileBlock(last), path.block);
        spot.before = Some((0, Extent { first, len: 1, start, unwritten: false }));
    }
    Ok(spot)
}

/// Whether the last indirect block on the way to block `at` is empty. uext4 and the kernel leave
/// none, other programs do.
pub(super) fn has_empty_node(inode: &Inode, at: FileBlock) -> Result<bool> {
    let root = inode.tree().read();
    let Some(path) = MapPath::to(inode, &root, at)? else { return Ok(false) };
    Ok(path.has_empty_node())
}

/// Calls `visit` with the runs of a block map from block `from` on, until it returns false. Runs
/// are as long as those of an extent can be.
pub(super) fn list(
    inode: &Inode,
    from: FileBlock,
    visit: &mut dyn FnMut(Extent) -> bool,
) -> Result<()> {
    walk(inode, from, visit).map(drop)
}

/// The indirect blocks of a block map, ascending.
///
/// # Errors
/// A corrupt map; a device failure.
pub fn indirect_blocks(inode: &Inode) -> Result<Vec<BlockNo>> {
    let places = walk(inode, FileBlock(0), &mut |_| true)?;
    let mut blocks: Vec<BlockNo> = places.into_keys().collect();
    blocks.sort_unstable();
    Ok(blocks)
}

/// Calls `visit` as [`list`] does; returns the indirect blocks that were met.
fn walk(
    inode: &Inode,
    from: FileBlock,
    visit: &mut dyn FnMut(Extent) -> bool,
) -> Result<HashMap<BlockNo, NodePlace>> {
    // Each indirect block may have one place. Otherwise a hostile map of a few blocks could refer
    // to billions.
    let mut places: HashMap<BlockNo, NodePlace> = HashMap::new();
    let mut last: Option<Extent> = None;
    let mut at = from;
    while at < FileBlock::END {
        let (runs, next) = {
            let root = inode.tree().read();
            let Some(path) = MapPath::to(inode, &root, at)? else { break };
            for (buffer, place) in path.indirect() {
                let block = buffer.block();
                if *places.entry(block).or_insert(place) != place {
                    return Err(corrupt(inode, block, "has two places"));
                }
            }
            match path.missing() {
                0 => (path.runs(inode, &root, at)?, path.leaf_end()),
                _ => (Vec::new(), path.hole_end(&root)),
            }
        };
        for run in runs {
            match &mut last {
                Some(last) if continues(last, &run) => last.len += run.len,
                last => {
                    if last.replace(run).is_some_and(|done| !visit(done)) {
                        return Ok(places);
                    }
                }
            }
        }
        at = next.max(at.plus(1));
    }
    if let Some(last) = last {
        visit(last);
    }
    Ok(places)
}

fn continues(last: &Extent, next: &Extent) -> bool {
    last.end() == next.first
        && last.start.plus(u64::from(last.len)) == next.start
        && last.len + next.len <= MAX_WRITTEN_LEN
}

/// The runs of the leaf that block `at` belongs to. `None` if that leaf is empty.
pub(super) fn written_leaf(inode: &Inode, at: FileBlock) -> Result<Option<WrittenLeaf>> {
    let root = inode.tree().read();
    let Some(path) = MapPath::to(inode, &root, at)? else { return Ok(None) };
    let runs = path.runs(inode, &root, path.leaf_first())?;
    let leaf = || WrittenLeaf::new(path.leaf_first(), path.leaf_end(), &runs);
    Ok((!runs.is_empty()).then(leaf))
}
