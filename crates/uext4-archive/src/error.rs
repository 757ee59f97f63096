//! What ends the reading of a stream.

use std::io;

/// Result of a step in a stream.
pub type Result<T> = std::result::Result<T, Error>;

/// Why nothing more can be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is of another format, or none that is known; what helps.
    #[error("{0}")]
    Foreign(&'static str),
    /// It ends before its end marker.
    #[error("archive is truncated after {at} bytes; what came whole is there")]
    Truncated {
        /// Bytes of the uncompressed stream that came.
        at: u64,
    },
    /// A header that nothing after it can be found by.
    #[error("archive is damaged at byte {at}: {what}")]
    Damaged {
        /// Byte of the uncompressed stream.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The compressed stream is damaged.
    #[error("{format} stream is damaged: {why}")]
    Compression {
        /// Format by name.
        format: &'static str,
        /// What the decoder says.
        why: String,
    },
    /// More or fewer bytes of a file than its entry has.
    #[error("content of a file does not fit its entry")]
    Length,
}
