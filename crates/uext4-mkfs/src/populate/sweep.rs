//! Finding room for everything in one sweep over the free blocks.
//!
//! Policy: what is allocated one after the other stands one after the other. What does not fit
//! before the next obstacle (tables, backups of the superblock, the journal) goes behind it in one
//! piece; the gap before it is for smaller things that follow. Only what is very large, or what
//! fits nowhere in one piece, is divided.

use crate::space::Space;
use std::ops::Range;

/// What has more blocks is divided rather than leave a gap.
const WHOLE_MAX: u64 = 4096;
/// Most gaps that are remembered.
const GAPS_MAX: usize = 64;

/// The state of a sweep. It finds blocks; its caller marks them used before it asks again.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// Where to go on.
    at: u64,
    /// Free ranges that were passed by.
    gaps: Vec<Range<u64>>,
}

impl Sweep {
    /// Finds `count` blocks, all at once if it can: returns the first one and how many there are.
    /// Ask again for the rest. `None`: nothing is free.
    pub(crate) fn find(&mut self, space: &Space, count: u64) -> Option<(u64, u64)> {
        if let Some(at) = self.in_gap(space, count) {
            return Some((at, count));
        }
        while let Some(at) = space.find(self.at..u64::MAX, 1) {
            let free = space.free_at(at, count);
            self.at = at + free;
            if free == count {
                return Some((at, count));
            }
            let is_elsewhere = count <= WHOLE_MAX && space.find(at..u64::MAX, count).is_some();
            if !is_elsewhere {
                return Some((at, free));
            }
            if self.gaps.len() == GAPS_MAX {
                self.forget_smallest();
            }
            self.gaps.push(at..at + free);
        }
        // Nothing but gaps, the forgotten ones as well.
        self.gaps.clear();
        let at = space.find(0..u64::MAX, 1)?;
        self.at = at + space.free_at(at, count);
        Some((at, self.at - at))
    }

    /// Where it stands.
    pub(crate) const fn position(&self) -> u64 {
        self.at
    }

    /// Goes on at a block.
    pub(crate) const fn go_to(&mut self, at: u64) {
        self.at = at;
    }

    /// The first gap with so many blocks, without them.
    fn in_gap(&mut self, space: &Space, count: u64) -> Option<u64> {
        let is_fit = |gap: &Range<u64>| gap.end - gap.start >= count;
        let index = self.gaps.iter().position(is_fit)?;
        let gap = &mut self.gaps[index];
        let at = gap.start;
        gap.start += count;
        if gap.is_empty() {
            self.gaps.remove(index);
        }
        // Nothing but the sweep allocates meanwhile; if it did, the gap is no use.
        space.is_free(at, count).then_some(at)
    }

    fn forget_smallest(&mut self) {
        let smallest = (0..self.gaps.len()).min_by_key(|n| self.gaps[*n].end - self.gaps[*n].start);
        if let Some(index) = smallest {
            self.gaps.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_all_blocks_are_found() {
        let mut space = Space::new(0, 100);
        space.mark(10, 10);
        space.mark(50, 1);
        let mut sweep = Sweep::default();
        let mut take = |count| {
            let found = sweep.find(&space, count);
            if let Some((at, count)) = found {
                space.mark(at, count);
            }
            found
        };
        assert_eq!(take(4), Some((0, 4)));
        // In one piece, behind the obstacle.
        assert_eq!(take(7), Some((20, 7)));
        assert_eq!(take(6), Some((4, 6)));
        assert_eq!(take(3), Some((27, 3)));
        // Behind the second one; then nothing is large enough.
        assert_eq!(take(30), Some((51, 30)));
        assert_eq!(take(21), Some((81, 19)));
        assert_eq!(take(2), Some((30, 2)));
        assert_eq!(take(21), Some((32, 18)));
        assert_eq!(take(1), None);
    }
}
