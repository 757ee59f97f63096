//! Directory blocks: linear entries.
//!
//! On disk: each block is a chain of records that fill it to the last byte; a record with inode 0
//! is unused. With metadata_csum a leaf ends in a false record that holds the checksum
//! (directory.rst, `struct ext4_dir_entry_2`, `struct ext4_dir_entry_tail`).
//!
//! Invariants: no record that [`DirBlock`] yields reaches past its block; live names are not
//! empty and hold neither `/` nor NUL.

use crate::checksum::{InodeSeed, crc32c};
use crate::error::CorruptKind;
use crate::inode::FileKind;
use crate::num::{idx, le32_at, len16, len32, put};
use crate::units::Ino;
use zerocopy::little_endian::{U16, U32};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes of the checksum record at the end of a leaf.
pub const TAIL_SIZE: usize = 12;
/// `det_reserved_ft`.
pub const TAIL_FILE_TYPE: u8 = 0xde;
/// Bytes of a record without its name.
pub const HEADER_SIZE: usize = 8;

raw_struct! {
    /// `struct ext4_dir_entry_2` without its name.
    pub struct RawDirEntry [8] {
        inode: U32,
        rec_len: U16,
        name_len: u8,
        file_type: u8,
    }
}

raw_struct! {
    /// `struct ext4_dir_entry_tail`.
    pub struct RawDirEntryTail [12] {
        det_reserved_zero1: U32,
        det_rec_len: U16,
        det_reserved_zero2: u8,
        det_reserved_ft: u8,
        det_checksum: U32,
    }
}

/// One record of a directory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Byte offset of the record in its block.
    pub offset: u32,
    /// Inode; 0 marks an unused record.
    pub ino: Ino,
    /// Bytes to the next record.
    pub rec_len: u32,
    /// Name.
    pub name: &'a [u8],
    /// Type byte as it stands on disk; [`FileKind::from_dirent`] reads it.
    pub file_type: u8,
}

impl DirEntry<'_> {
    /// Whether the record names a file.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.ino.get() != 0
    }

    /// Type of the file, where the record knows it.
    #[must_use]
    pub const fn kind(&self) -> Option<FileKind> {
        FileKind::from_dirent(self.file_type)
    }

    /// Whether the name is `.` or `..`.
    #[must_use]
    pub fn is_dot(&self) -> bool {
        self.name == b"." || self.name == b".."
    }

    /// Whether this is the checksum record at the end of a leaf.
    #[must_use]
    pub fn is_tail(&self, block_size: usize) -> bool {
        let end = self.offset.saturating_add(self.rec_len);
        let shape = self.rec_len == len32(TAIL_SIZE) && self.file_type == TAIL_FILE_TYPE;
        shape && !self.is_live() && self.name.is_empty() && idx(end) == block_size
    }
}

/// Bytes of the record that a name needs.
#[must_use]
pub const fn rec_len_for(name_len: usize) -> u32 {
    len32(name_len.saturating_add(HEADER_SIZE + 3) & !3)
}

/// The records of a block, in order, unused ones and the tail included.
///
/// Ends after the first malformed record, which it yields as an error.
#[derive(Clone, Debug)]
pub struct DirBlock<'a> {
    block: &'a [u8],
    next: usize,
}

impl<'a> DirBlock<'a> {
    /// Iterates over a block, or over any whole chain of records.
    #[must_use]
    pub const fn new(block: &'a [u8]) -> Self {
        Self { block, next: 0 }
    }

    /// The records in use.
    pub fn live(self) -> impl Iterator<Item = Result<DirEntry<'a>, CorruptKind>> {
        self.filter(|entry| entry.as_ref().map_or(true, DirEntry::is_live))
    }

    fn record(&self, at: usize) -> Result<DirEntry<'a>, CorruptKind> {
        let offset = len32(at);
        let bad = |why| CorruptKind::DirEntry { offset, why };
        let rest = self.block.get(at..).unwrap_or_default();
        let raw = RawDirEntry::ref_from_prefix(rest).ok_or(bad("record header past the block"))?;
        let rec_len = usize::from(raw.rec_len.get());
        if rec_len < rec_len_for(1) as usize {
            return Err(bad("record is shorter than 12 bytes"));
        }
        if !rec_len.is_multiple_of(4) {
            return Err(bad("record length is not a multiple of 4"));
        }
        if rec_len > rest.len() {
            return Err(bad("record reaches past the block"));
        }
        if idx(rec_len_for(usize::from(raw.name_len))) > rec_len {
            return Err(bad("name reaches past the record"));
        }
        let name = rest.get(HEADER_SIZE..).and_then(|n| n.get(..usize::from(raw.name_len)));
        let name = name.ok_or(bad("name reaches past the block"))?;
        let ino = Ino(raw.inode.get());
        if ino.get() != 0 {
            if name.is_empty() {
                return Err(bad("name is empty"));
            }
            if has_slash_or_nul(name) {
                return Err(bad("name holds a slash or NUL"));
            }
        }
        Ok(DirEntry { offset, ino, rec_len: len32(rec_len), name, file_type: raw.file_type })
    }
}

