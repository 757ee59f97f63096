//! A path in a hash tree, from the root through the nodes to a leaf, that can advance to the next
//! leaf.
//!
//! Invariants: the blocks of a path differ from each other. Leaves come in ascending order of hash.
//! A walk visits at most as many leaves as the directory has blocks, whatever the image says.

use super::view::View;
use crate::cache::Buffer;
use crate::error::{Error, Result};
use std::ops::RangeInclusive;
use std::sync::Arc;
use uext4_ondisk::dir_entry::StoredName;
use uext4_ondisk::hash::DirHasher;
use uext4_ondisk::htree::{self, DxEntry, DxNode};
use uext4_ondisk::{CorruptKind, FileBlock};

const WHAT: &str = "directory index";

/// An index block on the path, and its entry on the path.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) buffer: Arc<Buffer>,
    pub(super) block: FileBlock,
    /// Index of the entry on the path.
    pub(super) at: usize,
    /// Number of entries.
    pub(super) len: usize,
    /// Most entries that fit.
    pub(super) limit: usize,
}

impl Frame {
    fn new(buffer: Arc<Buffer>, block: FileBlock, at: usize, node: DxNode<'_>) -> Self {
        Self { buffer, block, at, len: node.len(), limit: usize::from(node.limit) }
    }

    /// Entry `at` of the block.
    fn entry(&self, view: &View<'_>, at: usize) -> Result<DxEntry> {
        let entry = |node: DxNode<'_>| entry_of(view, self.block, &node, at);
        with_node(view, &self.buffer, self.block, entry)?
    }

    /// Whether there is no room for one more entry.
    pub(super) fn is_full(&self) -> bool {
        self.len >= self.limit
    }
}

/// Runs `use_node` on the entries of an index block.
pub(super) fn with_node<T>(
    view: &View<'_>,
    buffer: &Buffer,
    at: FileBlock,
    use_node: impl FnOnce(DxNode<'_>) -> T,
) -> Result<T> {
    let bytes = buffer.read();
    let node = if at == FileBlock(0) {
        htree::parse_root(&bytes, view.has_csum(), view.levels_max()).map(|(_, node)| node)
    } else {
        htree::parse_node(&bytes, view.has_csum())
    };
    node.map(use_node).map_err(|kind| view.corrupt(at, kind))
}

/// A leaf and the index blocks above it.
#[derive(Debug)]
pub(super) struct HashPath<'v> {
    view: &'v View<'v>,
    pub(super) hasher: DirHasher,
    /// Root first; never empty.
    pub(super) frames: Vec<Frame>,
    pub(super) leaf: FileBlock,
    /// Least hash of the names in the leaf. Its lowest bit says that the leaf before also has names
    /// of that hash.
    pub(super) low: u32,
    leaves_left: u32,
}

impl<'v> HashPath<'v> {
    /// The path to the first leaf that may hold `name`, and the hash of the name.
    pub(super) fn to_name(view: &'v View<'v>, name: StoredName<'_>) -> Result<(Self, u32)> {
        Self::probe(view, |hasher| hasher.hash_of(name).0)
    }

    /// The path to the first leaf that may hold names of `hash`.
    pub(super) fn to_hash(view: &'v View<'v>, hash: u32) -> Result<Self> {
        Ok(Self::probe(view, |_| hash)?.0)
    }

    fn probe(view: &'v View<'v>, hash: impl FnOnce(&DirHasher) -> u32) -> Result<(Self, u32)> {
        let root_block = FileBlock(0);
        let buffer = view.index(root_block)?;
        let (hasher, hash, levels, at, entry, frame) = {
            let bytes = buffer.read();
            let (root, node) = htree::parse_root(&bytes, view.has_csum(), view.levels_max())
                .map_err(|kind| view.corrupt(root_block, kind))?;
            let hasher = view.hasher(Some(root.hash))?;
            let hash = hash(&hasher);
            let at = node.position(hash);
            let entry = entry_of(view, root_block, &node, at)?;
            let frame = Frame::new(Arc::clone(&buffer), root_block, at, node);
            (hasher, hash, root.levels, at, entry, frame)
        };
        let mut path = Self {
            view,
            hasher,
            frames: vec![frame],
            leaf: root_block,
            low: if at == 0 { 0 } else { entry.hash },
            leaves_left: view.blocks,
        };
        let mut child = entry.block;
        for _ in 0..levels {
            let entry = path.push(child, |node| node.position(hash))?;
            if path.frames.last().is_some_and(|frame| frame.at > 0) {
                path.low = entry.hash;
            }
            child = entry.block;
        }
        path.set_leaf(child)?;
        Ok((path, hash))
    }

