//! Extent trees: the map from a file's blocks to blocks of the device.
//!
//! On disk: a node is a 12-byte header and 12-byte entries, in `i_block` (root) or a block of its
//! own, which ends in a checksum (ifork.rst, `struct ext4_extent_header` and its entries).
//!
//! Invariants: an [`ExtentNode`] that exists has entries in ascending order without overlap, every
//! extent inside the device, and the depth that its parent promised.

use crate::checksum::{InodeSeed, crc32c};
use crate::error::CorruptKind;
use crate::num::{idx, join32, le32_at, len16, len32, lo32, mid16, put};
use crate::units::{BlockNo, FileBlock};
use std::ops::Range;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

/// `eh_magic`.
pub const EXTENT_MAGIC: u16 = 0xf30a;
/// Most blocks of a written extent.
pub const MAX_WRITTEN_LEN: u32 = 32768;
/// Most blocks of an unwritten extent.
pub const MAX_UNWRITTEN_LEN: u32 = 32767;
/// Greatest depth of a tree (of its root; leaves have 0).
pub const MAX_DEPTH: u16 = 5;
/// Bytes of the header, and of each entry.
pub const ENTRY_SIZE: usize = 12;
/// Entries of a root in `i_block`.
pub const ROOT_ENTRIES: u16 = 4;

raw_struct! {
    /// `struct ext4_extent_header`.
    pub struct RawExtentHeader [12] {
        eh_magic: U16,
        eh_entries: U16,
        eh_max: U16,
        eh_depth: U16,
        eh_generation: U32,
    }
}

raw_struct! {
    /// `struct ext4_extent_idx`.
    pub struct RawExtentIndex [12] {
        ei_block: U32,
        ei_leaf_lo: U32,
        ei_leaf_hi: U16,
        ei_unused: U16,
    }
}

raw_struct! {
    /// `struct ext4_extent`.
    pub struct RawExtent [12] {
        ee_block: U32,
        ee_len: U16,
        ee_start_hi: U16,
        ee_start_lo: U32,
    }
}

raw_struct! {
    /// `struct ext4_extent_tail`.
    pub struct RawExtentTail [4] {
        et_checksum: U32,
    }
}

/// A run of blocks of a file and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First block of the file.
    pub first: FileBlock,
    /// Blocks: 1 to [`MAX_WRITTEN_LEN`], or [`MAX_UNWRITTEN_LEN`] when unwritten.
    pub len: u32,
    /// First block on the device.
    pub start: BlockNo,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// First block of the file after the run.
    #[must_use]
    pub const fn end(&self) -> FileBlock {
        self.first.plus(self.len)
    }

    /// Whether the run covers a block of the file.
    #[must_use]
    pub fn contains(&self, block: FileBlock) -> bool {
        block.get().checked_sub(self.first.get()).is_some_and(|at| at < self.len)
    }

    /// Most blocks that an extent of this kind can have.
    #[must_use]
    pub const fn max_len(unwritten: bool) -> u32 {
        if unwritten { MAX_UNWRITTEN_LEN } else { MAX_WRITTEN_LEN }
    }

    /// The entry as it stands on disk. The caller keeps `len` within its limit.
    #[must_use]
    pub fn to_raw(&self) -> RawExtent {
        let len = if self.unwritten { self.len | MAX_WRITTEN_LEN } else { self.len };
        RawExtent {
            ee_block: U32::new(self.first.get()),
            ee_len: U16::new(len16(idx(len))),
            ee_start_hi: U16::new(mid16(self.start.get())),
            ee_start_lo: U32::new(lo32(self.start.get())),
        }
    }
}

impl From<&RawExtent> for Extent {
    fn from(raw: &RawExtent) -> Self {
        let len = u32::from(raw.ee_len.get());
        let unwritten = len > MAX_WRITTEN_LEN;
        Self {
            first: FileBlock(raw.ee_block.get()),
            len: if unwritten { len.saturating_sub(MAX_WRITTEN_LEN) } else { len },
            start: BlockNo(join32(u32::from(raw.ee_start_hi.get()), raw.ee_start_lo.get())),
            unwritten,
        }
    }
}

