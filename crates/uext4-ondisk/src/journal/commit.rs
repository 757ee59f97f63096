//! Commit blocks: the end of a transaction.
//!
//! On disk: the commit time, and a checksum: with v1 the CRC-32 of the transaction's descriptors
//! and images, with v2/v3 that of the block itself.

use super::block::{BlockType, header, write_header};
use super::superblock::{JournalChecksum, JournalFormat};
use crate::checksum::crc32c;
use crate::error::CorruptKind;
use crate::num::{be32_at, put};
use crate::units::Tid;
use zerocopy::big_endian::{U32, U64};

/// `h_chksum_type` of checksum v1: CRC-32.
pub const CHECKSUM_CRC32: u8 = 1;
/// `h_chksum_size` of checksum v1.
pub const CHECKSUM_CRC32_SIZE: u8 = 4;

raw_struct! {
    /// `struct commit_header`.
    pub struct RawCommitHeader [60] {
        h_magic: U32,
        h_blocktype: U32,
        h_sequence: U32,
        h_chksum_type: u8,
        h_chksum_size: u8,
        h_padding: [u8; 2],
        h_chksum: [U32; 8],
        h_commit_sec: U64,
        h_commit_nsec: U32,
    }
}

/// The contents of a commit block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitBlock {
    /// The transaction that it ends.
    pub tid: Tid,
    /// Commit time in seconds since 1970. It never goes back from one transaction to the next.
    pub secs: u64,
    /// Nanoseconds of the commit time.
    pub nanos: u32,
    /// `h_chksum_type`, `h_chksum_size` and `h_chksum[0]`: CRC-32 of the transaction with
    /// checksum v1.
    pub v1: (u8, u8, u32),
}

impl CommitBlock {
    /// Reads a commit block; `None` if the block is none.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<Self> {
        let (BlockType::Commit, tid) = header(block)? else { return None };
        let raw = RawCommitHeader::ref_from_prefix(block)?;
        let [sum, ..] = raw.h_chksum;
        Some(Self {
            tid,
            secs: raw.h_commit_sec.get(),
            nanos: raw.h_commit_nsec.get(),
            v1: (raw.h_chksum_type, raw.h_chksum_size, sum.get()),
        })
    }

    /// Writes a commit block. `transaction_crc` is the CRC-32 (big-endian form) of the
    /// transaction's descriptors and images, stored with checksum v1 only; v2/v3 compute their
    /// own.
    pub fn write(
        block: &mut [u8],
        format: &JournalFormat,
        tid: Tid,
        (secs, nanos): (u64, u32),
        transaction_crc: Option<u32>,
    ) {
        block.fill(0);
        write_header(block, BlockType::Commit, tid);
        let Some(raw) = RawCommitHeader::mut_from_prefix(block) else { return };
        raw.h_commit_sec.set(secs);
        raw.h_commit_nsec.set(nanos);
        if let (JournalChecksum::V1, Some(crc)) = (format.checksum, transaction_crc) {
            raw.h_chksum_type = CHECKSUM_CRC32;
            raw.h_chksum_size = CHECKSUM_CRC32_SIZE;
            set_sum(block, crc);
        }
        if format.has_crc32c() {
            set_sum(block, crc32c(format.seed, block));
        }
    }
}

/// Byte of `h_chksum[0]`.
const SUM_OFFSET: usize = std::mem::offset_of!(RawCommitHeader, h_chksum);

fn set_sum(block: &mut [u8], crc: u32) {
    put(block, SUM_OFFSET, &crc.to_be_bytes());
}

/// Compares a commit block's own checksum (v2/v3) with its content.
///
/// # Errors
/// [`CorruptKind::Checksum`].
pub fn verify_commit(block: &[u8], format: &JournalFormat) -> Result<(), CorruptKind> {
    if !format.has_crc32c() {
        return Ok(());
    }
    let head = block.get(..SUM_OFFSET).unwrap_or_default();
    let rest = block.get(SUM_OFFSET.saturating_add(4)..).unwrap_or_default();
    let want = crc32c(crc32c(crc32c(format.seed, head), &[0; 4]), rest);
    let found = be32_at(block, SUM_OFFSET);
    if want == found {
        return Ok(());
    }
    Err(CorruptKind::Checksum { what: "commit block", want, found })
}

#[cfg(test)]
mod tests {
    use super::super::block::tests::formats;
    use super::*;

    #[test]
    fn commits_round_trip() {
        for format in formats() {
            let mut block = vec![0xff_u8; 1024];
            CommitBlock::write(&mut block, &format, Tid(9), (1 << 33, 5), Some(77));
            let commit = CommitBlock::read(&block).unwrap();
            assert_eq!((commit.tid, commit.secs, commit.nanos), (Tid(9), 1 << 33, 5));
            assert_eq!(commit.v1.0 == CHECKSUM_CRC32, format.checksum == JournalChecksum::V1);
            verify_commit(&block, &format).unwrap();
            block[1023] ^= 1;
            assert_eq!(verify_commit(&block, &format).is_err(), format.has_crc32c());
        }
    }
}
