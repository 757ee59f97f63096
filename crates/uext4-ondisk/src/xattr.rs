//! Extended attributes, in an inode's slot and in a block of their own.
//!
//! On disk: entries grow from the front, values from the back; an entry points to its value by
//! offset (attributes.rst, `struct ext4_xattr_header`, `struct ext4_xattr_entry`). Offsets count
//! from the block's start, or from the first entry inside an inode. Entries of a block are sorted
//! by name index, length and name.
//!
//! Invariants: every entry that [`entries`] yields is inside its area, and so is its value.

use crate::checksum::{Checksums, crc32c};
use crate::error::CorruptKind;
use crate::num::{idx, le32_at, len16, len32, lo32, put};
use crate::units::{BlockNo, Ino};
use zerocopy::little_endian::{U16, U32};

/// `h_magic` of both areas.
pub const XATTR_MAGIC: u32 = 0xea02_0000;
/// Bytes of a block's header. The first entry follows it.
pub const BLOCK_HEADER_SIZE: usize = 32;
/// Bytes of the header in an inode.
pub const IBODY_HEADER_SIZE: usize = 4;
/// Bytes of an entry without its name.
pub const ENTRY_SIZE: usize = 16;
/// Most inodes that share a block.
pub const MAX_REFCOUNT: u32 = 1024;
/// Longest name, without its prefix.
pub const NAME_MAX: usize = 255;

raw_struct! {
    /// `struct ext4_xattr_header`.
    pub struct RawXattrHeader [32] {
        h_magic: U32,
        h_refcount: U32,
        h_blocks: U32,
        h_hash: U32,
        h_checksum: U32,
        h_reserved: [U32; 3],
    }
}

raw_struct! {
    /// `struct ext4_xattr_ibody_header`.
    pub struct RawXattrIbodyHeader [4] {
        h_magic: U32,
    }
}

raw_struct! {
    /// `struct ext4_xattr_entry` without its name.
    pub struct RawXattrEntry [16] {
        e_name_len: u8,
        e_name_index: u8,
        e_value_offs: U16,
        e_value_inum: U32,
        e_value_size: U32,
        e_hash: U32,
    }
}

/// Name indexes and their prefixes; longer prefixes first, since `system.` is a
/// prefix of others.
pub const PREFIXES: &[(u8, &str)] = &[
    (2, "system.posix_acl_access"),
    (3, "system.posix_acl_default"),
    (8, "system.richacl"),
    (1, "user."),
    (4, "trusted."),
    (6, "security."),
    (7, "system."),
];

/// Prefix of a name index; `None` for an unknown one.
#[must_use]
pub fn prefix_of(index: u8) -> Option<&'static str> {
    PREFIXES.iter().find(|(i, _)| *i == index).map(|(_, prefix)| *prefix)
}

/// Splits a full name into name index and the rest; `None` when no prefix fits, or the rest is
/// empty behind a prefix that needs one.
#[must_use]
pub fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|(index, prefix)| {
        let rest = name.strip_prefix(prefix.as_bytes())?;
        (prefix.ends_with('.') != rest.is_empty()).then_some((*index, rest))
    })
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrEntry<'a> {
    /// Name index: which prefix the name has.
    pub index: u8,
    /// Name without its prefix.
    pub name: &'a [u8],
    /// Value; empty if it is in an inode of its own.
    pub value: &'a [u8],
    /// Inode with the value (ea_inode), or `Ino(0)`.
    pub value_inode: Ino,
    /// Bytes of the value.
    pub value_size: u32,
    /// `e_hash`.
    pub hash: u32,
}

const WHAT: &str = "extended attributes";

/// The attributes of an area. `area` is a whole block with `first` = [`BLOCK_HEADER_SIZE`], or the
/// bytes after the header in an inode with `first` = 0.
///
/// Ends after the first malformed entry, which it yields as an error.
pub fn entries(
    area: &[u8],
    first: usize,
) -> impl Iterator<Item = Result<XattrEntry<'_>, CorruptKind>> {
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let at = next?;
        // Four zero bytes, or the end of the area, end the list.
        if le32_at(area, at) == 0 {
            return None;
        }
        let entry = entry_at(area, at);
        next = entry.as_ref().ok().map(|entry| at.saturating_add(entry_len(entry.name.len())));
        Some(entry)
    })
}

