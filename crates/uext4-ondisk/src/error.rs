//! Errors of reading the format: the broken rule, its place, the expected and the found value.

use crate::units::{BlockNo, FileBlock, GroupNo, Ino};
use std::fmt;

/// The reason why a device cannot be opened as an ext4 file system, or why a structure cannot be
/// used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is no ext4 superblock.
    #[error("no ext4 superblock: magic is {found:#06x}, want 0xef53")]
    NoSuperblock {
        /// The bytes at the position of the magic number.
        found: u16,
    },
    /// The superblock's own checksum does not match.
    #[error("superblock checksum is {found:#010x}, want {want:#010x}")]
    SuperblockChecksum {
        /// Computed.
        want: u32,
        /// Stored.
        found: u32,
    },
    /// Unknown features that a reader must understand.
    #[error("unsupported features: {names}")]
    UnsupportedFeatures {
        /// Names in e2fsprogs spelling, separated by blanks.
        names: String,
    },
    /// A `-O` list that names no known feature.
    #[error("invalid file system feature: {name}")]
    UnknownFeatureName {
        /// The unknown word.
        name: String,
    },
    /// A superblock field with an impossible value.
    #[error("superblock: {field} is {found}, {want}")]
    Superblock {
        /// Field, by its name in the format documentation.
        field: &'static str,
        /// The value it has.
        found: u64,
        /// The rule it breaks.
        want: &'static str,
    },
    /// The device ends before the file system does.
    #[error(
        "truncated: the file system has {blocks} blocks of {block_size} bytes, the device only \
         {device_bytes} bytes"
    )]
    DeviceTooSmall {
        /// Blocks that the superblock claims.
        blocks: u64,
        /// Bytes per block.
        block_size: u32,
        /// Bytes of the device.
        device_bytes: u64,
    },
    /// A damaged structure.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// The damage of one structure. The caller knows its place and adds a [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CorruptKind {
    /// The stored checksum does not match the content.
    #[error("{what}: checksum is {found:#010x}, want {want:#010x}")]
    Checksum {
        /// Structure.
        what: &'static str,
        /// Computed.
        want: u32,
        /// Stored.
        found: u32,
    },
    /// The magic number is wrong.
    #[error("{what}: magic is {found:#x}, want {want:#x}")]
    Magic {
        /// Structure.
        what: &'static str,
        /// The format's number.
        want: u32,
        /// The number found.
        found: u32,
    },
    /// A field is outside its range.
    #[error("{what}: {field} is {found}, want {min} to {max}")]
    Range {
        /// Structure.
        what: &'static str,
        /// Field.
        field: &'static str,
        /// Least allowed value.
        min: u64,
        /// Greatest allowed value.
        max: u64,
        /// The value it has.
        found: u64,
    },
    /// Entries that must ascend do not, or overlap.
    #[error("{what}: entry {index} at {found} does not follow {min}")]
    Order {
        /// Structure.
        what: &'static str,
        /// Index of the entry, from 0.
        index: u32,
        /// Least allowed position.
        min: u64,
        /// Its position.
        found: u64,
    },
    /// A directory entry is malformed.
    #[error("directory entry at byte {offset}: {why}")]
    DirEntry {
        /// Byte offset in the block.
        offset: u32,
        /// The rule it breaks.
        why: &'static str,
    },
    /// The structure does not fit in the bytes given.
    #[error("{what}: {found} bytes, want {want}")]
    Short {
        /// Structure.
        what: &'static str,
        /// Bytes needed.
        want: u32,
        /// Bytes available.
        found: u32,
    },
    /// Any other broken rule.
    #[error("{what}: {why}")]
    Rule {
        /// Structure.
        what: &'static str,
        /// The rule it breaks.
        why: &'static str,
    },
}

impl CorruptKind {
    /// Name of the damaged structure.
    #[must_use]
    pub const fn structure(&self) -> &'static str {
        match self {
            Self::Checksum { what, .. }
            | Self::Magic { what, .. }
            | Self::Range { what, .. }
            | Self::Order { what, .. }
            | Self::Short { what, .. }
            | Self::Rule { what, .. } => what,
            Self::DirEntry { .. } => "directory entry",
        }
    }

    /// Adds the place of the structure.
    #[must_use]
    pub const fn at(self, place: Place) -> Corrupt {
        Corrupt { place, kind: self }
    }
}

/// The place of a damaged structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The superblock.
    Superblock,
    /// A block group.
    Group(GroupNo),
    /// An inode.
    Inode(Ino),
    /// A block on the device.
    Block(BlockNo),
    /// A block of a file.
    FileBlock(Ino, FileBlock),
    /// A metadata block on the device that belongs to an inode.
    InodeBlock(Ino, BlockNo),
    /// A block of the journal, counted from its start.
    LogBlock(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock => f.write_str("superblock"),
            Self::Group(g) => write!(f, "group {g}"),
            Self::Inode(i) => write!(f, "inode {i}"),
            Self::Block(b) => write!(f, "block {b}"),
            Self::FileBlock(i, b) => write!(f, "inode {i}, logical block {b}"),
            Self::InodeBlock(i, b) => write!(f, "inode {i}, block {b}"),
            Self::LogBlock(b) => write!(f, "journal block {b}"),
        }
    }
}

/// A damaged structure and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {kind}")]
pub struct Corrupt {
    /// Its place.
    pub place: Place,
    /// The damage.
    pub kind: CorruptKind,
}
