//! The requests of the FUSE protocol, each handed to [`Ops`](crate::ops::Ops) and answered.

mod abilities;
mod open_flags;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use uext4::config::Atime;
use uext4::{FileKind, OpenFile, Privs};
use uext4_fuse_server::abi::{
    AttrOut, CreateIn, Dirent, EntryOut, FallocateIn, IoctlIn, LseekIn, MknodIn, OpenOut, ReadIn,
    ReleaseIn, SetattrIn, StatfsOut, StatxIn, StatxOut, WriteIn,
};
use uext4_fuse_server::{
    Answer, Caller, DirBuffer, Errno, Handler, Notifier, Offer, OpenFlags, SetattrFlags, Wanted,
    WriteFlags,
};

use crate::convert;
use crate::failure::Failure;
use crate::listing;
use crate::ops::{self, Change, WriteWay};
use crate::question::Question;
use crate::server::Server;
use crate::xattr;
use open_flags::{can_write, is_direct, open_flags};

impl Handler for Server {
    fn init(&self, offer: &Offer, notifier: &Notifier) -> Wanted {
        // Called once a mount.
        let _ = self.ops.notifier.set(notifier.clone());
        abilities::wanted(offer, self)
    }

    fn end(&self) {
        // Unlinked files that were open are freed here.
        self.ops.files.clear();
        self.ops.nodes.clear();
    }

    fn lookup(&self, _caller: Caller, parent: u64, name: &[u8]) -> Answer<EntryOut> {
        match self.ops.lookup(parent, name) {
            // Node 0 is the absence of the name, which the kernel then caches.
            Err(failure) if failure.is_not_found() && self.keeps_absences() => {
                let (entry_valid, entry_valid_nsec) =
                    (self.negative_timeout.as_secs(), self.negative_timeout.subsec_nanos());
                Ok(EntryOut { entry_valid, entry_valid_nsec, ..EntryOut::default() })
            }
            answer => Ok(self.entry(parent, answer?)),
        }
    }

    fn forget(&self, nodes: &mut dyn Iterator<Item = (u64, u64)>) {
        let mut has_let_go = false;
        for (node, lookups) in nodes {
            has_let_go |= self.ops.nodes.forget(node, lookups);
        }
        if has_let_go {
            self.ops.delete_unlinked();
        }
    }

    fn getattr(&self, _caller: Caller, node: u64) -> Answer<AttrOut> {
        Ok(self.attributes(self.ops.getattr(node)?))
    }

    fn setattr(&self, caller: Caller, node: u64, change: &SetattrIn) -> Answer<AttrOut> {
        let caller = self.credentials(caller);
        let has = |flag| SetattrFlags::from_bits_retain(change.valid).contains(flag);
        let time = |flag, now, secs: u64, nanos| match () {
            () if has(now) => Some(uext4::SetTime::Now),
            () if has(flag) => Some(uext4::SetTime::At(convert::timestamp(secs, nanos))),
            () => None,
        };
        let (atime, mtime) = (change.atime, change.mtime);
        let kills = has(SetattrFlags::KILL_SUIDGID);
        let change = Change {
            mode: has(SetattrFlags::MODE).then_some(change.mode),
            uid: has(SetattrFlags::UID).then_some(change.uid),
            gid: has(SetattrFlags::GID).then_some(change.gid),
            size: has(SetattrFlags::SIZE).then_some(change.size),
            atime: time(SetattrFlags::ATIME, SetattrFlags::ATIME_NOW, atime, change.atimensec),
            mtime: time(SetattrFlags::MTIME, SetattrFlags::MTIME_NOW, mtime, change.mtimensec),
            ctime: has(SetattrFlags::CTIME)
                .then(|| convert::timestamp(change.ctime, change.ctimensec)),
            kills_set_id: kills,
        };
        self.for_credentials(caller, || {
            Ok(self.attributes(self.ops.setattr(caller, node, &change)?))
        })
    }

    fn readlink(&self, _caller: Caller, node: u64) -> Answer<Vec<u8>> {
        let inode = self.ops.node(node)?;
        Ok(self.ops.volume.read_link(&inode).map_err(Failure::from)?)
    }

