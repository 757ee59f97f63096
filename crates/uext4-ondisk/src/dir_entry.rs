//! Directory blocks: linear entries.
//!
//! On disk: each block is a chain of records that fill it to the last byte; a record with inode 0
//! is unused. With metadata_csum a leaf ends in a false record that holds the checksum
//! (directory.rst, `struct ext4_dir_entry_2`, `struct ext4_dir_entry_tail`). Where a directory is
//! encrypted and folds case, the hash and minor hash of each name but `.` and `..` follow it
//! (`struct ext4_dir_entry_hash`).
//!
//! Invariants: no record that [`DirBlock`] yields reaches past its block; live names are not
//! empty and hold neither `/` nor NUL, unless the directory is encrypted.

mod checked;
mod edit;
mod search;
mod stored_name;
mod tail;

pub use checked::{check, find_checked, scan_checked};
pub use edit::{delete, init_block, init_first_block, insert, insert_at, set_entry_ino};
pub use search::{Scan, find, scan, scan_by};
pub use stored_name::StoredName;
pub use tail::{
    RawDirEntryTail, TAIL_FILE_TYPE, TAIL_SIZE, has_tail, seal_dir_leaf, verify_dir_leaf,
};

use crate::error::CorruptKind;
use crate::inode::FileKind;
use crate::num::{idx, le32_at, len32};
use crate::units::Ino;
use zerocopy::little_endian::{U16, U32};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes of a record without its name.
pub const HEADER_SIZE: usize = 8;
/// Bytes of the hashes behind a name.
pub const HASHES_SIZE: usize = 8;

/// What the records of a directory hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordForm {
    /// Names.
    #[default]
    Plain,
    /// Names of any bytes: the directory is encrypted.
    Encrypted,
    /// The same, and their hashes: the directory also folds case.
    Hashed,
}

raw_struct! {
    /// `struct ext4_dir_entry_2` without its name.
    pub struct RawDirEntry [8] {
        inode: U32,
        rec_len: U16,
        name_len: u8,
        file_type: u8,
    }
}

/// Bytes of a record. A block of 64 KiB may be one record, whose length does not fit its field.
#[must_use]
#[inline]
pub fn record_length(raw: &RawDirEntry, block_len: usize) -> usize {
    match raw.rec_len.get() {
        0 | u16::MAX if block_len > usize::from(u16::MAX) => block_len,
        len => usize::from(len),
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
    /// Type byte as it is on disk; [`FileKind::from_dirent`] reads it.
    pub file_type: u8,
    /// Hash and minor hash, in records that are read as [`RecordForm::Hashed`].
    pub hashes: Option<(u32, u32)>,
}

impl<'a> DirEntry<'a> {
    /// The name as it is stored.
    #[must_use]
    pub const fn stored(&self) -> StoredName<'a> {
        StoredName { bytes: self.name, hashes: self.hashes }
    }

    /// Bytes of the record that are in use.
    #[must_use]
    pub const fn used(&self) -> u32 {
        if self.is_live() { self.stored().record_len() } else { 0 }
    }

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
        is_dot(self.name)
    }

    /// Whether this is the checksum record at the end of a leaf.
    #[must_use]
    pub fn is_tail(&self, block_size: usize) -> bool {
        let end = self.offset.saturating_add(self.rec_len);
        let shape = self.rec_len == len32(TAIL_SIZE) && self.file_type == TAIL_FILE_TYPE;
        shape && !self.is_live() && self.name.is_empty() && idx(end) == block_size
    }
}

/// Hash and minor hash at byte `at` (`struct ext4_dir_entry_hash`).
#[must_use]
pub fn hashes_at(bytes: &[u8], at: usize) -> (u32, u32) {
    (le32_at(bytes, at), le32_at(bytes, at.saturating_add(4)))
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Bytes of the record that a name needs without hashes.
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
    form: RecordForm,
}

impl<'a> DirBlock<'a> {
    /// Iterates over a block, or over any whole chain of records.
    #[must_use]
    pub const fn new(block: &'a [u8]) -> Self {
        Self { block, next: 0, form: RecordForm::Plain }
    }

    /// Has the records read as this form.
    #[must_use]
    pub const fn of(self, form: RecordForm) -> Self {
        Self { form, ..self }
    }

    /// The records in use.
    pub fn live(self) -> impl Iterator<Item = Result<DirEntry<'a>, CorruptKind>> {
        self.filter(|entry| entry.as_ref().map_or(true, DirEntry::is_live))
    }

    #[inline]
    fn record(&self, at: usize) -> Result<DirEntry<'a>, CorruptKind> {
        let offset = len32(at);
        let bad = |why| CorruptKind::DirEntry { offset, why };
        let rest = self.block.get(at..).unwrap_or_default();
        let raw = RawDirEntry::ref_from_prefix(rest).ok_or(bad("record header past the block"))?;
        let rec_len = record_length(raw, self.block.len());
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
            if self.form == RecordForm::Plain && has_slash_or_nul(name) {
                return Err(bad("name holds a slash or NUL"));
            }
        }
        let mut hashes = None;
        if self.form == RecordForm::Hashed && ino.get() != 0 && !is_dot(name) {
            let at = idx(rec_len_for(name.len()));
            if at.saturating_add(HASHES_SIZE) > rec_len {
                return Err(bad("hashes reach past the record"));
            }
            hashes = Some(hashes_at(rest, at));
        }
        let rec_len = len32(rec_len);
        Ok(DirEntry { offset, ino, rec_len, name, file_type: raw.file_type, hashes })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num::put;

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
        // A record of a whole block of 64 KiB.
        let mut block = vec![0_u8; 65536];
        for (len, whole) in [(0, true), (u16::MAX, true), (u16::MAX - 3, false)] {
            put(&mut block, 4, &len.to_le_bytes());
            let entries: Vec<_> = DirBlock::new(&block).collect();
            assert_eq!(entries.len() == 1 && entries[0].is_ok(), whole, "{len}");
        }
        // Hashes are behind the name, but for the dots.
        let mut block = fresh();
        let hashes = Some((0x1234_5678, 9));
        let name = StoredName { bytes: b"five.", hashes };
        assert!(insert(&mut block, name, Ino(12), None, false).unwrap());
        let entry = DirBlock::new(&block).of(RecordForm::Hashed).last().unwrap().unwrap();
        assert_eq!((entry.stored(), entry.used()), (name, 8 + 8 + 8));
        let at = idx(entry.offset);
        put(&mut block, at + 4, &20_u16.to_le_bytes());
        let entries: Vec<_> = DirBlock::new(&block).of(RecordForm::Hashed).collect();
        assert!(entries.len() == 3 && entries[2].is_err() && entries[1].is_ok());
        assert!(DirBlock::new(&block).nth(2).unwrap().is_ok());
        assert!(DirBlock::new(&[0; 7]).next().unwrap().is_err());
        assert!(DirBlock::new(&[]).next().is_none());
    }
}
