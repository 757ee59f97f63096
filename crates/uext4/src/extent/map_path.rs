//! The way through a block map to one block: the numbers in `i_block` and in indirect blocks that
//! lead to it.
//!
//! Invariants: a way enters no block twice, so a block map that leads back to itself is corrupt.
//! Every block on it, the last one included, is in the data area.

use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, Result};
use crate::inode::{ExtentRoot, Inode};
use std::sync::Arc;
use uext4_ondisk::block_map::{BlockPath, DIRECT, SLOTS, direct, entry, path};
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, CorruptKind, FileBlock, Place};

/// Blocks that an entry leads to: none for a number of 0.
const HOLE: BlockNo = BlockNo(0);

/// A node of a block map: `i_block`, or an indirect block.
#[derive(Debug)]
pub(super) struct MapNode {
    /// `None`: `i_block`.
    pub(super) buffer: Option<Arc<Buffer>>,
    /// The entry on the way.
    pub(super) index: u32,
}

/// The way to a block.
#[derive(Debug)]
pub(super) struct MapPath {
    pub(super) at: FileBlock,
    /// The nodes that exist, from `i_block` down.
    pub(super) nodes: Vec<MapNode>,
    /// Index into each indirect block on the way, those that are missing included.
    steps: Vec<u32>,
    /// Where the block is; 0 for a hole.
    pub(super) block: BlockNo,
    /// Block numbers in an indirect block.
    per_block: u32,
}

/// An indirect block by its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodePlace {
    /// First block of the file that it leads to.
    first: u64,
    /// Indirect blocks below it, itself included.
    levels: u32,
}

impl MapPath {
    /// The way to block `at`. `None` behind the largest block map. The caller holds the tree.
    pub(super) fn to(inode: &Inode, root: &ExtentRoot, at: FileBlock) -> Result<Option<Self>> {
        let block_size = inode.space().layout().block_size;
        let Some(BlockPath { root: slot, steps }) = path(at, block_size) else { return Ok(None) };
        let mut nodes = Vec::with_capacity(1 + steps.len());
        nodes.push(MapNode { buffer: None, index: slot });
        let mut block = checked(inode, direct(&root.bytes, slot))?;
        for &index in &steps {
            if block == HOLE {
                break;
            }
            let is_node = |node: &MapNode| node.block() == Some(block);
            if nodes.iter().any(is_node) {
                return Err(corrupt(inode, block, "leads to itself"));
            }
            let buffer = inode.cache().read(block, BlockKind::Indirect)?;
            block = checked(inode, entry(&buffer.read(), index))?;
            nodes.push(MapNode { buffer: Some(buffer), index });
        }
        if block != HOLE && nodes.iter().any(|node| node.block() == Some(block)) {
            return Err(corrupt(inode, block, "leads to itself"));
        }
        Ok(Some(Self { at, nodes, steps, block, per_block: block_size / 4 }))
    }

    /// Indirect blocks on the way that are missing.
    pub(super) fn missing(&self) -> usize {
        self.steps.len() + 1 - self.nodes.len()
    }

    /// Adds the indirect block that is next on the way, which is new.
    pub(super) fn push_node(&mut self, buffer: Arc<Buffer>) {
        let index = self.index(self.nodes.len());
        self.nodes.push(MapNode { buffer: Some(buffer), index });
    }

    /// The index into node number `depth` of the way, `i_block` being number 0.
    pub(super) fn index(&self, depth: usize) -> u32 {
        depth.checked_sub(1).map_or(self.nodes[0].index, |step| self.steps[step])
    }

    /// The place of the indirect block that is number `depth` of the way.
    pub(super) fn place(&self, depth: usize) -> NodePlace {
        let levels = self.steps.len() + 1 - depth;
        let span = u64::from(self.per_block).pow(levels as u32);
        let base = self.slot_base(self.nodes[0].index);
        let within = u64::from(self.at.get()) - base;
        NodePlace { first: base + within / span * span, levels: levels as u32 }
    }

