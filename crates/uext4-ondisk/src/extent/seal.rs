//! Checksums of nodes in blocks of their own.

use super::node::header;
use super::{ENTRY_SIZE, RawExtentHeader, WHAT};
use crate::checksum::{InodeSeed, crc32c};
use crate::error::CorruptKind;
use crate::num::{le32_at, put};
use zerocopy::little_endian::U32;

raw_struct! {
    /// `struct ext4_extent_tail`.
    pub struct RawExtentTail [4] {
        et_checksum: U32,
    }
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
    use super::super::{Extent, write_leaf};
    use super::*;
    use crate::units::{BlockNo, FileBlock};

    #[test]
    fn block_checksums() {
        let (first, start) = (FileBlock(1), BlockNo(3));
        let extent = Extent { first, len: 2, start, unwritten: false };
        for size in [1024, 2048, 4096] {
            let mut block = vec![0_u8; size];
            write_leaf(&mut block, &[extent]);
            let seed = InodeSeed(Some(1));
            seal_extent_block(&mut block, seed);
            verify_extent_block(&block, seed).unwrap();
            block[20] ^= 1;
            assert!(verify_extent_block(&block, seed).is_err());
        }
        assert!(verify_extent_block(&[0; 4096], InodeSeed::NONE).is_err());
    }
}
