//! What stands in a log, block after block, for whoever wants to look at it.
//!
//! What: [`Listing`] gives the records of the transactions that a recovery would look at, also of
//! the one at which it would stop; with [`Listing::of_all`] also those that are checkpointed and
//! not overwritten yet. What a recovery does with them is up to [`super::replay::plan`].
//! Invariants: each block of the log is visited once, so that a listing ends and the records
//! together are no larger than the log, whatever it holds. One record is in memory at a time.

use super::block::{
    BlockType, CHECKSUM_CRC32, CHECKSUM_CRC32_SIZE, CommitBlock, Tag, header, revoked_blocks, tags,
    verify_commit, verify_tail,
};
use super::superblock::{JournalChecksum, JournalLayout};
use crate::checksum::crc32_be;
use crate::error::CorruptKind;
use crate::num::idx;
use crate::units::{BlockNo, Tid};

/// A block image of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedImage {
    /// The log block that has it.
    pub log_block: u32,
    /// What its descriptor says of it.
    pub tag: Tag,
    /// Whether it matches the checksum of its tag; true where tags have none.
    pub is_sound: bool,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedKind {
    /// Images follow. Those that the log has no room for are left out.
    Descriptor(Vec<ListedImage>),
    /// Older images of these blocks are not to be replayed.
    Revoke(Result<Vec<BlockNo>, CorruptKind>),
    /// The transaction ends.
    Commit(CommitBlock),
}

/// A block of the log that is no image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRecord {
    /// Where it stands, in blocks from the journal's start.
    pub log_block: u32,
    /// Its transaction.
    pub tid: Tid,
    /// Whether its checksum is right; of a commit block with checksum v1, that of the transaction.
    pub is_sound: bool,
    /// What it says.
    pub kind: ListedKind,
}

/// Reads a log record by record. `read` fills a buffer of one block with a log block.
#[derive(Debug)]
pub struct Listing<'a, R> {
    layout: &'a JournalLayout,
    read: R,
    block: Vec<u8>,
    next: u32,
    /// Blocks that may still be visited.
    left: u32,
    /// The transaction that is expected; `None` for any.
    tid: Option<Tid>,
    /// CRC-32 of the open transaction (checksum v1).
    crc: u32,
}

impl<'a, E, R: FnMut(u32, &mut [u8]) -> Result<(), E>> Listing<'a, R> {
    /// The transactions from the start of the log on.
    pub fn new(layout: &'a JournalLayout, read: R) -> Self {
        let left = if layout.is_empty() { 0 } else { layout.len() };
        Self::from(layout, read, layout.start, left, Some(layout.sequence))
    }

    /// All that looks like a record in the log, from its first block on: also what is checkpointed.
    pub fn of_all(layout: &'a JournalLayout, read: R) -> Self {
        Self::from(layout, read, layout.first, layout.len(), None)
    }

    fn from(layout: &'a JournalLayout, read: R, next: u32, left: u32, tid: Option<Tid>) -> Self {
        let block = vec![0; idx(layout.format.block_size)];
        Self { layout, read, block, next, left, tid, crc: !0 }
    }

