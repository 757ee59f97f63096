//! The journal's superblock, its features, and the validated shape of the log.
//!
//! On disk: 1024 bytes at the start of the journal's block 0 (on a journal device, of the block
//! after the file system's superblock). Version 1 (block type 3) has no features.
//!
//! Invariants: the log of a [`JournalLayout`] has at least one block, is inside the journal, and
//! contains its start.

use super::block::{BlockType, JOURNAL_MAGIC};
use crate::checksum::crc32c;
use crate::error::CorruptKind;
use crate::features::names_of;
use crate::units::Tid;
use bitflags::bitflags;
use std::ops::Range;
use zerocopy::big_endian::U32;

/// Bytes of a journal superblock.
pub const JOURNAL_SUPERBLOCK_SIZE: usize = 1024;
/// Fewest blocks of a journal, by mke2fs and the kernel.
pub const MIN_JOURNAL_BLOCKS: u32 = 1024;
/// Most blocks of a journal, by mke2fs and tune2fs.
pub const MAX_JOURNAL_BLOCKS: u32 = 10_240_000;
/// Blocks for fast commits if the superblock has the feature but no number.
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// `s_checksum_type`: CRC-32C.
pub const CHECKSUM_CRC32C: u8 = 4;

bitflags! {
    /// `s_feature_compat` of the journal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct JournalCompat: u32 {
        /// Commit blocks hold a CRC-32 of the transaction (checksum v1).
        const CHECKSUM = 0x1;
        const _ = !0;
    }

    /// `s_feature_incompat` of the journal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct JournalIncompat: u32 {
        /// There may be revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// Commit blocks may be written before the rest of their transaction.
        const ASYNC_COMMIT = 0x4;
        /// CRC-32C of log blocks, 16 bits of it for data.
        const CSUM_V2 = 0x8;
        /// CRC-32C of log blocks.
        const CSUM_V3 = 0x10;
        /// Fast commits at the end of the journal.
        const FAST_COMMIT = 0x20;
        const _ = !0;
    }
}

impl JournalCompat {
    /// e2fsprogs names of the bits that are set.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names_of(self.bits(), "FEATURE_C", |mask| (mask == 1).then_some("journal_checksum"))
    }
}

impl JournalIncompat {
    /// The features that the engine replays. It writes no fast commits.
    pub const SUPPORTED: Self = Self::REVOKE
        .union(Self::BIT64)
        .union(Self::ASYNC_COMMIT)
        .union(Self::CSUM_V2)
        .union(Self::CSUM_V3)
        .union(Self::FAST_COMMIT);

    /// e2fsprogs names of the bits that are set.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names_of(self.bits(), "FEATURE_I", |mask| {
            Some(match mask {
                0x1 => "journal_incompat_revoke",
                0x2 => "journal_64bit",
                0x4 => "journal_async_commit",
                0x8 => "journal_checksum_v2",
                0x10 => "journal_checksum_v3",
                0x20 => "fast_commit",
                _ => return None,
            })
        })
    }
}

raw_struct! {
    /// `struct journal_superblock_s`.
    pub struct RawJournalSuperblock [1024] {
        h_magic: U32,
        h_blocktype: U32,
        h_sequence: U32,
        s_blocksize: U32,
        s_maxlen: U32,
        s_first: U32,
        s_sequence: U32,
        s_start: U32,
        s_errno: U32,
        s_feature_compat: U32,
        s_feature_incompat: U32,
        s_feature_ro_compat: U32,
        s_uuid: [u8; 16],
        s_nr_users: U32,
        s_dynsuper: U32,
        s_max_transaction: U32,
        s_max_trans_data: U32,
        s_checksum_type: u8,
        s_padding2: [u8; 3],
        s_num_fc_blks: U32,
        s_head: U32,
        s_padding: [U32; 40],
        s_checksum: U32,
        s_users: [[u8; 16]; 48],
    }
}

/// The reason why a journal cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// Its superblock is damaged.
    #[error(transparent)]
    Corrupt(#[from] CorruptKind),
    /// Features of the journal that are not understood.
    #[error("unsupported journal features: {names}")]
    UnsupportedFeatures {
        /// Names in e2fsprogs spelling, separated by blanks.
        names: String,
    },
}

const WHAT: &str = "journal superblock";

/// Checksums of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalChecksum {
    /// None.
    None,
    /// CRC-32 of each transaction in its commit block.
    V1,
    /// CRC-32C; 16 bits of it in a tag.
    V2,
    /// CRC-32C.
    V3,
}

/// The format of log blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalFormat {
    /// Bytes per block, those of the file system.
    pub block_size: u32,
    /// Checksums.
    pub checksum: JournalChecksum,
    /// Whether block numbers have 64 bits.
    pub is_64bit: bool,
    /// CRC-32C of the journal's UUID: every checksum starts from it.
    pub seed: u32,
    /// UUID that the first tag of a descriptor names.
    pub uuid: [u8; 16],
}