    /// [`HashPath::low`] of the next leaf; `None` at the last one.
    pub(super) fn next_low(&self) -> Result<Option<u32>> {
        let Some(frame) = self.frames.iter().rfind(|frame| frame.at + 1 < frame.len) else {
            return Ok(None);
        };
        Ok(Some(frame.entry(self.view, frame.at + 1)?.hash))
    }

    /// Hashes of the names that the leaf may have. The greatest ones may continue in the next leaf.
    pub(super) fn range(&self) -> Result<RangeInclusive<u32>> {
        let high = self.next_low()?.map_or(u32::MAX, |low| low & !1);
        Ok(self.low & !1..=high)
    }

    /// Moves to the next leaf; false at the last one.
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Some(turn) = self.frames.iter().rposition(|frame| frame.at + 1 < frame.len) else {
            return Ok(false);
        };
        let depth = self.frames.len();
        self.frames.truncate(turn + 1);
        let frame = &mut self.frames[turn];
        frame.at += 1;
        let (at, block) = (frame.at, frame.block);
        let entry = frame.entry(self.view, at)?;
        if entry.hash < self.low {
            let kind = CorruptKind::Order {
                what: WHAT,
                index: u32::try_from(at).unwrap_or(u32::MAX),
                min: u64::from(self.low),
                found: u64::from(entry.hash),
            };
            return Err(self.view.corrupt(block, kind));
        }
        self.low = entry.hash;
        let mut child = entry.block;
        while self.frames.len() < depth {
            child = self.push(child, |_| 0)?.block;
        }
        self.set_leaf(child)?;
        Ok(true)
    }

    /// Moves to the next leaf if names of `hash` may continue there.
    pub(super) fn advance_within(&mut self, hash: u32) -> Result<bool> {
        match self.next_low()? {
            Some(low) if low & !1 == hash => self.advance(),
            _ => Ok(false),
        }
    }

    /// Descends into the index block `block`, to the entry that `choose` returns.
    fn push(
        &mut self,
        block: FileBlock,
        choose: impl FnOnce(&DxNode<'_>) -> usize,
    ) -> Result<DxEntry> {
        self.check_child(block)?;
        let buffer = self.view.index(block)?;
        let (frame, entry) = with_node(self.view, &buffer, block, |node| {
            let at = choose(&node);
            let entry = entry_of(self.view, block, &node, at)?;
            Ok::<_, Error>((Frame::new(Arc::clone(&buffer), block, at, node), entry))
        })??;
        self.frames.push(frame);
        Ok(entry)
    }

    fn set_leaf(&mut self, block: FileBlock) -> Result<()> {
        self.check_child(block)?;
        if self.leaves_left == 0 {
            let kind = CorruptKind::Rule { what: WHAT, why: "has more leaves than blocks" };
            return Err(self.view.corrupt(block, kind));
        }
        self.leaves_left -= 1;
        self.leaf = block;
        Ok(())
    }

    fn check_child(&self, block: FileBlock) -> Result<()> {
        if self.frames.iter().any(|frame| frame.block == block) {
            let kind = CorruptKind::Rule { what: WHAT, why: "points back to itself" };
            return Err(self.view.corrupt(block, kind));
        }
        Ok(())
    }
}

/// Entry `at` of a node. It is missing only if two directories of a corrupt image share a block,
/// and the other one was changed under its own lock.
fn entry_of(view: &View<'_>, block: FileBlock, node: &DxNode<'_>, at: usize) -> Result<DxEntry> {
    let missing = CorruptKind::Rule { what: WHAT, why: "belongs to two directories" };
    node.entry(at).ok_or_else(|| view.corrupt(block, missing))
}
