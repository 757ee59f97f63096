//! Why a request failed: the engine's error, or one that only exists at this edge.

use uext4::ErrorKind;
use uext4_fuse_server::Errno;

/// A failed request.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine refused; [`uext4::Error::errno`] is the one place that maps its kinds.
    Engine(uext4::Error),
    /// The request itself is at fault (unknown handle, buffer too small, unknown flag).
    Request(Errno),
}

impl Failure {
    /// Whether the engine found no such name.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Engine(error) if *error.kind() == ErrorKind::NotFound)
    }
}

impl From<Failure> for Errno {
    /// What the kernel is told.
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Engine(error) => Self::from_raw_os_error(error.errno()),
            Failure::Request(errno) => errno,
        }
    }
}

impl From<uext4::Error> for Failure {
    fn from(error: uext4::Error) -> Self {
        Self::Engine(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Request(errno)
    }
}

/// Result of a request.
pub(crate) type Answer<T> = std::result::Result<T, Failure>;
