//! Revoke blocks: blocks that images of this and older transactions must not restore.
//!
//! On disk: a count of bytes in use and an array of block numbers of 32 or 64 bits.

use super::block::{BlockType, TAIL_SIZE, body_len, seal_tail, write_header};
use super::superblock::JournalFormat;
use crate::error::CorruptKind;
use crate::num::{be32_at, idx, join32, len32, lo32, put};
use crate::units::{BlockNo, Tid};
use zerocopy::big_endian::U32;

raw_struct! {
    /// `struct jbd2_journal_revoke_header_s`.
    pub struct RawRevokeHeader [16] {
        h_magic: U32,
        h_blocktype: U32,
        h_sequence: U32,
        r_count: U32,
    }
}

/// Most records of one revoke block.
#[must_use]
pub fn records_per_revoke(format: &JournalFormat) -> u32 {
    let tail = if format.has_crc32c() { TAIL_SIZE } else { 0 };
    let fixed = size_of::<RawRevokeHeader>().saturating_add(tail);
    let room = idx(format.block_size).saturating_sub(fixed);
    len32(room.checked_div(record_size(format)).unwrap_or(0))
}

const fn record_size(format: &JournalFormat) -> usize {
    if format.is_64bit { 8 } else { 4 }
}

/// The blocks that a revoke block names.
///
/// # Errors
/// [`CorruptKind::Range`] if its count does not fit the block.
pub fn revoked_blocks<'a>(
    block: &'a [u8],
    format: &JournalFormat,
) -> Result<impl Iterator<Item = BlockNo> + 'a, CorruptKind> {
    const HEADER: usize = size_of::<RawRevokeHeader>();
    let count = RawRevokeHeader::ref_from_prefix(block).map_or(0, |raw| raw.r_count.get());
    let max = body_len(block, format);
    let records = block.get(HEADER..idx(count)).filter(|_| idx(count) <= max);
    let records = records.ok_or(CorruptKind::Range {
        what: "revoke block",
        field: "r_count",
        min: u64::from(len32(HEADER)),
        max: u64::from(len32(max)),
        found: u64::from(count),
    })?;
    let size = record_size(format);
    Ok(records.chunks_exact(size).map(move |record| match size {
        8 => BlockNo(join32(be32_at(record, 0), be32_at(record, 4))),
        _ => BlockNo(u64::from(be32_at(record, 0))),
    }))
}

/// Fills a revoke block with records.
#[derive(Debug)]
pub struct RevokeWriter<'a> {
    block: &'a mut [u8],
    format: JournalFormat,
    next: usize,
}

impl<'a> RevokeWriter<'a> {
    /// Starts a revoke block of transaction `tid` over a block.
    pub fn new(block: &'a mut [u8], format: &JournalFormat, tid: Tid) -> Self {
        block.fill(0);
        write_header(block, BlockType::Revoke, tid);
        Self { block, format: *format, next: size_of::<RawRevokeHeader>() }
    }

    /// Adds a block. Returns false, having changed nothing, if the revoke block is full.
    pub fn push(&mut self, block: BlockNo) -> bool {
        let size = record_size(&self.format);
        let end = self.next.saturating_add(size);
        if end > body_len(self.block, &self.format) {
            return false;
        }
        let wide = block.get().to_be_bytes();
        let narrow = lo32(block.get()).to_be_bytes();
        let record = if size == 8 { &wide[..] } else { &narrow[..] };
        put(self.block, self.next, record);
        self.next = end;
        true
    }

    /// Sets the count and computes the checksum.
    pub fn finish(self) {
        let count = len32(self.next).to_be_bytes();
        put(self.block, std::mem::offset_of!(RawRevokeHeader, r_count), &count);
        seal_tail(self.block, &self.format);
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::tests::formats;
    use super::super::block::verify_tail;
    use super::*;

    #[test]
    fn revokes_round_trip() {
        for format in formats() {
            let mut block = vec![0xff_u8; 1024];
            let mut writer = RevokeWriter::new(&mut block, &format, Tid(3));
            let mut count = 0;
            while writer.push(BlockNo(100 + count)) {
                count += 1;
            }
            writer.finish();
            assert_eq!(count, u64::from(records_per_revoke(&format)));
            verify_tail(&block, &format).unwrap();
            let found: Vec<BlockNo> = revoked_blocks(&block, &format).unwrap().collect();
            assert!(found.iter().copied().eq((0..count).map(|n| BlockNo(100 + n))));
            put(&mut block, 12, &1025_u32.to_be_bytes());
            assert!(revoked_blocks(&block, &format).is_err());
            put(&mut block, 12, &8_u32.to_be_bytes());
            assert!(revoked_blocks(&block, &format).is_err());
        }
    }
}
