//! Extent trees: the map from a file's blocks to blocks of the device.
//!
//! On disk: a node is a 12-byte header and 12-byte entries, in `i_block` (root) or a block of its
//! own, which ends in a checksum (ifork.rst, `struct ext4_extent_header` and its entries).
//!
//! Invariants: an [`ExtentNode`] that exists has entries in ascending order without overlap, every
//! extent inside the device, and the depth that its parent promised.

mod node;
mod seal;
mod write;

pub use node::{ExtentEntries, ExtentNode, max_entries};
pub use seal::{RawExtentTail, seal_extent_block, verify_extent_block};
pub use write::{write_extent, write_header, write_index, write_leaf};

use crate::num::{idx, join32, len16, lo32, mid16};
use crate::units::{BlockNo, FileBlock};
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

/// A run of blocks of a file and its place on the device.
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

    /// The entry as it is on disk. The caller keeps `len` within its limit.
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
    /// The entry as it is on disk.
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

const WHAT: &str = "extent node";
