//! What a program did to a file system: its successful system calls, in order.
//!
//! Invariants:
//! - A [`FileId`] names one inode for the whole trace, whatever number the file system reuses.
//! - [`Step`]s are ordered by the moment at which the call took effect. Calls on one inode are
//!   recorded one at a time, so their order is theirs in the file system, too.
//! - A sync stands where it began, because it promises nothing about what came later.
//! - Calls that failed or changed nothing are not in it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An inode of the trace. [`FileId::ROOT`] is the root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId(pub u32);

impl FileId {
    /// The root directory.
    pub const ROOT: Self = Self(0);
}

/// All that a program did, and where it began.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The calls.
    pub steps: Vec<Step>,
    /// Inodes that existed before the first step and are named by one, with their number in the
    /// file system at that time. Those that the steps create are not in here.
    pub before: Vec<(FileId, u32)>,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Step {
    /// When the file system got it, from the begin of the recording.
    pub started: Duration,
    /// When it was answered; everything that a step with a later `started` does may rely on it.
    pub returned: Duration,
    /// The process that called; 0 for the kernel itself.
    pub pid: u32,
    /// What it did.
    pub call: Call,
}

/// What a new inode is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewFile {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link to this.
    Symlink(Vec<u8>),
    /// A named pipe, a socket or a device, with its type and number.
    Special {
        /// The `S_IFMT` bits.
        kind: u32,
        /// Major and minor number, as `mknod(2)` takes them.
        device: u32,
    },
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The directory.
    pub parent: FileId,
    /// The name.
    pub name: Vec<u8>,
}

/// A change of attributes; what is `None` stays. Times are not traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

impl Call {
    /// Bytes of data that it brings.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Write { data, .. } | Self::Output(data) => data.len(),
            _ => 0,
        }
    }
}

/// What a call did. All offsets and lengths are bytes.
#[derive(Clone, Debug)]
pub enum Call {
    /// A new inode with its first name; `name` is `None` for `O_TMPFILE`.
    Create {
        /// The inode.
        file: FileId,
        /// Its name.
        name: Option<Name>,
        /// What it is.
        kind: NewFile,
        /// Its mode and owners.
        attributes: Attributes,
    },
    /// Another name.
    Link {
        /// The inode.
        file: FileId,
        /// The name.
        name: Name,
    },
    /// A name is removed, of a file or of an empty directory.
    Remove {
        /// The inode.
        file: FileId,
        /// The name.
        name: Name,
    },
    /// A name is replaced by another.
    Rename {
        /// The inode.
        file: FileId,
        /// The old name.
        from: Name,
        /// The new name.
        to: Name,
        /// What had the new name; it loses that, or gets the old one with `exchange`.
        replaced: Option<FileId>,
        /// Both names change their inodes.
        exchange: bool,
    },
    /// Bytes are written. One call may have been divided into several steps by the kernel.
    Write {
        /// The inode.
        file: FileId,
        /// Where.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
        /// Past the page cache (`O_DIRECT`).
        direct: bool,
    },
    /// The size is set; `size` 0 with `O_TRUNC`, too.
    Truncate {
        /// The inode.
        file: FileId,
        /// The size before.
        before: u64,
        /// The size.
        size: u64,
    },
    /// fallocate(2) with these flags.
    Allocate {
        /// The inode.
        file: FileId,
        /// `FALLOC_FL_*`.
        mode: u32,
        /// Where.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// Attributes change.
    SetAttributes {
        /// The inode.
        file: FileId,
        /// What changes.
        change: Attributes,
    },
    /// An extended attribute is set, or removed with `None`.
    SetXattr {
        /// The inode.
        file: FileId,
        /// Its whole name.
        name: Vec<u8>,
        /// Its value.
        value: Option<Vec<u8>>,
    },
    /// fsync(2), of a directory, too; fdatasync(2) with `data_only`. A write with `O_SYNC` or
    /// `O_DSYNC` is a write and this, of its range.
    Sync {
        /// The inode.
        file: FileId,
        /// fdatasync(2), `O_DSYNC`.
        data_only: bool,
        /// The bytes that are written back; `None` is all of the file.
        range: Option<Range<u64>>,
    },
    /// sync(2), syncfs(2).
    SyncAll,
    /// A descriptor is closed, of readers of changed files, too: `auto_da_alloc` flushes at the
    /// first one what was truncated to nothing.
    Close {
        /// The inode.
        file: FileId,
    },
    /// The program printed these bytes on its standard output: what it acknowledged.
    Output(Arc<[u8]>),
}
