//! Journal devices: a journal that is apart from the file system it belongs to.
//!
//! On disk: at byte 1024 a file system's superblock with the feature `journal_dev` and no more than
//! size, UUID and label; the journal superblock at the start of the next block; the log behind it.
//! Blocks of the log have the numbers of blocks of the device. A file system names the UUID of its
//! journal (`s_journal_uuid`), and the journal those of its users (`s_users`).
//! Invariants: a [`JournalDeviceLayout`] is inside its device.
//! Kernel counterpart: `ext4_get_dev_journal` in `fs/ext4/super.c`.

use super::superblock::RawJournalSuperblock;
use crate::error::{CorruptKind, FormatError};
use crate::features::{Features, Incompat, uuid_text};
use crate::superblock::{RawSuperblock, SUPERBLOCK_OFFSET};

/// Most blocks of a journal device. The format has 32 bits for them, and sets no lower limit as it
/// does for a journal inside. With two bits to spare no sum of positions or of transaction ids
/// overflows.
pub const MAX_DEVICE_BLOCKS: u32 = 1 << 30;

/// Why a device is not the journal that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalDeviceError {
    /// There is no superblock, or a damaged one.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// There is a file system.
    #[error("holds a file system, not a journal")]
    FileSystem,
    /// A field of its superblock, with what it has to be.
    #[error("superblock of the journal device: {field} is {found}, want {want}")]
    Field {
        /// Field, by its name in the format documentation.
        field: &'static str,
        /// The value it has.
        found: u64,
        /// What it has to be.
        want: u64,
    },
    /// There are more blocks than are used.
    #[error("is a journal of {blocks} blocks, at most {MAX_DEVICE_BLOCKS} are supported")]
    TooLarge {
        /// Blocks that it has.
        blocks: u64,
    },
    /// The journal superblock is damaged.
    #[error(transparent)]
    Corrupt(#[from] CorruptKind),
    /// It is another journal.
    #[error("is the journal {found}, not {want}")]
    OtherJournal {
        /// UUID of the journal that the file system names.
        want: String,
        /// UUID of this one.
        found: String,
    },
    /// It is the journal of other file systems.
    #[error("is the journal of {found}, not of this file system ({want})")]
    OtherUser {
        /// UUID of the file system.
        want: String,
        /// The file system that is named instead.
        found: String,
    },
}

/// The validated shape of a journal device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDeviceLayout {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks of the device that the journal may have.
    pub blocks: u32,
    /// Block of the journal superblock.
    pub superblock: u32,
    /// UUID of the journal.
    pub uuid: [u8; 16],
}

impl JournalDeviceLayout {
    /// Checks the 1024 bytes at byte 1024 of a device of `device_bytes` bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(bytes: &[u8], device_bytes: u64) -> Result<Self, JournalDeviceError> {
        let sb = RawSuperblock::read(bytes)?;
        if is_journal_device(&sb) {
            sb.verify_checksum()?;
        }
        Self::of(&sb, device_bytes)
    }

    /// As [`JournalDeviceLayout::read`], of a superblock.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(sb: &RawSuperblock, device_bytes: u64) -> Result<Self, JournalDeviceError> {
        if !is_journal_device(sb) {
            return Err(JournalDeviceError::FileSystem);
        }
        let log = sb.s_log_block_size.get();
        if log > 6 {
            let (field, found) = ("s_log_block_size", log.into());
            return Err(JournalDeviceError::Field { field, found, want: 6 });
        }
        let block_size = 1024_u32 << log;
        let blocks = sb.blocks_count();
        let fits = blocks.checked_mul(block_size.into()).is_some_and(|end| end <= device_bytes);
        if !fits {
            let error = FormatError::DeviceTooSmall { blocks, block_size, device_bytes };
            return Err(error.into());
        }
        let superblock = if block_size == 1024 { 2 } else { 1 };
        if blocks <= u64::from(superblock) {
            let (field, want) = ("s_blocks_count", u64::from(superblock).saturating_add(1));
            return Err(JournalDeviceError::Field { field, found: blocks, want });
        }
        let Some(blocks) = u32::try_from(blocks).ok().filter(|&n| n <= MAX_DEVICE_BLOCKS) else {
            return Err(JournalDeviceError::TooLarge { blocks });
        };
        Ok(Self { block_size, blocks, superblock, uuid: sb.s_uuid })
    }

    /// Byte of the journal superblock.
    #[must_use]
    pub fn superblock_offset(&self) -> u64 {
        let at = u64::from(self.superblock).saturating_mul(self.block_size.into());
        at.max(SUPERBLOCK_OFFSET)
    }

    /// Checks that this is the journal of a file system, and of no other: the kernel uses none that
    /// has more than one user.
    ///
    /// # Errors
    /// Another journal, a journal of another file system, a log that begins before its superblock
    /// ends, or blocks of another size.
    pub fn check(
        &self,
        journal: &RawJournalSuperblock,
        file_system: &RawSuperblock,
    ) -> Result<(), JournalDeviceError> {
        let want = file_system.s_journal_uuid;
        if self.uuid != want {
            let (want, found) = (uuid_text(&want), uuid_text(&self.uuid));
            return Err(JournalDeviceError::OtherJournal { want, found });
        }
        if journal.users() != [file_system.s_uuid] {
            let users: Vec<String> = journal.users().iter().map(uuid_text).collect();
            let found = if users.is_empty() { "nobody".to_owned() } else { users.join(" and ") };
            let want = uuid_text(&file_system.s_uuid);
            return Err(JournalDeviceError::OtherUser { want, found });
        }
        let field = |field, found: u32, want: u32| {
            let (found, want) = (found.into(), want.into());
            Err(JournalDeviceError::Field { field, found, want })
        };
        let log = file_system.s_log_block_size.get();
        if log > 6 || 1024_u32 << log != self.block_size {
            let own = self.block_size.trailing_zeros().saturating_sub(10);
            return field("s_log_block_size", own, log);
        }
        let first = self.superblock.saturating_add(1);
        if journal.s_first.get() < first {
            return field("s_first", journal.s_first.get(), first);
        }
        Ok(())
    }
}