impl JournalFormat {
    /// Whether log blocks carry CRC-32C.
    #[must_use]
    pub const fn has_crc32c(&self) -> bool {
        matches!(self.checksum, JournalChecksum::V2 | JournalChecksum::V3)
    }
}

impl RawJournalSuperblock {
    /// Copies a journal superblock, checking its magic number and, where it has one, its checksum.
    ///
    /// # Errors
    /// [`CorruptKind`].
    pub fn read(bytes: &[u8]) -> Result<Self, CorruptKind> {
        let found = crate::num::len32(bytes.len());
        let sb =
            Self::from_prefix(bytes).ok_or(CorruptKind::Short { what: WHAT, want: 1024, found })?;
        let magic = sb.h_magic.get();
        if magic != JOURNAL_MAGIC {
            return Err(CorruptKind::Magic { what: WHAT, want: JOURNAL_MAGIC, found: magic });
        }
        range("h_blocktype", sb.h_blocktype.get(), 3, 4)?;
        if sb.has_crc32c() {
            range("s_checksum_type", sb.s_checksum_type.into(), 4, 4)?;
            let (want, found) = (sb.computed_checksum(), sb.s_checksum.get());
            if want != found {
                return Err(CorruptKind::Checksum { what: WHAT, want, found });
            }
        }
        Ok(sb)
    }

    /// The superblock of an empty log of `length` blocks, of which `first` is the first, as mke2fs
    /// makes it: without users and features.
    #[must_use]
    pub fn fresh(block_size: u32, length: u32, first: u32, uuid: [u8; 16]) -> Self {
        let mut sb = Self::zeroed();
        sb.h_magic.set(JOURNAL_MAGIC);
        sb.h_blocktype.set(BlockType::SuperblockV2.raw());
        sb.s_blocksize.set(block_size);
        sb.s_maxlen.set(length);
        sb.s_first.set(first);
        sb.s_sequence.set(1);
        sb.s_uuid = uuid;
        sb
    }

    /// UUIDs of the file systems that use the journal, if it is on a device of its own.
    #[must_use]
    pub fn users(&self) -> &[[u8; 16]] {
        let count = if self.is_v2() { self.s_nr_users.get() as usize } else { 0 };
        self.s_users.get(..count).unwrap_or(&self.s_users)
    }

    /// Whether the superblock has the fields of version 2.
    #[must_use]
    pub fn is_v2(&self) -> bool {
        self.h_blocktype.get() == BlockType::SuperblockV2.raw()
    }

    /// Compatible features; none in version 1.
    #[must_use]
    pub fn compat(&self) -> JournalCompat {
        let bits = if self.is_v2() { self.s_feature_compat.get() } else { 0 };
        JournalCompat::from_bits_retain(bits)
    }

    /// Incompatible features; none in version 1.
    #[must_use]
    pub fn incompat(&self) -> JournalIncompat {
        let bits = if self.is_v2() { self.s_feature_incompat.get() } else { 0 };
        JournalIncompat::from_bits_retain(bits)
    }

    /// Names of all features, in the order of `dumpe2fs`.
    #[must_use]
    pub fn feature_names(&self) -> Vec<String> {
        let mut names = self.compat().names();
        names.extend(self.incompat().names());
        let ro = if self.is_v2() { self.s_feature_ro_compat.get() } else { 0 };
        names.extend(names_of(ro, "FEATURE_R", |_| None));
        names
    }

    fn has_crc32c(&self) -> bool {
        self.incompat().intersects(JournalIncompat::CSUM_V2.union(JournalIncompat::CSUM_V3))
    }

    fn computed_checksum(&self) -> u32 {
        let mut copy = *self;
        copy.s_checksum.set(0);
        crc32c(!0, copy.bytes())
    }

    /// Computes the checksum, if the journal has one.
    pub fn seal(&mut self) {
        if self.has_crc32c() {
            self.s_checksum.set(self.computed_checksum());
        }
    }

    /// The format of log blocks.
    #[must_use]
    pub fn format(&self) -> JournalFormat {
        let incompat = self.incompat();
        let checksum = if incompat.contains(JournalIncompat::CSUM_V3) {
            JournalChecksum::V3
        } else if incompat.contains(JournalIncompat::CSUM_V2) {
            JournalChecksum::V2
        } else if self.compat().contains(JournalCompat::CHECKSUM) {
            JournalChecksum::V1
        } else {
            JournalChecksum::None
        };
        JournalFormat {
            block_size: self.s_blocksize.get(),
            checksum,
            is_64bit: incompat.contains(JournalIncompat::BIT64),
            seed: crc32c(!0, &self.s_uuid),
            uuid: self.s_uuid,
        }
    }
}

fn range(field: &'static str, found: u32, min: u32, max: u32) -> Result<(), CorruptKind> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    let [min, max, found] = [min, max, found].map(u64::from);
    Err(CorruptKind::Range { what: WHAT, field, min, max, found })
}

