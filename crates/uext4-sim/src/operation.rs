//! Operations of a generated load.
//!
//! # What
//! One [`Operation`] is one call that a program could make. It names files by [`Id`], which is also
//! the owner (uid) of the inode on disk: a recovered image tells which file is which, whatever its
//! name. Names stand with the directory that they are in.
//!
//! # Invariants
//! - A name, and a file's content, belong to one thread for their whole life; the history of a
//!   thread is therefore the history of everything it owns.
//! - Operations say what they will meet (the replaced file of a rename), so that a history can be
//!   read without replaying it.

use std::fmt;

/// Number of a file, directory or link: the thread's number above [`THREAD_SHIFT`], a running
/// number below. The same number is the owner of the inode.
pub type Id = u32;

/// Bits of an [`Id`] below the thread's number.
pub const THREAD_SHIFT: u32 = 20;
/// The directory that all threads use; its names start with [`shared_prefix`].
pub const SHARED: Id = 0x7000_0000;
/// Name of the shared directory in the root.
pub const SHARED_NAME: &[u8] = b"shared";
/// What divides ranges that are taken out of files and put in: the largest block of any volume.
pub const SHIFT_BYTES: u64 = 4096;
/// The inode flags that a load sets, NODUMP and NOATIME: they change nothing that it does.
pub const FLAGS: u32 = 0xc0;
/// The root directory.
pub const ROOT: Id = 0;

/// Number of a thread's own directory in the root. Threads count from 1.
#[must_use]
pub const fn own_directory(thread: u32) -> Id {
    thread << THREAD_SHIFT | 1
}

/// Name of a thread's own directory in the root.
#[must_use]
pub fn own_name(thread: u32) -> Vec<u8> {
    format!("t{thread}").into_bytes()
}

/// What a thread's names in the shared directory start with.
#[must_use]
pub fn shared_prefix(thread: u32) -> Vec<u8> {
    format!("s{thread}_").into_bytes()
}

/// The thread to which a name belongs; `None` for names that no load makes.
#[must_use]
pub fn thread_of(place: &Place) -> Option<u32> {
    match place.dir {
        ROOT => None,
        SHARED => {
            // Directories that fold case have it in either case.
            let name = place.name.strip_prefix(b"s").or(place.name.strip_prefix(b"S"))?;
            let end = name.iter().position(|&byte| byte == b'_')?;
            std::str::from_utf8(&name[..end]).ok()?.parse().ok()
        }
        dir => Some(dir >> THREAD_SHIFT),
    }
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The directory.
    pub dir: Id,
    /// The name: any bytes but NUL and `/`.
    pub name: Vec<u8>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.name[..self.name.len().min(24)];
        write!(f, "{:#x}/{}", self.dir, shown.escape_ascii())?;
        if shown.len() < self.name.len() {
            write!(f, "...({})", self.name.len())?;
        }
        Ok(())
    }
}

/// Type of a node that [`Operation::Create`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Named pipe.
    Fifo,
    /// Symbolic link (made by [`Operation::Symlink`]).
    Symlink,
    /// Character device 0:0 (made by a rename).
    Whiteout,
}

