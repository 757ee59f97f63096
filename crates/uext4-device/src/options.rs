//! Options of opening an image.
//!
//! # What
//! The options of a [`FileDevice`](crate::FileDevice), and the mount options that say so.

use std::time::Duration;
use uext4_options::{Row, flag, one_of, text, whole};

/// The access that the caller needs to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read-only; shares the image with other readers.
    ReadOnly,
    /// Read and write; exclusive.
    ReadWrite,
}

/// Whether requests go through the kernel's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Caching {
    /// Through the page cache.
    Buffered,
    /// Bypasses it (`O_DIRECT`). If the store cannot, through the page cache, and the device's
    /// notice says so.
    Direct,
    /// Direct if the device is open for writing and the store states its alignment (a block device;
    /// a file system with `STATX_DIOALIGN`); otherwise buffered, without a notice.
    #[default]
    Auto,
}

/// How the writes of one call reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Submission {
    /// By one system call after the other.
    Pread,
    /// Together, by io_uring. If the system refuses that, one after the other, and the device's
    /// notice says so.
    Uring,
    /// By io_uring if the device is direct, where it pays.
    #[default]
    Auto,
}

/// How to open an image file or block device.
///
/// # Examples
/// ```
/// use uext4_device::{Access, Caching, FileOptions};
///
/// let mut options = FileOptions::new(Access::ReadWrite);
/// assert_eq!(options.parse("direct"), Ok(true));
/// assert_eq!(options.caching, Caching::Direct);
/// assert_eq!(options.parse("noatime"), Ok(false));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOptions {
    /// The access.
    pub access: Access,
    /// Start of the device in the file, in bytes.
    pub offset: u64,
    /// Length of the device in bytes, if it ends before the file does, as a partition of a disk
    /// image. Nothing behind it can be read or written.
    pub len: Option<u64>,
    /// Use of the page cache.
    pub caching: Caching,
    /// Submission of several writes.
    pub submission: Submission,
    /// Time for which writes are held if the store has no room; 0: they fail at once.
    pub no_space_timeout: Duration,
    /// Time for which a network block device is tried to be reached again. No file has it.
    pub nbd_timeout: Duration,
}

impl FileOptions {
    /// The default of dm-thin.
    const NO_SPACE_TIMEOUT: Duration = Duration::from_secs(60);

    /// As long as a disk of the kernel is waited for twice.
    const NBD_TIMEOUT: Duration = Duration::from_secs(60);

    /// The whole file, through the page cache, one request after the other. Writes do not wait for
    /// room.
    #[must_use]
    pub fn new(access: Access) -> FileOptions {
        FileOptions {
            access,
            offset: 0,
            len: None,
            caching: Caching::Buffered,
            submission: Submission::Pread,
            no_space_timeout: Duration::ZERO,
            nbd_timeout: Self::NBD_TIMEOUT,
        }
    }

    /// The best options for an image that stays open: [`Caching::Auto`] and [`Submission::Auto`],
    /// and writes wait up to 60 s for room.
    #[must_use]
    pub fn auto(access: Access) -> FileOptions {
        FileOptions {
            caching: Caching::Auto,
            submission: Submission::Auto,
            no_space_timeout: Self::NO_SPACE_TIMEOUT,
            ..FileOptions::new(access)
        }
    }

    /// Applies one word of `-o`. `Ok(false)` if it is no device option.
    ///
    /// # Errors
    /// A device option with a bad value, in one line.
    pub fn parse(&mut self, word: &str) -> Result<bool, String> {
        uext4_options::apply(MOUNT_OPTIONS, self, word).map_err(|error| error.to_string())
    }
}

/// Longest time for which writes wait for room, in seconds.
const A_WEEK: u64 = 7 * 86_400;

/// The mount options of a device.
pub const MOUNT_OPTIONS: &[Row<FileOptions>] = &[
    Row {
        options: &[
            flag(&["direct"], |o| o.caching = Caching::Direct),
            flag(&["nodirect"], |o| o.caching = Caching::Buffered),
        ],
        default: "where it can be",
        help: "use the image past the kernel's page cache, or through it",
        more: "By default past it where the store states how, except with `ro` \
               ([device.md](device.md))",
    },
    Row {
        options: &[one_of(
            &["io"],
            &[
                ("auto", |o| o.submission = Submission::Auto),
                ("uring", |o| o.submission = Submission::Uring),
                ("pread", |o| o.submission = Submission::Pread),
            ],
        )],
        default: "auto",
        help: "how several writes of the image are made",
        more: "All at once by io_uring, or one after the other; `auto`: by io_uring where the \
               image is direct",
    },
    Row {
        options: &[text(&["no_space_timeout"], "SECONDS", |o, seconds| {
            o.no_space_timeout = Duration::from_secs(whole(seconds, 0..=A_WEEK, "seconds")?);
            Ok(())
        })],
        default: "60",
        help: "how long writes wait for room where the image is stored",
        more: "0: they fail at once; at most a week. See below",
    },
    Row {
        options: &[text(&["nbd_timeout"], "SECONDS", |o, seconds| {
            o.nbd_timeout = Duration::from_secs(whole(seconds, 1..=A_WEEK, "seconds")?);
            Ok(())
        })],
        default: "60",
        help: "how long a network block device is tried to be reached again",
        more: "Afterwards every request fails, as of a disk that is gone; 1 to 604800 \
               ([nbd.md](nbd.md))",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_applied_refused_or_ignored() {
        let mut options = FileOptions::auto(Access::ReadWrite);
        assert_eq!((options.caching, options.submission), (Caching::Auto, Submission::Auto));
        for word in ["io=uring", "direct"] {
            assert_eq!(options.parse(word), Ok(true));
        }
        assert_eq!((options.caching, options.submission), (Caching::Direct, Submission::Uring));
        for word in ["io=pread", "nodirect"] {
            assert_eq!(options.parse(word), Ok(true));
        }
        assert_eq!((options.caching, options.submission), (Caching::Buffered, Submission::Pread));
        assert!(options.parse("io=mmap").unwrap_err().contains("io=mmap"));
        assert!(options.parse("io").is_err());
        assert_eq!(options.parse("ro"), Ok(false));
        assert_eq!(options.no_space_timeout, Duration::from_secs(60));
        assert_eq!(options.parse("no_space_timeout=0"), Ok(true));
        assert_eq!(options.no_space_timeout, Duration::ZERO);
        assert_eq!(options.parse("nbd_timeout=5"), Ok(true));
        assert_eq!(options.nbd_timeout, Duration::from_secs(5));
        assert!(options.parse("nbd_timeout=0").unwrap_err().contains("nbd_timeout=0"));
        assert!(options.parse("no_space_timeout=x").unwrap_err().contains("no_space_timeout=x"));
    }
}
