//! What a file system answers: one synchronous call for each kind of request.

use rustix::io::Errno;

use crate::abi::{
    Attr, AttrOut, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, IoctlIn, LseekIn, MknodIn,
    OpenOut, ReadIn, ReleaseIn, SetattrIn, StatfsOut, StatxIn, StatxOut, WriteIn,
};
use crate::connection::Notifier;
use crate::dir_buffer::DirBuffer;
use crate::flags::InitFlags;

/// Result of a request; an error is what the program's system call fails with.
pub type Answer<T> = Result<T, Errno>;

/// The process that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id. `u32::MAX` where the kernel does not say (idmapped mounts).
    pub uid: u32,
    /// File-system group id, likewise.
    pub gid: u32,
    /// Process id as this process sees it; 0 where it sees none, and for the kernel itself.
    pub pid: u32,
}

/// What the kernel offers when a session begins.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Minor version of the protocol that it speaks.
    pub minor: u32,
    /// What it can.
    pub flags: InitFlags,
    /// Most bytes that it reads ahead.
    pub max_readahead: u32,
}

/// What a file system wants; flags that were not offered are left out.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// See [`InitFlags`]. The server adds those that it needs itself.
    pub flags: InitFlags,
    /// Most bytes of a WRITE, and of a READ: 4 KiB to 1 MiB, whole pages.
    pub max_write: u32,
    /// Most bytes to read ahead.
    pub max_readahead: u32,
    /// Most requests that nobody waits for (reading ahead, writing back) at a time.
    pub max_background: u16,
    /// Time stamps are whole multiples of so many nanoseconds.
    pub time_gran: u32,
}

