//! Errors of a growth.

use thiserror::Error;

/// Result of a growth.
pub type Result<T, E = ResizeError> = std::result::Result<T, E>;

/// Why a file system was not grown.
#[derive(Debug, Error)]
pub enum ResizeError {
    /// It cannot be: why, and what helps.
    #[error("{0}")]
    Refused(String),
    /// Its geometry is not sound.
    #[error(transparent)]
    Format(#[from] uext4_ondisk::FormatError),
    /// The new groups cannot be laid out.
    #[error(transparent)]
    Layout(#[from] uext4_mkfs::MkfsError),
    /// The engine or the device failed.
    #[error(transparent)]
    Engine(#[from] uext4::Error),
}
