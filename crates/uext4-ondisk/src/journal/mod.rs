//! The journal (jbd2): superblock, log blocks, and the plan of a replay.
//!
//! On disk: all numbers are big-endian (Documentation/filesystems/ext4/journal.rst). Log blocks are
//! counted from the journal's first block, which holds its superblock.

pub mod block;
pub mod commit;
pub mod descriptor;
pub mod device;
pub mod fast_commit;
pub mod listing;
pub mod replay;
pub mod revoke;
pub mod superblock;

pub use block::{
    BlockType, CommitBlock, DescriptorWriter, RawBlockTag, RawBlockTag3, RawCommitHeader,
    RawJournalHeader, RawRevokeHeader, RevokeWriter, Tag,
};
pub use device::{JournalDeviceError, JournalDeviceLayout, MAX_DEVICE_BLOCKS, is_journal_device};
pub use replay::{ReplayBlock, ReplayError, ReplayLimits, ReplayPlan};
pub use superblock::{
    JournalChecksum, JournalError, JournalFormat, JournalIncompat, JournalLayout,
    RawJournalSuperblock,
};
