//! Block maps of ext2 and ext3: files without an extent tree, and the resize inode.
//!
//! On disk: `i_block` holds 15 block numbers: 12 of data, then of a singly, a doubly and a triply
//! indirect block. An indirect block is an array of block numbers. A number of 0 is a hole.

use crate::num::{idx, le32_at, put};
use crate::units::{BlockNo, FileBlock};

/// Block numbers in `i_block` that are data.
pub const DIRECT: u32 = 12;
/// Block numbers in `i_block`.
pub const SLOTS: u32 = 15;

/// How to find one block: a slot of `i_block`, then an index into each indirect block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPath {
    /// Slot of `i_block`, 0 to 14.
    pub root: u32,
    /// Index into each indirect block on the way, at most three.
    pub steps: Vec<u32>,
}

/// The way to block `at` of a file; `None` past the largest block map.
#[must_use]
pub fn path(at: FileBlock, block_size: u32) -> Option<BlockPath> {
    if at.get() < DIRECT {
        return Some(BlockPath { root: at.get(), steps: Vec::new() });
    }
    let per_block = u64::from(block_size.max(4)) / 4;
    let mut rest = u64::from(at.get()).saturating_sub(u64::from(DIRECT));
    let mut span = per_block;
    for level in 1_u32..=3 {
        if rest < span {
            let mut steps = Vec::new();
            for _ in 0..level {
                span = span.checked_div(per_block).unwrap_or(1).max(1);
                let index = rest.checked_div(span).unwrap_or(0);
                rest = rest.checked_rem(span).unwrap_or(0);
                steps.push(u32::try_from(index).unwrap_or(u32::MAX));
            }
            return Some(BlockPath { root: DIRECT.saturating_add(level).saturating_sub(1), steps });
        }
        rest = rest.saturating_sub(span);
        span = span.saturating_mul(per_block);
    }
    None
}

/// Blocks of the largest file that a block map can have.
#[must_use]
pub fn max_blocks(block_size: u32) -> u64 {
    let per_block = u64::from(block_size.max(4)) / 4;
    let spans = (1..=3).map(|level| per_block.saturating_pow(level));
    spans.fold(u64::from(DIRECT), u64::saturating_add).min(u64::from(u32::MAX))
}

/// Block number in a slot of `i_block`.
#[must_use]
pub fn direct(i_block: &[u8; 60], slot: u32) -> BlockNo {
    entry(i_block, slot)
}

/// Block number at an index of an indirect block; 0 past its end.
#[must_use]
pub fn entry(block: &[u8], index: u32) -> BlockNo {
    BlockNo(u64::from(le32_at(block, idx(index).saturating_mul(4))))
}

/// Stores a block number at an index of an indirect block, or of `i_block`. Returns false, having
/// changed nothing, past the end and for a number of more than 32 bits.
pub fn set_entry(block: &mut [u8], index: u32, number: BlockNo) -> bool {
    let Ok(number) = u32::try_from(number.get()) else { return false };
    put(block, idx(index).saturating_mul(4), &number.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_cross_from_level_to_level() {
        let check = |at, root, steps: &[u32]| {
            let want = BlockPath { root, steps: steps.to_vec() };
            assert_eq!(path(FileBlock(at), 1024), Some(want), "block {at}");
        };
        check(11, 11, &[]);
        check(12, 12, &[0]);
        check(267, 12, &[255]);
        check(268, 13, &[0, 0]);
        check(268 + 65_535, 13, &[255, 255]);
        check(268 + 65_536, 14, &[0, 0, 0]);
        let end = 268 + 65_536 + (1 << 24);
        assert_eq!(path(FileBlock(end), 1024), None);
        assert_eq!(max_blocks(1024), u64::from(end));
        assert_eq!(max_blocks(65_536), u64::from(u32::MAX));
    }

    #[test]
    fn entries_read_back() {
        let mut block = [0; 16];
        assert!(set_entry(&mut block, 3, BlockNo(0x0102_0304)));
        assert_eq!(entry(&block, 3), BlockNo(0x0102_0304));
        assert!(
            !set_entry(&mut block, 4, BlockNo(1)) && !set_entry(&mut block, 0, BlockNo(1 << 32))
        );
    }
}