/// An entry of an index node: a subtree and its first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentIndex {
    /// First block of the file that the subtree may hold.
    pub first: FileBlock,
    /// Block of the child node.
    pub child: BlockNo,
}

impl ExtentIndex {
    /// The entry as it stands on disk.
    #[must_use]
    pub fn to_raw(&self) -> RawExtentIndex {
        RawExtentIndex {
            ei_block: U32::new(self.first.get()),
            ei_leaf_lo: U32::new(lo32(self.child.get())),
            ei_leaf_hi: U16::new(mid16(self.child.get())),
            ei_unused: U16::new(0),
        }
    }
}

impl From<&RawExtentIndex> for ExtentIndex {
    fn from(raw: &RawExtentIndex) -> Self {
        Self {
            first: FileBlock(raw.ei_block.get()),
            child: BlockNo(join32(u32::from(raw.ei_leaf_hi.get()), raw.ei_leaf_lo.get())),
        }
    }
}

/// Entries of a node.
#[derive(Clone, Copy, Debug)]
pub enum ExtentEntries<'a> {
    /// Of a leaf.
    Leaf(&'a [RawExtent]),
    /// Of an index node.
    Index(&'a [RawExtentIndex]),
}

/// A validated node, viewed in place.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    /// Levels below this node; 0 is a leaf.
    pub depth: u16,
    /// Most entries the node can hold.
    pub max: u16,
    /// The entries.
    pub entries: ExtentEntries<'a>,
}

const WHAT: &str = "extent node";

/// Entries that fit `bytes` bytes: 4 in `i_block`, 340 in a block of 4096. A block always has
/// room left for the checksum, whether the file system uses it or not.
#[must_use]
pub const fn max_entries(bytes: usize) -> u16 {
    len16((bytes / ENTRY_SIZE).saturating_sub(1))
}

fn range(field: &'static str, found: u64, min: u64, max: u64) -> Result<(), CorruptKind> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(CorruptKind::Range { what: WHAT, field, min, max, found })
}

fn header(bytes: &[u8]) -> Result<RawExtentHeader, CorruptKind> {
    let found = len32(bytes.len());
    let header = RawExtentHeader::from_prefix(bytes).ok_or(CorruptKind::Short {
        what: WHAT,
        want: len32(ENTRY_SIZE),
        found,
    })?;
    if header.eh_magic.get() != EXTENT_MAGIC {
        let (want, found) = (u32::from(EXTENT_MAGIC), u32::from(header.eh_magic.get()));
        return Err(CorruptKind::Magic { what: WHAT, want, found });
    }
    Ok(header)
}

impl<'a> ExtentNode<'a> {
    /// Validates a node: `i_block` for the root, else a whole block.
    ///
    /// `expected_depth` is one less than the parent's, `None` for a root. `blocks` are the blocks
    /// of the device that data may have. The checksum is [`verify_extent_block`]'s task. That the
    /// node starts where its parent says is the caller's: see [`ExtentNode::first`].
    ///
    /// # Errors
    /// [`CorruptKind`] of the first broken rule.
    pub fn parse(
        bytes: &'a [u8],
        expected_depth: Option<u16>,
        blocks: Range<u64>,
    ) -> Result<Self, CorruptKind> {
        let header = header(bytes)?;
        let (depth, max) = (header.eh_depth.get(), header.eh_max.get());
        let (least, most) = expected_depth.map_or((0, MAX_DEPTH), |d| (d, d));
        range("eh_depth", u64::from(depth), u64::from(least), u64::from(most))?;
        range("eh_max", u64::from(max), 1, u64::from(max_entries(bytes.len())))?;
        let count = header.eh_entries.get();
        range("eh_entries", u64::from(count), u64::from(depth > 0), u64::from(max))?;
        let rest = bytes.get(ENTRY_SIZE..).unwrap_or_default();
        let short = || CorruptKind::Rule { what: WHAT, why: "entries past the end" };
        let count = usize::from(count);
        let entries = if depth == 0 {
            let (entries, _) =
                <[RawExtent]>::ref_from_prefix_with_elems(rest, count).map_err(|_| short())?;
            check_leaf(entries, &blocks)?;
            ExtentEntries::Leaf(entries)
        } else {
            let (entries, _) =
                <[RawExtentIndex]>::ref_from_prefix_with_elems(rest, count).map_err(|_| short())?;
            check_index(entries, &blocks)?;
            ExtentEntries::Index(entries)
        };
        Ok(Self { depth, max, entries })
    }

