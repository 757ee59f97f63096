//! Mount options, as ext4 and mount(8) name them.

mod alloc;

pub use alloc::{AllocOptions, FreeMode, StreamGoal};

use std::fmt;

/// When reading updates the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    None,
    /// When it is older than the modification or change time, or than a day.
    Relative,
    /// Always.
    Strict,
}

/// What a corrupt structure does to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Mark the volume, go on.
    Continue,
    /// Mark the volume, allow no more changes.
    RemountReadOnly,
    /// End the mounting process. A host program that uses the library is never ended: there it
    /// acts as [`OnError::RemountReadOnly`].
    Panic,
}

/// How file data and the journal relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataMode {
    /// Data is on the device before the transaction that makes it reachable.
    Ordered,
    /// As [`DataMode::Ordered`] here, where data is written before its mapping exists; ext4
    /// promises less. It is what `journal_async_commit` needs.
    Writeback,
    /// Data goes through the journal with its mapping. Blocks are allocated at write, whatever
    /// [`MountOptions::delalloc`] says, and [`MountOptions::writeback`] has no effect.
    Journal,
}

/// When the mapping of delayed data is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritebackMode {
    /// After the data is on the device, as written extents.
    Mapped,
    /// Before, as written extents; the commit of that transaction writes the data (contrast:
    /// `dioread_lock` of the kernel).
    Ordered,
    /// Before, as unwritten extents, that a reserved second handle converts when the data is on the
    /// device (contrast: `dioread_nolock` of the kernel).
    Unwritten,
}

/// Who wakes a handle that waits to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinMode {
    /// A queue: whoever fits is woken when it has joined.
    Fifo,
    /// All are woken and try again (contrast).
    Herd,
}

/// How many blocks a handle asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditMode {
    /// What it may dirty, from the tree as it is.
    Exact,
    /// What a handle of the kernel asks for: the worst tree, each shared block anew (contrast).
    Worst,
}

/// Who frees log space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointMode {
    /// A thread, from a quarter of the log on.
    Background,
    /// Whoever finds no room, one at a time, oldest transaction first (contrast).
    Inline,
}

/// What a sync does that arrives while another one of the same inode runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncBatch {
    /// It shares the next sweep with all who wait for it.
    Single,
    /// Each makes a sweep of its own and looks again for what became dirty meanwhile (contrast:
    /// kernels before 5.8).
    Rescan,
}

/// Where a direct overwrite is ended that a queue has reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DioCompletion {
    /// Where it is reaped.
    Inline,
    /// On a worker thread, to which each is handed (contrast: kernels 4.19 to 6.18).
    Deferred,
}

impl DioCompletion {
    /// Whether it is [`DioCompletion::Deferred`].
    #[must_use]
    pub fn is_deferred(self) -> bool {
        self == Self::Deferred
    }
}

/// Which files of a byte-addressable device are used without the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaxMode {
    /// All regular files, but those whose data is journaled. Needs such a device.
    Always,
    /// Those with the DAX flag, where the device can.
    Inode,
    /// None, whatever their flags.
    Never,
}

/// What an overwrite of a file in DAX mode takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaxOverwrite {
    /// Nothing but the stores.
    Direct,
    /// A handle on the inode first (contrast: kernels before 5.10).
    Journal,
}

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

/// A mount option that is unknown or has a bad value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    option: String,
    why: &'static str,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount option '{}': {}", self.option, self.why)
    }
}

impl std::error::Error for OptionError {}

impl MountOptions {
    /// Smallest cache that an engine can work with, in bytes.
    pub const CACHE_BYTES_MIN: u64 = 8 << 20;