/// A file system. All calls may come from several threads at once.
///
/// A call that may sleep calls [`uext4_device::about_to_sleep`] before it does: the thread then
/// hands the kernel's queue to another one. Calls that sleep without it make all others wait.
///
/// What is not implemented is answered `ENOSYS`, which the kernel takes as "never ask again" for
/// many kinds.
#[allow(unused_variables, reason = "default bodies")]
pub trait Handler: Send + Sync + 'static {
    /// The session begins. `notifier` serves until it ends; no other call comes before the answer.
    fn init(&self, offer: &Offer, notifier: &Notifier) -> Wanted;

    /// The session has ended, and no call is under way.
    fn end(&self) {}

    /// Inode of a name; node 0 as an answer is "no such name", to be remembered.
    fn lookup(&self, caller: Caller, parent: u64, name: &[u8]) -> Answer<EntryOut> {
        Err(Errno::NOSYS)
    }

    /// The kernel takes back so many look-ups of these nodes: a pair for each node.
    fn forget(&self, nodes: &mut dyn Iterator<Item = (u64, u64)>) {}

    /// Attributes.
    fn getattr(&self, caller: Caller, node: u64) -> Answer<AttrOut> {
        Err(Errno::NOSYS)
    }

    /// Sets attributes ([`crate::SetattrFlags`]).
    fn setattr(&self, caller: Caller, node: u64, change: &SetattrIn) -> Answer<AttrOut> {
        Err(Errno::NOSYS)
    }

    /// Target of a symbolic link.
    fn readlink(&self, caller: Caller, node: u64) -> Answer<Vec<u8>> {
        Err(Errno::NOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(&self, caller: Caller, parent: u64, name: &[u8], to: &[u8]) -> Answer<EntryOut> {
        Err(Errno::NOSYS)
    }

    /// Makes a file that is neither directory nor symbolic link.
    fn mknod(&self, caller: Caller, parent: u64, name: &[u8], new: &MknodIn) -> Answer<EntryOut> {
        Err(Errno::NOSYS)
    }

    /// Makes a directory. `mode` is the mode and the umask.
    fn mkdir(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: (u32, u32),
    ) -> Answer<EntryOut> {
        Err(Errno::NOSYS)
    }

    /// Removes a name.
    fn unlink(&self, caller: Caller, parent: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Removes a directory.
    fn rmdir(&self, caller: Caller, parent: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Renames; the flags are those of renameat2(2).
    fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Makes another name.
    fn link(&self, caller: Caller, node: u64, parent: u64, name: &[u8]) -> Answer<EntryOut> {
        Err(Errno::NOSYS)
    }

    /// Opens a file, with the flags of open(2).
    fn open(&self, caller: Caller, node: u64, flags: u32) -> Answer<OpenOut> {
        Err(Errno::NOSYS)
    }

    /// Makes a regular file and opens it.
    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: &CreateIn,
    ) -> Answer<(EntryOut, OpenOut)> {
        Err(Errno::NOSYS)
    }

    /// Makes a regular file without a name, in a directory's file system, and opens it.
    fn tmpfile(&self, caller: Caller, dir: u64, new: &CreateIn) -> Answer<(EntryOut, OpenOut)> {
        // What O_TMPFILE fails with where a file system has none.
        Err(Errno::OPNOTSUPP)
    }

    /// Reads at most as many bytes as `out` has, which are `read.size`; fewer at the end only.
    fn read(&self, caller: Caller, node: u64, read: &ReadIn, out: &mut [u8]) -> Answer<usize> {
        Err(Errno::NOSYS)
    }

    /// Writes; returns how many bytes.
    fn write(&self, caller: Caller, node: u64, write: &WriteIn, data: &[u8]) -> Answer<u32> {
        Err(Errno::NOSYS)
    }

    /// close(2).
    fn flush(&self, caller: Caller, node: u64, handle: u64) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// The last user of an open file is gone. Nobody looks at the answer.
    fn release(&self, caller: Caller, node: u64, release: &ReleaseIn) -> Answer<()> {
        Ok(())
    }

    /// Makes a file durable.
    fn fsync(&self, caller: Caller, node: u64, handle: u64, data_only: bool) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Opens a directory.
    fn opendir(&self, caller: Caller, node: u64, flags: u32) -> Answer<OpenOut> {
        Err(Errno::NOSYS)
    }

    /// Lists names after the cursor `read.offset`.
    fn readdir(
        &self,
        caller: Caller,
        node: u64,
        read: &ReadIn,
        list: &mut DirBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Lists names with attributes; each but `.` and `..` counts as a look-up.
    fn readdirplus(
        &self,
        caller: Caller,
        node: u64,
        read: &ReadIn,
        list: &mut DirBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Closes a directory.
    fn releasedir(&self, caller: Caller, node: u64, handle: u64) -> Answer<()> {
        Ok(())
    }

    /// Makes a directory durable.
    fn fsyncdir(&self, caller: Caller, node: u64, handle: u64, data_only: bool) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// statfs(2).
    fn statfs(&self, caller: Caller, node: u64) -> Answer<StatfsOut> {
        Err(Errno::NOSYS)
    }

    /// Sets an extended attribute; `flags` are those of setxattr(2), `more` those of the protocol
    /// ([`crate::SETXATTR_ACL_KILL_SGID`]).
    fn setxattr(
        &self,
        caller: Caller,
        node: u64,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        more: u32,
    ) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Value of an extended attribute.
    fn getxattr(&self, caller: Caller, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        Err(Errno::NOSYS)
    }

    /// Names of extended attributes, each ended by a zero byte.
    fn listxattr(&self, caller: Caller, node: u64) -> Answer<Vec<u8>> {
        Err(Errno::NOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, caller: Caller, node: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// access(2), where the kernel does not check permissions itself.
    fn access(&self, caller: Caller, node: u64, mask: u32) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// fallocate(2).
    fn fallocate(&self, caller: Caller, node: u64, range: &FallocateIn) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Next data or hole.
    fn lseek(&self, caller: Caller, node: u64, seek: &LseekIn) -> Answer<u64> {
        Err(Errno::NOSYS)
    }

    /// copy_file_range(2); returns how many bytes.
    fn copy_file_range(&self, caller: Caller, node: u64, copy: &CopyFileRangeIn) -> Answer<u64> {
        Err(Errno::NOSYS)
    }

    /// ioctl(2) with bytes to and from it; returns the call's result and the bytes. An error
    /// `ENOTTY` is "no such request".
    fn ioctl(
        &self,
        caller: Caller,
        node: u64,
        ioctl: &IoctlIn,
        data: &[u8],
    ) -> Answer<(i32, Vec<u8>)> {
        Err(Errno::NOTTY)
    }

    /// statx(2).
    fn statx(&self, caller: Caller, node: u64, statx: &StatxIn) -> Answer<StatxOut> {
        Err(Errno::NOSYS)
    }

    /// syncfs(2) and sync(2): all that was written becomes durable.
    fn syncfs(&self, caller: Caller) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// The kernel unmounts and waits for the answer (block devices as sources alone).
    fn destroy(&self) {}
}

impl AttrOut {
    /// An answer that the kernel may keep for `valid`.
    #[must_use]
    pub fn new(valid: std::time::Duration, attr: Attr) -> Self {
        let (attr_valid, attr_valid_nsec) = (valid.as_secs(), valid.subsec_nanos());
        Self { attr_valid, attr_valid_nsec, dummy: 0, attr }
    }
}
