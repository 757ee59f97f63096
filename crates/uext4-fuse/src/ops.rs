//! What each request does: the engine call behind it, with results by value.
//!
//! [`crate::adapter`] turns these into replies. Each look-up that is answered is counted in the
//! node table before the reply leaves, because the forget for it may arrive at once.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use uext4::{
    AllocateMode, ErrorKind, FileKind, InodeRef, NewInode, OpenFile, Owner, Privs, RenameMode,
    SetAttr, SetTime, Volume,
};

use uext4_fuse_server::{Caller, Errno, Notifier, SETXATTR_ACL_KILL_SGID, abi};
use uext4_ondisk::InodeFlags;

use crate::convert;
use crate::failure::Answer;
use crate::file::FileTable;
use crate::leaving::Leaving;
use crate::node::NodeTable;

/// State behind a mount.
pub(crate) struct Ops {
    /// The volume served.
    pub(crate) volume: Volume,
    /// Inodes the kernel holds.
    pub(crate) nodes: NodeTable,
    /// Files the kernel has open.
    pub(crate) files: FileTable,
    /// Files without a name, for calls that find no room.
    pub(crate) leaving: Leaving,
    /// Tells the kernel what it has to ask again; there from the session's start on.
    pub(crate) notifier: OnceLock<Notifier>,
    /// The umask is ours to apply (`FUSE_DONT_MASK`, which goes with access control lists).
    pub(crate) apply_umask: AtomicBool,
}

/// Whether a caller is of a group. Requests have the first one only; the process table has the
/// others, and a process that cannot be seen there has none.
pub(crate) fn is_of(caller: Caller, group: u32) -> bool {
    // Other files there the kernel may hold back until the process is served; this one it does not.
    // The name of the process, which is in there, may be no UTF-8.
    let others = || fs::read(format!("/proc/{}/status", caller.pid));
    let is_among = |status: Vec<u8>| is_among_groups(&String::from_utf8_lossy(&status), group);
    caller.gid == group || others().is_ok_and(is_among)
}

/// The user and the group that a process accesses files as; `None` for one that cannot be seen.
fn accesses_as(pid: u32) -> Option<(u32, u32)> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    // A thread of the kernel that serves NFS has its client's rights, and shows its own.
    let is_of_kernel = status.lines().any(|line| line == "Kthread:\t1");
    access_ids(&status).filter(|_| !is_of_kernel)
}

/// The last of the four numbers in the lines of users and groups of a process's `status`.
fn access_ids(status: &str) -> Option<(u32, u32)> {
    let last = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(3)?.parse().ok()
    };
    Some((last("Uid:")?, last("Gid:")?))
}

/// A caller with the ids of the process itself, where the kernel gives none or those of a mount
/// with other owners. A process that cannot be seen is nobody's.
pub(crate) fn unmapped(caller: Caller) -> Caller {
    let (uid, gid) = accesses_as(caller.pid).unwrap_or((u32::MAX, u32::MAX));
    Caller { uid, gid, ..caller }
}

/// Whether the line of groups in a process's `status` has this one.
fn is_among_groups(status: &str, group: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|line| line.split_whitespace().any(|word| word.parse() == Ok(group)))
}

/// How bytes are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteWay {
    /// Through the engine's cache.
    Cached,
    /// Likewise, and the data is durable on return.
    CachedDsync,
    /// Likewise, and the data and every attribute are durable on return.
    CachedSync,
    /// Past it.
    Direct,
    /// Past it, and the data is durable on return (`O_DSYNC`, and `-o sync`). The kernel sends no
    /// FSYNC after a direct write: it leaves that to the flags of the request.
    DirectDsync,
    /// Past it, and the data and every attribute are durable on return (`O_SYNC`).
    DirectSync,
    /// Pages that programs made dirty before, written back by the kernel, which looks at the error
    /// only: an answer for a part of them would lose the rest.
    Late,
}

/// An answered look-up.
pub(crate) struct Found {
    /// Attributes, the node id among them.
    pub(crate) attr: abi::Attr,
    /// Generation of the inode number.
    pub(crate) generation: u64,
}