impl<'a> Iterator for DirBlock<'a> {
    type Item = Result<DirEntry<'a>, CorruptKind>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.block.len() {
            return None;
        }
        let record = self.record(self.next);
        // After an error nothing more can be trusted.
        self.next = match &record {
            Ok(entry) => self.next.saturating_add(idx(entry.rec_len)),
            Err(_) => self.block.len(),
        };
        Some(record)
    }
}

/// Whether a name holds what no name may hold. Asked of every record that a search passes, so it
/// looks at eight bytes at a time.
#[must_use]
pub fn has_slash_or_nul(name: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 255;
    const SLASHES: u64 = u64::from_ne_bytes([b'/'; 8]);
    // The borrow of a subtraction reaches the top bit of a byte that was zero; one that passes
    // through can only mark a byte above another that was zero.
    let has_zero = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7) != 0;
    let (words, rest) = name.as_chunks::<8>();
    let holds = |word: u64| has_zero(word) || has_zero(word ^ SLASHES);
    if words.iter().any(|word| holds(u64::from_ne_bytes(*word))) {
        return true;
    }
    // Filled up with a byte that any name may hold.
    let mut last = [b'x'; 8];
    last.get_mut(..rest.len()).unwrap_or_default().copy_from_slice(rest);
    holds(u64::from_ne_bytes(last))
}

/// What one pass over a block tells about a name that may be added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The name is there.
    pub found: bool,
    /// Offset of the first record with a gap that is large enough, for [`insert_at`].
    pub gap: Option<u32>,
    /// Whether the name has room, if need be after the records are moved together.
    pub has_room: bool,
}

/// Looks for a name and for room for it.
///
/// # Errors
/// A malformed record; where the name is there, one that stands before it.
pub fn scan(block: &[u8], name: &[u8], has_csum_tail: bool) -> Result<Scan, CorruptKind> {
    let need = rec_len_for(name.len());
    let area = usable(block, has_csum_tail);
    let (mut gap, mut taken) = (None, 0_u32);
    for entry in DirBlock::new(block.get(..area).unwrap_or_default()) {
        let entry = entry?;
        let mut used = 0;
        if entry.is_live() {
            if entry.name == name {
                return Ok(Scan { found: true, gap: None, has_room: false });
            }
            used = rec_len_for(entry.name.len());
            taken = taken.saturating_add(used);
        }
        if gap.is_none() && entry.rec_len.saturating_sub(used) >= need {
            gap = Some(entry.offset);
        }
    }
    Ok(Scan { found: false, gap, has_room: idx(taken.saturating_add(need)) <= area })
}

/// The live record with this name.
///
/// # Errors
/// A malformed record that stands before it.
pub fn find<'a>(block: &'a [u8], name: &[u8]) -> Result<Option<DirEntry<'a>>, CorruptKind> {
    for entry in DirBlock::new(block) {
        let entry = entry?;
        if entry.name == name && entry.is_live() {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// A record's header and place, read without a check of its name.
struct Step<'a> {
    offset: usize,
    raw: &'a RawDirEntry,
    rec_len: usize,
}

/// The records of a block whose records were checked before, in order. Their lengths are looked at
/// again, which keeps the walk inside the block and makes it end, whatever the block holds; a bad
/// one ends it.
fn steps(block: &[u8]) -> impl Iterator<Item = Step<'_>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let offset = next;
        let rest = block.get(offset..)?;
        let raw = RawDirEntry::ref_from_prefix(rest)?;
        let rec_len = usize::from(raw.rec_len.get());
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
        // The eight bytes before the name's end; the header stands before a short name.
        let at = step.offset.saturating_add(len);
        let Some(end) = block.get(at..).and_then(|rest| rest.first_chunk()) else { return false };
        if u64::from_le_bytes(*end).wrapping_shr(self.shift) != self.end {
            return false;
        }
        let at = step.offset.saturating_add(HEADER_SIZE);
        block.get(at..at.saturating_add(len)).unwrap_or_default() == self.name
    }
}

