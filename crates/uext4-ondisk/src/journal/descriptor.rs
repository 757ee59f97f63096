//! Descriptor blocks: tags that name the final locations of the images after them.
//!
//! On disk: an image that itself starts with the magic number is escaped: those four bytes are
//! zeroed, and its tag says so. With checksum v2/v3 a tag has the checksum of its image (as
//! escaped) and the transaction id.

use super::block::{
    BlockType, JOURNAL_MAGIC, RawJournalHeader, TAIL_SIZE, body_len, seal_tail, write_header,
};
use super::superblock::{JournalChecksum, JournalFormat};
use crate::checksum::crc32c;
use crate::num::{be32_at, hi32, idx, join32, len32, lo16, lo32, put};
use crate::units::{BlockNo, Tid};
use bitflags::bitflags;
use zerocopy::big_endian::{U16, U32};

const UUID_SIZE: usize = 16;

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

bitflags! {
    /// Flags of a tag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct TagFlags: u16 {
        /// The image's first four bytes were the magic number.
        const ESCAPE = 1;
        /// No UUID follows, because it is that of the previous tag.
        const SAME_UUID = 2;
        /// Deleted by this transaction (unused).
        const DELETED = 4;
        /// Last tag of the descriptor.
        const LAST_TAG = 8;
        const _ = !0;
    }
}

/// Bytes of a tag, without the UUID that may follow.
#[must_use]
pub const fn tag_size(format: &JournalFormat) -> usize {
    // The format has two more bytes with checksum v2 than the tag uses.
    match (format.checksum, format.is_64bit) {
        (JournalChecksum::V3, _) => 16,
        (JournalChecksum::V2, true) => 14,
        (JournalChecksum::V2, false) => 10,
        (JournalChecksum::V1 | JournalChecksum::None, true) => 12,
        (JournalChecksum::V1 | JournalChecksum::None, false) => 8,
    }
}

/// Most tags of one descriptor block.
#[must_use]
pub fn tags_per_descriptor(format: &JournalFormat) -> u32 {
    let tail = if format.has_crc32c() { TAIL_SIZE } else { 0 };
    let fixed = size_of::<RawJournalHeader>().saturating_add(UUID_SIZE).saturating_add(tail);
    let room = idx(format.block_size).saturating_sub(fixed);
    len32(room.checked_div(tag_size(format)).unwrap_or(0))
}

/// Checksum of an image, as escaped, for its tag.
#[must_use]
pub fn image_checksum(format: &JournalFormat, tid: Tid, image: &[u8]) -> u32 {
    crc32c(crc32c(format.seed, &tid.get().to_be_bytes()), image)
}

/// Whether an image must be escaped, because it starts with the magic number.
#[must_use]
pub fn must_escape(image: &[u8]) -> bool {
    image.len() >= 4 && be32_at(image, 0) == JOURNAL_MAGIC
}

/// Zeroes the first four bytes of an image if it must be escaped. Returns whether it did.
pub fn escape(image: &mut [u8]) -> bool {
    must_escape(image) && put(image, 0, &[0; 4])
}

/// Restores the bytes that [`escape`] zeroed.
pub fn unescape(image: &mut [u8]) {
    put(image, 0, &JOURNAL_MAGIC.to_be_bytes());
}

/// A tag of a descriptor block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Final location of the image.
    pub block: BlockNo,
    /// Flags.
    pub flags: TagFlags,
    /// Checksum of the image: 32 bits with v3, 16 with v2, otherwise 0.
    pub checksum: u32,
}

impl Tag {
    /// Whether the image, as it is in the log, matches the tag's checksum.
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

    /// Adds the tag of the image of `block`. `image` has the bytes for the log, which are escaped
    /// if `escaped` says so. Returns false and changes nothing if the descriptor is full.
    pub fn push(&mut self, block: BlockNo, escaped: bool, image: &[u8]) -> bool {
        let checksum = match self.format.checksum {
            JournalChecksum::V3 => image_checksum(&self.format, self.tid, image),
            JournalChecksum::V2 => image_checksum(&self.format, self.tid, image) & 0xffff,
            JournalChecksum::V1 | JournalChecksum::None => 0,
        };
        self.push_with_checksum(block, escaped, checksum)
    }

    /// [`DescriptorWriter::push`] for an image whose [`image_checksum`] is already known.
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

#[cfg(test)]
mod tests {
    use super::super::block::tests::formats;
    use super::super::block::{header, verify_tail};
    use super::*;

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
    fn escaping() {
        let mut image = JOURNAL_MAGIC.to_be_bytes().to_vec();
        assert!(escape(&mut image) && image == [0; 4] && !escape(&mut image));
        unescape(&mut image);
        assert!(must_escape(&image) && !must_escape(&image[..3]));
    }
}
