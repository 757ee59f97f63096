//! Which of a file's blocks are known to be written.
//!
//! What: immutable arrays of runs, one for each leaf of the extent tree that somebody has met. A
//! [`Snapshot`] is replaced as a whole, by [`super::Overwrites`].
//! Invariants: what is known may lack anything, and says nothing of a block that is not written.

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

/// Written runs of one leaf of an extent tree, as they stood at one moment.
#[derive(Debug)]
pub(crate) struct WrittenLeaf {
    first: FileBlock,
    end: FileBlock,
    runs: Box<[Run]>,
}

impl WrittenLeaf {
    /// Of a leaf that is responsible for `first .. end`. Extents that continue each other are one
    /// run.
    pub(crate) fn new(first: FileBlock, end: FileBlock, extents: &[Extent]) -> Self {
        let mut runs: Vec<Run> = Vec::with_capacity(extents.len());
        for extent in extents.iter().filter(|extent| !extent.unwritten) {
            let len = u64::from(extent.len);
            match runs.last_mut() {
                Some(last)
                    if last.first.plus(last.len) == extent.first
                        && last.start.plus(u64::from(last.len)) == extent.start =>
                {
                    last.len += extent.len;
                }
                _ if len > 0 => {
                    runs.push(Run { first: extent.first, len: extent.len, start: extent.start });
                }
                _ => {}
            }
        }
        Self { first, end, runs: runs.into() }
    }
}

/// Leaves in ascending order.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    leaves: Vec<Arc<WrittenLeaf>>,
}

impl Snapshot {
    /// The block on the device of block `at`, and how many blocks follow each other from there.
    pub(super) fn find(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        let leaf = self.leaves.partition_point(|leaf| leaf.first <= at).checked_sub(1)?;
        let runs = &self.leaves[leaf].runs;
        let run = runs[runs.partition_point(|run| run.first <= at).checked_sub(1)?];
        let skip = at.get() - run.first.get();
        (skip < run.len).then(|| (run.start.plus(u64::from(skip)), run.len - skip))
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