    /// Checks what a node's parent says of it: it starts at its key, and all of it lies before the
    /// next one. Keys of a level then ascend through the whole tree, so that no walk meets a block
    /// twice.
    ///
    /// # Errors
    /// [`CorruptKind::Rule`].
    pub fn check_place(&self, key: FileBlock, next_key: FileBlock) -> Result<(), CorruptKind> {
        let rule = |why| Err(CorruptKind::Rule { what: WHAT, why });
        let end = match self.entries {
            ExtentEntries::Leaf(entries) => entries.last().map(|e| Extent::from(e).end()),
            ExtentEntries::Index(entries) => {
                entries.last().map(|e| ExtentIndex::from(e).first.plus(1))
            }
        };
        match (self.first(), end) {
            (Some(first), _) if first != key => rule("starts not where its parent says"),
            (Some(_), Some(end)) if end <= next_key => Ok(()),
            (Some(_), _) => rule("reaches past where its parent says"),
            (None, _) => rule("is empty"),
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.entries {
            ExtentEntries::Leaf(entries) => entries.len(),
            ExtentEntries::Index(entries) => entries.len(),
        }
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First block of the file in this node.
    #[must_use]
    pub fn first(&self) -> Option<FileBlock> {
        match self.entries {
            ExtentEntries::Leaf(entries) => entries.first().map(|e| FileBlock(e.ee_block.get())),
            ExtentEntries::Index(entries) => entries.first().map(|e| FileBlock(e.ei_block.get())),
        }
    }

    /// Extents of a leaf; none for an index node.
    pub fn extents(&self) -> impl DoubleEndedIterator<Item = Extent> + ExactSizeIterator + 'a {
        let entries: &'a [RawExtent] = match self.entries {
            ExtentEntries::Leaf(entries) => entries,
            ExtentEntries::Index(_) => &[],
        };
        entries.iter().map(Extent::from)
    }

    /// Children of an index node; none for a leaf.
    pub fn children(
        &self,
    ) -> impl DoubleEndedIterator<Item = ExtentIndex> + ExactSizeIterator + 'a {
        let entries: &'a [RawExtentIndex] = match self.entries {
            ExtentEntries::Leaf(_) => &[],
            ExtentEntries::Index(entries) => entries,
        };
        entries.iter().map(ExtentIndex::from)
    }

    /// Index of the last entry that starts at or before `block`; `None` when all start after it.
    #[must_use]
    pub fn position(&self, block: FileBlock) -> Option<usize> {
        let after = match self.entries {
            ExtentEntries::Leaf(e) => e.partition_point(|e| e.ee_block.get() <= block.get()),
            ExtentEntries::Index(e) => e.partition_point(|e| e.ei_block.get() <= block.get()),
        };
        after.checked_sub(1)
    }
}

fn order(index: usize, min: u64, found: u64) -> Result<(), CorruptKind> {
    if found >= min {
        return Ok(());
    }
    Err(CorruptKind::Order { what: WHAT, index: len32(index), min, found })
}

fn check_leaf(entries: &[RawExtent], blocks: &Range<u64>) -> Result<(), CorruptKind> {
    let mut next = 0_u64;
    for (index, raw) in entries.iter().enumerate() {
        let extent = Extent::from(raw);
        let (first, len) = (u64::from(extent.first.get()), u64::from(extent.len));
        range("ee_len", len, 1, u64::from(MAX_WRITTEN_LEN))?;
        order(index, next, first)?;
        next = first.saturating_add(len);
        range("last block", next, 1, u64::from(u32::MAX))?;
        let last = blocks.end.saturating_sub(len);
        range("ee_start", extent.start.get(), blocks.start, last)?;
    }
    Ok(())
}