    fn symlink(&self, caller: Caller, parent: u64, name: &[u8], to: &[u8]) -> Answer<EntryOut> {
        self.for_caller(caller, || {
            Ok(self.entry(parent, self.ops.symlink(ops::owner(caller), parent, name, to)?))
        })
    }

    fn mknod(&self, caller: Caller, parent: u64, name: &[u8], new: &MknodIn) -> Answer<EntryOut> {
        let kind = convert::kind_of_mode(new.mode).ok_or(Errno::INVAL)?;
        self.make(caller, parent, name, kind, (new.mode, new.umask), new.rdev)
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: (u32, u32),
    ) -> Answer<EntryOut> {
        self.make(caller, parent, name, FileKind::Directory, mode, 0)
    }

    fn unlink(&self, _caller: Caller, parent: u64, name: &[u8]) -> Answer<()> {
        Ok(self.ops.unlink(parent, name)?)
    }

    fn rmdir(&self, _caller: Caller, parent: u64, name: &[u8]) -> Answer<()> {
        Ok(self.ops.rmdir(parent, name)?)
    }

    fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Answer<()> {
        self.for_caller(caller, || Ok(self.ops.rename(ops::owner(caller), from, to, flags)?))
    }

    fn link(&self, caller: Caller, node: u64, parent: u64, name: &[u8]) -> Answer<EntryOut> {
        self.for_caller(caller, || Ok(self.entry(parent, self.ops.link(node, parent, name)?)))
    }