/// Checks every record that a [`scan`] passes.
///
/// # Errors
/// The first malformed record.
pub fn check(block: &[u8], has_csum_tail: bool) -> Result<(), CorruptKind> {
    let area = usable(block, has_csum_tail);
    DirBlock::new(block.get(..area).unwrap_or_default()).try_for_each(|entry| entry.map(|_| ()))
}

/// As [`scan`], in a block that passed [`check`] and was changed by this module since. In any other
/// block the answer may be wrong.
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

/// As [`find`], in a block that passed [`check`] and was changed by this module since. In any other
/// block the answer may be wrong.
#[must_use]
pub fn find_checked<'a>(block: &'a [u8], name: &[u8], has_csum_tail: bool) -> Option<DirEntry<'a>> {
    let block = block.get(..usable(block, has_csum_tail)).unwrap_or_default();
    let wanted = Wanted::new(name);
    let step = steps(block).find(|step| wanted.is_at(block, step))?;
    DirBlock::new(block).record(step.offset).ok()
}

/// Bytes of a block that records may use.
fn usable(block: &[u8], has_csum_tail: bool) -> usize {
    block.len().saturating_sub(if has_csum_tail { TAIL_SIZE } else { 0 })
}

/// Adds a record where the first gap is large enough; returns whether there was one.
///
/// `kind` is `None` in file systems without the filetype feature. That the name is valid and not
/// yet there is for the caller to know.
///
/// # Errors
/// A malformed record.
pub fn insert(
    block: &mut [u8],
    name: &[u8],
    ino: Ino,
    kind: Option<FileKind>,
    has_csum_tail: bool,
) -> Result<bool, CorruptKind> {
    let need = rec_len_for(name.len());
    let area = usable(block, has_csum_tail);
    let mut gap = None;
    for entry in DirBlock::new(block.get(..area).unwrap_or_default()) {
        let entry = entry?;
        if gap_behind(&entry) >= need {
            gap = Some(entry.offset);
            break;
        }
    }
    match gap {
        Some(offset) => insert_at(block, offset, name, ino, kind, has_csum_tail),
        None => Ok(false),
    }
}

/// As [`insert`], into the gap of the record at `offset`; false if it is too small.
///
/// # Errors
/// No record at `offset`, or a malformed one.
pub fn insert_at(
    block: &mut [u8],
    offset: u32,
    name: &[u8],
    ino: Ino,
    kind: Option<FileKind>,
    has_csum_tail: bool,
) -> Result<bool, CorruptKind> {
    let area = usable(block, has_csum_tail);
    let (gap, rec_len) = {
        let entry = DirBlock::new(block.get(..area).unwrap_or_default()).record(idx(offset))?;
        (gap_behind(&entry), entry.rec_len)
    };
    let Ok(name_len) = u8::try_from(name.len()) else { return Ok(false) };
    if gap < rec_len_for(name.len()) {
        return Ok(false);
    }
    let used = rec_len.saturating_sub(gap);
    if used > 0 {
        set_rec_len(block, offset, used);
    }
    let raw = RawDirEntry {
        inode: U32::new(ino.get()),
        rec_len: U16::new(len16(idx(gap))),
        name_len,
        file_type: kind.map_or(0, FileKind::dirent),
    };
    let at = idx(offset.saturating_add(used));
    put(block, at, raw.bytes());
    put(block, at.saturating_add(HEADER_SIZE), name);
    Ok(true)
}

/// Bytes of a record that its name does not need.
fn gap_behind(entry: &DirEntry<'_>) -> u32 {
    let used = if entry.is_live() { rec_len_for(entry.name.len()) } else { 0 };
    entry.rec_len.saturating_sub(used)
}

