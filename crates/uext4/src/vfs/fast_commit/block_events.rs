//! Which blocks files have got and lost, as intervals.
//!
//! Invariants: intervals do not overlap. A block that is used twice is refused.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use uext4_ondisk::{BlockNo, CorruptKind, Place};

/// What became of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// A file has lost them.
    Lost,
    /// A file has got them; whether one had lost them before.
    Got { were_lost: bool },
}

/// The last event of every block that had one.
#[derive(Debug, Default)]
pub(super) struct BlockEvents {
    /// By first block: the block behind the last one, and what became of them.
    runs: BTreeMap<u64, (u64, Fate)>,
}

impl BlockEvents {
    /// A file loses a run.
    pub(super) fn lose(&mut self, start: BlockNo, len: u32) {
        let (start, end) = (start.get(), start.get() + u64::from(len));
        self.take(start, end);
        self.runs.insert(start, (end, Fate::Lost));
    }

    /// A file gets a run.
    ///
    /// # Errors
    /// `Corrupt`: another place has one of the blocks.
    pub(super) fn get(&mut self, start: BlockNo, len: u32) -> Result<()> {
        let (mut at, end) = (start.get(), start.get() + u64::from(len));
        for (lost, lost_end, fate) in self.take(at, end) {
            if fate != Fate::Lost {
                return Err(twice(BlockNo(lost)));
            }
            if at < lost {
                self.runs.insert(at, (lost, Fate::Got { were_lost: false }));
            }
            self.runs.insert(lost, (lost_end, Fate::Got { were_lost: true }));
            at = lost_end;
        }
        if at < end {
            self.runs.insert(at, (end, Fate::Got { were_lost: false }));
        }
        Ok(())
    }

    /// All runs, ascending: first block, the block behind the last one, what became of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, Fate)> + '_ {
        self.runs.iter().map(|(&start, &(end, fate))| (start, end, fate))
    }

    /// Takes out what is known of `start .. end`, ascending.
    fn take(&mut self, start: u64, end: u64) -> Vec<(u64, u64, Fate)> {
        let before = self.runs.range(..start).next_back().map(|(&at, &(end, _))| (at, end));
        let first =
            before.filter(|&(_, before_end)| before_end > start).map_or(start, |(at, _)| at);
        let starts: Vec<u64> = self.runs.range(first..end).map(|(&at, _)| at).collect();
        let mut taken = Vec::with_capacity(starts.len());
        for at in starts {
            let Some((run_end, fate)) = self.runs.remove(&at) else { continue };
            if at < start {
                self.runs.insert(at, (start, fate));
            }
            if run_end > end {
                self.runs.insert(end, (run_end, fate));
            }
            taken.push((at.max(start), run_end.min(end), fate));
        }
        taken
    }
}

/// Two places of files have one block.
pub(super) fn twice(block: BlockNo) -> Error {
    let kind = CorruptKind::Rule { what: "fast commit", why: "maps a block that is in use" };
    kind.at(Place::Block(block)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_of_each_block_counts() {
        let mut events = BlockEvents::default();
        events.lose(BlockNo(10), 10);
        events.get(BlockNo(5), 8).unwrap();
        events.get(BlockNo(19), 3).unwrap();
        let (fresh, again) = (Fate::Got { were_lost: false }, Fate::Got { were_lost: true });
        let all: Vec<_> = events.iter().collect();
        let want = [
            (5, 10, fresh),
            (10, 13, again),
            (13, 19, Fate::Lost),
            (19, 20, again),
            (20, 22, fresh),
        ];
        assert_eq!(all, want);
        events.lose(BlockNo(0), 100);
        assert_eq!(events.iter().collect::<Vec<_>>(), [(0, 100, Fate::Lost)]);
    }

    #[test]
    fn a_block_in_two_places_is_refused() {
        let mut events = BlockEvents::default();
        events.get(BlockNo(5), 8).unwrap();
        assert!(events.get(BlockNo(12), 1).is_err());
        assert!(events.get(BlockNo(1), 5).is_err());
    }
}
