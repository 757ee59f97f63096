//! Block and inode bitmaps.
//!
//! On disk: bit `n` of the bitmap is bit `n % 8` of byte `n / 8`; set means in use. Bits past the
//! group's end are set.
//!
//! Invariants: bit numbers past the slice read as set and are ignored by writes, so that a wrong
//! number can never hand out a block or panic.

use crate::checksum::Checksums;
use crate::num::{idx, len32};

const WORD_BITS: u32 = 64;

/// Bits of a slice.
fn bits_of(map: &[u8]) -> u32 {
    len32(map.len()).saturating_mul(8)
}

/// The 64 bits from `word * 64` on; bits past the slice are set.
#[must_use]
pub fn word_at(map: &[u8], word: u32) -> u64 {
    let at = idx(word).saturating_mul(8);
    let rest = map.get(at..).unwrap_or_default();
    if let Some(bytes) = rest.first_chunk::<8>() {
        return u64::from_le_bytes(*bytes);
    }
    let mut bytes = [0xff_u8; 8];
    bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(bytes)
}

/// Whether a bit is set.
#[must_use]
pub fn test(map: &[u8], bit: u32) -> bool {
    map.get(idx(bit / 8)).is_none_or(|byte| byte & (1 << (bit % 8)) != 0)
}

/// Sets a bit; returns whether it was set before.
pub fn set(map: &mut [u8], bit: u32) -> bool {
    let Some(byte) = map.get_mut(idx(bit / 8)) else { return true };
    let mask = 1 << (bit % 8);
    let was = *byte & mask != 0;
    *byte |= mask;
    was
}

/// Clears a bit; returns whether it was set before.
pub fn clear(map: &mut [u8], bit: u32) -> bool {
    let Some(byte) = map.get_mut(idx(bit / 8)) else { return true };
    let mask = 1 << (bit % 8);
    let was = *byte & mask != 0;
    *byte &= !mask;
    was
}

/// Applies `value` to `count` bits from `start`, whole bytes at once where possible.
fn fill(map: &mut [u8], start: u32, count: u32, value: bool) {
    let end = start.saturating_add(count).min(bits_of(map));
    if start >= end {
        return;
    }
    let (first, last) = (idx(start / 8), idx((end.saturating_sub(1)) / 8));
    let head: u8 = 0xff << (start % 8);
    let tail: u8 = 0xff >> (7_u32.saturating_sub((end.saturating_sub(1)) % 8));
    let apply = |byte: &mut u8, mask: u8| {
        if value { *byte |= mask } else { *byte &= !mask }
    };
    let Some(bytes) = map.get_mut(first..=last) else { return };
    match bytes {
        [only] => apply(only, head & tail),
        [a, middle @ .., b] => {
            apply(a, head);
            middle.fill(if value { 0xff } else { 0 });
            apply(b, tail);
        }
        [] => {}
    }
}

/// Sets `count` bits from `start`.
pub fn set_range(map: &mut [u8], start: u32, count: u32) {
    fill(map, start, count, true);
}

/// Clears `count` bits from `start`.
pub fn clear_range(map: &mut [u8], start: u32, count: u32) {
    fill(map, start, count, false);
}

/// First bit of `from..limit` that differs from `skip`.
fn find(map: &[u8], from: u32, limit: u32, skip: bool) -> Option<u32> {
    let limit = limit.min(bits_of(map));
    if from >= limit {
        return None;
    }
    let flip = if skip { !0 } else { 0 };
    let mut word = from / WORD_BITS;
    let mut bits = (word_at(map, word) ^ flip) & (!0_u64 << (from % WORD_BITS));
    loop {
        if bits != 0 {
            let bit = word.saturating_mul(WORD_BITS).saturating_add(bits.trailing_zeros());
            return (bit < limit).then_some(bit);
        }
        word = word.saturating_add(1);
        if word.saturating_mul(WORD_BITS) >= limit {
            return None;
        }
        bits = word_at(map, word) ^ flip;
    }
}

/// First clear bit of `from..limit`.
#[must_use]
pub fn find_next_zero(map: &[u8], from: u32, limit: u32) -> Option<u32> {
    find(map, from, limit, true)
}

/// First set bit of `from..limit`.
#[must_use]
pub fn find_next_set(map: &[u8], from: u32, limit: u32) -> Option<u32> {
    find(map, from, limit, false)
}

/// Number of clear bits in `0..limit`.
#[must_use]
pub fn count_zeros(map: &[u8], limit: u32) -> u32 {
    let limit = limit.min(bits_of(map));
    let whole = (0..limit / WORD_BITS).map(|word| word_at(map, word).count_zeros());
    let rest = match limit % WORD_BITS {
        0 => 0,
        used => (word_at(map, limit / WORD_BITS) | (!0_u64 << used)).count_zeros(),
    };
    whole.fold(rest, u32::saturating_add)
}

/// Whether all of `count` bits from `start` are clear (bits past the slice are not).
#[must_use]
pub fn all_clear(map: &[u8], start: u32, count: u32) -> bool {
    match in_one_word(map, start, count) {
        Some((bits, _)) => bits == 0,
        None => {
            let end = start.saturating_add(count);
            end <= bits_of(map) && find_next_set(map, start, end).is_none()
        }
    }
}