fn set_rec_len(block: &mut [u8], offset: u32, rec_len: u32) {
    let at = idx(offset).saturating_add(std::mem::offset_of!(RawDirEntry, rec_len));
    put(block, at, &len16(idx(rec_len)).to_le_bytes());
}

/// Deletes the record at `offset`: joins it to the one before it, or marks it unused when it is
/// the first.
///
/// # Errors
/// No record at `offset`, or a malformed one; a record before it that does not lead there.
pub fn delete(block: &mut [u8], offset: u32) -> Result<(), CorruptKind> {
    // Of the records before it only the lengths matter.
    let mut before: Option<(u32, u32)> = None;
    for step in steps(block) {
        if step.offset >= idx(offset) {
            break;
        }
        before = Some((len32(step.offset), len32(step.rec_len)));
    }
    let end = before.map_or(0, |(at, len)| at.saturating_add(len));
    if end != offset || idx(offset) >= block.len() {
        return Err(CorruptKind::DirEntry { offset, why: "no record starts here" });
    }
    let rec_len = DirBlock::new(block).record(idx(offset))?.rec_len;
    match before {
        Some((previous, len)) => set_rec_len(block, previous, len.saturating_add(rec_len)),
        None => _ = put(block, idx(offset), &[0; 4]),
    }
    Ok(())
}

/// Points the record at `offset` to another inode, and sets its type.
pub fn set_entry_ino(block: &mut [u8], offset: u32, ino: Ino, kind: Option<FileKind>) {
    let rest = block.get_mut(idx(offset)..).unwrap_or_default();
    if let Some(raw) = RawDirEntry::mut_from_prefix(rest) {
        raw.inode.set(ino.get());
        raw.file_type = kind.map_or(0, FileKind::dirent);
    }
}

/// Makes a block one unused record, with the checksum record after it where there is one.
pub fn init_block(block: &mut [u8], has_csum_tail: bool) {
    block.fill(0);
    let area = usable(block, has_csum_tail);
    set_rec_len(block, 0, len32(area));
    if has_csum_tail {
        let tail = RawDirEntryTail {
            det_reserved_zero1: U32::new(0),
            det_rec_len: U16::new(len16(TAIL_SIZE)),
            det_reserved_zero2: 0,
            det_reserved_ft: TAIL_FILE_TYPE,
            det_checksum: U32::new(0),
        };
        put(block, area, tail.bytes());
    }
}

/// Makes the first block of a directory: `.` and `..`.
pub fn init_first_block(
    block: &mut [u8],
    own: Ino,
    parent: Ino,
    has_filetype: bool,
    has_csum_tail: bool,
) {
    init_block(block, has_csum_tail);
    let kind = has_filetype.then_some(FileKind::Directory);
    // A block of at least 1024 bytes that was just emptied has room for both.
    _ = insert(block, b".", own, kind, has_csum_tail);
    _ = insert(block, b"..", parent, kind, has_csum_tail);
}

/// Whether a block ends in a checksum record.
#[must_use]
pub fn has_tail(block: &[u8]) -> bool {
    let at = block.len().saturating_sub(TAIL_SIZE);
    let Some(tail) = block.get(at..).and_then(RawDirEntryTail::ref_from_prefix) else {
        return false;
    };
    tail.det_reserved_zero1.get() == 0
        && usize::from(tail.det_rec_len.get()) == TAIL_SIZE
        && tail.det_reserved_zero2 == 0
        && tail.det_reserved_ft == TAIL_FILE_TYPE
}

/// Computes the checksum of a leaf that has a checksum record.
pub fn seal_dir_leaf(block: &mut [u8], seed: InodeSeed) {
    let Some(seed) = seed.get() else { return };
    if has_tail(block) {
        let crc = crc32c(seed, block.get(..usable(block, true)).unwrap_or_default());
        put(block, block.len().saturating_sub(4), &crc.to_le_bytes());
    }
}

