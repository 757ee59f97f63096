//! The common parts of log blocks: header, types, and the checksum at the end.
//!
//! On disk: each block starts with magic, type and transaction id. With checksum v2/v3 descriptor
//! and revoke blocks end in a checksum. The kinds of blocks are in modules of their own and
//! re-exported here.
//!
//! Invariants: readers stop at the end of the block whatever its counts say. Writers refuse what
//! does not fit.

pub use super::commit::*;
pub use super::descriptor::*;
pub use super::revoke::*;
use super::superblock::JournalFormat;
use crate::checksum::crc32c;
use crate::error::CorruptKind;
use crate::num::{be32_at, put};
use crate::units::Tid;
use zerocopy::big_endian::U32;

/// `h_magic`.
pub const JOURNAL_MAGIC: u32 = 0xc03b_3998;
pub(super) const TAIL_SIZE: usize = 4;

raw_struct! {
    /// `struct journal_header_s`.
    pub struct RawJournalHeader [12] {
        h_magic: U32,
        h_blocktype: U32,
        h_sequence: U32,
    }
}

raw_struct! {
    /// `struct jbd2_journal_block_tail`.
    pub struct RawBlockTail [4] {
        t_checksum: U32,
    }
}

/// Type of a log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    /// Names the final locations of the images after it.
    Descriptor,
    /// Ends a transaction.
    Commit,
    /// Superblock, version 1.
    SuperblockV1,
    /// Superblock, version 2.
    SuperblockV2,
    /// Names blocks that older transactions must not restore.
    Revoke,
}

impl BlockType {
    /// The number on disk.
    #[must_use]
    pub const fn raw(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }

    /// From the number on disk.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }
}

/// Type and transaction id of a log block; `None` if it is no log block.
#[must_use]
pub fn header(block: &[u8]) -> Option<(BlockType, Tid)> {
    let raw = RawJournalHeader::ref_from_prefix(block)?;
    if raw.h_magic.get() != JOURNAL_MAGIC {
        return None;
    }
    Some((BlockType::from_raw(raw.h_blocktype.get())?, Tid(raw.h_sequence.get())))
}

pub(super) fn write_header(block: &mut [u8], kind: BlockType, tid: Tid) {
    let raw = RawJournalHeader {
        h_magic: U32::new(JOURNAL_MAGIC),
        h_blocktype: U32::new(kind.raw()),
        h_sequence: U32::new(tid.get()),
    };
    put(block, 0, raw.bytes());
}

/// Bytes of descriptor and revoke blocks before the checksum at their end.
pub(super) fn body_len(block: &[u8], format: &JournalFormat) -> usize {
    block.len().saturating_sub(if format.has_crc32c() { TAIL_SIZE } else { 0 })
}

fn tail_checksum(block: &[u8], format: &JournalFormat) -> u32 {
    let body = block.get(..body_len(block, format)).unwrap_or_default();
    crc32c(crc32c(format.seed, body), &[0; TAIL_SIZE])
}

/// Computes the checksum at the end of a descriptor or revoke block.
pub(super) fn seal_tail(block: &mut [u8], format: &JournalFormat) {
    if format.has_crc32c() {
        let crc = tail_checksum(block, format);
        put(block, body_len(block, format), &crc.to_be_bytes());
    }
}

/// Compares the checksum at the end of a descriptor or revoke block with its content.
///
/// # Errors
/// [`CorruptKind::Checksum`].
pub fn verify_tail(block: &[u8], format: &JournalFormat) -> Result<(), CorruptKind> {
    if !format.has_crc32c() {
        return Ok(());
    }
    let want = tail_checksum(block, format);
    let found = be32_at(block, body_len(block, format));
    if want == found {
        return Ok(());
    }
    Err(CorruptKind::Checksum { what: "journal block", want, found })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::superblock::{JournalChecksum, JournalFormat};

    pub(crate) fn formats() -> impl Iterator<Item = JournalFormat> {
        use JournalChecksum as C;
        [C::None, C::V1, C::V2, C::V3].into_iter().flat_map(|checksum| {
            [false, true].map(|is_64bit| JournalFormat {
                block_size: 1024,
                checksum,
                is_64bit,
                seed: 5,
                uuid: [6; 16],
            })
        })
    }
}
