//! Which blocks are in use, and which are multiply claimed.
//!
//! What: one bit for each cluster, set for its owner. A run that finds a bit set is noted, so that
//! a second pass over the inodes can report every owner.
//!
//! Locking: the bits are atomics that all workers set. The list of multiply-claimed blocks has a
//! lock, taken only when there are any.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use uext4_ondisk::Layout;

/// Multiply-claimed runs that are kept. Further ones are only counted.
const SHARED_MAX: usize = 100_000;

/// Blocks in use.
pub(crate) struct Claims {
    bits: Vec<AtomicU64>,
    first: u64,
    shift: u32,
    shared: Mutex<Vec<(u64, u64)>>,
}

/// Bits `from..to` of a word.
fn mask(from: u64, to: u64) -> u64 {
    let high = if to >= 64 { !0 } else { (1 << to) - 1 };
    high & (!0 << from)
}

impl Claims {
    /// No block is in use.
    pub(crate) fn new(layout: &Layout) -> Self {
        let first = layout.first_data_block.get();
        let shift = layout.cluster_blocks.trailing_zeros();
        let clusters = (layout.blocks_count - first).div_ceil(1 << shift);
        let words = usize::try_from(clusters.div_ceil(64)).unwrap_or(usize::MAX);
        let bits = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        Self { bits, first, shift, shared: Mutex::default() }
    }

    /// Clusters of a run of blocks, as a half-open range of bits.
    fn clusters(&self, start: u64, count: u64) -> (u64, u64) {
        let from = start.saturating_sub(self.first);
        let to = start.saturating_add(count).saturating_sub(self.first);
        (from >> self.shift, to.div_ceil(1 << self.shift))
    }

    /// Claims the blocks of a run inside the file system. Returns whether any was claimed before.
    pub(crate) fn claim(&self, start: u64, count: u64) -> bool {
        self.take(start, count, true)
    }

    /// Claims blocks of fixed metadata, which may share clusters with other metadata.
    pub(crate) fn mark(&self, start: u64, count: u64) -> bool {
        self.take(start, count, false)
    }

    fn take(&self, start: u64, count: u64, note: bool) -> bool {
        let (from, to) = self.clusters(start, count);
        let mut met = false;
        let mut at = from;
        while at < to {
            let word = at / 64;
            let end = to.min((word + 1) * 64);
            let mask = mask(at % 64, end - word * 64);
            let Some(bits) = self.bits.get(word as usize) else { return met };
            let before = bits.fetch_or(mask, Ordering::Relaxed) & mask;
            if before != 0 {
                met = true;
                if note {
                    self.note_shared(word, before);
                }
            }
            at = end;
        }
        met
    }

    fn note_shared(&self, word: u64, mut bits: u64) {
        let Ok(mut shared) = self.shared.lock() else { return };
        while bits != 0 && shared.len() < SHARED_MAX {
            let from = u64::from(bits.trailing_zeros());
            let len = u64::from((bits >> from).trailing_ones());
            shared.push((word * 64 + from, len));
            bits &= !mask(from, from + len);
        }
    }

    /// Clusters with two owners or more, ascending and merged.
    pub(crate) fn shared(&self) -> Shared {
        let mut runs = self.shared.lock().map(|runs| runs.clone()).unwrap_or_default();
        runs.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, len) in runs {
            match merged.last_mut() {
                Some((s, l)) if start <= *s + *l => *l = (*l).max(start + len - *s),
                _ => merged.push((start, len)),
            }
        }
        Shared { runs: merged, first: self.first, shift: self.shift }
    }

    /// Bits `from..from + count` of the map, as the bytes of a bitmap; bits past `count` are set.
    pub(crate) fn bitmap(&self, from: u64, count: u32, bytes: &mut [u8]) {
        let count = u64::from(count);
        for (index, chunk) in bytes.chunks_mut(8).enumerate() {
            let at = index as u64 * 64;
            let mut word = self.word_at(from + at);
            if at + 64 > count {
                word |= !mask(0, count.saturating_sub(at));
            }
            if at >= count {
                word = !0;
            }
            // Bit n of the bitmap is bit n % 8 of byte n / 8.
            for (n, byte) in (0..).zip(chunk) {
                *byte = (word >> (8 * n)) as u8;
            }
        }
    }

    /// 64 bits from any bit on.
    fn word_at(&self, bit: u64) -> u64 {
        let load =
            |word: u64| self.bits.get(word as usize).map_or(0, |word| word.load(Ordering::Relaxed));
        let (word, shift) = (bit / 64, bit % 64);
        if shift == 0 {
            return load(word);
        }
        (load(word) >> shift) | (load(word + 1) << (64 - shift))
    }
}

/// Clusters with several owners.
pub(crate) struct Shared {
    runs: Vec<(u64, u64)>,
    first: u64,
    shift: u32,
}

impl Shared {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The first shared block of a run, and the number of shared clusters in it.
    pub(crate) fn in_run(&self, start: u64, count: u64) -> Option<(u64, u64)> {
        let from = start.saturating_sub(self.first) >> self.shift;
        let to = start.saturating_add(count).saturating_sub(self.first).div_ceil(1 << self.shift);
        let at = self.runs.partition_point(|(s, l)| s + l <= from);
        let mut first = None;
        let mut total = 0;
        for (s, l) in self.runs[at..].iter().take_while(|(s, _)| *s < to) {
            let (low, high) = ((*s).max(from), (s + l).min(to));
            first.get_or_insert(((low << self.shift) + self.first).max(start));
            total += high - low;
        }
        first.map(|block| (block, total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(blocks: u64, shift: u32) -> Claims {
        let words = (blocks >> shift).div_ceil(64) as usize;
        let bits = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        Claims { bits, first: 1, shift, shared: Mutex::default() }
    }

    #[test]
    fn runs_across_words_are_claimed_once() {
        let claims = claims(1000, 0);
        assert!(!claims.claim(1, 3));
        assert!(!claims.claim(60, 200));
        assert!(claims.shared().is_empty());
        assert!(claims.claim(250, 20));
        let shared = claims.shared();
        assert_eq!(shared.in_run(1, 500), Some((250, 10)));
        assert_eq!(shared.in_run(260, 10), None);
        let mut bytes = [0; 4];
        claims.bitmap(0, 20, &mut bytes);
        assert_eq!(bytes, [0b111, 0, 0xf0, 0xff]);
        claims.bitmap(56, 32, &mut bytes);
        assert_eq!(bytes, [0xf8, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn blocks_of_a_cluster_share_a_bit() {
        let claims = claims(1024, 4);
        assert!(!claims.claim(1 + 16, 1));
        assert!(claims.claim(1 + 31, 1));
        assert_eq!(claims.shared().in_run(1 + 20, 4), Some((21, 1)));
    }
}