/// The attributes of a block, its header checked.
///
/// # Errors
/// [`CorruptKind`] of a broken header.
pub fn block_entries(
    block: &[u8],
) -> Result<impl Iterator<Item = Result<XattrEntry<'_>, CorruptKind>>, CorruptKind> {
    check_header(block)?;
    Ok(entries(block, BLOCK_HEADER_SIZE))
}

/// The attributes behind the extra fields of an inode; none when that area has no header of them.
pub fn area_entries(area: &[u8]) -> impl Iterator<Item = Result<XattrEntry<'_>, CorruptKind>> {
    let has_header = le32_at(area, 0) == XATTR_MAGIC;
    let body = area.get(IBODY_HEADER_SIZE..).filter(|_| has_header);
    entries(body.unwrap_or_default(), 0)
}

/// Bytes of an entry with a name of `name_len` bytes.
#[must_use]
pub const fn entry_len(name_len: usize) -> usize {
    name_len.saturating_add(ENTRY_SIZE + 3) & !3
}

/// Bytes that a value takes.
#[must_use]
pub const fn value_len(size: usize) -> usize {
    size.saturating_add(3) & !3
}

fn entry_at(area: &[u8], at: usize) -> Result<XattrEntry<'_>, CorruptKind> {
    let bad = |why| CorruptKind::Rule { what: WHAT, why };
    let rest = area.get(at..).unwrap_or_default();
    let raw = RawXattrEntry::ref_from_prefix(rest).ok_or(bad("entry past the end"))?;
    let name = rest.get(ENTRY_SIZE..).and_then(|n| n.get(..usize::from(raw.e_name_len)));
    let name = name.ok_or(bad("name past the end"))?;
    if name.contains(&0) {
        return Err(bad("name holds NUL"));
    }
    let value_size = raw.e_value_size.get();
    let value: &[u8] = if raw.e_value_inum.get() != 0 || value_size == 0 {
        &[]
    } else {
        let from = usize::from(raw.e_value_offs.get());
        let entry_end = at.saturating_add(entry_len(name.len()));
        if from < entry_end {
            return Err(bad("value overlaps the entries"));
        }
        let to = from.saturating_add(value_len(idx(value_size)));
        let padded = area.get(from..to).ok_or(bad("value past the end"))?;
        padded.get(..idx(value_size)).unwrap_or_default()
    };
    Ok(XattrEntry {
        index: raw.e_name_index,
        name,
        value,
        value_inode: Ino(raw.e_value_inum.get()),
        value_size,
        hash: raw.e_hash.get(),
    })
}

fn check_header(block: &[u8]) -> Result<&RawXattrHeader, CorruptKind> {
    let found = len32(block.len());
    let header = RawXattrHeader::ref_from_prefix(block).ok_or(CorruptKind::Short {
        what: WHAT,
        want: 32,
        found,
    })?;
    let magic = header.h_magic.get();
    if magic != XATTR_MAGIC {
        return Err(CorruptKind::Magic { what: WHAT, want: XATTR_MAGIC, found: magic });
    }
    let blocks = header.h_blocks.get();
    if blocks != 1 {
        return Err(CorruptKind::Range {
            what: WHAT,
            field: "h_blocks",
            min: 1,
            max: 1,
            found: u64::from(blocks),
        });
    }
    Ok(header)
}

/// `e_hash` of an entry of a block, as kernels since 6.2 write it: bytes of the name unsigned.
/// Entries in an inode have 0.
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    hash_value(hash_name(name, u32::from), value)
}

/// `e_hash` as older x86 kernels wrote it: bytes of the name signed. Accepted, never written.
#[must_use]
pub fn entry_hash_signed(name: &[u8], value: &[u8]) -> u32 {
    let widen = |byte: u8| lo32(i64::from(byte.cast_signed()).cast_unsigned());
    hash_value(hash_name(name, widen), value)
}