/// Whether all of `count` bits from `start` are set (bits past the slice are).
#[must_use]
pub fn all_set(map: &[u8], start: u32, count: u32) -> bool {
    match in_one_word(map, start, count) {
        Some((bits, mask)) => bits == mask,
        None => find_next_zero(map, start, start.saturating_add(count)).is_none(),
    }
}

/// The bits of a range that lies in one word, and the mask of the range there.
fn in_one_word(map: &[u8], start: u32, count: u32) -> Option<(u64, u64)> {
    let within = start % WORD_BITS;
    let most = WORD_BITS.saturating_sub(within);
    if !(1..=most).contains(&count) {
        return None;
    }
    let mask = (!0_u64 >> WORD_BITS.saturating_sub(count)) << within;
    Some((word_at(map, start / WORD_BITS) & mask, mask))
}

/// Runs of clear bits in `from..limit`, as (start, length), ascending.
pub fn free_runs(map: &[u8], from: u32, limit: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
    let limit = limit.min(bits_of(map));
    let mut next = from;
    std::iter::from_fn(move || {
        let start = find_next_zero(map, next, limit)?;
        let end = find_next_set(map, start, limit).unwrap_or(limit);
        next = end;
        Some((start, end.saturating_sub(start)))
    })
}

/// The longest run of clear bits in `from..limit`, the first of equals, as (start, length).
#[must_use]
pub fn longest_free_run(map: &[u8], from: u32, limit: u32) -> Option<(u32, u32)> {
    free_runs(map, from, limit).reduce(|best, run| if run.1 > best.1 { run } else { best })
}

/// Checksum over the bytes of `bits` bits, or `None` where metadata has no CRC-32C.
#[must_use]
pub fn bitmap_csum(checksums: &Checksums, map: &[u8], bits: u32) -> Option<u32> {
    checksums.of(map.get(..idx(bits / 8)).unwrap_or(map))
}

/// Checksum of a block bitmap; `clusters_per_group` is `Layout::clusters_per_group`.
#[must_use]
pub fn block_bitmap_csum(
    checksums: &Checksums,
    map: &[u8],
    clusters_per_group: u32,
) -> Option<u32> {
    bitmap_csum(checksums, map, clusters_per_group)
}

/// Checksum of an inode bitmap; `inodes_per_group` is `Layout::inodes_per_group`.
#[must_use]
pub fn inode_bitmap_csum(checksums: &Checksums, map: &[u8], inodes_per_group: u32) -> Option<u32> {
    bitmap_csum(checksums, map, inodes_per_group)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator, so that the model test is the same everywhere.
    fn step(state: &mut u64) -> u32 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as u32
    }

    #[test]
    fn agrees_with_a_vector_of_booleans() {
        const BITS: u32 = 1000 * 8 / 10; // 100 bytes: not a whole number of words
        let mut map = vec![0_u8; 100];
        let mut model = vec![false; BITS as usize];
        let mut seed = 1;
        for _ in 0..2000 {
            let start = step(&mut seed) % (BITS + 20);
            let count = step(&mut seed) % 90;
            let value = step(&mut seed) & 1 == 1;
            fill(&mut map, start, count, value);
            for bit in start..(start + count).min(BITS) {
                model[bit as usize] = value;
            }
            let from = step(&mut seed) % BITS;
            let limit = step(&mut seed) % (BITS + 10);
            let range = from as usize..(limit.min(BITS) as usize).max(from as usize);
            let want = |v: bool| range.clone().find(|&i| model[i] == v).map(|i| i as u32);
            assert_eq!(find_next_zero(&map, from, limit), want(false));
            assert_eq!(find_next_set(&map, from, limit), want(true));
            let zeros = model[..limit.min(BITS) as usize].iter().filter(|b| !**b).count();
            assert_eq!(count_zeros(&map, limit), zeros as u32);
            let runs: u32 = free_runs(&map, 0, limit).map(|r| r.1).sum();
            assert_eq!(runs, zeros as u32);
        }
    }

    #[test]
    fn bits_past_the_end_are_in_use() {
        let mut map = [0_u8; 3];
        assert!(test(&map, 24) && set(&mut map, 99) && clear(&mut map, 24));
        assert_eq!(count_zeros(&map, u32::MAX), 24);
        assert_eq!(find_next_zero(&map, 0, u32::MAX), Some(0));
        assert!(!all_clear(&map, 20, 5) && all_clear(&map, 20, 4));
        assert_eq!(longest_free_run(&[0b1110_0001, 0, 0xff], 0, 24), Some((8, 8)));
    }

    #[test]
    fn ranges_in_one_word_and_in_several_are_judged_bit_by_bit() {
        let mut map = [0_u8; 17];
        set_range(&mut map, 60, 9);
        set_range(&mut map, 127, 3);
        for start in 0..140 {
            for count in 0..80 {
                let set = (start..start + count).filter(|&bit| test(&map, bit)).count() as u32;
                let (clear, full) = (all_clear(&map, start, count), all_set(&map, start, count));
                let ends_inside = count > 0 || start <= 136;
                assert_eq!(clear, set == 0 && ends_inside, "{start} {count}");
                assert_eq!(full, set == count, "{start} {count}");
            }
        }
    }
}
