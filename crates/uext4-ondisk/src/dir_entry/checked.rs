//! Walks over checked blocks, the most frequent work of a directory search.
//!
//! Invariants: a walk stays inside its block and ends, whatever the block holds; only its answers
//! depend on the check.

use super::search::Scan;
use super::{
    DirBlock, DirEntry, HEADER_SIZE, RawDirEntry, RecordForm, rec_len_for, record_length,
    tail::usable,
};
use crate::error::CorruptKind;
use crate::num::{idx, len32};

/// A record's header and place, read without a check of its name.
pub(super) struct Step<'a> {
    pub(super) offset: usize,
    raw: &'a RawDirEntry,
    pub(super) rec_len: usize,
}

/// The records of a block whose records were checked before, in order. Their lengths are looked at
/// again, which keeps the walk inside the block and makes it end, whatever the block holds; a bad
/// one ends it.
pub(super) fn steps(block: &[u8]) -> impl Iterator<Item = Step<'_>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let offset = next;
        let rest = block.get(offset..)?;
        let raw = RawDirEntry::ref_from_prefix(rest)?;
        let rec_len = record_length(raw, block.len());
        if rec_len < HEADER_SIZE || rec_len > rest.len() {
            return None;
        }
        next = offset.saturating_add(rec_len);
        Some(Step { offset, raw, rec_len })
    })
}

/// Tells a name from others by its length and its last eight bytes: names of one directory often
/// begin alike.
struct Wanted<'n> {
    name: &'n [u8],
    end: u64,
    /// Bits of a record's last eight bytes that are not the name's.
    shift: u32,
}

impl<'n> Wanted<'n> {
    fn new(name: &'n [u8]) -> Self {
        let mut end = [0; 8];
        for (byte, of_name) in end.iter_mut().rev().zip(name.iter().rev()) {
            *byte = *of_name;
        }
        let shift = u64::BITS.saturating_sub(len32(name.len().min(8)).saturating_mul(8));
        Self { name, end: u64::from_le_bytes(end).wrapping_shr(shift), shift }
    }

    fn is_at(&self, block: &[u8], step: &Step<'_>) -> bool {
        let len = self.name.len();
        if usize::from(step.raw.name_len) != len || step.raw.inode.get() == 0 {
            return false;
        }
        // The eight bytes before the name's end. Before a short name they include the header.
        let at = step.offset.saturating_add(len);
        let Some(end) = block.get(at..).and_then(|rest| rest.first_chunk()) else { return false };
        if u64::from_le_bytes(*end).wrapping_shr(self.shift) != self.end {
            return false;
        }
        let at = step.offset.saturating_add(HEADER_SIZE);
        block.get(at..at.saturating_add(len)).unwrap_or_default() == self.name
    }
}

/// Checks every record that a [`scan`](super::scan) passes.
///
/// # Errors
/// The first malformed record.
pub fn check(block: &[u8], has_csum_tail: bool, form: RecordForm) -> Result<(), CorruptKind> {
    let area = usable(block, has_csum_tail);
    let mut records = DirBlock::new(block.get(..area).unwrap_or_default()).of(form);
    records.try_for_each(|entry| entry.map(|_| ()))
}

/// [`scan`](super::scan) for a block without hashes that passed [`check`] and that only this crate
/// changed since. In any other block the answer may be wrong.
#[must_use]
pub fn scan_checked(block: &[u8], name: &[u8], has_csum_tail: bool) -> Scan {
    let need = idx(rec_len_for(name.len()));
    let area = usable(block, has_csum_tail);
    let block = block.get(..area).unwrap_or_default();
    let wanted = Wanted::new(name);
    let (mut gap, mut taken) = (None, 0_usize);
    for step in steps(block) {
        if wanted.is_at(block, &step) {
            return Scan { found: true, gap: None, has_room: false };
        }
        let is_live = step.raw.inode.get() != 0;
        let used = if is_live { idx(rec_len_for(usize::from(step.raw.name_len))) } else { 0 };
        taken = taken.saturating_add(used);
        if gap.is_none() && step.rec_len.saturating_sub(used) >= need {
            gap = Some(len32(step.offset));
        }
    }
    Scan { found: false, gap, has_room: taken.saturating_add(need) <= area }
}

/// [`find`](super::find) for a block that passed [`check`] and that only this crate changed since.
/// In any other block the answer may be wrong.
#[must_use]
pub fn find_checked<'a>(block: &'a [u8], name: &[u8], has_csum_tail: bool) -> Option<DirEntry<'a>> {
    let block = block.get(..usable(block, has_csum_tail)).unwrap_or_default();
    let wanted = Wanted::new(name);
    let step = steps(block).find(|step| wanted.is_at(block, step))?;
    DirBlock::new(block).of(RecordForm::Encrypted).record(step.offset).ok()
}

#[cfg(test)]
mod tests {
    use super::super::{delete, find, init_first_block, insert, scan};
    use super::*;
    use crate::units::Ino;

    /// Fault model: none for the answers; random bytes for the walk's end and its bounds.
    #[test]
    fn walks_over_checked_blocks_find_what_the_others_find() {
        for has_tail in [false, true] {
            let mut block = vec![0_u8; 1024];
            init_first_block(&mut block, Ino(12), Ino(2), true, has_tail);
            let name = |n: u32| format!("{:0>len$}", n, len = 1 + n as usize % 9).into_bytes();
            let mut kept = Vec::new();
            for n in 0..90 {
                if insert(&mut block, &name(n), Ino(n + 20), None, has_tail).unwrap() {
                    kept.push(n);
                }
                if n % 3 == 0 {
                    let gone = name(kept.remove(kept.len() / 2));
                    let offset = find(&block, &gone).unwrap().unwrap().offset;
                    delete(&mut block, offset).unwrap();
                }
                check(&block, has_tail, RecordForm::Plain).unwrap();
                for n in 0..100 {
                    let name = name(n);
                    let seen = scan_checked(&block, &name, has_tail);
                    assert_eq!(Ok(seen), scan(&block, &name, has_tail));
                    let found = find_checked(&block, &name, has_tail);
                    assert_eq!(Ok(found), find(&block, &name));
                    assert_eq!(seen.found, found.is_some());
                }
            }
            // What was never checked makes no walk go on for ever or out of the block.
            let mut x = 7_u64;
            for _ in 0..2_000 {
                x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let at = (x >> 40) as usize % block.len();
                block[at] = (x >> 20) as u8;
                _ = scan_checked(&block, b"5", has_tail);
                _ = find_checked(&block, b"5", has_tail);
                _ = delete(&mut block.clone(), (x >> 33) as u32 % 1100);
            }
        }
    }
}
