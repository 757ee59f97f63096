//! Errors of the engine.
//!
//! What: an error has a small [`ErrorKind`] to match on, a context that says what was being done,
//! and the source if there is one. Only the FUSE adapter, the command line and the C interface call
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
    /// A limit of the user, the group or the project (`EDQUOT`).
    QuotaExceeded,
    /// The inode has the most links that the format allows.
    TooManyLinks,
    /// A name is longer than 255 bytes, or a symlink target longer than a block.
    NameTooLong,
    /// A path goes through more symbolic links than it may (`ELOOP`).
    TooManySymlinks,
    /// The operation does not accept an argument.
    InvalidArgument,
    /// The volume is read-only.
    ReadOnly,
    /// The inode and the directory belong to different projects (`EXDEV`).
    CrossesProjects,
    /// The inode and the directory have different encryption policies (`EXDEV`).
    CrossesPolicies,
    /// The inode is encrypted, and its key is not there (`ENOKEY`).
    NoKey,
    /// The inode is encrypted in a way that uext4 lacks (`ENOPKG`).
    NoCipher,
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
    /// Another host or a checker has the file system (`mmp`).
    InUse,
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

    /// The kind to match on.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Whether less would have had room: on the device, or below a limit.
    pub(crate) fn is_lack_of_room(&self) -> bool {
        matches!(self.kind, ErrorKind::NoSpace | ErrorKind::QuotaExceeded)
    }

    /// Whether the device or its contents are damaged.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self.kind, ErrorKind::Corrupt(_) | ErrorKind::Io | ErrorKind::Aborted)
    }

    /// The error number of errno(3), for the FUSE adapter, the command line and the C interface.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let errno = self.kind.errno_and_text().0;
        match (&self.kind, &self.source) {
            (ErrorKind::Io | ErrorKind::Internal, Some(e)) => e.raw_os_error().unwrap_or(errno),
            _ => errno,
        }
    }
}

impl ErrorKind {
    /// The errno, and the sentence if that is always the same.
    fn errno_and_text(&self) -> (i32, &'static str) {
        match self {
            Self::NotFound => (libc::ENOENT, "not found"),
            Self::Exists => (libc::EEXIST, "exists already"),
            Self::NotADirectory => (libc::ENOTDIR, "not a directory"),
            Self::IsADirectory => (libc::EISDIR, "is a directory"),
            Self::NotEmpty => (libc::ENOTEMPTY, "directory not empty"),
            Self::NoSpace => (libc::ENOSPC, "no space left"),
            Self::QuotaExceeded => (libc::EDQUOT, "over a limit of quota"),
            Self::TooManyLinks => (libc::EMLINK, "too many links"),
            Self::NameTooLong => (libc::ENAMETOOLONG, "name too long"),
            Self::TooManySymlinks => (libc::ELOOP, "too many levels of symbolic links"),
            Self::InvalidArgument => (libc::EINVAL, "invalid argument"),
            Self::ReadOnly => (libc::EROFS, "read-only file system"),
            Self::CrossesProjects => (libc::EXDEV, "belongs to another project"),
            Self::CrossesPolicies => (libc::EXDEV, "has another encryption policy"),
            Self::NoKey => (libc::ENOKEY, "the key was not given"),
            Self::NoCipher => (libc::ENOPKG, "cannot be decrypted"),
            Self::NotPermitted => (libc::EPERM, "operation not permitted"),
            Self::NoXattr => (libc::ENODATA, "no such attribute"),
            Self::NoData => (libc::ENXIO, "no data follows"),
            Self::TooBig => (libc::E2BIG, "value too big"),
            Self::FileTooBig => (libc::EFBIG, "file too big"),
            Self::Unsupported => (libc::EOPNOTSUPP, "not supported"),
            Self::InUse => (libc::EBUSY, "in use"),
            Self::RefusedFeatures => (libc::EOPNOTSUPP, "unsupported features"),
            // What the kernel's ext4 returns for a corrupt structure.
            Self::Corrupt(_) | Self::Format(_) => (libc::EUCLEAN, ""),
            Self::Io => (libc::EIO, "input/output error"),
            Self::Internal => (libc::EIO, ""),
            Self::Aborted => (libc::EROFS, "journal aborted"),
            Self::NeedsRecovery => (libc::EROFS, "journal needs recovery"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.context.is_empty() {
            f.write_str(&self.context)?;
            if matches!(self.kind, ErrorKind::InvalidArgument | ErrorKind::Internal) {
                return Ok(());
            }
            f.write_str(": ")?;
        }
        match (&self.kind, &self.source) {
            (ErrorKind::Corrupt(kind), _) => write!(f, "corrupt: {kind}"),
            (ErrorKind::Format(error), _) => write!(f, "{error}"),
            (ErrorKind::Io, Some(source)) => write!(f, "{source}"),
            (kind, _) => f.write_str(kind.errno_and_text().1),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e.as_ref() as &(dyn std::error::Error + 'static))
    }
}

impl From<ErrorKind> for Error {
    #[cfg_attr(feature = "simulate", track_caller)]
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind, String::new())
    }
}

impl From<Corrupt> for Error {
    #[cfg_attr(feature = "simulate", track_caller)]
    fn from(corrupt: Corrupt) -> Self {
        Self::new(ErrorKind::Corrupt(Box::new(corrupt)), String::new())
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
