//! Blocks of the log: descriptor, commit and revoke blocks, with a writer and a reader for each.
//!
//! On disk: each starts with magic, type and transaction id. A descriptor's tags name the homes of
//! the images that follow it; an image that itself starts with the magic has those four bytes
//! zeroed and its tag flagged (escaped). With checksum v2/v3 descriptor and revoke blocks end in a
//! checksum, and a tag carries that of its image (as escaped) under the transaction id.
//!
//! Invariants: readers stop at the block's end whatever the counts say; writers refuse what does
//! not fit.

use super::superblock::{JournalChecksum, JournalFormat};
use crate::checksum::crc32c;
use crate::error::CorruptKind;
use crate::num::{be32_at, hi32, idx, join32, len32, lo16, lo32, put};
use crate::units::{BlockNo, Tid};
use bitflags::bitflags;
use zerocopy::big_endian::{U16, U32, U64};

/// `h_magic`.
pub const JOURNAL_MAGIC: u32 = 0xc03b_3998;
/// `h_chksum_type` of checksum v1: CRC-32.
pub const CHECKSUM_CRC32: u8 = 1;
/// `h_chksum_size` of checksum v1.
pub const CHECKSUM_CRC32_SIZE: u8 = 4;
const UUID_SIZE: usize = 16;
const TAIL_SIZE: usize = 4;

raw_struct! {
    /// `struct journal_header_s`.
    pub struct RawJournalHeader [12] {
        h_magic: U32,
        h_blocktype: U32,
        h_sequence: U32,
    }
}

raw_struct! {
    /// `struct journal_block_tag_s`; without the 64bit feature the last field is missing.
    pub struct RawBlockTag [12] {
        t_blocknr: U32,
        t_checksum: U16,
        t_flags: U16,
        t_blocknr_high: U32,
    }
}

raw_struct! {
    /// `struct journal_block_tag3_s` (checksum v3).
    pub struct RawBlockTag3 [16] {
        t_blocknr: U32,
        t_flags: U32,
        t_blocknr_high: U32,
        t_checksum: U32,
    }
}

raw_struct! {
    /// `struct jbd2_journal_block_tail`.
    pub struct RawBlockTail [4] {
        t_checksum: U32,
    }
}

raw_struct! {
    /// `struct jbd2_journal_revoke_header_s`.
    pub struct RawRevokeHeader [16] {
        h_magic: U32,
        h_blocktype: U32,
        h_sequence: U32,
        r_count: U32,
    }
}

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

bitflags! {
    /// Flags of a tag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct TagFlags: u16 {
        /// The image's first four bytes were the magic number.
        const ESCAPE = 1;
        /// No UUID follows: it is the one before.
        const SAME_UUID = 2;
        /// Deleted by this transaction (unused).
        const DELETED = 4;
        /// Last tag of the descriptor.
        const LAST_TAG = 8;
        const _ = !0;
    }
}

/// Type of a log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    /// Names the homes of the images after it.
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

/// Type and transaction id of a log block; `None` when it is no log block.
#[must_use]
pub fn header(block: &[u8]) -> Option<(BlockType, Tid)> {
    let raw = RawJournalHeader::ref_from_prefix(block)?;
    if raw.h_magic.get() != JOURNAL_MAGIC {
        return None;
    }
    Some((BlockType::from_raw(raw.h_blocktype.get())?, Tid(raw.h_sequence.get())))
}

fn write_header(block: &mut [u8], kind: BlockType, tid: Tid) {
    let raw = RawJournalHeader {
        h_magic: U32::new(JOURNAL_MAGIC),
        h_blocktype: U32::new(kind.raw()),
        h_sequence: U32::new(tid.get()),
    };
    put(block, 0, raw.bytes());
}

/// Bytes of a tag, without the UUID that may follow.
#[must_use]
pub const fn tag_size(format: &JournalFormat) -> usize {
    // Checksum v2 takes two more bytes than its tag uses; this is the format, not a slip.
    let narrow = match format.checksum {
        JournalChecksum::V3 => return 16,
        JournalChecksum::V2 => 10,
        JournalChecksum::V1 | JournalChecksum::None => 8,
    };
    if format.is_64bit { narrow + 4 } else { narrow }
}

