//! The structures of the FUSE protocol, version 7.45, as they lie in memory.
//!
//! Names of fields are those of `include/uapi/linux/fuse.h`. The protocol is in the byte order of
//! the machine; [`zerocopy`] reads and writes it without unsafe code.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version, which has been 7 since 2005.
pub const MAJOR: u32 = 7;
/// The newest minor version that this crate speaks.
pub const MINOR: u32 = 45;
/// The oldest minor version that it speaks (Linux 4.20): INIT has flags for everything since.
pub const MINOR_MIN: u32 = 28;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            PartialEq,
            Eq,
            FromBytes,
            IntoBytes,
            Immutable,
            KnownLayout,
        )]
        #[repr(C)]
        #[allow(missing_docs, reason = "the kernel's header documents the fields")]
        pub struct $name { $(pub $field: $type,)* }
    )*};
}

wire! {
    /// In front of each request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// In front of each answer and notice.
    OutHeader { len: u32, error: i32, unique: u64, }
    /// Attributes of an inode.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    /// Answer of LOOKUP and of all that makes an inode.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    /// Answer of GETATTR and SETATTR.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    /// FORGET.
    ForgetIn { nlookup: u64, }
    /// One of BATCH_FORGET.
    ForgetOne { nodeid: u64, nlookup: u64, }
    /// BATCH_FORGET.
    BatchForgetIn { count: u32, dummy: u32, }
    /// GETATTR.
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    /// SETATTR.
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    /// MKNOD.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// MKDIR.
    MkdirIn { mode: u32, umask: u32, }
    /// RENAME.
    RenameIn { newdir: u64, }
    /// RENAME2.
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    /// LINK.
    LinkIn { oldnodeid: u64, }
    /// OPEN and OPENDIR.
    OpenIn { flags: u32, open_flags: u32, }
    /// CREATE and TMPFILE.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Answer of OPEN, and the second part of that of CREATE.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    /// RELEASE.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// FLUSH.
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// READ, READDIR and READDIRPLUS.
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// WRITE.
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// Answer of WRITE and COPY_FILE_RANGE.
    WriteOut { size: u32, padding: u32, }
    /// Answer of STATFS.
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    /// SETXATTR, as far as every kernel has it.
    SetxattrIn { size: u32, flags: u32, }
    /// What follows it with `SETXATTR_EXT`.
    SetxattrExt { setxattr_flags: u32, padding: u32, }
    /// GETXATTR and LISTXATTR.
    GetxattrIn { size: u32, padding: u32, }
    /// Their answer when the size was 0.
    GetxattrOut { size: u32, padding: u32, }
    /// ACCESS.
    AccessIn { mask: u32, padding: u32, }
    /// INIT.
    InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    /// Answer of INIT.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    /// IOCTL.
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    /// Answer of IOCTL, before the bytes.
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// FALLOCATE.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// A name in a listing; the name follows, padded to 8 bytes.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// LSEEK.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// Answer of LSEEK.
    LseekOut { offset: u64, }
    /// COPY_FILE_RANGE.
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// STATX.
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// A time of statx(2).
    SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    /// What statx(2) tells.
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Answer of STATX.
    StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }
    /// Notice: attributes, and perhaps pages, of an inode are to be asked for again.
    InvalInodeOut { ino: u64, off: i64, len: i64, }
    /// Notice: the kernel is to send pages of an inode, as a NOTIFY_REPLY request.
    RetrieveOut { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32, }
}

/// Bytes of the structure that begins a request of `opcode`, after the header.
#[must_use]
pub fn size_of_in(opcode: u32, has_setxattr_ext: bool) -> usize {
    use crate::opcode::Opcode as O;
    let Some(opcode) = O::from_number(opcode) else { return 0 };
    match opcode {
        O::Lookup | O::Readlink | O::Symlink | O::Unlink | O::Rmdir | O::Statfs => 0,
        O::Removexattr | O::Destroy => 0,
        O::Forget | O::Mkdir | O::Rename | O::Link | O::Open | O::Opendir | O::Access => 8,
        O::Getxattr | O::Listxattr | O::BatchForget | O::Interrupt | O::Syncfs => 8,
        O::Getattr | O::Mknod | O::Fsync | O::Fsyncdir | O::Create | O::Rename2 => 16,
        O::Tmpfile | O::Bmap => 16,
        O::Setxattr if !has_setxattr_ext => 8,
        O::Setxattr => 16,
        O::Release | O::Releasedir | O::Flush | O::Poll | O::Lseek | O::Statx => 24,
        O::Ioctl | O::Fallocate => 32,
        O::Read | O::Write | O::Readdir | O::Readdirplus | O::NotifyReply => 40,
        O::Getlk | O::Setlk | O::Setlkw => 48,
        O::CopyFileRange | O::CopyFileRange64 => 56,
        O::Init => 64,
        O::Setattr => 88,
        O::Setupmapping => 40,
        O::Removemapping => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::Opcode;

    /// Sizes of `include/uapi/linux/fuse.h`.
    #[test]
    fn structures_are_as_long_as_the_kernels() {
        for (ours, kernels) in [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<SetattrIn>(), 88),
            (size_of::<StatfsOut>(), 80),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<IoctlIn>(), 32),
            (size_of::<Dirent>(), 24),
            (size_of::<CopyFileRangeIn>(), 56),
            (size_of::<Statx>(), 256),
            (size_of::<StatxOut>(), 288),
            (size_of::<RetrieveOut>(), 32),
        ] {
            assert_eq!(ours, kernels);
        }
        // As long as WRITE's, so that the kernel can use the same memory.
        let [write, reply] = [Opcode::Write, Opcode::NotifyReply];
        assert_eq!(size_of_in(reply as u32, true), size_of_in(write as u32, true));
    }
}
