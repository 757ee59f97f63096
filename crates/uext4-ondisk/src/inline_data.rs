//! Data in the inode: `i_block`, and the value of the attribute `system.data`.
//!
//! On disk: the first 60 bytes are in `i_block`, the rest is the value of `system.data`, which is
//! always among the attributes in the inode (inlinedata.rst). The attribute is there even while its
//! value is empty. A file has at most as many bytes as both together. A directory has exactly as
//! many: the number of its parent, and then one chain of records in each of the two regions.
//!
//! Invariants: the other attributes of the area keep their order, names, values and hashes.

use crate::dir_entry;
use crate::error::CorruptKind;
use crate::inode::I_BLOCK_SIZE;
use crate::num::{idx, le16_at, le32_at, len16, len32, put};
use crate::units::Ino;
use crate::xattr::{
    IBODY_HEADER_SIZE, RawXattrEntry, XATTR_MAGIC, area_entries, entry_len, value_len,
};
use std::ops::Range;
use zerocopy::little_endian::{U16, U32};

/// Name index of the attribute: `system.`.
pub const NAME_INDEX: u8 = 7;
/// Name of the attribute behind its prefix.
pub const NAME: &[u8] = b"data";
/// Bytes of the parent's number, with which the data of a directory begins.
pub const PARENT_SIZE: usize = 4;
/// Bytes that end the entries of an area.
const END_SIZE: usize = 4;

const WHAT: &str = "inline data";

fn rule(why: &'static str) -> CorruptKind {
    CorruptKind::Rule { what: WHAT, why }
}

fn is_own(index: u8, name: &[u8]) -> bool {
    index == NAME_INDEX && name == NAME
}

/// The value of `system.data` among the attributes of an area.
///
/// # Errors
/// [`CorruptKind::Rule`] if there is none, or its value is in an inode of its own; those of a
/// malformed area.
pub fn rest(area: &[u8]) -> Result<&[u8], CorruptKind> {
    for entry in area_entries(area) {
        let entry = entry?;
        if is_own(entry.index, entry.name) {
            if entry.value_inode.get() != 0 {
                return Err(rule("system.data is in an inode of its own"));
            }
            return Ok(entry.value);
        }
    }
    Err(rule("there is no system.data attribute"))
}

/// All bytes of the data, those behind the end of the file included.
///
/// # Errors
/// Those of [`rest`].
pub fn content(i_block: &[u8; I_BLOCK_SIZE], area: &[u8]) -> Result<Vec<u8>, CorruptKind> {
    Ok([i_block, rest(area)?].concat())
}

/// Most bytes that an inode with this area can hold. `None` if there is no room for the attribute.
///
/// # Errors
/// A malformed area.
pub fn room(area: &[u8]) -> Result<Option<usize>, CorruptKind> {
    let Some(body) = area.len().checked_sub(IBODY_HEADER_SIZE) else { return Ok(None) };
    let mut used = entry_len(NAME.len()).saturating_add(END_SIZE);
    for entry in area_entries(area) {
        let entry = entry?;
        if !is_own(entry.index, entry.name) {
            used = used
                .saturating_add(entry_len(entry.name.len()))
                .saturating_add(value_len(entry.value.len()));
        }
    }
    let free = (body & !3).checked_sub(used);
    Ok(free.map(|free| I_BLOCK_SIZE.saturating_add(free)))
}