impl Found {
    pub(crate) fn new(volume: &Volume, inode: &InodeRef) -> Self {
        let attr = convert::attr_of_entry(&volume.attr(inode));
        Self { attr, generation: inode.generation().into() }
    }
}

/// The changes of one setattr request.
pub(crate) struct Change {
    /// Permission bits.
    pub(crate) mode: Option<u32>,
    /// Owner.
    pub(crate) uid: Option<u32>,
    /// Group.
    pub(crate) gid: Option<u32>,
    /// Length in bytes.
    pub(crate) size: Option<u64>,
    /// Access time.
    pub(crate) atime: Option<SetTime>,
    /// Modification time.
    pub(crate) mtime: Option<SetTime>,
    /// Change time, which the kernel keeps while it has a write-back cache.
    pub(crate) ctime: Option<uext4::Timestamp>,
    /// The kernel has found that the caller lacks `CAP_FSETID` (with a length).
    pub(crate) kills_set_id: bool,
}

impl Ops {
    /// Frees what was unlinked and is no longer used, so that its space is there for others.
    pub(crate) fn delete_unlinked(&self) {
        // A failure ends the journal, and every caller is told; the next mount deletes the rest.
        let _ = self.volume.delete_unlinked();
    }

    /// Does what needs room, again where a file that was removed before leaves room meanwhile. The
    /// work has changed nothing where it finds no room.
    pub(crate) fn with_room<T>(&self, mut work: impl FnMut() -> uext4::Result<T>) -> Answer<T> {
        let mut patience = self.leaving.patience(&self.volume);
        loop {
            match work() {
                Err(error) if *error.kind() == ErrorKind::NoSpace && patience.again() => {}
                other => return Ok(other?),
            }
        }
    }

    /// The inode of a node. The kernel only names nodes it has looked up; another is stale.
    pub(crate) fn node(&self, node: u64) -> Answer<InodeRef> {
        self.nodes.get(&self.volume, node)
    }

    /// The open file of a handle.
    pub(crate) fn file(&self, handle: u64) -> Answer<Arc<OpenFile>> {
        self.files.get(handle).ok_or_else(|| Errno::BADF.into())
    }

    /// Counts a look-up of `inode` and describes it.
    pub(crate) fn found(&self, inode: &InodeRef) -> Found {
        self.nodes.remember(inode);
        Found::new(&self.volume, inode)
    }

    pub(crate) fn lookup(&self, parent: u64, name: &[u8]) -> Answer<Found> {
        if name == b"." {
            return self.find_again(parent);
        }
        let dir = self.node(parent)?;
        Ok(self.found(&self.volume.lookup(&dir, name)?))
    }

    /// Whether names that differ by case are the same in a directory. One that cannot be had does
    /// not matter.
    pub(crate) fn folds_case(&self, dir: u64) -> bool {
        self.volume.layout().encoding.is_some()
            && self.node(dir).is_ok_and(|dir| {
                let flags = InodeFlags::from_bits_retain(self.volume.flags(&dir));
                flags.contains(InodeFlags::CASEFOLD)
            })
    }

    /// A node that somebody has kept the number of (open_by_handle_at(2), NFS), and that the kernel
    /// may have forgotten since. The kernel compares the generation.
    fn find_again(&self, node: u64) -> Answer<Found> {
        let inode = match self.node(node) {
            Ok(inode) => inode,
            Err(_) => {
                let ino = u32::try_from(node).map_err(|_| Errno::STALE)?;
                // Numbers below are of the file system's own files.
                if ino < self.volume.layout().first_ino.get() {
                    return Err(Errno::STALE.into());
                }
                self.volume.inode(uext4::Ino(ino)).map_err(|_| Errno::STALE)?
            }
        };
        if inode.attributes().links == 0 {
            return Err(Errno::STALE.into());
        }
        Ok(self.found(&inode))
    }

    pub(crate) fn getattr(&self, node: u64) -> Answer<abi::Attr> {
        Ok(convert::attr_of_inode(&self.volume.attr(&self.node(node)?)))
    }

