//! Hash trees of directories: the root in a directory's first block, and index nodes.
//!
//! On disk: to a reader without support for hashes, index blocks look like blocks of unused records
//! (directory.rst, `struct dx_root`, `struct dx_node`). Entry 0 has no hash: its place
//! holds the limit and count of entries.
//!
//! Invariants: a [`DxNode`] has 1 to `limit` entries in ascending order of hash, and `limit` is the
//! number that fits the block.

use crate::checksum::{InodeSeed, crc32c};
use crate::dir_entry::{self, DirBlock};
use crate::error::CorruptKind;
use crate::hash::HashVersion;
use crate::num::{idx, le16_at, le32_at, len16, len32, put};
use crate::units::{FileBlock, Ino};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

raw_struct! {
    /// `struct dx_root_info`.
    pub struct RawDxRootInfo [8] {
        reserved_zero: U32,
        hash_version: u8,
        info_length: u8,
        indirect_levels: u8,
        unused_flags: u8,
    }
}

raw_struct! {
    /// `struct dx_entry`.
    pub struct RawDxEntry [8] {
        hash: U32,
        block: U32,
    }
}

raw_struct! {
    /// `struct dx_countlimit`, in the place of entry 0's hash.
    pub struct RawDxCountLimit [4] {
        limit: U16,
        count: U16,
    }
}

raw_struct! {
    /// `struct dx_tail`.
    pub struct RawDxTail [8] {
        dt_reserved: U32,
        dt_checksum: U32,
    }
}

const WHAT: &str = "directory index";
/// Byte of `dx_root_info` in a root.
pub const ROOT_INFO_OFFSET: usize = 24;
/// Byte of the entries in a root.
pub const ROOT_ENTRIES_OFFSET: usize = 32;
/// Byte of the entries in a node.
pub const NODE_ENTRIES_OFFSET: usize = 8;
const ENTRY_SIZE: usize = size_of::<RawDxEntry>();
/// Greatest `indirect_levels`, without and with the large_dir feature.
pub const MAX_LEVELS: u8 = 1;
/// Greatest `indirect_levels` with the large_dir feature.
pub const MAX_LEVELS_LARGEDIR: u8 = 2;
/// Bits of an entry's `block` that are the block number.
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// An index entry: names with this hash and above, up to the next entry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxEntry {
    /// Least hash; 0 in the first entry. The lowest bit: names with the hash (without that bit)
    /// continue here from the block before.
    pub hash: u32,
    /// Block of the directory with the next node, or the leaf.
    pub block: FileBlock,
}

/// The fields that only the root has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxRoot {
    /// Function that hashed the names.
    pub hash: HashVersion,
    /// Levels of nodes between root and leaves.
    pub levels: u8,
    /// Inode that `.` names.
    pub own: Ino,
    /// Inode that `..` names.
    pub parent: Ino,
}

/// A validated index block, viewed in place.
#[derive(Clone, Copy, Debug)]
pub struct DxNode<'a> {
    entries: &'a [RawDxEntry],
    /// Most entries that fit.
    pub limit: u16,
}

/// Entries that fit an index block whose entries start at `offset`.
#[must_use]
pub const fn entry_limit(block_size: usize, offset: usize, has_csum: bool) -> u16 {
    let tail = if has_csum { size_of::<RawDxTail>() } else { 0 };
    len16(block_size.saturating_sub(offset).saturating_sub(tail) / ENTRY_SIZE)
}

impl<'a> DxNode<'a> {
    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Always false, because a node has at least one entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entry `index`.
    #[must_use]
    pub fn entry(&self, index: usize) -> Option<DxEntry> {
        let raw = self.entries.get(index)?;
        let hash = if index == 0 { 0 } else { raw.hash.get() };
        Some(DxEntry { hash, block: FileBlock(raw.block.get() & BLOCK_MASK) })
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = DxEntry> + '_ {
        (0..self.len()).filter_map(|index| self.entry(index))
    }

    /// Index of the entry that covers `hash`: the last one whose hash is not above it.
    #[must_use]
    pub fn position(&self, hash: u32) -> usize {
        let rest = self.entries.get(1..).unwrap_or_default();
        rest.partition_point(|entry| entry.hash.get() <= hash)
    }

    fn parse(block: &'a [u8], offset: usize, has_csum: bool) -> Result<Self, CorruptKind> {
        let at = block.get(offset..).unwrap_or_default();
        let short = CorruptKind::Rule { what: WHAT, why: "entries past the block" };
        let head = RawDxCountLimit::ref_from_prefix(at).ok_or(short)?;
        let (limit, count) = (head.limit.get(), head.count.get());
        let want = u64::from(entry_limit(block.len(), offset, has_csum));
        range("limit", u64::from(limit), want, want)?;
        range("count", u64::from(count), 1, want)?;
        let (entries, _) = <[RawDxEntry]>::ref_from_prefix_with_elems(at, usize::from(count))
            .map_err(|_| short)?;
        let mut least = 0;
        for (index, entry) in entries.iter().enumerate().skip(1) {
            let found = u64::from(entry.hash.get());
            if found < least {
                return Err(CorruptKind::Order {
                    what: WHAT,
                    index: len32(index),
                    min: least,
                    found,
                });
            }
            least = found;
        }
        Ok(Self { entries, limit })
    }
}