    /// The indirect blocks that exist on the way, with their places.
    pub(super) fn indirect(&self) -> impl Iterator<Item = (&Arc<Buffer>, NodePlace)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(depth, node)| Some((node.buffer.as_ref()?, self.place(depth))))
    }

    /// Whether the last node that exists is an indirect block without entries.
    pub(super) fn has_empty_node(&self) -> bool {
        let last = self.nodes.last().and_then(|node| node.buffer.as_ref());
        last.is_some_and(|buffer| buffer.read().iter().all(|&byte| byte == 0))
    }

    /// First block of the file in the leaf of the block: the direct blocks are one leaf, and what
    /// each indirect block of the lowest level leads to is another.
    pub(super) fn leaf_first(&self) -> FileBlock {
        let last = self.steps.last().copied().unwrap_or(self.nodes[0].index);
        FileBlock(self.at.get() - last)
    }

    /// The block of the file behind the leaf.
    pub(super) fn leaf_end(&self) -> FileBlock {
        self.leaf_first().plus(if self.steps.is_empty() { DIRECT } else { self.per_block })
    }

    /// The bytes of the leaf, `i_block` for direct blocks. `None` if it is missing.
    pub(super) fn with_leaf<T>(
        &self,
        root: &ExtentRoot,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let leaf = self.nodes.last().filter(|_| self.missing() == 0)?;
        Some(leaf.with_bytes(root, look))
    }

    /// The runs of the leaf from file block `from` of it on.
    pub(super) fn runs(
        &self,
        inode: &Inode,
        root: &ExtentRoot,
        from: FileBlock,
    ) -> Result<Vec<Extent>> {
        let (first, end) = (self.leaf_first(), self.leaf_end());
        let mut runs: Vec<Extent> = Vec::new();
        self.with_leaf(root, |bytes| {
            for at in from.max(first).get()..end.get() {
                let block = entry(bytes, at - first.get());
                if block != HOLE {
                    push(&mut runs, FileBlock(at), block);
                }
            }
        });
        for run in &runs {
            inode.space().check_run(run.start, u64::from(run.len))?;
        }
        Ok(runs)
    }

    /// The block behind the hole that the block is in, as far as that can be told without entering
    /// other indirect blocks.
    pub(super) fn hole_end(&self, root: &ExtentRoot) -> FileBlock {
        let mut end = u64::from(self.at.get());
        for (depth, node) in self.nodes.iter().enumerate().rev() {
            // Behind the entry on the way, and behind the entries of 0 that follow it.
            end = match depth {
                0 => self.slot_base(node.index) + self.slot_span(node.index),
                _ => {
                    let place = self.place(depth);
                    let span = u64::from(self.per_block).pow(place.levels - 1);
                    place.first + u64::from(node.index + 1) * span
                }
            };
            let entries = if depth == 0 { SLOTS } else { self.per_block };
            let zeroes = node.with_bytes(root, |bytes| {
                let rest = node.index + 1..entries;
                rest.take_while(|&index| entry(bytes, index) == HOLE).count() as u32
            });
            let next = node.index + 1 + zeroes;
            end += match depth {
                0 if next == SLOTS => return FileBlock::END,
                0 => self.slot_base(next) - end,
                _ => {
                    let levels = self.place(depth).levels;
                    u64::from(zeroes) * u64::from(self.per_block).pow(levels - 1)
                }
            };
            if next < entries {
                break;
            }
        }
        FileBlock(u32::try_from(end).unwrap_or(u32::MAX).min(FileBlock::END.get()))
    }

    /// First block of the file that a slot of `i_block` leads to.
    fn slot_base(&self, slot: u32) -> u64 {
        (0..slot).map(|slot| self.slot_span(slot)).sum()
    }

    /// Blocks of the file that a slot of `i_block` leads to.
    fn slot_span(&self, slot: u32) -> u64 {
        u64::from(self.per_block).pow((slot + 1).saturating_sub(DIRECT))
    }
}

impl MapNode {
    fn block(&self) -> Option<BlockNo> {
        self.buffer.as_ref().map(|buffer| buffer.block())
    }

    pub(super) fn with_bytes<T>(&self, root: &ExtentRoot, look: impl FnOnce(&[u8]) -> T) -> T {
        match &self.buffer {
            Some(buffer) => look(&buffer.read()),
            None => look(&root.bytes),
        }
    }
}

/// Adds a block to runs, each of which is as long as it can be.
pub(super) fn push(runs: &mut Vec<Extent>, at: FileBlock, block: BlockNo) {
    match runs.last_mut() {
        Some(run) if run.end() == at && run.start.plus(u64::from(run.len)) == block => run.len += 1,
        _ => runs.push(Extent { first: at, len: 1, start: block, unwritten: false }),
    }
}

fn checked(inode: &Inode, block: BlockNo) -> Result<BlockNo> {
    if block != HOLE {
        inode.space().check_run(block, 1)?;
    }
    Ok(block)
}

pub(super) fn corrupt(inode: &Inode, block: BlockNo, why: &'static str) -> Error {
    let kind = CorruptKind::Rule { what: "indirect block", why };
    kind.at(Place::InodeBlock(inode.ino(), block)).into()
}