    /// Applies a setattr request.
    ///
    /// With `FUSE_HANDLE_KILLPRIV_V2` capabilities and set-id bits are ours to remove: capabilities
    /// on truncation and when a file changes owner, set-id bits then, and on truncation when the
    /// caller lacks `CAP_FSETID`, which the kernel says.
    pub(crate) fn setattr(&self, caller: Caller, node: u64, change: &Change) -> Answer<abi::Attr> {
        let inode = self.node(node)?;
        let chown = change.uid.is_some() || change.gid.is_some();
        let kill_priv = match change.size {
            _ if inode.kind() == FileKind::Directory => None,
            _ if chown && caller.uid == 0 => Some(Privs::All),
            _ if chown => Some(self.privs_at(&inode, caller, Privs::All)),
            Some(_) if change.kills_set_id => Some(self.privs_at(&inode, caller, Privs::All)),
            Some(_) => Some(Privs::Capabilities),
            None => None,
        };
        let change = SetAttr {
            // The mask leaves 12 bits, so the cast loses nothing.
            mode: change.mode.map(|mode| (mode & 0o7777) as u16),
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            atime: change.atime,
            mtime: change.mtime,
            ctime: change.ctime,
            kill_priv,
            ..SetAttr::default()
        };
        Ok(convert::attr_of_inode(&self.volume.set_attr(&inode, &change)?))
    }

    /// Makes a file of `kind`, not a symlink. `mode` is the caller's mode and umask.
    pub(crate) fn make(
        &self,
        owner: Owner,
        parent: u64,
        name: &[u8],
        kind: FileKind,
        mode: (u32, u32),
        rdev: u32,
    ) -> Answer<InodeRef> {
        let dir = self.node(parent)?;
        let mode = self.masked(&dir, mode)?;
        let (major, minor) = convert::decode_device(rdev);
        let new = NewInode {
            kind,
            mode: (mode & 0o7777) as u16,
            owner,
            rdev: uext4::Device { major, minor },
        };
        self.with_room(|| self.volume.create(&dir, name, &new))
    }

    /// Makes a regular file without a name, as for a file in the directory `dir`.
    pub(crate) fn make_unlinked(
        &self,
        owner: Owner,
        dir: u64,
        mode: (u32, u32),
    ) -> Answer<InodeRef> {
        let dir = self.node(dir)?;
        let mode = (self.masked(&dir, mode)? & 0o7777) as u16;
        let (kind, rdev) = (FileKind::Regular, uext4::Device::default());
        let new = NewInode { kind, mode, owner, rdev };
        self.with_room(|| self.volume.create_unlinked(&dir, &new))
    }

