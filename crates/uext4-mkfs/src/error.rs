//! Errors of making a file system; each prints as one line.

use std::io;
use uext4_ondisk::FormatError;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, MkfsError>;

/// Why no file system was made.
#[derive(Debug, thiserror::Error)]
pub enum MkfsError {
    /// An option has a wrong value, or contradicts another one or the device.
    #[error("{0}")]
    Option(String),
    /// The device failed; it holds no file system now.
    #[error("cannot write {what}: {source}")]
    Io {
        /// What was being written.
        what: &'static str,
        /// The device's error.
        source: io::Error,
    },
    /// The journal device is none, or is not for this file system.
    #[error("journal device: {why}")]
    Journal {
        /// What is wrong with it.
        why: String,
    },
    /// What the file system was to be filled with cannot be read.
    #[error("{path}: {why}")]
    Source {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The computed layout cannot be opened, which is an error of this crate.
    #[error("cannot lay out the file system: {0}")]
    Layout(#[from] FormatError),
}

impl MkfsError {
    /// An option error.
    pub(crate) fn option(message: impl Into<String>) -> Self {
        Self::Option(message.into())
    }
}
