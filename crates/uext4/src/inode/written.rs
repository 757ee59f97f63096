//! Which of a file's blocks are known to be written, and which to be unwritten.
//!
//! What: immutable arrays of runs, one for each leaf of the extent tree that somebody has met. A
//! [`Snapshot`] is replaced as a whole, by [`super::Overwrites`].
//! Invariants: what is known may lack anything, and calls no block written that is not.

use std::sync::Arc;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, FileBlock};

/// A run of written blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: FileBlock,
    len: u32,
    start: BlockNo,
}

/// Runs of one leaf of an extent tree, as they stood at one moment.
#[derive(Debug)]
pub(crate) struct WrittenLeaf {
    first: FileBlock,
    end: FileBlock,
    runs: Box<[Run]>,
    /// Unwritten when the leaf was read. They become written where they are, by anybody at any
    /// time; they lose their blocks under a [`super::Excluded`] only.
    unwritten: Box<[Run]>,
}

impl WrittenLeaf {
    /// Of a leaf that is responsible for `first .. end`. Extents that continue each other are one
    /// run.
    pub(crate) fn new(first: FileBlock, end: FileBlock, extents: &[Extent]) -> Self {
        let (runs, unwritten) = (runs_of(extents, false), runs_of(extents, true));
        Self { first, end, runs, unwritten }
    }
}

fn runs_of(extents: &[Extent], unwritten: bool) -> Box<[Run]> {
    let mut runs: Vec<Run> = Vec::new();
    for extent in extents.iter().filter(|extent| extent.unwritten == unwritten) {
        match runs.last_mut() {
            Some(last)
                if last.first.plus(last.len) == extent.first
                    && last.start.plus(u64::from(last.len)) == extent.start =>
            {
                last.len += extent.len;
            }
            _ if extent.len > 0 => {
                runs.push(Run { first: extent.first, len: extent.len, start: extent.start });
            }
            _ => {}
        }
    }
    runs.into()
}

fn find_in(runs: &[Run], at: FileBlock) -> Option<(BlockNo, u32)> {
    let run = runs[runs.partition_point(|run| run.first <= at).checked_sub(1)?];
    let skip = at.get() - run.first.get();
    (skip < run.len).then(|| (run.start.plus(u64::from(skip)), run.len - skip))
}

/// Leaves in ascending order.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    leaves: Vec<Arc<WrittenLeaf>>,
}

impl Snapshot {
    /// The block on the device of block `at`, if it is written, and how many blocks follow each
    /// other from there.
    pub(super) fn find(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        find_in(&self.leaf(at)?.runs, at)
    }

    /// Likewise, if it was unwritten.
    pub(super) fn find_unwritten(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        find_in(&self.leaf(at)?.unwritten, at)
    }

    fn leaf(&self, at: FileBlock) -> Option<&WrittenLeaf> {
        let leaf = self.leaves.partition_point(|leaf| leaf.first <= at).checked_sub(1)?;
        Some(&self.leaves[leaf])
    }

    /// With a leaf in place of those that it touches.
    pub(super) fn with(&self, leaf: WrittenLeaf) -> Self {
        let mut leaves = self.leaves_without(leaf.first, leaf.end);
        let place = leaves.partition_point(|other| other.first < leaf.first);
        leaves.insert(place, Arc::new(leaf));
        Self { leaves }
    }

    /// Without the leaves that `first .. end` touches; `None` if there is none.
    pub(super) fn without(&self, first: FileBlock, end: FileBlock) -> Option<Self> {
        let leaves = self.leaves_without(first, end);
        (leaves.len() < self.leaves.len()).then_some(Self { leaves })
    }

    fn leaves_without(&self, first: FileBlock, end: FileBlock) -> Vec<Arc<WrittenLeaf>> {
        let keep = |leaf: &&Arc<WrittenLeaf>| leaf.end <= first || leaf.first >= end;
        self.leaves.iter().filter(keep).cloned().collect()
    }
}
