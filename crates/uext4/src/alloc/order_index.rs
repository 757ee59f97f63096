//! Groups by the order of a length (its power of two), read without a lock.
//!
//! What: one set of groups for each order, as a bitmap with a summary word above each 64 words. A
//! search for "the first group of this order at or behind a place" looks at a few words, and finds
//! groups in ascending order.
//! Invariants: a group is in at most one set of an index, and is moved under its lock. A summary
//! bit may be set although its word is empty. It is clear although the word is not empty only
//! until the thread that changes the word is done. Therefore an answer is a hint: the group is
//! checked under its lock, and a search that finds nothing scans all groups.
//! Kernel counterpart: the lists of `s_mb_largest_free_orders` and `s_mb_avg_fragment_size`.

use super::free_map::ORDERS;
use crate::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct OrderIndex {
    sets: Box<[Set]>,
}

#[derive(Debug)]
struct Set {
    words: Box<[AtomicU64]>,
    /// A summary bit for each word that may have a bit set.
    upper: Box<[AtomicU64]>,
}

impl OrderIndex {
    /// An index for so many groups, with all sets empty.
    pub(super) fn new(groups: u32) -> Self {
        Self { sets: (0..ORDERS).map(|_| Set::new(groups)).collect() }
    }

    /// Moves a group from one order to another. `None`: it is in no set. The caller holds the
    /// group's lock.
    pub(super) fn set(&self, group: u32, from: Option<u32>, to: Option<u32>) {
        if from == to {
            return;
        }
        // Inserted first, then removed, so that a search finds it in at least one set.
        if let Some(order) = to {
            self.sets[order as usize].insert(group);
        }
        if let Some(order) = from {
            self.sets[order as usize].remove(group);
        }
    }

    /// The first group of an order in `from..to`.
    pub(super) fn next(&self, order: u32, from: u32, to: u32) -> Option<u32> {
        self.sets[order as usize].next(from).filter(|group| *group < to)
    }
}

impl Set {
    fn new(groups: u32) -> Self {
        let words = groups.div_ceil(64);
        let zeroes = |len: u32| (0..len).map(|_| AtomicU64::new(0)).collect();
        Self { words: zeroes(words), upper: zeroes(words.div_ceil(64)) }
    }

    fn insert(&self, group: u32) {
        let word = group / 64;
        self.words[word as usize].fetch_or(1 << (group % 64), Ordering::AcqRel);
        self.upper[(word / 64) as usize].fetch_or(1 << (word % 64), Ordering::AcqRel);
    }

    fn remove(&self, group: u32) {
        let word = group / 64;
        let bit = 1 << (group % 64);
        if self.words[word as usize].fetch_and(!bit, Ordering::AcqRel) != bit {
            return;
        }
        let (upper, bit) = (&self.upper[(word / 64) as usize], 1 << (word % 64));
        upper.fetch_and(!bit, Ordering::AcqRel);
        // Another thread may have inserted a group, and set the upper bit before it was cleared
        // here.
        if self.words[word as usize].load(Ordering::Acquire) != 0 {
            upper.fetch_or(bit, Ordering::AcqRel);
        }
    }

    fn next(&self, from: u32) -> Option<u32> {
        let load = |word: u32| self.words.get(word as usize).map(|w| w.load(Ordering::Acquire));
        let mut word = from / 64;
        let mut bits = load(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word = self.next_word(word + 1)?;
            bits = load(word)?;
            // The upper bit may be set although the word is empty: try the next.
        }
        Some(word * 64 + bits.trailing_zeros())
    }

    fn next_word(&self, from: u32) -> Option<u32> {
        let mut at = from / 64;
        let mut bits = self.upper.get(at as usize)?.load(Ordering::Acquire);
        bits &= u64::MAX << (from % 64);
        while bits == 0 {
            at += 1;
            bits = self.upper.get(at as usize)?.load(Ordering::Acquire);
        }
        Some(at * 64 + bits.trailing_zeros())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// The answers agree with an ordered set, from any place on.
        #[test]
        fn answers_agree_with_an_ordered_set(
            groups in 1..20_000_u32,
            steps in prop::collection::vec((any::<u32>(), any::<bool>(), any::<u32>()), 1..200),
        ) {
            let (index, mut model) = (OrderIndex::new(groups), BTreeSet::new());
            for (group, inserts, from) in steps {
                // Dense in one place, thin elsewhere.
                let group = if group % 2 == 0 { group % groups } else { group % groups % 300 };
                match inserts {
                    true if model.insert(group) => index.set(group, None, Some(5)),
                    false if model.remove(&group) => index.set(group, Some(5), None),
                    _ => {}
                }
                let from = from % (groups + 70);
                for from in [0, group, from] {
                    let want = model.range(from..).next().copied();
                    prop_assert_eq!(index.next(5, from, groups), want);
                }
                prop_assert_eq!(index.next(4, 0, groups), None);
            }
        }
    }

    /// Threads insert and remove groups of their own in words that they share. In the end each
    /// group that was inserted is found. Fault model: the interleavings that the machine produces.
    #[test]
    fn no_group_is_lost_between_threads() {
        const GROUPS: u32 = 128;
        let index = OrderIndex::new(GROUPS);
        for round in 0..2_000 {
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let index = &index;
                    scope.spawn(move || {
                        let group = thread * 3 + round % 2 * 64;
                        index.set(group, None, Some(1));
                        index.set(group, Some(1), None);
                        index.set(group, None, Some(1));
                    });
                }
            });
            for group in [0, 3].map(|group| group + round % 2 * 64) {
                assert_eq!(index.next(1, group, GROUPS), Some(group), "round {round}");
                index.set(group, Some(1), None);
            }
            assert_eq!(index.next(1, 0, GROUPS), None);
        }
    }
}