fn range(field: &'static str, found: u64, min: u64, max: u64) -> Result<(), CorruptKind> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(CorruptKind::Range { what: WHAT, field, min, max, found })
}

/// Validates the root of a hashed directory: its block 0.
///
/// # Errors
/// [`CorruptKind`] of the first broken rule; an unknown hash function is a range error.
pub fn parse_root(
    block: &[u8],
    has_csum: bool,
    max_levels: u8,
) -> Result<(DxRoot, DxNode<'_>), CorruptKind> {
    let mut records = DirBlock::new(block);
    let mut dot = |name: &[u8], why| match records.next() {
        Some(Ok(entry)) if entry.is_live() && entry.name == name => Ok(entry),
        Some(Err(error)) => Err(error),
        _ => Err(CorruptKind::Rule { what: WHAT, why }),
    };
    let own = dot(b".", "first record is not '.'")?;
    let parent = dot(b"..", "second record is not '..'")?;
    if own.rec_len != 12 || idx(parent.rec_len) != block.len().saturating_sub(12) {
        return Err(CorruptKind::Rule { what: WHAT, why: "'..' does not cover the block" });
    }
    let info = block.get(ROOT_INFO_OFFSET..).and_then(RawDxRootInfo::ref_from_prefix);
    let info = info.ok_or(CorruptKind::Rule { what: WHAT, why: "no room for the root" })?;
    range("reserved_zero", u64::from(info.reserved_zero.get()), 0, 0)?;
    range("info_length", u64::from(info.info_length), 8, 8)?;
    range("unused_flags", u64::from(info.unused_flags & 1), 0, 0)?;
    range("indirect_levels", u64::from(info.indirect_levels), 0, u64::from(max_levels))?;
    let version = u64::from(info.hash_version);
    let hash = HashVersion::from_raw(info.hash_version).ok_or(CorruptKind::Range {
        what: WHAT,
        field: "hash_version",
        min: 0,
        max: 6,
        found: version,
    })?;
    let root = DxRoot { hash, levels: info.indirect_levels, own: own.ino, parent: parent.ino };
    Ok((root, DxNode::parse(block, ROOT_ENTRIES_OFFSET, has_csum)?))
}

/// Validates an index block below the root.
///
/// # Errors
/// [`CorruptKind`] of the first broken rule.
pub fn parse_node(block: &[u8], has_csum: bool) -> Result<DxNode<'_>, CorruptKind> {
    if !is_node(block) {
        return Err(CorruptKind::Rule { what: WHAT, why: "no unused record over the block" });
    }
    DxNode::parse(block, NODE_ENTRIES_OFFSET, has_csum)
}

/// Whether a block looks like an index block below the root: one unused record over all of it.
#[must_use]
pub fn is_node(block: &[u8]) -> bool {
    le32_at(block, 0) == 0 && usize::from(le16_at(block, 4)) == block.len()
}

/// Writes the root of a hashed directory over a block. Returns false, having changed nothing, if
/// the entries do not fit.
pub fn write_root(
    block: &mut [u8],
    root: &DxRoot,
    has_filetype: bool,
    has_csum: bool,
    entries: &[DxEntry],
) -> bool {
    if entries.len() > usize::from(entry_limit(block.len(), ROOT_ENTRIES_OFFSET, has_csum)) {
        return false;
    }
    dir_entry::init_first_block(block, root.own, root.parent, has_filetype, false);
    let info = RawDxRootInfo {
        reserved_zero: U32::new(0),
        hash_version: root.hash.raw(),
        info_length: 8,
        indirect_levels: root.levels,
        unused_flags: 0,
    };
    put(block, ROOT_INFO_OFFSET, info.bytes());
    write_entries(block, ROOT_ENTRIES_OFFSET, has_csum, entries)
}

/// Writes an index block below the root. Returns false, having changed nothing, if the entries
/// do not fit.
pub fn write_node(block: &mut [u8], has_csum: bool, entries: &[DxEntry]) -> bool {
    if entries.len() > usize::from(entry_limit(block.len(), NODE_ENTRIES_OFFSET, has_csum)) {
        return false;
    }
    dir_entry::init_block(block, false);
    write_entries(block, NODE_ENTRIES_OFFSET, has_csum, entries)
}