fn check_index(entries: &[RawExtentIndex], blocks: &Range<u64>) -> Result<(), CorruptKind> {
    let mut next = 0_u64;
    for (index, raw) in entries.iter().enumerate() {
        let entry = ExtentIndex::from(raw);
        order(index, next, u64::from(entry.first.get()))?;
        next = u64::from(entry.first.get()).saturating_add(1);
        range("ei_leaf", entry.child.get(), blocks.start, blocks.end.saturating_sub(1))?;
    }
    Ok(())
}

/// Writes the header of a node with `entries` entries over the start of `bytes`; `eh_max` is what
/// fits `bytes`. The rest of the node stays as it is.
pub fn write_header(bytes: &mut [u8], depth: u16, entries: u16) {
    let header = RawExtentHeader {
        eh_magic: U16::new(EXTENT_MAGIC),
        eh_entries: U16::new(entries),
        eh_max: U16::new(max_entries(bytes.len())),
        eh_depth: U16::new(depth),
        eh_generation: U32::new(0),
    };
    put(bytes, 0, header.bytes());
}

/// Writes a whole leaf: header, entries, zeros after them. Returns false, having changed nothing,
/// when they do not fit.
pub fn write_leaf(bytes: &mut [u8], extents: &[Extent]) -> bool {
    write_node(bytes, 0, extents.len(), extents.iter().map(|e| zerocopy::transmute!(e.to_raw())))
}

/// Writes entry `index` of a leaf anew. Returns false, having changed nothing, when the leaf has no
/// such entry.
pub fn write_extent(bytes: &mut [u8], index: usize, extent: &Extent) -> bool {
    let entries = RawExtentHeader::ref_from_prefix(bytes).map_or(0, |h| h.eh_entries.get());
    let slot = bytes.chunks_exact_mut(ENTRY_SIZE).skip(1).take(usize::from(entries)).nth(index);
    let raw: [u8; ENTRY_SIZE] = zerocopy::transmute!(extent.to_raw());
    slot.is_some_and(|slot| {
        slot.copy_from_slice(&raw);
        true
    })
}

/// Writes a whole index node; `depth` is at least 1. See [`write_leaf`].
pub fn write_index(bytes: &mut [u8], depth: u16, children: &[ExtentIndex]) -> bool {
    let raw = children.iter().map(|c| zerocopy::transmute!(c.to_raw()));
    write_node(bytes, depth, children.len(), raw)
}

fn write_node(
    bytes: &mut [u8],
    depth: u16,
    count: usize,
    entries: impl Iterator<Item = [u8; ENTRY_SIZE]>,
) -> bool {
    if count > usize::from(max_entries(bytes.len())) {
        return false;
    }
    bytes.fill(0);
    write_header(bytes, depth, len16(count));
    let slots = bytes.chunks_exact_mut(ENTRY_SIZE).skip(1);
    slots.zip(entries).for_each(|(slot, entry)| slot.copy_from_slice(&entry));
    true
}

/// Byte of the checksum in a node's block.
fn tail_offset(block: &[u8]) -> Option<usize> {
    let max = usize::from(RawExtentHeader::ref_from_prefix(block)?.eh_max.get());
    let at = max.saturating_add(1).saturating_mul(ENTRY_SIZE);
    (at.saturating_add(size_of::<RawExtentTail>()) <= block.len()).then_some(at)
}

/// Computes the checksum of a node in a block of its own (never of a root in `i_block`).
pub fn seal_extent_block(block: &mut [u8], seed: InodeSeed) {
    if let (Some(seed), Some(at)) = (seed.get(), tail_offset(block)) {
        let crc = crc32c(seed, block.get(..at).unwrap_or_default());
        put(block, at, &crc.to_le_bytes());
    }
}