    /// Takes one word of `-o`, as mount(8) and ext4(5) spell it.
    ///
    /// # Errors
    /// An unknown word, a word without its value, or a value out of range.
    pub fn parse(&mut self, word: &str) -> Result<(), OptionError> {
        let error = |why| OptionError { option: word.to_owned(), why };
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            ("defaults", None) => {}
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("noatime", None) => self.atime = Atime::None,
            ("relatime" | "atime", None) => self.atime = Atime::Relative,
            ("strictatime", None) => self.atime = Atime::Strict,
            ("nodiratime", None) => self.nodiratime = true,
            ("diratime", None) => self.nodiratime = false,
            ("norecovery" | "noload", None) => self.no_recovery = true,
            ("delalloc", None) => (self.delalloc, self.delalloc_given) = (true, true),
            ("nodelalloc", None) => (self.delalloc, self.delalloc_given) = (false, false),
            ("discard", None) => self.discard = true,
            ("nodiscard", None) => self.discard = false,
            ("auto_da_alloc", None) => self.auto_da_alloc = true,
            ("noauto_da_alloc", None) => self.auto_da_alloc = false,
            ("user_xattr" | "acl" | "block_validity", None) => {}
            // Of the kernel's two ways; what uext4 does has the merits of both.
            ("dioread_nolock" | "dioread_lock", None) => self.writeback = WritebackMode::Mapped,
            ("data", Some("ordered")) => self.data_mode = DataMode::Ordered,
            ("data", Some("writeback")) => self.data_mode = DataMode::Writeback,
            ("data", Some("journal")) => self.data_mode = DataMode::Journal,
            ("data", Some(_)) => return Err(error("one of ordered, writeback, journal")),
            ("dax", None | Some("always")) => self.set_dax(DaxMode::Always),
            ("dax", Some("inode")) => self.set_dax(DaxMode::Inode),
            ("dax", Some("never")) => self.set_dax(DaxMode::Never),
            ("dax", Some(_)) => return Err(error("one of always, inode, never")),
            ("barrier", None | Some("1")) => self.barrier = true,
            ("nobarrier", None) | ("barrier", Some("0")) => self.barrier = false,
            ("barrier", Some(_)) => return Err(error("0 or 1")),
            ("journal_async_commit", None) => self.journal_async_commit = true,
            ("min_batch_time", Some(us)) => {
                self.min_batch_time_us =
                    us.parse().map_err(|_| error("not a number of microseconds"))?;
            }
            ("max_batch_time", Some(us)) => {
                self.max_batch_time_us =
                    us.parse().map_err(|_| error("not a number of microseconds"))?;
            }
            ("extent_max_zeroout_kb", Some(kib)) => {
                let kib: u32 = kib.parse().map_err(|_| error("not a number of KiB"))?;
                self.extent_max_zeroout = kib.saturating_mul(1024);
            }
            _ if self.contrast(name, value).map_err(error)? => {}
            _ if self.alloc.take(name, value).map_err(error)? => {}
            ("errors", Some("continue")) => self.errors = Some(OnError::Continue),
            ("errors", Some("remount-ro")) => self.errors = Some(OnError::RemountReadOnly),
            ("errors", Some("panic")) => self.errors = Some(OnError::Panic),
            ("errors", Some(_)) => return Err(error("one of continue, remount-ro, panic")),
            ("commit", Some(seconds)) => {
                let seconds: u64 = seconds.parse().map_err(|_| error("not a number of seconds"))?;
                if seconds > 900 {
                    return Err(error("at most 900 seconds"));
                }
                // As ext4: 0 means the default.
                self.commit_interval_ms = if seconds == 0 { 5_000 } else { seconds * 1_000 };
            }
            ("cache", Some(size)) => {
                let bytes = parse_size(size).ok_or_else(|| error("not a size (like 64M)"))?;
                if bytes < Self::CACHE_BYTES_MIN {
                    return Err(error("at least 8M"));
                }
                self.cache_bytes = bytes;
            }
            (
                "data"
                | "errors"
                | "commit"
                | "cache"
                | "min_batch_time"
                | "max_batch_time"
                | "extent_max_zeroout_kb",
                None,
            ) => return Err(error("needs a value")),
            _ => return Err(error("unknown")),
        }
        Ok(())
    }

    fn set_dax(&mut self, mode: DaxMode) {
        (self.dax, self.dax_given) = (mode, true);
    }

    /// Takes a contrast option: one that switches on what the engine is built to avoid, to show
    /// what it costs. False if `name` is none.
    fn contrast(&mut self, name: &str, value: Option<&str>) -> Result<bool, &'static str> {
        match (name, value) {
            ("writeback", Some("mapped")) => self.writeback = WritebackMode::Mapped,
            ("writeback", Some("ordered")) => self.writeback = WritebackMode::Ordered,
            ("writeback", Some("unwritten")) => self.writeback = WritebackMode::Unwritten,
            ("writeback", _) => return Err("one of mapped, ordered, unwritten"),
            ("journal_join", Some("fifo")) => self.journal_join = JoinMode::Fifo,
            ("journal_join", Some("herd")) => self.journal_join = JoinMode::Herd,
            ("journal_join", _) => return Err("one of fifo, herd"),
            ("journal_credits", Some("exact")) => self.journal_credits = CreditMode::Exact,
            ("journal_credits", Some("worst")) => self.journal_credits = CreditMode::Worst,
            ("journal_credits", _) => return Err("one of exact, worst"),
            ("checkpoint", Some("background")) => self.checkpoint = CheckpointMode::Background,
            ("checkpoint", Some("inline")) => self.checkpoint = CheckpointMode::Inline,
            ("checkpoint", _) => return Err("one of background, inline"),
            ("fsync_batch", Some("single")) => self.fsync_batch = FsyncBatch::Single,
            ("fsync_batch", Some("rescan")) => self.fsync_batch = FsyncBatch::Rescan,
            ("fsync_batch", _) => return Err("one of single, rescan"),
            ("dio_completion", Some("inline")) => self.dio_completion = DioCompletion::Inline,
            ("dio_completion", Some("deferred")) => self.dio_completion = DioCompletion::Deferred,
            ("dax_overwrite", Some("direct")) => self.dax_overwrite = DaxOverwrite::Direct,
            ("dax_overwrite", Some("journal")) => self.dax_overwrite = DaxOverwrite::Journal,
            ("dax_overwrite", _) => return Err("one of direct, journal"),
            ("dio_completion", _) => return Err("one of inline, deferred"),
            _ => return Ok(false),
        }
        Ok(true)
    }

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

