//! Mount options, as ext4 and mount(8) name them.

mod ablation;
mod alloc;
mod ext4_words;
mod mode;
mod table;

pub use ablation::{
    CheckpointMode, CreditMode, DaxOverwrite, DioCompletion, FsyncBatch, JoinMode, WritebackMode,
};
pub use alloc::{AllocAblation, AllocOptions, FreeMode, StreamGoal};
pub use ext4_words::EXT4_WORDS;
pub use mode::{Atime, DataMode, DaxMode, OnError};
pub use table::{ABLATION, OPTIONS};
pub use uext4_options::OptionError;

use crate::crypt::MasterKey;
use std::path::PathBuf;
use std::time::Duration;
use uext4_options::apply;

/// Options of a mount. [`MountOptions::parse`] takes them one word at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Change nothing; a dirty journal is replayed into memory only.
    pub read_only: bool,
    /// Access times.
    pub atime: Atime,
    /// No access times on directories.
    pub nodiratime: bool,
    /// A running transaction is committed after this time, in milliseconds.
    pub commit_interval_ms: u64,
    /// Reaction to damage; `None` if the superblock decides.
    pub errors: Option<OnError>,
    /// Do not replay a dirty journal (read-only mounts only).
    pub no_recovery: bool,
    /// Allocate blocks when data is written back rather than when it is written.
    pub delalloc: bool,
    /// The word `delalloc` was given.
    pub delalloc_given: bool,
    /// Data mode.
    pub data_mode: DataMode,
    /// `auto_da_alloc`: rename over a file and close after truncation write the data first.
    pub auto_da_alloc: bool,
    /// Budget of the page cache and of the metadata cache together, in bytes.
    pub cache_bytes: u64,
    /// Dirty data older than this is written back, in milliseconds.
    pub dirty_expire_ms: u64,
    /// A commit waits at least this long for others to join it, in microseconds.
    pub min_batch_time_us: u32,
    /// A commit waits at most this long for others to join it, in microseconds; 0: it never waits.
    pub max_batch_time_us: u32,
    /// Flush the device where the format needs it. Without this a crash of the machine may corrupt
    /// the file system.
    pub barrier: bool,
    /// Write the commit block together with the transaction.
    pub journal_async_commit: bool,
    /// Unwritten neighbours of at most this length are zeroed rather than split off, in bytes.
    pub extent_max_zeroout: u32,
    /// When delayed data is mapped.
    pub writeback: WritebackMode,
    /// How handles wait to join a transaction.
    pub journal_join: JoinMode,
    /// How handles count credits.
    pub journal_credits: CreditMode,
    /// Which thread checkpoints.
    pub checkpoint: CheckpointMode,
    /// How concurrent syncs of one inode share their work.
    pub fsync_batch: FsyncBatch,
    /// Which thread ends direct overwrites.
    pub dio_completion: DioCompletion,
    /// Which files are in DAX mode.
    pub dax: DaxMode,
    /// The word `dax` was given.
    pub dax_given: bool,
    /// What an overwrite of a file in DAX mode begins with.
    pub dax_overwrite: DaxOverwrite,
    /// Tell the device which blocks are freed, once that is durable.
    pub discard: bool,
    /// `grpid`: a new file is of its directory's group.
    pub parent_group: bool,
    /// The user who may use the blocks reserved for root; `None` if the superblock names one. For
    /// programs that do work for users ([`as_user`](crate::as_user)).
    pub reserve_uid: Option<u32>,
    /// The group that may use them; `None` as for the user. Group 0 is nobody's.
    pub reserve_gid: Option<u32>,
    /// The name by which other hosts know this one (`mmp`); `None`: the system's.
    pub mmp_node: Option<String>,
    /// The length of a second in the intervals of `mmp`, which is another for tests alone.
    pub mmp_second: Duration,
    /// `minixdf`: [`StatFs::blocks`](crate::StatFs) has the file system's own structures too.
    pub minix_df: bool,
    /// Whose limits of quota are enforced: users', groups', projects'. Usage is counted without.
    pub quota_limits: [bool; 3],
    /// The keys of encrypted files. With them an interrupted truncate is completed when the volume
    /// is opened.
    pub keys: Vec<MasterKey>,
    /// The device that has the journal, if that is not the file system's. Only a word: the caller
    /// opens it ([`Volume::open_with_journal`](crate::Volume::open_with_journal)).
    pub journal_path: Option<PathBuf>,
    /// The block allocator.
    pub alloc: AllocOptions,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            atime: Atime::Relative,
            nodiratime: false,
            commit_interval_ms: 5_000,
            errors: None,
            no_recovery: false,
            delalloc: true,
            delalloc_given: false,
            data_mode: DataMode::Ordered,
            auto_da_alloc: true,
            cache_bytes: 256 << 20,
            dirty_expire_ms: 30_000,
            min_batch_time_us: 0,
            max_batch_time_us: 15_000,
            barrier: true,
            journal_async_commit: false,
            extent_max_zeroout: 32 << 10,
            writeback: WritebackMode::Mapped,
            journal_join: JoinMode::Fifo,
            journal_credits: CreditMode::Exact,
            checkpoint: CheckpointMode::Background,
            fsync_batch: FsyncBatch::Single,
            dio_completion: DioCompletion::Inline,
            dax: DaxMode::Inode,
            dax_given: false,
            dax_overwrite: DaxOverwrite::Direct,
            discard: false,
            parent_group: false,
            reserve_uid: None,
            reserve_gid: None,
            mmp_node: None,
            mmp_second: Duration::from_secs(1),
            minix_df: false,
            quota_limits: [false; 3],
            keys: Vec::new(),
            journal_path: None,
            alloc: AllocOptions::default(),
        }
    }
}

impl MountOptions {
    /// Smallest cache that the engine can work with, in bytes.
    pub const CACHE_BYTES_MIN: u64 = 8 << 20;

    /// Takes one word of `-o`, as mount(8) and ext4(5) spell it.
    ///
    /// # Errors
    /// An unknown word, a word without its value, or a value out of range.
    pub fn parse(&mut self, word: &str) -> Result<(), OptionError> {
        // Access lists are kept in any case; a mount enforces them.
        if word == "acl"
            || apply(OPTIONS, self, word)?
            || apply(EXT4_WORDS, self, word)?
            || apply(ABLATION, self, word)?
        {
            return Ok(());
        }
        Err(OptionError::unknown(word))
    }

    /// Checks that the options are compatible with each other.
    ///
    /// # Errors
    /// One line that names the options that are not.
    pub fn check(&self) -> Result<(), String> {
        if self.journal_async_commit && self.data_mode == DataMode::Ordered {
            return Err("mount option 'journal_async_commit': not with data=ordered, since the \
                        commit block may be durable before the data"
                .to_owned());
        }
        if self.delalloc_given && self.data_mode == DataMode::Journal {
            return Err("mount option 'delalloc': not with data=journal".to_owned());
        }
        if self.dax == DaxMode::Always && self.data_mode == DataMode::Journal {
            return Err("mount option 'dax=always': not with data=journal".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
