//! Where the parts of a store are.
//!
//! On disk: the header and the name of the base in the first 4096 bytes; from there on the bitmap,
//! one bit for each block of the base; from the next multiple of 1 MiB on the blocks, each as far
//! from the first as it is in the base. So the length of the base decides everything.

use std::ops::Range;

use super::error::OverlayError;

/// Bytes of a block, the unit of the bitmap. The last one of a base may be cut off.
pub const BLOCK_BYTES: u64 = 4096;
/// Where the bitmap begins, in bytes.
const BITMAP_OFFSET: u64 = 4096;
/// Blocks of a page of the bitmap.
pub(super) const PAGE_BLOCKS: u64 = 8 * BLOCK_BYTES;
/// Where the blocks begin is a multiple of this, in bytes.
const DATA_ALIGNMENT: u64 = 1 << 20;
/// Longest base in bytes: 256 TiB, whose bitmap has 8 GiB.
const BASE_MAX: u64 = 1 << 48;

/// The places in a store over a base of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    base_len: u64,
}

impl Layout {
    /// The layout for a base of `base_len` bytes.
    ///
    /// # Errors
    /// `TooLarge`; `Damaged` for no bytes at all.
    pub fn new(base_len: u64) -> Result<Layout, OverlayError> {
        match base_len {
            0 => Err(OverlayError::Damaged("its image has no bytes")),
            1..=BASE_MAX => Ok(Layout { base_len }),
            _ => Err(OverlayError::TooLarge(base_len)),
        }
    }

    /// Bytes of the base.
    #[must_use]
    pub fn base_len(&self) -> u64 {
        self.base_len
    }

    /// Blocks of the base.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.base_len.div_ceil(BLOCK_BYTES)
    }

    /// Where the first block is in the store, in bytes.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        (BITMAP_OFFSET + self.pages() * BLOCK_BYTES).next_multiple_of(DATA_ALIGNMENT)
    }

    /// Bytes of the store.
    #[must_use]
    pub fn store_len(&self) -> u64 {
        self.data_offset() + self.base_len
    }

    /// Pages of the bitmap.
    pub(super) fn pages(&self) -> u64 {
        self.blocks().div_ceil(PAGE_BLOCKS)
    }

    /// Where a page of the bitmap is in the store, in bytes.
    pub(super) fn page_offset(&self, page: u64) -> u64 {
        BITMAP_OFFSET + page * BLOCK_BYTES
    }

    /// The blocks of a page of the bitmap.
    pub(super) fn page_blocks(&self, page: u64) -> Range<u64> {
        let first = page * PAGE_BLOCKS;
        first..(first + PAGE_BLOCKS).min(self.blocks())
    }

    /// The blocks that a range of bytes touches.
    pub(super) fn blocks_of(&self, bytes: &Range<u64>) -> Range<u64> {
        let first = bytes.start / BLOCK_BYTES;
        first..if bytes.is_empty() { first } else { bytes.end.div_ceil(BLOCK_BYTES) }
    }

    /// The blocks that lie whole in a range of bytes; the last block may be cut off by the end of
    /// the base.
    pub(super) fn whole_blocks(&self, bytes: &Range<u64>) -> Range<u64> {
        let first = bytes.start.div_ceil(BLOCK_BYTES);
        let end = match bytes.end == self.base_len {
            true => self.blocks(),
            false => bytes.end / BLOCK_BYTES,
        };
        first..end.max(first)
    }

    /// The bytes of the base that blocks have.
    pub(super) fn bytes_of(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * BLOCK_BYTES..(blocks.end * BLOCK_BYTES).min(self.base_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_do_not_overlap() {
        for len in [1, 4095, 4096, 4097, 128 << 20, (128 << 20) + 1, 5 << 40, BASE_MAX] {
            let layout = Layout::new(len).unwrap();
            let end = layout.page_offset(layout.pages());
            assert!(end <= layout.data_offset() && layout.data_offset() < end + DATA_ALIGNMENT);
            assert_eq!(layout.store_len() - layout.data_offset(), len);
            assert_eq!(layout.page_blocks(layout.pages() - 1).end, layout.blocks());
            assert_eq!(layout.bytes_of(&(0..layout.blocks())), 0..len);
        }
        assert!(matches!(Layout::new(BASE_MAX + 1), Err(OverlayError::TooLarge(_))));
        assert!(Layout::new(0).is_err());
    }

    #[test]
    fn a_last_block_that_is_cut_off_is_whole() {
        let layout = Layout::new(10_000).unwrap();
        assert_eq!(layout.whole_blocks(&(0..10_000)), 0..3);
        assert_eq!(layout.whole_blocks(&(1..9_999)), 1..2);
        assert_eq!(layout.whole_blocks(&(4097..8191)), 2..2);
        assert_eq!(layout.blocks_of(&(4097..8191)), 1..2);
        assert_eq!(layout.blocks_of(&(5000..5000)), 1..1);
    }
}
