//! Why a request failed: the engine's error, or one that only exists at this edge.

use fuser::Errno;

/// A failed request.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine refused; [`uext4::Error::errno`] is the one place that maps its kinds.
    Engine(uext4::Error),
    /// The request itself is at fault (unknown handle, buffer too small, unknown flag).
    Request(Errno),
}

impl Failure {
    /// What the kernel is told.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Engine(error) => Errno::from_i32(error.errno()),
            Self::Request(errno) => *errno,
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
