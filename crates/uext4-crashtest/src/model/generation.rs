//! The blocks of a file between two shifts of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Where the blocks come from that no event has changed.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Nowhere: the file was new.
    Empty,
    /// The file system before the trace.
    Image {
        number: u32,
        /// Blocks with a place on the medium.
        allocated: Vec<Range<u64>>,
    },
    /// The generation before this one: a range of blocks was collapsed, or inserted.
    Shifted { range: Range<u64>, insert: bool },
}

/// A change of a block.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) step: usize,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Bytes were written in the block, from `start`.
    Written { start: usize, data: Arc<[u8]>, range: Range<usize>, direct: bool },
    /// Bytes were cleared in the page cache: behind a new end, at the edges of a hole.
    Zeroed { range: Range<usize> },
    /// The block was taken from the file.
    Removed,
    /// The block was marked as unwritten, and stays: what is written next is written over its data,
    /// whether the journal has the mark or not. So is the zeroing of it for a write beside it, the
    /// first of which was done by the step `zeroed`.
    Cleared { zeroed: Option<usize> },
}

impl What {
    /// Nothing of before is in the block any more.
    pub(crate) fn is_removal(&self) -> bool {
        matches!(self, Self::Removed | Self::Cleared { .. })
    }
}

/// A change of the size.
#[derive(Clone, Debug)]
pub(crate) enum SizeEvent {
    /// By a truncate or an allocation: with the journal.
    Set { step: usize, size: u64 },
    /// By a write from `from` to `to`.
    Grown { step: usize, from: u64, to: u64, direct: bool },
    /// The kernel began to write all of it back: blocks and size go with the journal.
    Allocated { step: usize },
}

impl SizeEvent {
    pub(crate) fn step(&self) -> usize {
        match self {
            Self::Set { step, .. } | Self::Grown { step, .. } | Self::Allocated { step } => *step,
        }
    }
}

/// A file between two shifts of its blocks.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    /// The step that began it.
    pub(crate) since: Option<usize>,
    pub(crate) source: Source,
    /// The size at its begin.
    pub(crate) first_size: u64,
    /// The size at its end, as the program saw it.
    pub(crate) size: u64,
    /// Events of each block that has any, in order.
    pub(crate) blocks: BTreeMap<u64, Vec<Event>>,
    pub(crate) sizes: Vec<SizeEvent>,
}

impl Source {
    /// Where a block was before a shift; `None` if it was inserted.
    pub(crate) fn before_shift(range: &Range<u64>, insert: bool, at: u64) -> Option<u64> {
        let len = range.end - range.start;
        match (at < range.start, insert) {
            (true, _) => Some(at),
            (false, false) => Some(at + len),
            (false, true) => (at >= range.end).then(|| at - len),
        }
    }
}

impl Generation {
    pub(crate) fn new(since: Option<usize>, source: Source, size: u64) -> Self {
        let (blocks, sizes) = Default::default();
        Self { since, source, first_size: size, size, blocks, sizes }
    }

    pub(crate) fn events(&mut self, at: u64) -> &mut Vec<Event> {
        self.blocks.entry(at).or_default()
    }
}