/// Ways to rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// What stands at the target goes.
    Replace,
    /// Nothing stands at the target.
    NoReplace,
    /// The two change places.
    Exchange,
    /// As `Replace`, or as `NoReplace` when nothing stands at the target; this new whiteout takes
    /// the old name.
    Whiteout(Id),
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are those of the system calls; units are bytes
pub enum Operation {
    /// A new file, directory or pipe.
    Create { id: Id, at: Place, kind: Kind, mode: u16 },
    /// A new symbolic link; targets longer than 59 bytes take a block.
    Symlink { id: Id, at: Place, target: Vec<u8> },
    /// A new regular file without a name, which stays open until it is released.
    CreateUnlinked { id: Id, dir: Id, mode: u16 },
    /// The owner of a node that was made without its own (a mount: the maker's owner comes first).
    Identify { id: Id },
    /// One more name, or the first one of a file that was made without.
    Link { id: Id, at: Place },
    /// One name less.
    Unlink { id: Id, at: Place },
    /// An empty directory less.
    Rmdir { id: Id, at: Place },
    /// A name moves; `other` is what stood at the target.
    Rename { id: Id, from: Place, to: Place, how: How, other: Option<Id> },
    /// chmod(2).
    SetMode { id: Id, mode: u16 },
    /// chown(2) of the group.
    SetGroup { id: Id, gid: u32 },
    /// utimensat(2) of the modification time.
    SetTime { id: Id, secs: i64, nanos: u32 },
    /// `FS_IOC_SETFLAGS` of a regular file, of [`FLAGS`].
    SetFlags { id: Id, flags: u32 },
    /// setxattr(2).
    SetXattr { id: Id, name: Vec<u8>, value: Vec<u8> },
    /// removexattr(2).
    RemoveXattr { id: Id, name: Vec<u8> },
    /// pwrite(2) of the pattern of `generation`; with `append` the offset is the file's size;
    /// `direct`: past the page cache, where the target can.
    Write { id: Id, offset: u64, len: u64, generation: u32, append: bool, direct: bool },
    /// ftruncate(2), down or up.
    Resize { id: Id, size: u64 },
    /// fallocate(2).
    Allocate { id: Id, offset: u64, len: u64, keep_size: bool },
    /// fallocate(2), `PUNCH_HOLE`.
    Punch { id: Id, offset: u64, len: u64 },
    /// fallocate(2), `ZERO_RANGE`.
    Zero { id: Id, offset: u64, len: u64, keep_size: bool },
    /// fallocate(2), `COLLAPSE_RANGE`: multiples of [`SHIFT_BYTES`], inside the file.
    Collapse { id: Id, offset: u64, len: u64 },
    /// fallocate(2), `INSERT_RANGE`: multiples of [`SHIFT_BYTES`], inside the file.
    Insert { id: Id, offset: u64, len: u64 },
    /// The file stays open until it is released, also after its last name has gone.
    Hold { id: Id },
    /// The open file is closed.
    Release { id: Id },
    /// The whole file is read and compared with what the thread has written.
    Check { id: Id },
    /// fsync(2) or fdatasync(2) of a file.
    Sync { id: Id, data_only: bool },
    /// fsync(2) of a directory.
    SyncDirectory { id: Id },
    /// Everything on the volume becomes durable.
    SyncVolume,
}

impl Operation {
    /// Whether the inode `id` is changed, content apart: what an fsync of it makes durable.
    #[must_use]
    pub fn touches(&self, inode: Id) -> bool {
        match self {
            Self::Create { id, .. }
            | Self::CreateUnlinked { id, .. }
            | Self::Symlink { id, .. }
            | Self::Identify { id }
            | Self::Link { id, .. }
            | Self::Unlink { id, .. }
            | Self::SetMode { id, .. }
            | Self::SetGroup { id, .. }
            | Self::SetTime { id, .. }
            | Self::SetFlags { id, .. }
            | Self::SetXattr { id, .. }
            | Self::RemoveXattr { id, .. } => *id == inode,
            Self::Rename { id, other, how, .. } => {
                *id == inode
                    || (*how == How::Exchange && *other == Some(inode))
                    || *how == How::Whiteout(inode)
            }
            _ => false,
        }
    }

    /// Whether names of the directory `id` are changed.
    #[must_use]
    pub fn is_in(&self, directory: Id) -> bool {
        match self {
            Self::Create { at, .. }
            | Self::Symlink { at, .. }
            | Self::Link { at, .. }
            | Self::Unlink { at, .. }
            | Self::Rmdir { at, .. } => at.dir == directory,
            Self::Rename { from, to, .. } => from.dir == directory || to.dir == directory,
            _ => false,
        }
    }

    /// The file whose content or size is changed.
    #[must_use]
    pub fn content_of(&self) -> Option<Id> {
        match self {
            Self::Write { id, .. }
            | Self::Resize { id, .. }
            | Self::Allocate { id, .. }
            | Self::Punch { id, .. }
            | Self::Zero { id, .. }
            | Self::Collapse { id, .. }
            | Self::Insert { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Whether the operation makes something durable.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        matches!(self, Self::Sync { .. } | Self::SyncDirectory { .. } | Self::SyncVolume)
    }
}