/// `e_hash` of an entry whose value is in an inode of its own and has this checksum.
#[must_use]
pub fn value_inode_hash(name: &[u8], checksum: u32) -> u32 {
    entry_hash(name, &checksum.to_le_bytes())
}

/// Whether `hash` is that of an entry whose value is in an inode of its own and has this checksum.
/// Either signedness is accepted.
#[must_use]
pub fn is_hash_of_value_inode(hash: u32, name: &[u8], checksum: u32) -> bool {
    let value = checksum.to_le_bytes();
    hash == entry_hash(name, &value) || hash == entry_hash_signed(name, &value)
}

fn hash_name(name: &[u8], widen: impl Fn(u8) -> u32) -> u32 {
    name.iter().fold(0_u32, |hash, &byte| hash.rotate_left(5) ^ widen(byte))
}

fn hash_value(start: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(start, |hash, chunk| {
        let mut word = [0_u8; 4];
        word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// `h_hash` of a block from the `e_hash` of its entries: 0 when one of them has none.
#[must_use]
pub fn block_hash(hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut hash = 0_u32;
    for entry in hashes {
        if entry == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ entry;
    }
    hash
}

/// Checks `e_hash` of the entries of a block against names and values, in either signedness.
///
/// # Errors
/// [`CorruptKind::Checksum`].
pub fn verify_entry_hash(entry: &XattrEntry<'_>) -> Result<(), CorruptKind> {
    if entry.hash == 0 || entry.value_inode.get() != 0 {
        return Ok(());
    }
    let want = entry_hash(entry.name, entry.value);
    if entry.hash == want || entry.hash == entry_hash_signed(entry.name, entry.value) {
        return Ok(());
    }
    Err(CorruptKind::Checksum { what: "extended attribute", want, found: entry.hash })
}

/// An attribute to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// Name index.
    pub index: u8,
    /// Name without its prefix, at most [`NAME_MAX`] bytes.
    pub name: &'a [u8],
    /// Value.
    pub value: XattrValue<'a>,
}

/// The value of an attribute to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrValue<'a> {
    /// Beside its entry.
    Here(&'a [u8]),
    /// In an inode of its own (ea_inode).
    InInode {
        /// The inode.
        ino: Ino,
        /// Bytes of the value.
        size: u32,
        /// `e_hash`: see [`value_inode_hash`].
        hash: u32,
    },
}

impl<'a> XattrValue<'a> {
    /// The bytes beside the entry.
    fn here(self) -> &'a [u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::InInode { .. } => &[],
        }
    }
}

impl Xattr<'_> {
    /// `e_hash` of the entry in a block.
    fn hash_in_block(&self) -> u32 {
        match self.value {
            XattrValue::Here(value) => entry_hash(self.name, value),
            XattrValue::InInode { hash, .. } => hash,
        }
    }
}