    fn open(&self, _caller: Caller, node: u64, flags: u32) -> Answer<OpenOut> {
        if self.opens_nothing() {
            return Err(Errno::NOSYS);
        }
        let handle = self.ops.open(node, flags)?;
        if can_write(flags) {
            self.ops.nodes.add_writer(node);
        }
        Ok(OpenOut { fh: handle, open_flags: self.open_flags(flags).bits(), backing_id: 0 })
    }

    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: &CreateIn,
    ) -> Answer<(EntryOut, OpenOut)> {
        let start = Instant::now();
        let (owner, mode) = (ops::owner(caller), (new.mode, new.umask));
        self.for_caller(caller, || {
            let inode = self.ops.make(owner, parent, name, FileKind::Regular, mode, 0)?;
            self.opened(parent, &inode, start, new.flags)
        })
    }

    fn tmpfile(&self, caller: Caller, dir: u64, new: &CreateIn) -> Answer<(EntryOut, OpenOut)> {
        let start = Instant::now();
        let (owner, mode) = (ops::owner(caller), (new.mode, new.umask));
        self.for_caller(caller, || {
            let inode = self.ops.make_unlinked(owner, dir, mode)?;
            self.opened(dir, &inode, start, new.flags)
        })
    }

    fn read(&self, _caller: Caller, node: u64, read: &ReadIn, out: &mut [u8]) -> Answer<usize> {
        let file = self.file(node, read.fh)?;
        let done = as_opened(read.flags, || match is_direct(read.flags) {
            true => file.read_direct_at(read.offset, out),
            false => file.read_at(read.offset, out),
        });
        Ok(done.map_err(Failure::from)?)
    }

    fn write(&self, caller: Caller, node: u64, write: &WriteIn, data: &[u8]) -> Answer<u32> {
        let caller = self.credentials(caller);
        let flags = WriteFlags::from_bits_retain(write.write_flags);
        // Pages that the kernel writes back are no direct write, whoever made them dirty. Nor do
        // they remove rights: the kernel did when they became dirty, and new ones may have come.
        let is_cached = flags.contains(WriteFlags::CACHE);
        let has = |wanted: i32| write.flags as i32 & wanted == wanted;
        let way = match is_cached {
            true => WriteWay::Late,
            false => self.write_way(is_direct(write.flags), has(libc::O_DSYNC), has(libc::O_SYNC)),
        };
        let privs = match flags.contains(WriteFlags::KILL_SUIDGID) {
            true => Privs::All,
            false => Privs::Capabilities,
        };
        self.for_credentials(caller, || {
            let work = || self.ops.write(write.fh, write.offset, data, way);
            Ok(match is_cached {
                true => work(),
                false => self.ops.changing(node, caller, privs, work),
            }?)
        })
    }

    // flush: the kernel does not ask again.

    fn release(&self, _caller: Caller, node: u64, release: &ReleaseIn) -> Answer<()> {
        if can_write(release.flags) {
            self.ops.nodes.remove_writer(node);
        }
        let file = self.ops.files.remove(release.fh);
        // Nobody waits for a release. A failure of the writeback stays with the inode for the one
        // that syncs it.
        if let Some(file) = file.filter(|_| can_write(release.flags)) {
            let _ = file.flush();
        }
        self.ops.delete_unlinked();
        Ok(())
    }

    fn fsync(&self, _caller: Caller, node: u64, handle: u64, data_only: bool) -> Answer<()> {
        let file = self.file(node, handle)?;
        Ok(file.sync(data_only).map_err(Failure::from)?)
    }

    /// Listings carry their own position. The kernel takes ENOSYS as "never ask again" and caches
    /// listings; an older one without `FUSE_NO_OPENDIR_SUPPORT` takes it likewise since 5.1. It
    /// caches none of a directory that was opened without a flag.
    fn opendir(&self, _caller: Caller, _node: u64, _flags: u32) -> Answer<OpenOut> {
        match self.every_access_counts(FileKind::Directory) {
            true => Ok(OpenOut::default()),
            false => Err(Errno::NOSYS),
        }
    }

    fn readdir(
        &self,
        _caller: Caller,
        node: u64,
        read: &ReadIn,
        list: &mut DirBuffer<'_>,
    ) -> Answer<()> {
        let add = |entry: &listing::Entry| {
            let (ino, kind) = (entry.ino.get().into(), convert::dirent_type(entry.kind));
            !list.add(Dirent { ino, off: entry.next, namelen: 0, kind }, &entry.name)
        };
        Ok(as_opened(read.flags, || self.list(node, read.offset, listing::NAMES, add))?)
    }

    fn readdirplus(
        &self,
        _caller: Caller,
        node: u64,
        read: &ReadIn,
        list: &mut DirBuffer<'_>,
    ) -> Answer<()> {
        let add = |entry: &listing::Entry| self.add_plus(node, entry, list);
        let count = listing::WITH_ATTRIBUTES;
        Ok(as_opened(read.flags, || self.list(node, read.offset, count, add))?)
    }

    fn fsyncdir(&self, _caller: Caller, _node: u64, _handle: u64, _data_only: bool) -> Answer<()> {
        // sync(2) does not reach every mount; this is the way to make the volume durable.
        Ok(self.ops.volume.sync().map_err(Failure::from)?)
    }

    fn syncfs(&self, _caller: Caller) -> Answer<()> {
        Ok(self.ops.volume.sync().map_err(Failure::from)?)
    }

    fn destroy(&self) {
        // What cannot be written is told when the volume is closed.
        let _ = self.ops.volume.sync();
    }

    fn statfs(&self, _caller: Caller, _node: u64) -> Answer<StatfsOut> {
        self.ops.leaving.settle(&self.ops.volume);
        let s = self.ops.volume.stat_fs();
        Ok(StatfsOut {
            blocks: s.blocks,
            bfree: s.blocks_free,
            bavail: s.blocks_available,
            files: s.inodes,
            ffree: s.inodes_free,
            bsize: s.block_size,
            namelen: s.name_max,
            frsize: s.block_size,
            ..StatfsOut::default()
        })
    }

    fn setxattr(
        &self,
        caller: Caller,
        node: u64,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        more: u32,
    ) -> Answer<()> {
        let mode = xattr::mode(flags)?;
        self.for_caller(caller, || {
            let inode = self.ops.node(node)?;
            self.ops.with_room(|| self.ops.volume.xattr_set(&inode, name, value, mode))?;
            Ok(self.ops.drop_set_gid(&inode, more)?)
        })
    }

    fn getxattr(&self, caller: Caller, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        if let Some(question) = Question::of_attribute(node, name) {
            return Ok(self.tell(question, self.credentials(caller))?);
        }
        if self.has_no_attributes {
            // The kernel takes it as "never ask again", for all files and names.
            return Err(Errno::NOSYS);
        }
        let inode = self.ops.node(node)?;
        Ok(self.ops.volume.xattr_get(&inode, name).map_err(Failure::from)?)
    }

    fn listxattr(&self, caller: Caller, node: u64) -> Answer<Vec<u8>> {
        let caller = self.credentials(caller);
        let inode = self.ops.node(node)?;
        Ok(xattr::list(&self.ops.volume, &inode, caller.uid == 0)?)
    }

    fn removexattr(&self, _caller: Caller, node: u64, name: &[u8]) -> Answer<()> {
        let inode = self.ops.node(node)?;
        Ok(self.ops.volume.xattr_remove(&inode, name).map_err(Failure::from)?)
    }

    /// Asked only where the kernel does not check: everybody there is root of the image, who may do
    /// all but run a file that nobody may run.
    fn access(&self, _caller: Caller, node: u64, mask: u32) -> Answer<()> {
        let attr = self.ops.getattr(node)?;
        let is_file = attr.mode & libc::S_IFMT == libc::S_IFREG;
        let wants_to_run = mask as i32 & libc::X_OK != 0;
        match wants_to_run && is_file && attr.mode & 0o111 == 0 {
            true => Err(Errno::ACCESS),
            false => Ok(()),
        }
    }

    fn fallocate(&self, caller: Caller, node: u64, range: &FallocateIn) -> Answer<()> {
        let caller = self.credentials(caller);
        // The kernel leaves the bits to us and does not say whose call it is.
        let privs = ops::privs_of(caller.uid);
        let FallocateIn { fh, offset, length, mode, .. } = *range;
        self.for_credentials(caller, || {
            let work = || self.ops.fallocate(fh, offset, length, mode);
            Ok(self.ops.changing(node, caller, privs, work)?)
        })
    }

    fn lseek(&self, _caller: Caller, node: u64, seek: &LseekIn) -> Answer<u64> {
        let file = self.file(node, seek.fh)?;
        if self.ops.nodes.has_writers(node) && !self.write_back(node) {
            return self.seek_unwritten(node, seek);
        }
        Ok(ops::seek(&file, seek.offset, seek.whence)?)
    }

    fn ioctl(
        &self,
        caller: Caller,
        node: u64,
        ioctl: &IoctlIn,
        data: &[u8],
    ) -> Answer<(i32, Vec<u8>)> {
        Ok((0, self.control(self.credentials(caller), node, ioctl.cmd, data)?))
    }

    fn statx(&self, _caller: Caller, node: u64, _statx: &StatxIn) -> Answer<StatxOut> {
        let inode = self.ops.node(node)?;
        let stat = convert::statx(&self.ops.volume.attr(&inode));
        let (attr_valid, attr_valid_nsec) =
            (self.attr_timeout.as_secs(), self.attr_timeout.subsec_nanos());
        Ok(StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat })
    }
}