/// The validated shape of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLayout {
    /// The format of log blocks.
    pub format: JournalFormat,
    /// Whether commit blocks may have been written early.
    pub async_commit: bool,
    /// First block of the log, from the journal's start.
    pub first: u32,
    /// One past the last block of the log; fast commits, if any, follow.
    pub end: u32,
    /// Where the oldest transaction starts; 0: the log is empty.
    pub start: u32,
    /// Id of the oldest transaction.
    pub sequence: Tid,
    /// Blocks behind the log that fast commits take.
    pub fast_commits: Range<u32>,
}

impl JournalLayout {
    /// Checks a journal superblock against the file system's block size and the blocks that the
    /// journal has.
    ///
    /// # Errors
    /// [`JournalError`], by field or by feature.
    pub fn new(
        sb: &RawJournalSuperblock,
        block_size: u32,
        journal_blocks: u32,
    ) -> Result<Self, JournalError> {
        let incompat = sb.incompat();
        let mut foreign = incompat.difference(JournalIncompat::SUPPORTED).names();
        if sb.is_v2() {
            foreign.extend(names_of(sb.s_feature_ro_compat.get(), "FEATURE_R", |_| None));
        }
        if !foreign.is_empty() {
            return Err(JournalError::UnsupportedFeatures { names: foreign.join(" ") });
        }
        if incompat.contains(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3) {
            let why = "checksum v2 and v3 exclude each other";
            return Err(CorruptKind::Rule { what: WHAT, why }.into());
        }
        range("s_blocksize", sb.s_blocksize.get(), block_size, block_size)?;
        range("s_maxlen", sb.s_maxlen.get(), 2, journal_blocks)?;
        // As the kernel: a journal that would be too short without them has none.
        let all = sb.s_maxlen.get();
        let without = all.saturating_sub(fast_commit_blocks(sb));
        let end = if without < MIN_JOURNAL_BLOCKS { all } else { without };
        range("s_first", sb.s_first.get(), 1, end.saturating_sub(1))?;
        let (first, start) = (sb.s_first.get(), sb.s_start.get());
        if start != 0 {
            range("s_start", start, first, end.saturating_sub(1))?;
        }
        Ok(Self {
            format: sb.format(),
            async_commit: incompat.contains(JournalIncompat::ASYNC_COMMIT),
            first,
            end,
            start,
            sequence: Tid(sb.s_sequence.get()),
            // The kernel leaves one block out between the two.
            fast_commits: end.saturating_add(1).min(all)..all,
        })
    }

    /// Blocks of the log.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.end.saturating_sub(self.first)
    }

    /// Whether the log is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.start == 0
    }

    /// The log block `n` after `block`, going round at the end.
    #[must_use]
    pub fn after(&self, block: u32, n: u32) -> u32 {
        let len = u64::from(self.len().max(1));
        let at = u64::from(block.saturating_sub(self.first)).saturating_add(u64::from(n));
        let at = at.checked_rem(len).unwrap_or(0);
        self.first.saturating_add(u32::try_from(at).unwrap_or(0))
    }
}

/// Blocks at the end of a journal that fast commits take, by its superblock.
#[must_use]
pub fn fast_commit_blocks(sb: &RawJournalSuperblock) -> u32 {
    if !sb.incompat().contains(JournalIncompat::FAST_COMMIT) {
        return 0;
    }
    match sb.s_num_fc_blks.get() {
        0 => DEFAULT_FAST_COMMIT_BLOCKS,
        blocks => blocks,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(incompat: JournalIncompat) -> RawJournalSuperblock {
        let mut sb = RawJournalSuperblock::zeroed();
        sb.h_magic.set(JOURNAL_MAGIC);
        sb.h_blocktype.set(4);
        sb.s_blocksize.set(1024);
        sb.s_maxlen.set(32);
        sb.s_first.set(1);
        sb.s_sequence.set(7);
        sb.s_feature_incompat.set(incompat.bits());
        sb.s_uuid = [9; 16];
        if incompat.intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3) {
            sb.s_checksum_type = CHECKSUM_CRC32C;
        }
        sb.seal();
        sb
    }

    #[test]
    fn seal_read_and_layout() {
        let mut sb = sample(JournalIncompat::CSUM_V3 | JournalIncompat::BIT64);
        assert_eq!(RawJournalSuperblock::read(sb.bytes()).unwrap(), sb);
        let layout = JournalLayout::new(&sb, 1024, 32).unwrap();
        assert!(layout.is_empty() && layout.len() == 31 && layout.after(31, 1) == 1);
        assert!(JournalLayout::new(&sb, 4096, 32).is_err());
        assert!(JournalLayout::new(&sb, 1024, 31).is_err());
        sb.s_start.set(32);
        assert!(JournalLayout::new(&sb, 1024, 32).is_err());
        assert!(RawJournalSuperblock::read(sb.bytes()).is_err());
        let sb = sample(JournalIncompat::from_bits_retain(0x8000_0000));
        let error = JournalLayout::new(&sb, 1024, 32).unwrap_err();
        assert_eq!(error.to_string(), "unsupported journal features: FEATURE_I31");
    }
}
