//! Errors of opening an image.
//!
//! # What
//! One variant for each cause that a user can act on. The message is one line with the image, the
//! cause and, if there is one, the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why an image could not be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path, or a folder on the way to it, does not exist.
    #[error("{}: no such file or device", path.display())]
    NotFound {
        /// The image as the caller named it.
        path: PathBuf,
    },
    /// The caller may not read (or write) it.
    #[error("{}: no permission to {}", path.display(), if *writing { "write" } else { "read" })]
    NoPermission {
        /// The image as the caller named it.
        path: PathBuf,
        /// Whether write access was wanted.
        writing: bool,
    },
    /// Write access to something on a read-only file system or medium.
    #[error("{}: is on a read-only file system or medium; open it read-only", path.display())]
    ReadOnlyMedium {
        /// The image as the caller named it.
        path: PathBuf,
    },
    /// Another process uses the image: it is mounted, or another uext4 works on it.
    #[error("{}: in use: mounted, or held by another process", path.display())]
    InUse {
        /// The image as the caller named it.
        path: PathBuf,
    },
    /// The kernel may write to the image through a loop device.
    #[error("{}: backs {}; detach that first (losetup -d)", path.display(), device.display())]
    BacksLoop {
        /// The image as the caller named it.
        path: PathBuf,
        /// The loop device, as in `/dev/loop0`.
        device: PathBuf,
    },
    /// A directory.
    #[error("{}: is a directory, not an image", path.display())]
    IsDirectory {
        /// The path as the caller named it.
        path: PathBuf,
    },
    /// A fifo, socket or character device; or a block device where a file must be made.
    #[error("{}: is a {found}, not {wanted}", path.display())]
    WrongKind {
        /// The path as the caller named it.
        path: PathBuf,
        /// The kind of file found.
        found: &'static str,
        /// What was wanted.
        wanted: &'static str,
    },
    /// It was to be mapped, and its store is not memory.
    #[error("{}: is not on tmpfs, hugetlbfs or a file system with DAX", path.display())]
    NotByteAddressable {
        /// The image as the caller named it.
        path: PathBuf,
    },
    /// No bytes at all.
    #[error("{}: is empty (0 bytes)", path.display())]
    Empty {
        /// The image as the caller named it.
        path: PathBuf,
    },
    /// The file system is said to start past the end of the image.
    #[error("{}: offset {offset} is not inside the image's {len} bytes", path.display())]
    OffsetPastEnd {
        /// The image as the caller named it.
        path: PathBuf,
        /// Where the file system should start, in bytes.
        offset: u64,
        /// Length of the image in bytes.
        len: u64,
    },
    /// The device is said to end past the end of the image.
    #[error("{}: ends at byte {len}, and not behind byte {end}", path.display())]
    EndPastEnd {
        /// The image as the caller named it.
        path: PathBuf,
        /// Where the device should end, in bytes.
        end: u64,
        /// Length of the image in bytes.
        len: u64,
    },
    /// Any other error of the system.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The image as the caller named it.
        path: PathBuf,
        /// What was being done, as a verb.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// Sorts the error of an open or stat call.
    pub(crate) fn from_io(
        path: &Path,
        writing: bool,
        action: &'static str,
        source: io::Error,
    ) -> OpenError {
        let path = path.to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ENXIO | libc::ENODEV) => {
                OpenError::NotFound { path }
            }
            Some(libc::EACCES | libc::EPERM) => OpenError::NoPermission { path, writing },
            Some(libc::EROFS) => OpenError::ReadOnlyMedium { path },
            Some(libc::EBUSY | libc::ETXTBSY) => OpenError::InUse { path },
            Some(libc::EISDIR) => OpenError::IsDirectory { path },
            _ => OpenError::Io { path, action, source },
        }
    }

    /// The best errno for this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            OpenError::NotFound { .. } => libc::ENOENT,
            OpenError::NoPermission { .. } => libc::EACCES,
            OpenError::ReadOnlyMedium { .. } => libc::EROFS,
            OpenError::InUse { .. } | OpenError::BacksLoop { .. } => libc::EBUSY,
            OpenError::IsDirectory { .. } => libc::EISDIR,
            OpenError::WrongKind { .. }
            | OpenError::Empty { .. }
            | OpenError::OffsetPastEnd { .. }
            | OpenError::EndPastEnd { .. } => libc::EINVAL,
            OpenError::NotByteAddressable { .. } => libc::EOPNOTSUPP,
            OpenError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        let kind = io::Error::from_raw_os_error(error.errno()).kind();
        io::Error::new(kind, error)
    }
}
