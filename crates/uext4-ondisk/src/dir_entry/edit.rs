//! Changes of a block's records.

use super::checked::steps;
use super::tail::{RawDirEntryTail, TAIL_FILE_TYPE, TAIL_SIZE, usable};
use super::{DirBlock, DirEntry, HEADER_SIZE, RawDirEntry, RecordForm, StoredName, rec_len_for};
use crate::error::CorruptKind;
use crate::inode::FileKind;
use crate::num::{idx, len16, len32, put};
use crate::units::Ino;
use zerocopy::little_endian::{U16, U32};

/// Adds a record where the first gap is large enough; returns whether there was one.
///
/// `kind` is `None` in file systems without the filetype feature. That the name is valid and not
/// yet there is for the caller to know.
///
/// # Errors
/// A malformed record.
pub fn insert<'n>(
    block: &mut [u8],
    name: impl Into<StoredName<'n>>,
    ino: Ino,
    kind: Option<FileKind>,
    has_csum_tail: bool,
) -> Result<bool, CorruptKind> {
    let name = name.into();
    let need = name.record_len();
    let area = usable(block, has_csum_tail);
    let mut gap = None;
    for entry in records(block, area, form_with(name)) {
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

/// Inserts a record into the gap of the record at `offset`. False if the gap is too small.
///
/// # Errors
/// No record at `offset`, or a malformed one.
pub fn insert_at<'n>(
    block: &mut [u8],
    offset: u32,
    name: impl Into<StoredName<'n>>,
    ino: Ino,
    kind: Option<FileKind>,
    has_csum_tail: bool,
) -> Result<bool, CorruptKind> {
    let name = name.into();
    let area = usable(block, has_csum_tail);
    let (gap, rec_len) = {
        let entry = records(block, area, form_with(name)).record(idx(offset))?;
        (gap_behind(&entry), entry.rec_len)
    };
    let Ok(name_len) = u8::try_from(name.bytes.len()) else { return Ok(false) };
    if gap < name.record_len() {
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
    put(block, at.saturating_add(HEADER_SIZE), name.bytes);
    if let Some((hash, minor)) = name.hashes {
        let at = at.saturating_add(idx(rec_len_for(name.bytes.len())));
        put(block, at, &hash.to_le_bytes());
        put(block, at.saturating_add(4), &minor.to_le_bytes());
    }
    Ok(true)
}

/// The records of the first `area` bytes.
fn records(block: &[u8], area: usize, form: RecordForm) -> DirBlock<'_> {
    DirBlock::new(block.get(..area).unwrap_or_default()).of(form)
}

/// The form of the records beside a new one. What their names hold is no matter of an edit.
const fn form_with(name: StoredName<'_>) -> RecordForm {
    if name.hashes.is_some() { RecordForm::Hashed } else { RecordForm::Encrypted }
}

/// Bytes of a record that are not in use.
fn gap_behind(entry: &DirEntry<'_>) -> u32 {
    entry.rec_len.saturating_sub(entry.used())
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
    let rec_len = records(block, block.len(), RecordForm::Encrypted).record(idx(offset))?.rec_len;
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

#[cfg(test)]
mod tests {
    use super::super::{Scan, find, scan, seal_dir_leaf, verify_dir_leaf};
    use super::*;
    use crate::checksum::InodeSeed;

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
}
