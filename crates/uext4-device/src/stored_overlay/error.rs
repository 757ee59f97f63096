//! Why an overlay is refused.

use std::io;

use super::header::VERSION;

/// Why an overlay cannot be used. Each message is the end of a sentence about the store.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// It has no header.
    #[error("is not an overlay of uext4")]
    NotAnOverlay,
    /// Another version of the format.
    #[error("is an overlay of version {0}, and this program knows version {VERSION}")]
    Version(u32),
    /// The header contradicts itself or its checksum.
    #[error("is a damaged overlay: {0}")]
    Damaged(&'static str),
    /// The store is not as long as its header says.
    #[error("is an overlay of {wanted} bytes, and has {len}")]
    Length {
        /// Bytes that it must have.
        wanted: u64,
        /// Bytes that it has.
        len: u64,
    },
    /// The base has another length.
    #[error("is an overlay of {wanted} bytes, and the image has {len}")]
    BaseLength {
        /// Bytes of the base when the overlay was made.
        wanted: u64,
        /// Bytes of the device that was given as the base.
        len: u64,
    },
    /// The base has a file system with another UUID.
    #[error(
        "is an overlay of another image: of the file system {}, not {}",
        uuid_text(wanted),
        uuid_text(found)
    )]
    OtherBase {
        /// UUID when the overlay was made.
        wanted: [u8; 16],
        /// UUID on the device that was given as the base.
        found: [u8; 16],
    },
    /// The first bytes of the base are not those that it had.
    #[error("cannot be used any more: its image has changed since the overlay was made")]
    Changed,
    /// A commit was cut off.
    #[error("is half committed: finish that first (uext4 overlay commit)")]
    Committing,
    /// The base was used after a commit was cut off.
    #[error(
        "is half committed and cannot be finished: its image has been written to, or replaced, \
         since; remove the overlay if what it holds may be lost"
    )]
    UsedHalfCommitted,
    /// A commit of another overlay into the base was cut off.
    #[error(
        "cannot be used: its image is half committed from another overlay; finish that first \
         (uext4 overlay commit)"
    )]
    BaseHalfCommitted,
    /// The base has no superblock by which a commit could keep others off it.
    #[error("cannot be committed: its image has no sound ext4 superblock")]
    NoSuperblock,
    /// The image is longer than an overlay can have.
    #[error("an image of {0} bytes is too large for an overlay")]
    TooLarge(u64),
    /// The error of a device.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A UUID as it is written everywhere.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [20, 16, 12, 8].into_iter().for_each(|at| text.insert(at, '-'));
    text
}