/// Bytes of `size` with an optional suffix K, M, G or T (powers of 1024).
fn parse_size(size: &str) -> Option<u64> {
    let (digits, shift) = match size.as_bytes().last()? {
        b'k' | b'K' => (&size[..size.len() - 1], 10),
        b'm' | b'M' => (&size[..size.len() - 1], 20),
        b'g' | b'G' => (&size[..size.len() - 1], 30),
        b't' | b'T' => (&size[..size.len() - 1], 40),
        _ => (size, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str]) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        words.iter().try_for_each(|word| options.parse(word))?;
        Ok(options)
    }

    #[test]
    fn words_of_ext4_are_taken() {
        let options = check(&["ro", "noatime", "commit=30", "cache=64M", "errors=panic"]).unwrap();
        assert!(options.read_only);
        assert_eq!(options.atime, Atime::None);
        assert_eq!(options.commit_interval_ms, 30_000);
        assert_eq!(options.cache_bytes, 64 << 20);
        assert_eq!(options.errors, Some(OnError::Panic));
    }

    #[test]
    fn words_of_the_allocator_are_taken() {
        let words = ["mb_optimize_scan=0", "stripe=16", "mb_free=global", "mb_reserve=off"];
        let alloc = check(&words).unwrap().alloc;
        assert!(!alloc.optimize_scan && !alloc.reserve && alloc.trylock);
        assert_eq!((alloc.stripe, alloc.free), (16, FreeMode::Global));
    }

    #[test]
    fn async_commit_needs_another_data_mode() {
        assert!(check(&["journal_async_commit"]).unwrap().check().is_err());
        assert!(check(&["journal_async_commit", "data=writeback"]).unwrap().check().is_ok());
    }

    #[test]
    fn journaled_data_is_not_delayed() {
        assert!(check(&["data=journal"]).unwrap().check().is_ok());
        assert!(check(&["data=journal", "delalloc"]).unwrap().check().is_err());
        assert!(check(&["delalloc", "nodelalloc", "data=journal"]).unwrap().check().is_ok());
    }

    #[test]
    fn journaled_data_is_not_mapped() {
        assert!(check(&["data=journal", "dax=inode"]).unwrap().check().is_ok());
        assert!(check(&["data=journal", "dax"]).unwrap().check().is_err());
        assert_eq!(check(&["dax"]).unwrap().dax, DaxMode::Always);
    }

    #[test]
    fn bad_words_are_named() {
        for (word, why) in [
            ("frobnicate", "unknown"),
            ("commit", "needs a value"),
            ("commit=x", "not a number of seconds"),
            ("cache=1", "at least 8M"),
            ("cache=99999999999T", "not a size (like 64M)"),
            ("data=x", "one of ordered, writeback, journal"),
            ("writeback", "one of mapped, ordered, unwritten"),
            ("barrier=2", "0 or 1"),
            ("dax=x", "one of always, inode, never"),
            ("dax_overwrite", "one of direct, journal"),
            ("mb_trylock", "0 or 1"),
            ("mb_order2_req=17", "0 to 16"),
            ("mb_stream_req=x", "not a number"),
            ("mb_free=none", "one of sharded, global"),
        ] {
            let error = check(&[word]).unwrap_err();
            assert_eq!(error.to_string(), format!("mount option '{word}': {why}"));
        }
    }
}
