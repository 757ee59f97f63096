//! Which blocks of a file are known to be written, and which to be unwritten.
//!
//! What: immutable arrays of runs, one for each leaf of the extent tree that direct I/O has looked
//! up. [`super::DirectIoState`] replaces a [`WrittenSnapshot`] as a whole.
//! Invariants: a snapshot may be incomplete, and calls no block written that is not.

use std::sync::Arc;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, FileBlock};

/// A run of written blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockRun {
    first: FileBlock,
    len: u32,
    start: BlockNo,
}

/// The runs of one leaf of an extent tree at one moment.
#[derive(Debug)]
pub(crate) struct WrittenLeaf {
    first: FileBlock,
    end: FileBlock,
    runs: Box<[BlockRun]>,
    /// Runs that were unwritten when the leaf was read. They may become written in place at any
    /// time; they lose their blocks under a [`super::ExclusiveGuard`] only.
    unwritten: Box<[BlockRun]>,
}

impl WrittenLeaf {
    /// The runs of a leaf that covers `first .. end`. Extents that continue each other become one
    /// run.
    pub(crate) fn new(first: FileBlock, end: FileBlock, extents: &[Extent]) -> Self {
        let (runs, unwritten) = (runs_of(extents, false), runs_of(extents, true));
        Self { first, end, runs, unwritten }
    }
}

fn runs_of(extents: &[Extent], unwritten: bool) -> Box<[BlockRun]> {
    let mut runs: Vec<BlockRun> = Vec::new();
    for extent in extents.iter().filter(|extent| extent.unwritten == unwritten) {
        match runs.last_mut() {
            Some(last)
                if last.first.plus(last.len) == extent.first
                    && last.start.plus(u64::from(last.len)) == extent.start =>
            {
                last.len += extent.len;
            }
            _ if extent.len > 0 => {
                runs.push(BlockRun { first: extent.first, len: extent.len, start: extent.start });
            }
            _ => {}
        }
    }
    runs.into()
}

fn find_in(runs: &[BlockRun], at: FileBlock) -> Option<(BlockNo, u32)> {
    let run = runs[runs.partition_point(|run| run.first <= at).checked_sub(1)?];
    let skip = at.get() - run.first.get();
    (skip < run.len).then(|| (run.start.plus(u64::from(skip)), run.len - skip))
}

/// Leaves in ascending order.
#[derive(Debug, Default)]
pub(super) struct WrittenSnapshot {
    leaves: Vec<Arc<WrittenLeaf>>,
}

impl WrittenSnapshot {
    /// The device block of file block `at`, if it is written, and the number of blocks that follow
    /// each other from there.
    pub(super) fn find(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        find_in(&self.leaf(at)?.runs, at)
    }

    /// The device block of file block `at`, if it was unwritten, and the number of such blocks that
    /// follow each other from there.
    pub(super) fn find_unwritten(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        find_in(&self.leaf(at)?.unwritten, at)
    }

    fn leaf(&self, at: FileBlock) -> Option<&WrittenLeaf> {
        let leaf = self.leaves.partition_point(|leaf| leaf.first <= at).checked_sub(1)?;
        Some(&self.leaves[leaf])
    }

    /// A copy in which a leaf replaces those that it overlaps.
    pub(super) fn with(&self, leaf: WrittenLeaf) -> Self {
        let mut leaves = self.leaves_without(leaf.first, leaf.end);
        let place = leaves.partition_point(|other| other.first < leaf.first);
        leaves.insert(place, Arc::new(leaf));
        Self { leaves }
    }

    /// A copy without the leaves that overlap `first .. end`; `None` if there are none.
    pub(super) fn without(&self, first: FileBlock, end: FileBlock) -> Option<Self> {
        let leaves = self.leaves_without(first, end);
        (leaves.len() < self.leaves.len()).then_some(Self { leaves })
    }

    fn leaves_without(&self, first: FileBlock, end: FileBlock) -> Vec<Arc<WrittenLeaf>> {
        let keep = |leaf: &&Arc<WrittenLeaf>| leaf.end <= first || leaf.first >= end;
        self.leaves.iter().filter(keep).cloned().collect()
    }
}