/// Reads as a file was opened: without a trace where its flags say so.
fn as_opened<T>(flags: u32, work: impl FnOnce() -> T) -> T {
    match flags & libc::O_NOATIME as u32 {
        0 => work(),
        _ => uext4::without_access_times(work),
    }
}

impl Server {
    /// Whether each read of a file of that kind changes its access time: then the kernel is to keep
    /// nothing that programs would read without our knowing.
    pub(crate) fn every_access_counts(&self, kind: FileKind) -> bool {
        let options = self.ops.volume.options();
        let is_exempt = kind == FileKind::Directory && options.nodiratime;
        options.atime == Atime::Strict && !is_exempt && !self.ops.volume.read_only()
    }

    /// How a write of a program is done. The kernel syncs by a request of its own where it writes
    /// through its cache, and leaves that to us where it does not.
    fn write_way(&self, is_direct: bool, dsync: bool, sync: bool) -> WriteWay {
        let past_cache = is_direct || self.every_access_counts(FileKind::Regular);
        match (is_direct, past_cache && dsync, past_cache && sync) {
            (true, _, true) => WriteWay::DirectSync,
            (true, true, false) => WriteWay::DirectDsync,
            (true, false, false) => WriteWay::Direct,
            (false, _, true) => WriteWay::CachedSync,
            (false, true, false) => WriteWay::CachedDsync,
            (false, false, false) => WriteWay::Cached,
        }
    }

