//! The record at the end of a leaf that holds its checksum.

use crate::checksum::{InodeSeed, crc32c};
use crate::error::CorruptKind;
use crate::num::{le32_at, put};
use zerocopy::little_endian::{U16, U32};

/// Bytes of the checksum record at the end of a leaf.
pub const TAIL_SIZE: usize = 12;
/// `det_reserved_ft`.
pub const TAIL_FILE_TYPE: u8 = 0xde;

raw_struct! {
    /// `struct ext4_dir_entry_tail`.
    pub struct RawDirEntryTail [12] {
        det_reserved_zero1: U32,
        det_rec_len: U16,
        det_reserved_zero2: u8,
        det_reserved_ft: u8,
        det_checksum: U32,
    }
}

/// Bytes of a block that records may use.
pub(super) fn usable(block: &[u8], has_csum_tail: bool) -> usize {
    block.len().saturating_sub(if has_csum_tail { TAIL_SIZE } else { 0 })
}

/// Whether a block ends in a checksum record.
#[must_use]
pub fn has_tail(block: &[u8]) -> bool {
    let at = block.len().saturating_sub(TAIL_SIZE);
    let Some(tail) = block.get(at..).and_then(RawDirEntryTail::ref_from_prefix) else {
        return false;
    };
    tail.det_reserved_zero1.get() == 0
        && usize::from(tail.det_rec_len.get()) == TAIL_SIZE
        && tail.det_reserved_zero2 == 0
        && tail.det_reserved_ft == TAIL_FILE_TYPE
}

/// Computes the checksum of a leaf that has a checksum record.
pub fn seal_dir_leaf(block: &mut [u8], seed: InodeSeed) {
    let Some(seed) = seed.get() else { return };
    if has_tail(block) {
        let crc = crc32c(seed, block.get(..usable(block, true)).unwrap_or_default());
        put(block, block.len().saturating_sub(4), &crc.to_le_bytes());
    }
}

/// Compares the checksum of a leaf with its content.
///
/// # Errors
/// [`CorruptKind::Checksum`]; [`CorruptKind::Rule`] when the checksum record is missing.
pub fn verify_dir_leaf(block: &[u8], seed: InodeSeed) -> Result<(), CorruptKind> {
    const WHAT: &str = "directory block";
    let Some(seed) = seed.get() else { return Ok(()) };
    if !has_tail(block) {
        return Err(CorruptKind::Rule { what: WHAT, why: "no checksum record" });
    }
    let want = crc32c(seed, block.get(..usable(block, true)).unwrap_or_default());
    let found = le32_at(block, block.len().saturating_sub(4));
    if want == found { Ok(()) } else { Err(CorruptKind::Checksum { what: WHAT, want, found }) }
}