    /// The next record; `None` where the log ends.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn next_record(&mut self) -> Result<Option<ListedRecord>, E> {
        while self.left > 0 {
            let log_block = self.next;
            (self.read)(log_block, &mut self.block)?;
            let found = header(&self.block).filter(|(_, tid)| self.tid.is_none_or(|it| it == *tid));
            let known = found.filter(|(kind, _)| {
                let format = &self.layout.format;
                let is_part = matches!(kind, BlockType::Descriptor | BlockType::Revoke);
                let is_commit = *kind == BlockType::Commit;
                // An image that is older than the log may look like a record.
                let is_believed = self.tid.is_some()
                    || is_part && verify_tail(&self.block, format).is_ok()
                    || is_commit && verify_commit(&self.block, format).is_ok();
                (is_part || is_commit) && is_believed
            });
            if known.is_none() && self.tid.is_some() {
                self.left = 0;
                return Ok(None);
            }
            self.advance(1);
            if let Some((kind, tid)) = known {
                return self.record(log_block, kind, tid).map(Some);
            }
        }
        Ok(None)
    }

    fn advance(&mut self, blocks: u32) {
        self.next = self.layout.after(self.next, blocks);
        self.left = self.left.saturating_sub(blocks);
    }

    fn record(&mut self, log_block: u32, kind: BlockType, tid: Tid) -> Result<ListedRecord, E> {
        let format = self.layout.format;
        let mut is_sound = verify_tail(&self.block, &format).is_ok();
        let kind = match (kind, CommitBlock::read(&self.block)) {
            (_, Some(commit)) => {
                let v1 = (CHECKSUM_CRC32, CHECKSUM_CRC32_SIZE, self.crc);
                is_sound = match format.checksum {
                    // None is stored where the feature was set later.
                    JournalChecksum::V1 => commit.v1 == v1 || commit.v1 == (0, 0, 0),
                    _ => verify_commit(&self.block, &format).is_ok(),
                };
                self.crc = !0;
                self.tid = self.tid.map(Tid::next);
                ListedKind::Commit(commit)
            }
            (BlockType::Revoke, None) => {
                ListedKind::Revoke(revoked_blocks(&self.block, &format).map(Iterator::collect))
            }
            (_, None) => ListedKind::Descriptor(self.images(tid)?),
        };
        Ok(ListedRecord { log_block, tid, is_sound, kind })
    }

    /// The images behind the descriptor in the buffer.
    fn images(&mut self, tid: Tid) -> Result<Vec<ListedImage>, E> {
        let format = self.layout.format;
        let found: Vec<Tag> = tags(&self.block, &format).collect();
        self.crc = crc32_be(self.crc, &self.block);
        let mut images = Vec::with_capacity(found.len().min(idx(self.left)));
        for tag in found {
            if self.left == 0 {
                break;
            }
            let log_block = self.next;
            (self.read)(log_block, &mut self.block)?;
            self.crc = crc32_be(self.crc, &self.block);
            let is_sound = tag.matches(&format, tid, &self.block);
            images.push(ListedImage { log_block, tag, is_sound });
            self.advance(1);
        }
        Ok(images)
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{DescriptorWriter, RevokeWriter};
    use super::super::superblock::JournalIncompat;
    use super::super::superblock::tests::sample;
    use super::*;

    struct Log {
        layout: JournalLayout,
        blocks: Vec<Vec<u8>>,
    }

    impl Log {
        /// Two transactions from block 30 on, so that the log goes round: 7 with two images and a
        /// revoke, 8 with one image.
        fn new() -> Self {
            let mut sb = sample(JournalIncompat::CSUM_V3 | JournalIncompat::REVOKE);
            sb.s_start.set(30);
            sb.seal();
            let layout = JournalLayout::new(&sb, 1024, 32).unwrap();
            let mut log = Self { layout, blocks: vec![vec![0; 1024]; 32] };
            log.descriptor(30, 7, &[(100, 31), (200, 1)]);
            let format = log.layout.format;
            let mut writer = RevokeWriter::new(&mut log.blocks[2], &format, Tid(7));
            writer.push(BlockNo(300));
            writer.finish();
            CommitBlock::write(&mut log.blocks[3], &format, Tid(7), (1000, 5), None);
            log.descriptor(4, 8, &[(100, 5)]);
            CommitBlock::write(&mut log.blocks[6], &format, Tid(8), (1001, 0), None);
            log
        }

        fn descriptor(&mut self, at: usize, tid: u32, images: &[(u64, usize)]) {
            let format = self.layout.format;
            let mut block = vec![0; 1024];
            let mut writer = DescriptorWriter::new(&mut block, &format, Tid(tid));
            for (to, image) in images {
                self.blocks[*image] = vec![*to as u8; 1024];
                assert!(writer.push(BlockNo(*to), false, &self.blocks[*image]));
            }
            writer.finish();
            self.blocks[at] = block;
        }

        fn list(&self, all: bool) -> Vec<ListedRecord> {
            let read = |at: u32, block: &mut [u8]| {
                block.copy_from_slice(&self.blocks[at as usize]);
                Ok::<_, std::convert::Infallible>(())
            };
            let mut listing = match all {
                true => Listing::of_all(&self.layout, read),
                false => Listing::new(&self.layout, read),
            };
            std::iter::from_fn(|| listing.next_record().unwrap()).collect()
        }
    }

    #[test]
    fn records_come_in_their_order() {
        let records = Log::new().list(false);
        let at: Vec<_> = records.iter().map(|r| (r.log_block, r.tid.get(), r.is_sound)).collect();
        assert_eq!(at, [(30, 7, true), (2, 7, true), (3, 7, true), (4, 8, true), (6, 8, true)]);
        let ListedKind::Descriptor(images) = &records[0].kind else { panic!() };
        let places: Vec<_> = images.iter().map(|it| (it.log_block, it.tag.block.get())).collect();
        assert_eq!(places, [(31, 100), (1, 200)]);
        assert!(images.iter().all(|image| image.is_sound));
        assert_eq!(records[1].kind, ListedKind::Revoke(Ok(vec![BlockNo(300)])));
        let ListedKind::Commit(commit) = records[2].kind else { panic!() };
        assert_eq!((commit.secs, commit.nanos), (1000, 5));
    }

    #[test]
    fn damage_is_told_and_does_not_end_the_listing() {
        let mut log = Log::new();
        log.blocks[31][9] ^= 1;
        log.blocks[2][100] ^= 1;
        log.blocks[6][100] ^= 1;
        let records = log.list(false);
        let sound: Vec<bool> = records.iter().map(|record| record.is_sound).collect();
        assert_eq!(sound, [true, false, true, true, false]);
        let ListedKind::Descriptor(images) = &records[0].kind else { panic!() };
        assert!(!images[0].is_sound && images[1].is_sound);
    }

    #[test]
    fn an_empty_log_has_only_what_is_old() {
        let mut log = Log::new();
        log.layout.start = 0;
        assert_eq!(log.list(false), []);
        // From the first block on: the end of a transaction whose descriptor is behind it.
        let at: Vec<u32> = log.list(true).iter().map(|record| record.log_block).collect();
        assert_eq!(at, [2, 3, 4, 6, 30]);
    }

    /// A log of descriptors alone, each with more tags than there are blocks, ends.
    #[test]
    fn a_hostile_log_is_gone_through_once() {
        let mut log = Log::new();
        let tags: Vec<(u64, usize)> = vec![(1, 31); 60];
        for at in 1..31 {
            log.descriptor(at, 7, &tags);
        }
        let images = |record: &ListedRecord| match &record.kind {
            ListedKind::Descriptor(images) => images.len(),
            _ => 0,
        };
        let images: usize = log.list(false).iter().map(images).sum();
        assert!(images <= 31, "{images}");
        assert!(log.list(true).len() <= 31);
    }
}