/// Compares the checksum of a node's block with its content.
///
/// # Errors
/// [`CorruptKind::Checksum`]; [`CorruptKind::Magic`] where there is no node at all.
pub fn verify_extent_block(block: &[u8], seed: InodeSeed) -> Result<(), CorruptKind> {
    header(block)?;
    let Some(seed) = seed.get() else { return Ok(()) };
    let at = tail_offset(block)
        .ok_or(CorruptKind::Rule { what: WHAT, why: "no room for the checksum" })?;
    let want = crc32c(seed, block.get(..at).unwrap_or_default());
    let found = le32_at(block, at);
    if want == found { Ok(()) } else { Err(CorruptKind::Checksum { what: WHAT, want, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Range<u64> = 1..1_000_000;

    fn extent(first: u32, len: u32, start: u64, unwritten: bool) -> Extent {
        Extent { first: FileBlock(first), len, start: BlockNo(start), unwritten }
    }

    #[test]
    fn leaves_and_index_nodes_round_trip() {
        let extents = [
            extent(0, MAX_WRITTEN_LEN, 100, false),
            extent(40_000, MAX_UNWRITTEN_LEN, 50_000, true),
            extent(u32::MAX - 1, 1, 999_999, false),
        ];
        let mut root = [0xff_u8; 60];
        assert!(write_leaf(&mut root, &extents));
        let node = ExtentNode::parse(&root, None, DEVICE).unwrap();
        assert!(node.extents().eq(extents));
        assert_eq!((node.depth, node.max), (0, ROOT_ENTRIES));
        assert_eq!(node.position(FileBlock(39_999)), Some(0));
        assert_eq!(node.position(FileBlock(40_000)), Some(1));
        assert!(!write_leaf(&mut root, &[extents[0]; 5]));

        let children = [
            ExtentIndex { first: FileBlock(0), child: BlockNo(7) },
            ExtentIndex { first: FileBlock(9), child: BlockNo(8) },
        ];
        let mut block = vec![0_u8; 4096];
        assert!(write_index(&mut block, 2, &children));
        assert!(ExtentNode::parse(&block, Some(1), DEVICE).is_err());
        let node = ExtentNode::parse(&block, Some(2), DEVICE).unwrap();
        assert!(node.children().eq(children) && node.max == 340);
    }

    #[test]
    fn broken_nodes_are_refused() {
        let refused = |extents: &[Extent]| {
            let mut root = [0_u8; 60];
            write_leaf(&mut root, extents);
            ExtentNode::parse(&root, None, DEVICE).is_err()
        };
        assert!(!refused(&[]));
        assert!(refused(&[extent(0, 0, 5, false)]));
        assert!(refused(&[extent(0, 10, 5, false), extent(9, 1, 50, false)]));
        assert!(refused(&[extent(0, 10, 999_991, false)]));
        assert!(refused(&[extent(0, 10, 0, false)]));
        assert!(refused(&[extent(u32::MAX, 1, 9, false)]));
        let mut root = [0_u8; 60];
        write_header(&mut root, 1, 0);
        assert!(ExtentNode::parse(&root, None, DEVICE).is_err());
        write_header(&mut root, 0, 5);
        assert!(ExtentNode::parse(&root, None, DEVICE).is_err());
        write_header(&mut root, 6, 1);
        assert!(ExtentNode::parse(&root, None, DEVICE).is_err());
        assert!(ExtentNode::parse(&[0; 11], None, DEVICE).is_err());
    }

    #[test]
    fn block_checksums() {
        for size in [1024, 2048, 4096] {
            let mut block = vec![0_u8; size];
            write_leaf(&mut block, &[extent(1, 2, 3, false)]);
            let seed = InodeSeed(Some(1));
            seal_extent_block(&mut block, seed);
            verify_extent_block(&block, seed).unwrap();
            block[20] ^= 1;
            assert!(verify_extent_block(&block, seed).is_err());
        }
        assert!(verify_extent_block(&[0; 4096], InodeSeed::NONE).is_err());
    }
}