/// Bytes of descriptor and revoke blocks before the checksum at their end.
fn body_len(block: &[u8], format: &JournalFormat) -> usize {
    block.len().saturating_sub(if format.has_crc32c() { TAIL_SIZE } else { 0 })
}

/// Most tags of one descriptor block.
#[must_use]
pub fn tags_per_descriptor(format: &JournalFormat) -> u32 {
    let tail = if format.has_crc32c() { TAIL_SIZE } else { 0 };
    let fixed = size_of::<RawJournalHeader>().saturating_add(UUID_SIZE).saturating_add(tail);
    let room = idx(format.block_size).saturating_sub(fixed);
    len32(room.checked_div(tag_size(format)).unwrap_or(0))
}

/// Most records of one revoke block.
#[must_use]
pub fn records_per_revoke(format: &JournalFormat) -> u32 {
    let tail = if format.has_crc32c() { TAIL_SIZE } else { 0 };
    let fixed = size_of::<RawRevokeHeader>().saturating_add(tail);
    len32(idx(format.block_size).saturating_sub(fixed) / record_size(format))
}

/// Checksum of an image, as escaped, for its tag.
#[must_use]
pub fn image_checksum(format: &JournalFormat, tid: Tid, image: &[u8]) -> u32 {
    crc32c(crc32c(format.seed, &tid.get().to_be_bytes()), image)
}

/// Whether an image must be escaped: it starts with the magic number.
#[must_use]
pub fn must_escape(image: &[u8]) -> bool {
    image.len() >= 4 && be32_at(image, 0) == JOURNAL_MAGIC
}

/// Zeroes the first four bytes of an image that must be escaped; returns whether it had to.
pub fn escape(image: &mut [u8]) -> bool {
    must_escape(image) && put(image, 0, &[0; 4])
}

/// Puts back what [`escape`] took away.
pub fn unescape(image: &mut [u8]) {
    put(image, 0, &JOURNAL_MAGIC.to_be_bytes());
}

/// A tag of a descriptor block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Home of the image.
    pub block: BlockNo,
    /// Flags.
    pub flags: TagFlags,
    /// Checksum of the image: 32 bits with v3, 16 with v2, else 0.
    pub checksum: u32,
}

impl Tag {
    /// Whether the image (as it stands in the log) fits the tag's checksum.
    #[must_use]
    pub fn matches(&self, format: &JournalFormat, tid: Tid, image: &[u8]) -> bool {
        match format.checksum {
            JournalChecksum::V3 => self.checksum == image_checksum(format, tid, image),
            JournalChecksum::V2 => self.checksum == image_checksum(format, tid, image) & 0xffff,
            JournalChecksum::V1 | JournalChecksum::None => true,
        }
    }

    fn read(bytes: &[u8], format: &JournalFormat) -> Option<Self> {
        if format.checksum == JournalChecksum::V3 {
            let raw = RawBlockTag3::ref_from_prefix(bytes)?;
            let hi = if format.is_64bit { raw.t_blocknr_high.get() } else { 0 };
            return Some(Self {
                block: BlockNo(join32(hi, raw.t_blocknr.get())),
                flags: TagFlags::from_bits_retain(lo16(raw.t_flags.get())),
                checksum: raw.t_checksum.get(),
            });
        }
        let size = tag_size(format);
        let mut full = [0_u8; size_of::<RawBlockTag>()];
        full.iter_mut().zip(bytes.get(..size)?).for_each(|(to, from)| *to = *from);
        let raw: RawBlockTag = zerocopy::transmute!(full);
        let hi = if format.is_64bit { raw.t_blocknr_high.get() } else { 0 };
        Some(Self {
            block: BlockNo(join32(hi, raw.t_blocknr.get())),
            flags: TagFlags::from_bits_retain(raw.t_flags.get()),
            checksum: u32::from(raw.t_checksum.get()),
        })
    }