    /// The mode that a new file starts from. The kernel has applied the umask, unless lists are
    /// enforced: then it applies only where the directory has no default list.
    fn masked(&self, dir: &InodeRef, (mode, umask): (u32, u32)) -> Answer<u32> {
        if !self.apply_umask.load(Ordering::Relaxed) {
            return Ok(mode);
        }
        match self.volume.xattr_get(dir, b"system.posix_acl_default") {
            Ok(_) => Ok(mode),
            Err(error) if *error.kind() == ErrorKind::NoXattr => Ok(mode & !umask),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn symlink(
        &self,
        owner: Owner,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Found> {
        let dir = self.node(parent)?;
        let made = self.with_room(|| self.volume.symlink(&dir, name, target, owner))?;
        Ok(self.found(&made))
    }

    pub(crate) fn link(&self, node: u64, parent: u64, name: &[u8]) -> Answer<Found> {
        let (inode, dir) = (self.node(node)?, self.node(parent)?);
        self.with_room(|| self.volume.link(&inode, &dir, name))?;
        Ok(self.found(&inode))
    }

    /// Renames. A whiteout, which an overlay leaves where a name is to hide one below, is
    /// `owner`'s.
    pub(crate) fn rename(
        &self,
        owner: Owner,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Answer<()> {
        const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => RenameMode::Whiteout(owner),
            WHITEOUT_NOREPLACE => RenameMode::WhiteoutNoReplace(owner),
            _ => return Err(Errno::INVAL.into()),
        };
        let (dir, new_dir) = (self.node(from.0)?, self.node(to.0)?);
        self.keeping(&new_dir, to.1, || self.volume.rename(&dir, from.1, &new_dir, to.1, mode))
    }

    pub(crate) fn unlink(&self, parent: u64, name: &[u8]) -> Answer<()> {
        let dir = self.node(parent)?;
        self.keeping(&dir, name, || self.volume.unlink(&dir, name))
    }

    pub(crate) fn rmdir(&self, parent: u64, name: &[u8]) -> Answer<()> {
        let dir = self.node(parent)?;
        self.keeping(&dir, name, || self.volume.rmdir(&dir, name))
    }

    /// Does what may take the last link of what `name` leads to. The kernel does nothing else with
    /// that name meanwhile, and may go on using the inode.
    fn keeping(
        &self,
        dir: &InodeRef,
        name: &[u8],
        change: impl FnMut() -> uext4::Result<()>,
    ) -> Answer<()> {
        let named = self.volume.lookup(dir, name);
        self.with_room(change)?;
        if let Ok(inode) = named {
            self.nodes.keep_unlinked(inode);
            // If the kernel does not hold it.
            self.delete_unlinked();
        }
        Ok(())
    }

    /// Does what changes the content of a node's file, for a caller who removes `privs` by that.
    /// The kernel leaves these to us and goes on by the mode that it knows, so it is told to ask
    /// again before it has its answer.
    pub(crate) fn changing<T>(
        &self,
        node: u64,
        caller: Caller,
        privs: Privs,
        work: impl FnOnce() -> T,
    ) -> T {
        let privs = match self.node(node) {
            Ok(inode) if privs == Privs::All => self.privs_at(&inode, caller, privs),
            _ => privs,
        };
        let (answer, removed) = uext4::removing_privs(privs, work);
        if let (true, Some(notifier)) = (removed, self.notifier.get()) {
            // An error: it knows no such inode any more.
            let _ = notifier.forget_attributes(node);
        }
        answer
    }

    /// Takes the set-group-id bit away after an access list was set by a caller who is not of the
    /// file's group, if the flags of a SETXATTR say so.
    pub(crate) fn drop_set_gid(&self, inode: &InodeRef, flags: u32) -> Answer<()> {
        let mode = self.volume.attr(inode).mode;
        if flags & SETXATTR_ACL_KILL_SGID == 0 || mode & 0o2000 == 0 {
            return Ok(());
        }
        let change = SetAttr { mode: Some(mode & !0o2000), ..SetAttr::default() };
        self.volume.set_attr(inode, &change)?;
        Ok(())
    }

    /// What a caller who removes `privs` removes of this file.
    fn privs_at(&self, inode: &InodeRef, caller: Caller, privs: Privs) -> Privs {
        match self.volume.bare_set_gid(inode) {
            Some(group) if privs == Privs::All && !is_of(caller, group) => Privs::AllOutsideGroup,
            _ => privs,
        }
    }

    /// Opens a node, with the flags of open(2). What may not be written, or only be appended to, is
    /// refused here, as by the kernel's ext4: its client looks at no inode flags. What a mapping
    /// writes to a sealed file would be in the kernel's cache for everybody.
    pub(crate) fn open(&self, node: u64, flags: u32) -> Answer<u64> {
        let inode = self.node(node)?;
        let has = InodeFlags::from_bits_retain(self.volume.flags(&inode));
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        let only_appends = flags & (libc::O_APPEND | libc::O_TRUNC) as u32 == libc::O_APPEND as u32;
        let is_refused = has.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY) && writes
            || has.contains(InodeFlags::APPEND) && writes && !only_appends;
        if is_refused {
            return Err(Errno::PERM.into());
        }
        Ok(self.files.insert(self.volume.open_file(&inode)?))
    }

    /// Writes `data`; less than all of it only where the rest finds no room or fails, and the
    /// kernel tells the program.
    pub(crate) fn write(
        &self,
        handle: u64,
        offset: u64,
        data: &[u8],
        way: WriteWay,
    ) -> Answer<u32> {
        let file = self.file(handle)?;
        let mut done = 0;
        while done < data.len() {
            let (at, rest) = (offset + done as u64, &data[done..]);
            let written = self.with_room(|| match way {
                WriteWay::Direct | WriteWay::DirectSync => file.write_direct_at(at, rest),
                WriteWay::DirectDsync => file.write_direct_durably_at(at, rest),
                WriteWay::Cached
                | WriteWay::CachedDsync
                | WriteWay::CachedSync
                | WriteWay::Late => file.write_at(at, rest),
            });
            match written {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(_) if done > 0 && way != WriteWay::Late => break,
                Err(failure) => return Err(failure),
            }
        }
        match way {
            WriteWay::DirectSync | WriteWay::CachedSync => file.sync(false)?,
            WriteWay::CachedDsync => file.sync(true)?,
            _ => {}
        }
        u32::try_from(done).map_err(|_| Errno::IO.into())
    }

    pub(crate) fn fallocate(&self, handle: u64, offset: u64, len: u64, mode: u32) -> Answer<()> {
        let mode = mode.cast_signed();
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let mode = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => AllocateMode::Allocate { keep_size },
            // fallocate(2) demands KEEP_SIZE with it; the kernel has checked.
            libc::FALLOC_FL_PUNCH_HOLE => AllocateMode::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => AllocateMode::ZeroRange { keep_size },
            // The FUSE clients of kernels so far refuse the rest themselves. One that lets them
            // through has to see to its page cache first, as it does for the modes above.
            libc::FALLOC_FL_UNSHARE_RANGE => AllocateMode::UnshareRange { keep_size },
            libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => AllocateMode::CollapseRange,
            libc::FALLOC_FL_INSERT_RANGE if !keep_size => AllocateMode::InsertRange,
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        let file = self.file(handle)?;
        match mode {
            // It goes in parts: what is moved would be moved again.
            AllocateMode::InsertRange | AllocateMode::CollapseRange => {
                Ok(file.allocate(mode, offset, len)?)
            }
            _ => self.with_room(|| file.allocate(mode, offset, len)),
        }
    }
}

/// Asks the engine for the next data or hole.
pub(crate) fn seek(file: &OpenFile, offset: u64, whence: u32) -> Answer<u64> {
    // The protocol's number is lseek(2)'s, which may be negative.
    let offset = i64::try_from(offset).map_err(|_| Errno::NXIO)?.cast_unsigned();
    match whence.cast_signed() {
        libc::SEEK_DATA => Ok(file.seek_data(offset)?),
        libc::SEEK_HOLE => Ok(file.seek_hole(offset)?),
        // The kernel does the others itself.
        _ => Err(Errno::INVAL.into()),
    }
}

/// What a change of content by a user removes, where the kernel does not say whether the user has
/// `CAP_FSETID`.
pub(crate) fn privs_of(uid: u32) -> Privs {
    if uid == 0 { Privs::Capabilities } else { Privs::All }
}

/// Who makes something.
pub(crate) fn owner(caller: Caller) -> Owner {
    Owner { uid: caller.uid, gid: caller.gid }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: the rights of a set-id program's user, or of the one who runs it.
    #[test]
    fn a_process_accesses_files_by_the_last_of_its_ids() {
        let status = "Name:\tGid: 9\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t5 9 \n";
        assert_eq!(access_ids(status), Some((4, 8)));
        assert_eq!(access_ids("Uid:\t1\t2\t3\nGid:\t5\t6\t7\t8\n"), None);
        assert!(is_among_groups(status, 9) && !is_among_groups(status, 8));
        let own = Caller { uid: u32::MAX, gid: u32::MAX, pid: std::process::id() };
        assert_eq!(unmapped(own).uid, rustix::process::geteuid().as_raw());
        assert_eq!(unmapped(Caller { pid: 0, ..own }).uid, u32::MAX);
    }
}