/// An entry of an area, and its value.
struct Kept {
    raw: RawXattrEntry,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// Gives `system.data` this value, or removes it (`None`). False, and nothing is changed, if the
/// area has no room for it.
///
/// # Errors
/// A malformed area.
pub fn set_rest(area: &mut [u8], value: Option<&[u8]>) -> Result<bool, CorruptKind> {
    let mut kept = kept(area)?;
    let at = kept.iter().position(|entry| is_own(entry.raw.e_name_index, &entry.name));
    match (at, value) {
        (Some(at), None) => _ = kept.remove(at),
        (Some(at), Some(value)) => {
            if let Some(entry) = kept.get_mut(at) {
                entry.value = value.to_vec();
            }
        }
        (None, None) => return Ok(true),
        (None, Some(value)) => {
            let mut raw = RawXattrEntry::zeroed();
            raw.e_name_index = NAME_INDEX;
            raw.e_name_len = u8::try_from(NAME.len()).unwrap_or(u8::MAX);
            kept.push(Kept { raw, name: NAME.to_vec(), value: value.to_vec() });
        }
    }
    Ok(lay_out(area, kept))
}

fn kept(area: &[u8]) -> Result<Vec<Kept>, CorruptKind> {
    let body = area.get(IBODY_HEADER_SIZE..).unwrap_or_default();
    let mut at = 0_usize;
    let mut kept = Vec::new();
    for entry in area_entries(area) {
        let entry = entry?;
        let raw = body.get(at..).and_then(RawXattrEntry::ref_from_prefix);
        let raw = *raw.ok_or_else(|| rule("an attribute past the end"))?;
        at = at.saturating_add(entry_len(entry.name.len()));
        kept.push(Kept { raw, name: entry.name.to_vec(), value: entry.value.to_vec() });
    }
    Ok(kept)
}

/// Writes entries from the front and values from the back. False if they do not fit.
fn lay_out(area: &mut [u8], kept: Vec<Kept>) -> bool {
    let need = kept.iter().fold(END_SIZE, |sum, entry| {
        sum.saturating_add(entry_len(entry.name.len())).saturating_add(value_len(entry.value.len()))
    });
    let Some(body_len) = area.len().checked_sub(IBODY_HEADER_SIZE) else { return false };
    if need > body_len & !3 {
        return false;
    }
    area.fill(0);
    if kept.is_empty() {
        return true;
    }
    put(area, 0, &XATTR_MAGIC.to_le_bytes());
    let body = area.get_mut(IBODY_HEADER_SIZE..).unwrap_or_default();
    let (mut at, mut value_at) = (0_usize, body_len & !3);
    for Kept { mut raw, name, value } in kept {
        if raw.e_value_inum.get() == 0 {
            value_at = value_at.saturating_sub(value_len(value.len()));
            raw.e_value_offs = U16::new(if value.is_empty() { 0 } else { len16(value_at) });
            raw.e_value_size = U32::new(len32(value.len()));
        }
        put(body, at, raw.bytes());
        put(body, at.saturating_add(std::mem::size_of::<RawXattrEntry>()), &name);
        put(body, value_at, &value);
        at = at.saturating_add(entry_len(name.len()));
    }
    true
}

/// Puts `bytes` into `i_block` and `system.data`. False, and nothing is changed, if there is no
/// room.
///
/// # Errors
/// A malformed area.
pub fn set_content(
    i_block: &mut [u8; I_BLOCK_SIZE],
    area: &mut [u8],
    bytes: &[u8],
) -> Result<bool, CorruptKind> {
    let (head, rest) = bytes.split_at(bytes.len().min(I_BLOCK_SIZE));
    if !set_rest(area, Some(rest))? {
        return Ok(false);
    }
    i_block.fill(0);
    put(i_block, 0, head);
    Ok(true)
}

/// The regions of a directory's data that hold records. The second one may be missing.
#[must_use]
pub fn regions(content: &[u8]) -> [Range<usize>; 2] {
    let head = content.len().min(I_BLOCK_SIZE);
    [PARENT_SIZE.min(head)..head, head..content.len()]
}

/// The parent that the data of a directory names.
#[must_use]
pub fn parent(content: &[u8]) -> Ino {
    Ino(le32_at(content, 0))
}

/// Has the data of a directory name another parent.
pub fn set_parent(content: &mut [u8], parent: Ino) {
    put(content, 0, &parent.get().to_le_bytes());
}

/// The data of an empty directory.
#[must_use]
pub fn empty_directory(parent: Ino) -> [u8; I_BLOCK_SIZE] {
    let mut content = [0; I_BLOCK_SIZE];
    set_parent(&mut content, parent);
    let [records, _] = regions(&content);
    dir_entry::init_block(content.get_mut(records).unwrap_or_default(), false);
    content
}

/// Makes the data of a directory `len` bytes long. The last record, or a new one in a region that
/// was missing, takes the bytes that are added.
///
/// # Errors
/// A malformed record.
pub fn lengthen_directory(content: &mut Vec<u8>, len: usize) -> Result<(), CorruptKind> {
    let [_, second] = regions(content);
    let last = last_record(content.get(second.clone()).unwrap_or_default())?;
    content.resize(len.max(content.len()), 0);
    let region = content.get_mut(second.start..).unwrap_or_default();
    match last {
        Some(at) => extend_record(region, at),
        None if region.len() >= idx(dir_entry::rec_len_for(1)) => {
            dir_entry::init_block(region, false);
        }
        None => {}
    }
    Ok(())
}

/// The first block of a directory whose data leaves the inode. Records keep their distances, so
/// that the byte of a record in the block is that of the data plus a constant.
///
/// # Errors
/// A malformed record.
pub fn directory_block(
    content: &[u8],
    own: Ino,
    block_size: usize,
    has_filetype: bool,
    has_csum_tail: bool,
) -> Result<Vec<u8>, CorruptKind> {
    let [first, second] = regions(content);
    for region in [first.clone(), second.clone()] {
        last_record(content.get(region).unwrap_or_default())?;
    }
    let mut block = vec![0; block_size];
    dir_entry::init_first_block(&mut block, own, parent(content), has_filetype, has_csum_tail);
    let records = content.get(first.start..second.end).unwrap_or_default();
    let start = DOTS_SIZE;
    let end = block_size.saturating_sub(if has_csum_tail { dir_entry::TAIL_SIZE } else { 0 });
    if start.saturating_add(records.len()) > end {
        return Err(rule("the records of a directory do not fit a block"));
    }
    // `..` ends where the records begin.
    let rec_len = idx(dir_entry::rec_len_for(2));
    put(&mut block, rec_len.saturating_add(REC_LEN_AT), &len16(rec_len).to_le_bytes());
    put(&mut block, start, records);
    let area = block.get_mut(start..end).unwrap_or_default();
    if let Some(last) = last_record(area.get(..records.len()).unwrap_or_default())? {
        extend_record(area, last);
    }
    Ok(block)
}

/// Bytes of `.` and `..` in the first block of a directory.
pub const DOTS_SIZE: usize = 24;
/// Byte of a record's length.
const REC_LEN_AT: usize = std::mem::offset_of!(dir_entry::RawDirEntry, rec_len);

/// The offset of the last record of a region; `None` if it has none.
fn last_record(region: &[u8]) -> Result<Option<usize>, CorruptKind> {
    let mut last = None;
    for entry in dir_entry::DirBlock::new(region) {
        last = Some(idx(entry?.offset));
    }
    Ok(last)
}

/// Makes the record at `at` reach to the end of the region.
fn extend_record(region: &mut [u8], at: usize) {
    let rec_len = len16(region.len().saturating_sub(at));
    debug_assert!(le16_at(region, at.saturating_add(REC_LEN_AT)) <= rec_len);
    put(region, at.saturating_add(REC_LEN_AT), &rec_len.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir_entry::{DirBlock, insert};
    use crate::inode::FileKind;
    use crate::xattr::{Xattr, XattrValue, write_area};

    const LABEL: Xattr<'_> =
        Xattr { index: 6, name: b"selinux", value: XattrValue::Here(b"label") };

    fn area(len: usize, attributes: &[Xattr<'_>]) -> Vec<u8> {
        let mut area = vec![0; len];
        assert!(write_area(&mut area, attributes));
        area
    }

    #[test]
    fn an_inode_of_256_bytes_holds_128() {
        let mut area = area(96, &[]);
        let mut i_block = [0; 60];
        assert_eq!(room(&area).unwrap(), Some(128));
        let bytes: Vec<u8> = (0..129).collect();
        assert!(!set_content(&mut i_block, &mut area, &bytes).unwrap());
        assert_eq!((area[0], i_block[1]), (0, 0));
        for len in [0, 1, 60, 61, 127, 128] {
            assert!(set_content(&mut i_block, &mut area, &bytes[..len]).unwrap());
            let mut want = bytes[..len].to_vec();
            want.resize(len.max(60), 0);
            assert_eq!(content(&i_block, &area).unwrap(), want);
            assert_eq!(room(&area).unwrap(), Some(128));
        }
        assert!(set_rest(&mut area, None).unwrap() && area.iter().all(|byte| *byte == 0));
        assert!(rest(&area).is_err());
        assert_eq!(room(&[0; 24]).unwrap(), None);
        assert_eq!(room(&[]).unwrap(), None);
    }

    #[test]
    fn other_attributes_keep_their_values() {
        let mut area = area(96, &[LABEL]);
        let most = room(&area).unwrap().unwrap();
        assert_eq!(most, 128 - 24 - 8);
        let mut i_block = [0; 60];
        for len in [most, 61, most - 1, 60] {
            assert!(set_content(&mut i_block, &mut area, &vec![9; len]).unwrap());
            let found: Vec<_> = area_entries(&area).map(Result::unwrap).collect();
            assert_eq!(
                (found.len(), found[0].name, found[0].value),
                (2, LABEL.name, &b"label"[..])
            );
        }
        assert!(!set_content(&mut i_block, &mut area, &vec![9; most + 1]).unwrap());
        assert!(set_rest(&mut area, None).unwrap());
        assert_eq!(area, self::area(96, &[LABEL]));
    }

    /// Fault model: random bytes in the area; nothing may panic.
    #[test]
    fn damaged_areas_are_errors_or_data() {
        let mut good = area(96, &[LABEL]);
        assert!(set_rest(&mut good, Some(&[5; 30])).unwrap());
        let mut x = 7_u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let mut bad = good.clone();
            bad[(x >> 40) as usize % 96] = (x >> 20) as u8;
            bad[(x >> 50) as usize % 96] = (x >> 28) as u8;
            _ = (rest(&bad).is_ok(), room(&bad).is_ok(), set_rest(&mut bad, Some(&[1; 40])));
        }
    }

    #[test]
    fn directories_grow_and_become_blocks() {
        let mut content = empty_directory(Ino(2)).to_vec();
        assert_eq!(parent(&content), Ino(2));
        let add = |content: &mut Vec<u8>, region: usize, name: &str| {
            let range = regions(content)[region].clone();
            let kind = Some(FileKind::Regular);
            insert(&mut content[range], name.as_bytes(), Ino(20), kind, false).unwrap()
        };
        assert!(add(&mut content, 0, "one") && add(&mut content, 0, "two"));
        assert!(!add(&mut content, 0, "a name that needs more room"));
        lengthen_directory(&mut content, 100).unwrap();
        assert!(add(&mut content, 1, "three"));
        lengthen_directory(&mut content, 128).unwrap();
        assert!(add(&mut content, 1, "a name that needs more room"));
        for has_tail in [false, true] {
            let block = directory_block(&content, Ino(12), 1024, true, has_tail).unwrap();
            dir_entry::check(&block, has_tail, dir_entry::RecordForm::Plain).unwrap();
            let names: Vec<_> = DirBlock::new(&block).live().map(|e| e.unwrap()).collect();
            let want: [&[u8]; 6] =
                [b".", b"..", b"one", b"two", b"three", b"a name that needs more room"];
            assert_eq!(names.iter().map(|e| e.name).collect::<Vec<_>>(), want);
            assert_eq!((names[0].ino, names[1].ino), (Ino(12), Ino(2)));
        }
        content[60 + 4] = 1;
        assert!(directory_block(&content, Ino(12), 1024, true, true).is_err());
    }
}
