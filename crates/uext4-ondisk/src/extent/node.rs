//! Nodes of a tree, validated and read in place.

use super::{
    ENTRY_SIZE, EXTENT_MAGIC, Extent, ExtentIndex, MAX_DEPTH, MAX_WRITTEN_LEN, RawExtent,
    RawExtentHeader, RawExtentIndex, WHAT,
};
use crate::error::CorruptKind;
use crate::num::{len16, len32};
use crate::units::FileBlock;
use std::ops::Range;
use zerocopy::FromBytes;

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

pub(super) fn header(bytes: &[u8]) -> Result<RawExtentHeader, CorruptKind> {
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
    /// of the device that data may have. The checksum is the task of
    /// [`verify_extent_block`](super::verify_extent_block). That the node starts where its parent
    /// says is the caller's: see [`ExtentNode::first`].
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

    /// Checks a node against its parent's entry: it starts at its key, and all of it lies before
    /// the next one. Keys of a level then ascend through the whole tree, so that no walk meets a
    /// block twice.
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

#[cfg(test)]
mod tests {
    use super::super::{MAX_UNWRITTEN_LEN, ROOT_ENTRIES, write_header, write_index, write_leaf};
    use super::*;
    use crate::units::BlockNo;

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
}
