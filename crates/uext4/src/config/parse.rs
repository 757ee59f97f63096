//! Options of a mount by their words.

use super::{
    Atime, CheckpointMode, CreditMode, DataMode, DaxMode, DaxOverwrite, DioCompletion, FsyncBatch,
    JoinMode, MountOptions, OnError, WritebackMode,
};
use std::fmt;

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
    use crate::config::FreeMode;

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
        let ablation = &alloc.ablation;
        assert!(!ablation.optimize_scan && !ablation.preallocate && ablation.trylock);
        assert_eq!((alloc.stripe, ablation.free), (16, FreeMode::Global));
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