/// Compares the checksum of a leaf with its content.
///
/// # Errors
/// [`CorruptKind::Checksum`]; [`CorruptKind::Rule`] when the checksum record is missing.
pub fn verify_dir_leaf(block: &[u8], seed: InodeSeed) -> Result<(), CorruptKind> {
    const WHAT: &str = "directory block";
    let Some(seed) = seed.get() else { return Ok(()) };
    if !has_tail(block) {
        return Err(CorruptKind::Rule { what: WHAT, why: "no checksum record" });
    }
    let want = crc32c(seed, block.get(..usable(block, true)).unwrap_or_default());
    let found = le32_at(block, block.len().saturating_sub(4));
    if want == found { Ok(()) } else { Err(CorruptKind::Checksum { what: WHAT, want, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_and_go() {
        let mut block = vec![0xff_u8; 1024];
        init_first_block(&mut block, Ino(12), Ino(2), true, true);
        let mut count = 2;
        while insert(&mut block, format!("file{count}").as_bytes(), Ino(count), None, true).unwrap()
        {
            count += 1;
        }
        assert_eq!(count, 2 + (1024 - 12 - 24) / 16);
        let names = DirBlock::new(&block).live().count();
        assert_eq!(names as u32, count);
        assert!(DirBlock::new(&block).last().unwrap().unwrap().is_tail(1024));

        let entry = find(&block, b"file7").unwrap().unwrap();
        let offset = entry.offset;
        delete(&mut block, offset).unwrap();
        assert_eq!(find(&block, b"file7").unwrap(), None);
        assert!(delete(&mut block, offset).is_err());
        assert!(insert(&mut block, b"seven", Ino(7), Some(FileKind::Symlink), true).unwrap());
        let entry = find(&block, b"seven").unwrap().unwrap();
        assert_eq!((entry.offset, entry.kind()), (offset, Some(FileKind::Symlink)));
        delete(&mut block, 0).unwrap();
        assert_eq!(find(&block, b".").unwrap(), None);
        set_entry_ino(&mut block, offset, Ino(99), Some(FileKind::Fifo));
        assert_eq!(find(&block, b"seven").unwrap().unwrap().ino, Ino(99));

        let seen = scan(&block, b"seven", true).unwrap();
        assert!(seen.found);
        let seen = scan(&block, b"nine", true).unwrap();
        // What was '.' is a gap of 12 bytes.
        assert_eq!(seen, Scan { found: false, gap: Some(0), has_room: true });
        assert!(!insert_at(&mut block, 0, b"longer", Ino(9), None, true).unwrap());
        assert!(insert_at(&mut block, 0, b"nine", Ino(9), None, true).unwrap());
        assert_eq!(find(&block, b"nine").unwrap().unwrap().offset, 0);

        let seed = InodeSeed(Some(4));
        seal_dir_leaf(&mut block, seed);
        verify_dir_leaf(&block, seed).unwrap();
        block[1] ^= 1;
        assert!(verify_dir_leaf(&block, seed).is_err());
    }

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
                check(&block, has_tail).unwrap();
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

    #[test]
    fn slash_and_nul_are_seen_anywhere_in_a_name() {
        for len in 0..20 {
            let mut name: Vec<u8> =
                (0..len).map(|i| if i % 2 == 0 { 0x80 } else { 0x01 }).collect();
            assert!(!has_slash_or_nul(&name));
            for at in 0..name.len() {
                for bad in [b'/', 0] {
                    let good = std::mem::replace(&mut name[at], bad);
                    assert!(has_slash_or_nul(&name), "{name:?}");
                    name[at] = good;
                }
            }
        }
        assert!(!has_slash_or_nul(&[0xff, b'.', b'0', 0x2e, 0x30, 0xaf, 0x80, 0x01, 0x2e]));
    }

    #[test]
    fn malformed_records_are_errors_and_end_the_block() {
        let fresh = || {
            let mut block = vec![0_u8; 1024];
            init_first_block(&mut block, Ino(2), Ino(2), true, false);
            block
        };
        let broken = |at: usize, bytes: &[u8]| {
            let mut block = fresh();
            put(&mut block, at, bytes);
            let entries: Vec<_> = DirBlock::new(&block).collect();
            entries.last().unwrap().is_err()
        };
        assert!(!broken(0, &[2]));
        assert!(broken(4, &[8, 0]));
        assert!(broken(4, &[13, 0]));
        assert!(broken(4, &[0xfc, 0xff]));
        assert!(broken(6, &[5]));
        assert!(broken(6, &[0]));
        assert!(broken(8, b"/"));
        assert!(broken(8, &[0]));
        assert!(DirBlock::new(&[0; 7]).next().unwrap().is_err());
        assert!(DirBlock::new(&[]).next().is_none());
    }
}
