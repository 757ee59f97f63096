//! What the changes of mappings come to: the last change of every block of every file.
//!
//! What: a range that a later record maps elsewhere, or takes away again, leaves only the rest of
//! it. So no file gets a block that it, or another file, loses later in the same records.
//! Memory: at most two pieces for each record.

use super::outcome::RangeChange;
use std::collections::BTreeMap;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{FileBlock, Ino};

/// The pieces of files whose mapping changes, by file and first block.
#[derive(Debug, Default)]
pub(super) struct LastRanges {
    files: BTreeMap<Ino, BTreeMap<FileBlock, RangeChange>>,
    /// Changes of no block, which the repetition refuses.
    empty: Vec<RangeChange>,
}

impl LastRanges {
    /// Takes a change that comes after all before.
    pub(super) fn take(&mut self, change: RangeChange) {
        if change.end <= change.first || change.new.is_some_and(|new| new.len == 0) {
            self.empty.push(change);
            return;
        }
        let pieces = self.files.entry(change.ino).or_default();
        let before = pieces.range(..change.first).next_back().map(|(_, piece)| *piece);
        let covered = pieces.range(change.first..change.end).map(|(_, piece)| *piece);
        let touched: Vec<RangeChange> = before.into_iter().chain(covered).collect();
        for piece in touched {
            pieces.remove(&piece.first);
            for rest in [cut(piece, piece.first, change.first), cut(piece, change.end, piece.end)] {
                pieces.extend(rest.map(|rest| (rest.first, rest)));
            }
        }
        pieces.insert(change.first, change);
    }

    /// All pieces, by file and block.
    pub(super) fn finish(self) -> Vec<RangeChange> {
        let pieces = self.files.into_values().flat_map(BTreeMap::into_values);
        self.empty.into_iter().chain(pieces).collect()
    }
}

/// The part of a piece from `first` to `end`, if there is one.
fn cut(piece: RangeChange, first: FileBlock, end: FileBlock) -> Option<RangeChange> {
    let (first, end) = (first.max(piece.first), end.min(piece.end));
    if end <= first {
        return None;
    }
    let new = piece.new.map(|new| {
        let skipped = first.get() - new.first.get();
        let start = new.start.plus(u64::from(skipped));
        Extent { first, len: end.get() - first.get(), start, unwritten: new.unwritten }
    });
    Some(RangeChange { ino: piece.ino, first, end, new })
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_ondisk::BlockNo;

    fn change(first: u32, end: u32, start: Option<u64>) -> RangeChange {
        let (first, end) = (FileBlock(first), FileBlock(end));
        let len = end.get() - first.get();
        let map = |start| Extent { first, len, start: BlockNo(start), unwritten: false };
        RangeChange { ino: Ino(12), first, end, new: start.map(map) }
    }

    #[test]
    fn the_last_change_of_each_block_counts() {
        let mut last = LastRanges::default();
        last.take(change(0, 20, Some(100)));
        last.take(change(5, 8, None));
        last.take(change(15, 30, Some(500)));
        last.take(change(6, 7, Some(900)));
        let want = [
            change(0, 5, Some(100)),
            change(5, 6, None),
            change(6, 7, Some(900)),
            change(7, 8, None),
            change(8, 15, Some(108)),
            change(15, 30, Some(500)),
        ];
        assert_eq!(last.finish(), want);
    }
}
