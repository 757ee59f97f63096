//! Mount options, as ext4 and mount(8) name them.

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
    /// Data mode.
    pub data_mode: DataMode,
    /// `auto_da_alloc`: rename over a file and close after truncation write the data first.
    pub auto_da_alloc: bool,
    /// Budget of the page cache and of the metadata cache together, in bytes.
    pub cache_bytes: u64,
    /// Dirty data older than this is written back, in milliseconds.
    pub dirty_expire_ms: u64,
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
            data_mode: DataMode::Ordered,
            auto_da_alloc: true,
            cache_bytes: 256 << 20,
            dirty_expire_ms: 30_000,
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
            ("delalloc", None) => self.delalloc = true,
            ("nodelalloc", None) => self.delalloc = false,
            ("auto_da_alloc", None) => self.auto_da_alloc = true,
            ("noauto_da_alloc", None) => self.auto_da_alloc = false,
            ("user_xattr" | "acl" | "block_validity" | "dioread_nolock" | "dioread_lock", None) => {
            }
            ("data", Some("ordered")) => self.data_mode = DataMode::Ordered,
            ("data", Some(_)) => return Err(error("only ordered is supported")),
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
            ("data" | "errors" | "commit" | "cache", None) => return Err(error("needs a value")),
            _ => return Err(error("unknown")),
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
    fn bad_words_are_named() {
        for (word, why) in [
            ("frobnicate", "unknown"),
            ("commit", "needs a value"),
            ("commit=x", "not a number of seconds"),
            ("cache=1", "at least 8M"),
            ("cache=99999999999T", "not a size (like 64M)"),
            ("data=journal", "only ordered is supported"),
        ] {
            let error = check(&[word]).unwrap_err();
            assert_eq!(error.to_string(), format!("mount option '{word}': {why}"));
        }
    }
}