/// Whether a superblock is that of a journal device.
#[must_use]
pub fn is_journal_device(sb: &RawSuperblock) -> bool {
    Features::of(sb).incompat.contains(Incompat::JOURNAL_DEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::MAGIC;

    fn superblock() -> RawSuperblock {
        let mut sb = RawSuperblock::zeroed();
        sb.s_magic.set(MAGIC);
        sb.s_rev_level.set(1);
        sb.s_feature_incompat.set(Incompat::JOURNAL_DEV.bits());
        sb.set_blocks_count(2048);
        sb.s_uuid = [7; 16];
        sb
    }

    #[test]
    fn a_journal_device_belongs_to_one_file_system() {
        let sb = superblock();
        let layout = JournalDeviceLayout::read(sb.bytes(), 2 << 20).unwrap();
        assert_eq!((layout.blocks, layout.superblock_offset()), (2048, 2048));
        assert!(JournalDeviceLayout::read(sb.bytes(), (2 << 20) - 1).is_err());
        let mut file_system = RawSuperblock::zeroed();
        file_system.s_uuid = [1; 16];
        file_system.s_journal_uuid = [7; 16];
        let mut journal = RawJournalSuperblock::fresh(1024, 2048, 3, [7; 16]);
        let check = |journal: &RawJournalSuperblock, file_system: &RawSuperblock| {
            layout.check(journal, file_system).err().map(|error| error.to_string())
        };
        let none = "is the journal of nobody, not of this file system \
                    (01010101-0101-0101-0101-010101010101)";
        assert_eq!(check(&journal, &file_system).as_deref(), Some(none));
        journal.s_nr_users.set(1);
        journal.s_users[0] = [1; 16];
        assert_eq!(check(&journal, &file_system), None);
        journal.s_nr_users.set(u32::MAX);
        assert!(check(&journal, &file_system).is_some(), "hostile counts are no panic");
        journal.s_nr_users.set(1);
        journal.s_first.set(2);
        assert!(check(&journal, &file_system).is_some(), "the log has the superblock's block");
        file_system.s_journal_uuid = [8; 16];
        let other = "is the journal 07070707-0707-0707-0707-070707070707, \
                     not 08080808-0808-0808-0808-080808080808";
        assert_eq!(check(&journal, &file_system).as_deref(), Some(other));
    }

    #[test]
    fn a_device_may_be_larger_than_a_journal_inside() {
        let mut sb = superblock();
        for (blocks, fits) in [(10_240_001, true), (1 << 30, true), ((1 << 30) + 1, false)] {
            sb.set_blocks_count(blocks);
            let layout = JournalDeviceLayout::of(&sb, u64::MAX);
            assert_eq!(layout.ok().map(|layout| layout.blocks.into()), fits.then_some(blocks));
        }
    }

    #[test]
    fn hostile_sizes_are_refused() {
        let mut sb = superblock();
        for blocks in [0, 1, 2, 1 << 50] {
            sb.set_blocks_count(blocks);
            assert!(JournalDeviceLayout::of(&sb, 2 << 20).is_err(), "{blocks}");
        }
        sb.set_blocks_count(2048);
        sb.s_log_block_size.set(31);
        assert!(JournalDeviceLayout::of(&sb, 2 << 20).is_err());
    }
}
