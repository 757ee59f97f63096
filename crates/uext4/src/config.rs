//! Mount options, as ext4 and mount(8) name them.

mod alloc;
mod mode;
mod parse;
mod table;

pub use alloc::{AllocAblation, AllocOptions, FreeMode, StreamGoal};
pub use mode::{
    Atime, CheckpointMode, CreditMode, DataMode, DaxMode, DaxOverwrite, DioCompletion, FsyncBatch,
    JoinMode, OnError, WritebackMode,
};
pub use table::{ABLATION, OPTIONS};
pub use uext4_options::OptionError;

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
    /// `None`: what the superblock says.
    pub errors: Option<OnError>,
    /// Do not replay a dirty journal (read-only mounts only).
    pub no_recovery: bool,
    /// Allocate blocks when data is written back rather than when it is written.
    pub delalloc: bool,
    /// `delalloc` was given by its word, rather than by default.
    pub delalloc_given: bool,
    /// Data mode.
    pub data_mode: DataMode,
    /// `auto_da_alloc`: rename over a file and close after truncation write the data first.
    pub auto_da_alloc: bool,
    /// Budget of the page cache and of the metadata cache together, in bytes.
    pub cache_bytes: u64,
    /// Dirty data older than this is written back, in milliseconds.
    pub dirty_expire_ms: u64,
    /// A commit waits at least so long for others to join it, in microseconds.
    pub min_batch_time_us: u32,
    /// And at most so long, in microseconds; 0: it never waits.
    pub max_batch_time_us: u32,
    /// Flush the device where the format needs it. Without, a crash of the machine may corrupt.
    pub barrier: bool,
    /// Write the commit block together with the transaction.
    pub journal_async_commit: bool,
    /// Unwritten neighbours of at most this length are zeroed rather than split off, in bytes.
    pub extent_max_zeroout: u32,
    /// When delayed data is mapped.
    pub writeback: WritebackMode,
    /// How handles wait to join.
    pub journal_join: JoinMode,
    /// How handles count credits.
    pub journal_credits: CreditMode,
    /// Who checkpoints.
    pub checkpoint: CheckpointMode,
    /// How syncs of one inode meet.
    pub fsync_batch: FsyncBatch,
    /// Where direct overwrites are ended.
    pub dio_completion: DioCompletion,
    /// Which files are in DAX mode.
    pub dax: DaxMode,
    /// `dax` was given by its word, rather than by default.
    pub dax_given: bool,
    /// What overwrites of these take.
    pub dax_overwrite: DaxOverwrite,
    /// Tell the device which blocks are freed, when their freeing is durable.
    pub discard: bool,
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
            alloc: AllocOptions::default(),
        }
    }
}

impl MountOptions {
    /// Smallest cache that an engine can work with, in bytes.
    pub const CACHE_BYTES_MIN: u64 = 8 << 20;

    /// Whether the words fit together.
    ///
    /// # Errors
    /// One line that says which do not.
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