    fn write(&self, bytes: &mut [u8], format: &JournalFormat) {
        let (lo, hi) = (lo32(self.block.get()), hi32(self.block.get()));
        if format.checksum == JournalChecksum::V3 {
            let raw = RawBlockTag3 {
                t_blocknr: U32::new(lo),
                t_flags: U32::new(u32::from(self.flags.bits())),
                t_blocknr_high: U32::new(hi),
                t_checksum: U32::new(self.checksum),
            };
            put(bytes, 0, raw.bytes());
            return;
        }
        let raw = RawBlockTag {
            t_blocknr: U32::new(lo),
            t_checksum: U16::new(lo16(self.checksum)),
            t_flags: U16::new(self.flags.bits()),
            t_blocknr_high: U32::new(hi),
        };
        let size = if format.is_64bit { 12 } else { 8 };
        put(bytes, 0, raw.bytes().get(..size).unwrap_or_default());
    }
}

/// The tags of a descriptor block, in the order of the images after it.
pub fn tags<'a>(block: &'a [u8], format: &JournalFormat) -> impl Iterator<Item = Tag> + 'a {
    let format = *format;
    let body = block.get(..body_len(block, &format)).unwrap_or_default();
    let mut next = Some(size_of::<RawJournalHeader>());
    std::iter::from_fn(move || {
        let at = next?;
        let size = tag_size(&format);
        let tag = body.get(at..).and_then(|b| b.get(..size)).and_then(|b| Tag::read(b, &format));
        let tag = tag?;
        let uuid = if tag.flags.contains(TagFlags::SAME_UUID) { 0 } else { UUID_SIZE };
        let last = tag.flags.contains(TagFlags::LAST_TAG);
        next = (!last).then_some(at.saturating_add(size).saturating_add(uuid));
        Some(tag)
    })
}

/// Fills a descriptor block with tags.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    block: &'a mut [u8],
    format: JournalFormat,
    tid: Tid,
    next: usize,
    last: Option<(usize, Tag)>,
}

impl<'a> DescriptorWriter<'a> {
    /// Starts a descriptor of transaction `tid` over a block.
    pub fn new(block: &'a mut [u8], format: &JournalFormat, tid: Tid) -> Self {
        block.fill(0);
        write_header(block, BlockType::Descriptor, tid);
        Self { block, format: *format, tid, next: size_of::<RawJournalHeader>(), last: None }
    }

    /// Adds the tag of an image that goes home to `block`. `image` is the image as it will stand
    /// in the log, already escaped when `escaped` says so. Returns false, having changed nothing,
    /// when the descriptor is full.
    pub fn push(&mut self, block: BlockNo, escaped: bool, image: &[u8]) -> bool {
        let checksum = match self.format.checksum {
            JournalChecksum::V3 => image_checksum(&self.format, self.tid, image),
            JournalChecksum::V2 => image_checksum(&self.format, self.tid, image) & 0xffff,
            JournalChecksum::V1 | JournalChecksum::None => 0,
        };
        self.push_with_checksum(block, escaped, checksum)
    }

    /// [`DescriptorWriter::push`] for an image whose [`image_checksum`] is known already.
    pub fn push_with_checksum(&mut self, block: BlockNo, escaped: bool, checksum: u32) -> bool {
        let is_first = self.last.is_none();
        let size = tag_size(&self.format);
        let uuid_at = self.next.saturating_add(size);
        let end = if is_first { uuid_at.saturating_add(UUID_SIZE) } else { uuid_at };
        if end > body_len(self.block, &self.format) {
            return false;
        }
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, escaped);
        flags.set(TagFlags::SAME_UUID, !is_first);
        let tag = Tag { block, flags, checksum };
        tag.write(self.block.get_mut(self.next..).unwrap_or_default(), &self.format);
        if is_first {
            put(self.block, uuid_at, &self.format.uuid);
        }
        self.last = Some((self.next, tag));
        self.next = end;
        true
    }

    /// Marks the last tag and computes the checksum. A descriptor without tags must not be
    /// written.
    pub fn finish(self) {
        if let Some((at, mut tag)) = self.last {
            tag.flags |= TagFlags::LAST_TAG;
            tag.write(self.block.get_mut(at..).unwrap_or_default(), &self.format);
        }
        seal_tail(self.block, &self.format);
    }
}

