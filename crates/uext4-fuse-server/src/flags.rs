//! Flags of the protocol, by the names of `include/uapi/linux/fuse.h`.

#![allow(missing_docs, reason = "the kernel's header documents them")]

use bitflags::bitflags;

bitflags! {
    /// What kernel and server agree on in INIT.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const POSIX_ACL = 1 << 20;
        const ABORT_ERROR = 1 << 21;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const CREATE_SUPP_GROUP = 1 << 34;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
    }

    /// How the kernel is to treat an open file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        const DIRECT_IO = 1 << 0;
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        const CACHE_DIR = 1 << 3;
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// Which attributes a SETATTR sets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrFlags: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }

    /// Whose bytes a WRITE has, and what it removes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteFlags: u32 {
        const CACHE = 1 << 0;
        const KILL_SUIDGID = 1 << 2;
    }
}

/// SETXATTR of an access list removes the set-group-id bit (`FUSE_SETXATTR_ACL_KILL_SGID`).
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// FSYNC is for the data alone (`FUSE_FSYNC_FDATASYNC`).
pub const FSYNC_FDATASYNC: u32 = 1;
/// IOCTL is on a directory (`FUSE_IOCTL_DIR`).
pub const IOCTL_DIR: u32 = 1 << 4;