/// Replaces the entries (at least one) of an index block, root or node, whose entries start at
/// `offset`. The first entry's hash is not stored. Returns false, having changed nothing, if
/// they do not fit.
pub fn write_entries(block: &mut [u8], offset: usize, has_csum: bool, entries: &[DxEntry]) -> bool {
    let limit = entry_limit(block.len(), offset, has_csum);
    let Some(area) = block.get_mut(offset..) else { return false };
    if entries.len() > usize::from(limit) {
        return false;
    }
    for (slot, entry) in area.chunks_exact_mut(ENTRY_SIZE).zip(entries) {
        let raw = RawDxEntry { hash: U32::new(entry.hash), block: U32::new(entry.block.get()) };
        slot.copy_from_slice(raw.bytes());
    }
    let head = RawDxCountLimit { limit: U16::new(limit), count: U16::new(len16(entries.len())) };
    put(area, 0, head.bytes())
}

/// Byte of the entries of an index block. `None` if it is none.
#[must_use]
pub fn entries_offset(block: &[u8]) -> Option<usize> {
    if usize::from(le16_at(block, 4)) == block.len() {
        return Some(NODE_ENTRIES_OFFSET);
    }
    let is_root = le16_at(block, 4) == 12
        && usize::from(le16_at(block, 16)) == block.len().saturating_sub(12)
        && le32_at(block, ROOT_INFO_OFFSET) == 0
        && block.get(ROOT_INFO_OFFSET.saturating_add(5)) == Some(&8);
    is_root.then_some(ROOT_ENTRIES_OFFSET)
}

/// Checksum of an index block, and its byte offset.
fn checksum(block: &[u8], seed: u32) -> Result<(u32, usize), CorruptKind> {
    let bad = |why| CorruptKind::Rule { what: WHAT, why };
    let offset = entries_offset(block).ok_or(bad("not an index block"))?;
    let limit = usize::from(le16_at(block, offset));
    let count = usize::from(le16_at(block, offset.saturating_add(2)));
    let at = |n: usize| offset.saturating_add(n.saturating_mul(ENTRY_SIZE));
    let tail = block.get(at(limit)..).and_then(RawDxTail::ref_from_prefix);
    let tail = tail.ok_or(bad("no room for the checksum"))?;
    if count > limit {
        return Err(bad("more entries than fit"));
    }
    let crc = crc32c(seed, block.get(..at(count)).unwrap_or_default());
    let crc = crc32c(crc32c(crc, &tail.dt_reserved.get().to_le_bytes()), &[0; 4]);
    Ok((crc, at(limit).saturating_add(4)))
}

/// Computes the checksum of an index block.
pub fn seal_dx(block: &mut [u8], seed: InodeSeed) {
    if let Some(Ok((crc, at))) = seed.get().map(|seed| checksum(block, seed)) {
        put(block, at, &crc.to_le_bytes());
    }
}

/// Compares the checksum of an index block with its content.
///
/// # Errors
/// [`CorruptKind::Checksum`]; [`CorruptKind::Rule`] if the block is no index block.
pub fn verify_dx(block: &[u8], seed: InodeSeed) -> Result<(), CorruptKind> {
    let Some(seed) = seed.get() else { return Ok(()) };
    let (want, at) = checksum(block, seed)?;
    let found = le32_at(block, at);
    if want == found { Ok(()) } else { Err(CorruptKind::Checksum { what: WHAT, want, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(n: u32) -> Vec<DxEntry> {
        (0..n).map(|i| DxEntry { hash: i * 16, block: FileBlock(i + 1) }).collect()
    }

    #[test]
    fn roots_and_nodes_round_trip() {
        let root = DxRoot { hash: HashVersion::HalfMd4, levels: 1, own: Ino(12), parent: Ino(2) };
        for has_csum in [false, true] {
            let mut block = vec![0_u8; 4096];
            assert!(write_root(&mut block, &root, true, has_csum, &entries(9)));
            let seed = InodeSeed(has_csum.then_some(3));
            seal_dx(&mut block, seed);
            verify_dx(&block, seed).unwrap();
            let (found, node) = parse_root(&block, has_csum, MAX_LEVELS).unwrap();
            assert_eq!(found, root);
            assert!(node.entries().eq(entries(9)));
            assert_eq!(node.limit, if has_csum { 507 } else { 508 });
            assert_eq!([0, 15, 16, 17, 999].map(|h| node.position(h)), [0, 0, 1, 1, 8]);

            let mut block = vec![0_u8; 1024];
            assert!(!write_node(&mut block, has_csum, &entries(200)));
            assert!(write_node(&mut block, has_csum, &entries(120)));
            seal_dx(&mut block, seed);
            verify_dx(&block, seed).unwrap();
            assert!(parse_node(&block, has_csum).unwrap().entries().eq(entries(120)));
            assert!(parse_root(&block, has_csum, MAX_LEVELS).is_err());
            block[9 * 8] ^= 0x80;
            assert_eq!(verify_dx(&block, seed).is_err(), has_csum);
            block[8] ^= 1;
            assert!(parse_node(&block, has_csum).is_err());
        }
    }
}