fn tail_checksum(block: &[u8], format: &JournalFormat) -> u32 {
    let body = block.get(..body_len(block, format)).unwrap_or_default();
    crc32c(crc32c(format.seed, body), &[0; TAIL_SIZE])
}

/// Computes the checksum at the end of a descriptor or revoke block.
fn seal_tail(block: &mut [u8], format: &JournalFormat) {
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

/// What a commit block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitBlock {
    /// The transaction that it ends.
    pub tid: Tid,
    /// When, in seconds since 1970. Never goes back from one transaction to the next.
    pub secs: u64,
    /// When, nanoseconds.
    pub nanos: u32,
    /// `h_chksum_type`, `h_chksum_size` and `h_chksum[0]`: CRC-32 of the transaction with
    /// checksum v1.
    pub v1: (u8, u8, u32),
}

impl CommitBlock {
    /// Reads a commit block; `None` when the block is none.
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

const fn record_size(format: &JournalFormat) -> usize {
    if format.is_64bit { 8 } else { 4 }
}

/// The blocks that a revoke block names.
///
/// # Errors
/// [`CorruptKind::Range`] when its count does not fit the block.
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

    /// Adds a block. Returns false, having changed nothing, when the revoke block is full.
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
    use super::*;

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

    #[test]
    fn tag_sizes_are_those_of_the_format() {
        let sizes: Vec<usize> = formats().map(|f| tag_size(&f)).collect();
        assert_eq!(sizes, [8, 12, 8, 12, 10, 14, 16, 16]);
    }

    #[test]
    fn descriptors_round_trip_when_full() {
        for format in formats() {
            let mut block = vec![0xff_u8; 1024];
            let image = [7_u8; 1024];
            let mut writer = DescriptorWriter::new(&mut block, &format, Tid(3));
            let mut count = 0;
            while writer.push(BlockNo(100 + count), count % 3 == 0, &image) {
                count += 1;
            }
            writer.finish();
            assert_eq!(count, u64::from(tags_per_descriptor(&format)));
            assert_eq!(header(&block), Some((BlockType::Descriptor, Tid(3))));
            verify_tail(&block, &format).unwrap();
            let found: Vec<Tag> = tags(&block, &format).collect();
            assert_eq!(found.len() as u64, count);
            for (n, tag) in (0..).zip(&found) {
                assert_eq!(tag.block, BlockNo(100 + n));
                assert_eq!(tag.flags.contains(TagFlags::ESCAPE), n % 3 == 0);
                assert_eq!(tag.flags.contains(TagFlags::SAME_UUID), n > 0);
                assert_eq!(tag.flags.contains(TagFlags::LAST_TAG), n + 1 == count);
                assert!(tag.matches(&format, Tid(3), &image));
                assert_eq!(tag.matches(&format, Tid(4), &image), !format.has_crc32c());
            }
            block[13] ^= 1;
            assert_eq!(verify_tail(&block, &format).is_err(), format.has_crc32c());
        }
    }

    #[test]
    fn revokes_and_commits_round_trip() {
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

            CommitBlock::write(&mut block, &format, Tid(9), (1 << 33, 5), Some(77));
            let commit = CommitBlock::read(&block).unwrap();
            assert_eq!((commit.tid, commit.secs, commit.nanos), (Tid(9), 1 << 33, 5));
            assert_eq!(commit.v1.0 == CHECKSUM_CRC32, format.checksum == JournalChecksum::V1);
            verify_commit(&block, &format).unwrap();
            block[1023] ^= 1;
            assert_eq!(verify_commit(&block, &format).is_err(), format.has_crc32c());
        }
    }

    #[test]
    fn escaping() {
        let mut image = JOURNAL_MAGIC.to_be_bytes().to_vec();
        assert!(escape(&mut image) && image == [0; 4] && !escape(&mut image));
        unescape(&mut image);
        assert!(must_escape(&image) && !must_escape(&image[..3]));
    }
}