/// Bytes that attributes take, without header, with the four zero bytes that end the entries.
#[must_use]
pub fn space_needed(attributes: &[Xattr<'_>]) -> usize {
    let one =
        |a: &Xattr<'_>| entry_len(a.name.len()).saturating_add(value_len(a.value.here().len()));
    attributes.iter().map(one).fold(4, usize::saturating_add)
}

/// Writes a whole attribute block with reference count 1, entries sorted as the format wants;
/// [`seal_xattr_block`] completes it. Returns false, having changed nothing, when it does not fit.
pub fn write_block(block: &mut [u8], attributes: &[Xattr<'_>]) -> bool {
    if space_needed(attributes).saturating_add(BLOCK_HEADER_SIZE) > block.len() {
        return false;
    }
    block.fill(0);
    let mut sorted = attributes.to_vec();
    sorted.sort_by_key(|a| (a.index, a.name.len(), a.name));
    let hashes: Vec<u32> = sorted.iter().map(Xattr::hash_in_block).collect();
    write_entries(block, BLOCK_HEADER_SIZE, &sorted, &hashes);
    let header = RawXattrHeader {
        h_magic: U32::new(XATTR_MAGIC),
        h_refcount: U32::new(1),
        h_blocks: U32::new(1),
        h_hash: U32::new(block_hash(hashes)),
        h_checksum: U32::new(0),
        h_reserved: [U32::new(0); 3],
    };
    put(block, 0, header.bytes());
    true
}

/// Replaces the attributes in the area behind the extra fields of an inode. No attributes: no
/// header either. Returns false, having changed nothing, when they do not fit.
pub fn write_area(area: &mut [u8], attributes: &[Xattr<'_>]) -> bool {
    let room = area.len().checked_sub(IBODY_HEADER_SIZE);
    if !attributes.is_empty() && room.is_none_or(|room| space_needed(attributes) > room) {
        return false;
    }
    area.fill(0);
    if !attributes.is_empty() {
        put(area, 0, &XATTR_MAGIC.to_le_bytes());
        write_entries(area.get_mut(IBODY_HEADER_SIZE..).unwrap_or_default(), 0, attributes, &[]);
    }
    true
}

/// Lays out entries from `first` and values from the end; the caller has checked the space.
fn write_entries(area: &mut [u8], first: usize, attributes: &[Xattr<'_>], hashes: &[u32]) {
    let mut at = first;
    let mut value_at = area.len() & !3;
    let hashes = hashes.iter().copied().chain(std::iter::repeat(0));
    for (attribute, hash) in attributes.iter().zip(hashes) {
        let value = attribute.value.here();
        value_at = value_at.saturating_sub(value_len(value.len()));
        // An entry in an inode has a hash only if its value is elsewhere.
        let (value_inode, size, hash) = match attribute.value {
            XattrValue::Here(value) => (Ino(0), len32(value.len()), hash),
            XattrValue::InInode { ino, size, hash } => (ino, size, hash),
        };
        let raw = RawXattrEntry {
            e_name_len: u8::try_from(attribute.name.len()).unwrap_or(u8::MAX),
            e_name_index: attribute.index,
            e_value_offs: U16::new(if value.is_empty() { 0 } else { len16(value_at) }),
            e_value_inum: U32::new(value_inode.get()),
            e_value_size: U32::new(size),
            e_hash: U32::new(hash),
        };
        put(area, at, raw.bytes());
        put(area, at.saturating_add(ENTRY_SIZE), attribute.name);
        put(area, value_at, value);
        at = at.saturating_add(entry_len(attribute.name.len()));
    }
}

/// Byte of `h_checksum`.
const CHECKSUM_OFFSET: usize = std::mem::offset_of!(RawXattrHeader, h_checksum);

fn checksum(block: &[u8], checksums: &Checksums, block_no: BlockNo) -> Option<u32> {
    let crc = checksums.of(&block_no.get().to_le_bytes())?;
    let crc = crc32c(crc, block.get(..CHECKSUM_OFFSET)?);
    Some(crc32c(crc32c(crc, &[0; 4]), block.get(CHECKSUM_OFFSET.saturating_add(4)..)?))
}

/// Computes the checksum of an attribute block at `block_no` on the device.
pub fn seal_xattr_block(block: &mut [u8], checksums: &Checksums, block_no: BlockNo) {
    if let Some(crc) = checksum(block, checksums, block_no) {
        put(block, CHECKSUM_OFFSET, &crc.to_le_bytes());
    }
}

/// Checks header and checksum of an attribute block.
///
/// # Errors
/// [`CorruptKind`] of a broken header; [`CorruptKind::Checksum`].
pub fn verify_xattr_block(
    block: &[u8],
    checksums: &Checksums,
    block_no: BlockNo,
) -> Result<(), CorruptKind> {
    let found = check_header(block)?.h_checksum.get();
    let Some(want) = checksum(block, checksums, block_no) else { return Ok(()) };
    if want == found { Ok(()) } else { Err(CorruptKind::Checksum { what: WHAT, want, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::ChecksumKind;

    const SAMPLE: &[Xattr<'_>] = &[
        Xattr { index: 6, name: b"selinux", value: XattrValue::Here(b"label") },
        Xattr { index: 1, name: b"b", value: XattrValue::Here(b"") },
        Xattr { index: 1, name: b"a", value: XattrValue::Here(&[7; 12]) },
    ];

    #[test]
    fn blocks_round_trip_sorted() {
        let checksums = Checksums { kind: ChecksumKind::Crc32c, seed: 5, uuid: [0; 16] };
        let mut block = vec![0xff_u8; 1024];
        assert!(write_block(&mut block, SAMPLE));
        seal_xattr_block(&mut block, &checksums, BlockNo(9));
        verify_xattr_block(&block, &checksums, BlockNo(9)).unwrap();
        assert!(verify_xattr_block(&block, &checksums, BlockNo(8)).is_err());
        let found: Vec<_> = block_entries(&block).unwrap().map(Result::unwrap).collect();
        let names: Vec<&[u8]> = found.iter().map(|e| e.name).collect();
        assert_eq!(names, [&b"a"[..], b"b", b"selinux"]);
        assert_eq!(found[0].value, [7; 12]);
        found.iter().for_each(|e| verify_entry_hash(e).unwrap());
        assert!(!write_block(
            &mut block,
            &[Xattr { index: 1, name: b"x", value: XattrValue::Here(&[0; 980]) }]
        ));
    }

    #[test]
    fn areas_round_trip() {
        let mut area = vec![0xff_u8; 96];
        assert_eq!(area_entries(&area).count(), 0);
        assert!(write_area(&mut area, SAMPLE));
        let found: Vec<_> = area_entries(&area).map(Result::unwrap).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(
            (found[0].name, found[0].value, found[0].hash),
            (&b"selinux"[..], &b"label"[..], 0)
        );
        assert!(!write_area(
            &mut area,
            &[Xattr { index: 1, name: b"x", value: XattrValue::Here(&[0; 80]) }]
        ));
        assert!(write_area(&mut area, &[]));
        assert_eq!(area_entries(&area).count(), 0);
        assert!(!write_area(&mut [], SAMPLE) && write_area(&mut [], &[]));
    }

    #[test]
    fn values_elsewhere_take_an_entry_alone() {
        let hash = value_inode_hash(b"large", 0x8123_4567);
        assert!(is_hash_of_value_inode(hash, b"large", 0x8123_4567));
        let value = XattrValue::InInode { ino: Ino(40), size: 60_000, hash };
        let attributes = [Xattr { index: 1, name: b"large", value }, SAMPLE[0]];
        let (mut block, mut area) = (vec![0; 1024], vec![0; 96]);
        assert!(write_block(&mut block, &attributes) && write_area(&mut area, &attributes));
        let in_block = block_entries(&block).unwrap().next().unwrap().unwrap();
        let in_area = area_entries(&area).next().unwrap().unwrap();
        for found in [in_block, in_area] {
            assert_eq!((found.value_inode, found.value_size), (Ino(40), 60_000));
            assert_eq!((found.hash, found.value), (hash, &b""[..]));
        }
    }

    #[test]
    fn malformed_entries_are_errors() {
        let mut block = vec![0_u8; 1024];
        let fresh = |block: &mut Vec<u8>| assert!(write_block(block, &SAMPLE[..1]));
        for (at, byte) in [(0, 1), (8, 2)] {
            fresh(&mut block);
            block[at] = byte;
            assert!(block_entries(&block).is_err());
        }
        for (at, byte) in [(32, 255), (35, 4), (42, 1), (48, 0)] {
            fresh(&mut block);
            block[at] = byte;
            let all: Vec<_> = block_entries(&block).unwrap().collect();
            assert!(all.last().unwrap().is_err(), "{at}");
        }
        assert!(entries(&[1; 9], 0).next().unwrap().is_err());
    }

    #[test]
    fn names_split_by_prefix() {
        assert_eq!(split_name(b"user.x"), Some((1, &b"x"[..])));
        assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
        assert_eq!(
            split_name(b"system.posix_acl_accessory"),
            Some((7, &b"posix_acl_accessory"[..]))
        );
        assert_eq!(split_name(b"user."), None);
        assert_eq!(split_name(b"other.x"), None);
    }
}
