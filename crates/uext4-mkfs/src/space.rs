//! Blocks in use, as ranges, so that memory depends on the structures and not on the size.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks in use among `start..end`.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    start: u64,
    end: u64,
    /// Start and end of each range in use; ranges neither touch nor overlap.
    used: BTreeMap<u64, u64>,
}

impl Space {
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self { start, end, used: BTreeMap::new() }
    }

    /// The range in use that holds `block`, or else the next one after it.
    fn at_or_after(&self, block: u64) -> Option<Range<u64>> {
        let before = self.used.range(..=block).next_back().map(|(&s, &e)| s..e);
        if let Some(range) = before.filter(|range| range.contains(&block)) {
            return Some(range);
        }
        self.used.range(block..).next().map(|(&s, &e)| s..e)
    }

    /// Marks `count` free blocks used.
    pub(crate) fn mark(&mut self, first: u64, count: u64) {
        let (mut start, mut end) = (first, first + count);
        assert!(self.start <= start && end <= self.end, "blocks outside the file system");
        assert!(self.is_free(first, count), "blocks {first}+{count} are in use");
        if let Some((&s, &e)) = self.used.range(..start).next_back()
            && e == start
        {
            start = s;
        }
        if let Some(&e) = self.used.get(&end) {
            self.used.remove(&end);
            end = e;
        }
        self.used.insert(start, end);
    }

    /// Whether `count` blocks are free and inside the file system.
    pub(crate) fn is_free(&self, first: u64, count: u64) -> bool {
        let end = first + count;
        end <= self.end && self.at_or_after(first).is_none_or(|used| used.start >= end)
    }

    /// First run of `count` free blocks that starts in `starts`.
    pub(crate) fn find(&self, starts: Range<u64>, count: u64) -> Option<u64> {
        let mut at = starts.start.max(self.start);
        while at < starts.end && at + count <= self.end {
            match self.at_or_after(at) {
                Some(used) if used.start < at + count => at = used.end,
                _ => return Some(at),
            }
        }
        None
    }

    /// First free block from `goal` on, wrapping around at the end.
    pub(crate) fn find_one(&self, goal: u64) -> Option<u64> {
        self.find(goal..self.end, 1).or_else(|| self.find(self.start..goal, 1))
    }

    /// Number of free blocks from `first` on, at most `max`.
    pub(crate) fn free_at(&self, first: u64, max: u64) -> u64 {
        let end = self.at_or_after(first).map_or(self.end, |used| used.start);
        end.saturating_sub(first).min(max)
    }

    /// Marks all blocks of the clusters that have a block in use.
    pub(crate) fn widen_to_clusters(&mut self, blocks: u64) {
        for (start, end) in std::mem::take(&mut self.used) {
            let (start, end) = (start - start % blocks, end.next_multiple_of(blocks));
            match self.used.last_entry() {
                Some(mut last) if start <= *last.get() => {
                    let end = end.max(*last.get());
                    *last.get_mut() = end;
                }
                _ => {
                    self.used.insert(start, end);
                }
            }
        }
    }

    /// Blocks in use.
    pub(crate) fn used_count(&self) -> u64 {
        self.used.iter().map(|(s, e)| e - s).sum()
    }

    /// Parts of `range` that are in use, ascending.
    pub(crate) fn used_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.used.range(..range.start).next_back();
        let rest = self.used.range(range.clone());
        first.into_iter().chain(rest).filter_map(move |(&s, &e)| {
            let part = s.max(range.start)..e.min(range.end);
            (!part.is_empty()).then_some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_merge_and_searches_skip_them() {
        let mut space = Space::new(1, 100);
        space.mark(1, 9);
        space.mark(20, 5);
        space.mark(10, 5);
        assert_eq!(space.used.len(), 2);
        space.mark(15, 5);
        assert_eq!(space.used, BTreeMap::from([(1, 25)]));
        space.mark(40, 10);
        assert_eq!(space.find(0..100, 15), Some(25));
        assert_eq!(space.find(0..100, 16), Some(50));
        assert_eq!(space.find(26..50, 15), None);
        assert_eq!(space.find(0..100, 51), None);
        assert_eq!(space.find_one(45), Some(50));
        assert_eq!(space.free_at(30, 99), 10);
        assert_eq!(space.free_at(45, 99), 0);
        assert_eq!(space.free_at(90, 99), 10);
        assert_eq!(space.used_count(), 34);
        let parts: Vec<_> = space.used_in(20..45).collect();
        assert_eq!(parts, [20..25, 40..45]);
        assert!(!space.is_free(99, 2) && space.is_free(99, 1));
        space.mark(50, 50);
        space.mark(25, 15);
        assert_eq!(space.find_one(1), None);
    }
}
