//! Errors of the engine.
//!
//! What: an error has a small [`ErrorKind`] to match on, a context that says what was being done,
//! and the source if there is one. Only the FUSE adapter and the command line call
//! [`Error::errno`].

use std::fmt;
use std::io;
use std::sync::Arc;

use uext4_ondisk::acl::AclError;
pub use uext4_ondisk::error::{Corrupt, CorruptKind, FormatError, Place};

/// Result of an engine operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error. Details are in the variant or in the context of the [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such file, directory entry or inode.
    NotFound,
    /// The name already exists.
    Exists,
    /// The operation needs a directory.
    NotADirectory,
    /// The operation is not possible on a directory.
    IsADirectory,
    /// The directory has entries.
    NotEmpty,
    /// No free block or inode.
    NoSpace,
    /// The inode has the most links that the format allows.
    TooManyLinks,
    /// A name is longer than 255 bytes, or a symlink target longer than a block.
    NameTooLong,
    /// The operation does not accept an argument.
    InvalidArgument,
    /// The volume is read-only.
    ReadOnly,
    /// The inode is immutable or append-only.
    NotPermitted,
    /// No such extended attribute.
    NoXattr,
    /// No data follows (`ENXIO` of lseek).
    NoData,
    /// The value does not fit.
    TooBig,
    /// Beyond the largest file that the format allows.
    FileTooBig,
    /// The operation needs a feature that uext4 lacks.
    Unsupported,
    /// The image has features that uext4 refuses.
    RefusedFeatures,
    /// A structure on the device is invalid.
    Corrupt(Box<Corrupt>),
    /// The device has no file system that can be opened.
    Format(Arc<FormatError>),
    /// The device failed.
    Io,
    /// An earlier failure, named in the context, aborted the journal.
    Aborted,
    /// The journal must be replayed first, but that is not allowed.
    NeedsRecovery,
    /// A bug in uext4, caught before it could reach the device.
    Internal,
}

/// An error with its kind, its context and its source.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Arc<io::Error>>,
}

impl Error {
    /// An error of `kind`. `context` says what was being done, and on what.
    #[must_use]
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        #[cfg(feature = "simulate")]
        uext4_schedule::reached();
        Self { kind, context: context.into(), source: None }
    }

    /// A device failure.
    #[must_use]
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn io(context: impl Into<String>, source: io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        #[cfg(feature = "simulate")]
        uext4_schedule::reached();
        Self { kind, context: context.into(), source: Some(Arc::new(source)) }
    }

    /// A corrupt structure.
    #[must_use]
    #[cfg_attr(feature = "simulate", track_caller)]
    pub fn corrupt(kind: Corrupt) -> Self {
        Self::new(ErrorKind::Corrupt(Box::new(kind)), String::new())
    }

    /// The kind to match on.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Whether the device or its contents are damaged.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self.kind, ErrorKind::Corrupt(_) | ErrorKind::Io | ErrorKind::Aborted)
    }

    /// The error number of errno(3), for the FUSE adapter and the command line.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::Exists => libc::EEXIST,
            ErrorKind::NotADirectory => libc::ENOTDIR,
            ErrorKind::IsADirectory => libc::EISDIR,
            ErrorKind::NotEmpty => libc::ENOTEMPTY,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::TooManyLinks => libc::EMLINK,
            ErrorKind::NameTooLong => libc::ENAMETOOLONG,
            ErrorKind::InvalidArgument => libc::EINVAL,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::NotPermitted => libc::EPERM,
            ErrorKind::NoXattr => libc::ENODATA,
            ErrorKind::NoData => libc::ENXIO,
            ErrorKind::TooBig => libc::E2BIG,
            ErrorKind::FileTooBig => libc::EFBIG,
            ErrorKind::Unsupported | ErrorKind::RefusedFeatures => libc::EOPNOTSUPP,
            // The kernel's ext4 returns EUCLEAN for a corrupt structure.
            ErrorKind::Corrupt(_) | ErrorKind::Format(_) => libc::EUCLEAN,
            ErrorKind::Io | ErrorKind::Internal => {
                self.source.as_ref().and_then(|e| e.raw_os_error()).unwrap_or(libc::EIO)
            }
            ErrorKind::Aborted => libc::EROFS,
            ErrorKind::NeedsRecovery => libc::EROFS,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.context.is_empty() {
            f.write_str(&self.context)?;
            if !matches!(self.kind, ErrorKind::InvalidArgument | ErrorKind::Internal) {
                f.write_str(": ")?;
            }
        }
        match &self.kind {
            ErrorKind::NotFound => f.write_str("not found"),
            ErrorKind::Exists => f.write_str("exists already"),
            ErrorKind::NotADirectory => f.write_str("not a directory"),
            ErrorKind::IsADirectory => f.write_str("is a directory"),
            ErrorKind::NotEmpty => f.write_str("directory not empty"),
            ErrorKind::NoSpace => f.write_str("no space left"),
            ErrorKind::TooManyLinks => f.write_str("too many links"),
            ErrorKind::NameTooLong => f.write_str("name too long"),
            ErrorKind::InvalidArgument if self.context.is_empty() => {
                f.write_str("invalid argument")
            }
            ErrorKind::InvalidArgument => Ok(()),
            ErrorKind::ReadOnly => f.write_str("read-only file system"),
            ErrorKind::NotPermitted => f.write_str("operation not permitted"),
            ErrorKind::NoXattr => f.write_str("no such attribute"),
            ErrorKind::NoData => f.write_str("no data follows"),
            ErrorKind::TooBig => f.write_str("value too big"),
            ErrorKind::FileTooBig => f.write_str("file too big"),
            ErrorKind::Unsupported => f.write_str("not supported"),
            ErrorKind::RefusedFeatures => f.write_str("unsupported features"),
            ErrorKind::Corrupt(kind) => write!(f, "corrupt: {kind}"),
            ErrorKind::Format(error) => write!(f, "{error}"),
            ErrorKind::Io => match &self.source {
                Some(source) => write!(f, "{source}"),
                None => f.write_str("input/output error"),
            },
            ErrorKind::Aborted => f.write_str("journal aborted"),
            ErrorKind::NeedsRecovery => f.write_str("journal needs recovery"),
            ErrorKind::Internal => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e.as_ref() as &(dyn std::error::Error + 'static))
    }
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        Self::corrupt(corrupt)
    }
}

impl From<AclError> for Error {
    fn from(error: AclError) -> Self {
        let kind = match error {
            AclError::Malformed => ErrorKind::InvalidArgument,
            AclError::Version(_) => ErrorKind::Unsupported,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Self {
        Self::new(ErrorKind::Format(Arc::new(error)), String::new())
    }
}