    fn open_flags(&self, flags: u32) -> OpenFlags {
        let maps_direct = self.maps_direct.load(Ordering::Relaxed);
        open_flags(flags, maps_direct, self.every_access_counts(FileKind::Regular))
    }

    /// Whether files are read without being opened first: on a volume that is read-only for good no
    /// open file has an error to tell, and the kernel saves OPEN and RELEASE.
    fn opens_nothing(&self) -> bool {
        self.no_open.load(Ordering::Relaxed)
    }

    fn file(&self, node: u64, handle: u64) -> Result<Arc<OpenFile>, Failure> {
        if self.opens_nothing() {
            let inode = self.ops.node(node)?;
            return Ok(Arc::new(self.ops.volume.open_file(&inode)?));
        }
        self.ops.file(handle)
    }

    /// Does the work of a request that may need blocks: those reserved for root are not for
    /// everybody.
    fn for_caller<T>(&self, caller: Caller, work: impl FnOnce() -> T) -> T {
        self.for_credentials(self.credentials(caller), work)
    }

    /// As [`Server::for_caller`], for [`Server::credentials`].
    fn for_credentials<T>(&self, caller: Caller, work: impl FnOnce() -> T) -> T {
        if self.may_use_reserve(caller) { work() } else { uext4::as_user(work) }
    }

    fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        kind: FileKind,
        mode: (u32, u32),
        rdev: u32,
    ) -> Answer<EntryOut> {
        let owner = ops::owner(caller);
        self.for_caller(caller, || {
            let inode = self.ops.make(owner, parent, name, kind, mode, rdev)?;
            Ok(self.entry(parent, self.ops.found(&inode)))
        })
    }

    /// Opens a regular file that was just made.
    fn opened(
        &self,
        parent: u64,
        inode: &uext4::InodeRef,
        start: Instant,
        flags: u32,
    ) -> Answer<(EntryOut, OpenOut)> {
        let file = self.ops.volume.open_file_since(inode, start).map_err(Failure::from)?;
        let fh = self.ops.files.insert(file);
        let entry = self.entry(parent, self.ops.found(inode));
        if can_write(flags) {
            self.ops.nodes.add_writer(entry.nodeid);
        }
        Ok((entry, OpenOut { fh, open_flags: self.open_flags(flags).bits(), backing_id: 0 }))
    }

    /// Has the kernel write the dirty pages of a file that has writers.
    ///
    /// The kernel passes SEEK_DATA and SEEK_HOLE on without writing the file's dirty pages first
    /// (6.18, `fs/fuse/file.c`, `fuse_lseek`), so the engine would call just-written data a hole,
    /// and a copy made by that answer would lose it. Worked example: a program writes 4 KiB and
    /// keeps the file open, `cp` asks for the first data, is told "none" and makes an empty copy.
    /// Dirty pages exist only while a file is open for writing or mapped, which keeps it open; the
    /// last close writes them.
    ///
    /// False: nothing was written, because no thread is left to take the WRITE requests.
    pub(crate) fn write_back(&self, node: u64) -> bool {
        let Some(notifier) = self.ops.notifier.get() else { return true };
        // Another error means that a page was dirtied again meanwhile: what was dirty when the
        // question came has been written.
        notifier.write_back(node) != Err(Errno::DEADLK)
    }

    /// Answers for a file of which the kernel may hold dirty pages: all of it is data, as lseek(2)
    /// allows. Where the kernel may know of a greater length, too, it is asked later.
    fn seek_unwritten(&self, node: u64, seek: &LseekIn) -> Answer<u64> {
        if self.writeback_cache {
            return Err(Errno::AGAIN);
        }
        let size = self.ops.getattr(node)?.size;
        match seek.whence.cast_signed() {
            _ if seek.offset >= size => Err(Errno::NXIO),
            libc::SEEK_DATA => Ok(seek.offset),
            libc::SEEK_HOLE => Ok(size),
            _ => Err(Errno::INVAL),
        }
    }
}
