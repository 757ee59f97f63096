//! The FUSE protocol's requests, each handed to [`Ops`] and answered.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use uext4::{ErrorKind, FileKind, InodeRef, Volume};

use crate::convert;
use crate::crew::Crew;
use crate::failure::{Answer, Failure};
use crate::file::FileTable;
use crate::listing;
use crate::node::{NodeTable, node_of};
use crate::ops::{self, Change, Found, Ops};
use crate::options::FuseOptions;
use crate::seek::{self, Question, Seeker};
use crate::xattr;

/// Largest write request, in bytes; also the most a read request asks for.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Read-ahead and write-back requests that the kernel keeps in flight.
const BACKGROUND_MAX: u16 = 64;

/// Kernel abilities asked for; those a kernel lacks are left out one by one.
///
/// Not asked for: `FUSE_HANDLE_KILLPRIV` (the first version cannot say which cached write must
/// clear set-id bits), `FUSE_NO_OPEN_SUPPORT` (every open file has its own write-error cursor),
/// `FUSE_ATOMIC_O_TRUNC` (open(2) of a running program with `O_TRUNC` would cut it before the
/// kernel says `ETXTBSY`), `FUSE_AUTO_INVAL_DATA` (nothing else changes the image), locks (the
/// kernel's own serve a local mount). `FUSE_WRITEBACK_CACHE`, and `FUSE_POSIX_ACL` with
/// `FUSE_DONT_MASK`, by option.
const ABILITIES: [InitFlags; 8] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    // Also lets the kernel remember that a file has no capabilities: without it each write(2) asks
    // for security.capability.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

/// The kernel's pages of a file stay good across opens: nothing else changes the image. close(2)
/// tells nobody anything, as on any disk file system, so it needs no answer of ours; what is due on
/// close is done on release.
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_NOFLUSH);

thread_local! {
    /// Where a worker reads file data; grows to the largest request it has seen.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The server of one mount.
pub(crate) struct Adapter {
    ops: Ops,
    seeker: Arc<Seeker>,
    crew: Crew,
    acl: bool,
    writeback_cache: bool,
    attr_timeout: Duration,
    entry_timeout: Duration,
    negative_timeout: Duration,
}

impl Adapter {
    /// A server for `volume`, whose root directory is `root`.
    pub(crate) fn new(volume: Volume, root: InodeRef, options: &FuseOptions) -> Self {
        Self {
            ops: Ops {
                volume,
                nodes: NodeTable::new(root),
                files: FileTable::new(),
                apply_umask: false,
            },
            seeker: Arc::default(),
            crew: Crew::new(options.worker_threads()),
            acl: options.acl,
            writeback_cache: options.writeback_cache && !options.read_only,
            attr_timeout: options.attr_timeout,
            entry_timeout: options.entry_timeout,
            negative_timeout: options.negative_timeout,
        }
    }

    /// The seek thread's handle, to be started when the session has a way to notify the kernel.
    pub(crate) fn seeker(&self) -> Arc<Seeker> {
        Arc::clone(&self.seeker)
    }

    fn reply_entry(&self, answer: Answer<Found>, reply: ReplyEntry) {
        match answer {
            Ok(Found { attr, generation }) => {
                reply.entry_with_ttls(&self.attr_timeout, &self.entry_timeout, &attr, generation);
            }
            Err(failure) => reply.error(failure.errno()),
        }
    }

    fn reply_attr(&self, answer: Answer<FileAttr>, reply: ReplyAttr) {
        match answer {
            Ok(attr) => reply.attr(&self.attr_timeout, &attr),
            Err(failure) => reply.error(failure.errno()),
        }
    }

    /// Adds one listed name with its attributes; true when the reply is full.
    fn add_plus(&self, entry: &listing::Entry, reply: &mut ReplyDirectoryPlus) -> bool {
        let name = OsStr::from_bytes(&entry.name);
        let node = INodeNo(u64::from(entry.ino.get()));
        let bare = FileAttr { ino: node, kind: convert::file_type(entry.kind), ..NO_ATTR };
        if entry.is_dots() {
            return reply.add(node, entry.next, name, &Duration::ZERO, &bare, Generation(0));
        }
        match self.ops.volume.inode(entry.ino) {
            Ok(inode) => {
                let attr = convert::attr_of_entry(&self.ops.volume.attr(&inode));
                let generation = Generation(u64::from(inode.generation()));
                let full =
                    reply.add(attr.ino, entry.next, name, &self.attr_timeout, &attr, generation);
                if !full {
                    self.ops.nodes.remember(inode);
                }
                full
            }
            // Removed since the batch was taken.
            Err(error) if *error.kind() == ErrorKind::NotFound => false,
            // The name is there and must be seen; what it leads to fails when it is used.
            Err(_) => {
                let node = INodeNo(node_of(entry.ino));
                reply.add(node, entry.next, name, &Duration::ZERO, &bare, Generation(0))
            }
        }
    }
}

/// Attributes of nothing.
const NO_ATTR: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};

fn reply_empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(failure) => reply.error(failure.errno()),
    }
}

/// Whether a file opened with `flags` can make pages dirty.
fn can_write(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

fn engine(result: uext4::Result<()>) -> Answer<()> {
    Ok(result?)
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for ability in ABILITIES {
            // A kernel without it works, only slower.
            let _ = config.add_capabilities(ability);
        }
        if self.writeback_cache {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        if self.acl {
            let both = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
            self.ops.apply_umask = config.add_capabilities(both).is_ok();
        }
        // Each setter answers the nearest value it would take.
        if let Err(nearest) = config.set_max_write(REQUEST_BYTES_MAX) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_readahead(REQUEST_BYTES_MAX) {
            let _ = config.set_max_readahead(nearest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        // Unlinked files that were open are freed here.
        self.ops.files.clear();
        self.ops.nodes.clear();
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _shift = self.crew.shift();
        match self.ops.lookup(parent.0, name.as_bytes()) {
            Err(Failure::Engine(error))
                if *error.kind() == ErrorKind::NotFound && !self.negative_timeout.is_zero() =>
            {
                // Node 0 is the absence of the name, which the kernel then caches.
                let ttl = &self.negative_timeout;
                reply.entry_with_ttls(&Duration::ZERO, ttl, &NO_ATTR, Generation(0));
            }
            answer => self.reply_entry(answer, reply),
        }
    }

    fn forget(&self, _request: &Request, node: INodeNo, lookups: u64) {
        let _shift = self.crew.shift();
        self.ops.nodes.forget(node.0, lookups);
        self.ops.delete_unlinked();
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let _shift = self.crew.shift();
        self.reply_attr(self.ops.getattr(node.0), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _shift = self.crew.shift();
        let change = Change {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            ctime: ctime.map(convert::timestamp),
        };
        self.reply_attr(self.ops.setattr(request.uid(), node.0, &change), reply);
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        let _shift = self.crew.shift();
        let target = self.ops.node(node.0).and_then(|i| Ok(self.ops.volume.read_link(&i)?));
        match target {
            Ok(target) => reply.data(&target),
            Err(failure) => reply.error(failure.errno()),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _shift = self.crew.shift();
        let answer = match convert::kind_of_mode(mode) {
            Some(kind) => {
                self.ops.make(request, parent.0, name.as_bytes(), kind, (mode, umask), rdev)
            }
            None => Err(Errno::EINVAL.into()),
        };
        self.reply_entry(answer.map(|inode| self.ops.found(inode)), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _shift = self.crew.shift();
        let name = name.as_bytes();
        let answer = self.ops.make(request, parent.0, name, FileKind::Directory, (mode, umask), 0);
        self.reply_entry(answer.map(|inode| self.ops.found(inode)), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _shift = self.crew.shift();
        let dir = self.ops.node(parent.0);
        let answer = dir.and_then(|dir| engine(self.ops.volume.unlink(&dir, name.as_bytes())));
        reply_empty(answer, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _shift = self.crew.shift();
        let dir = self.ops.node(parent.0);
        let answer = dir.and_then(|dir| engine(self.ops.volume.rmdir(&dir, name.as_bytes())));
        reply_empty(answer, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _shift = self.crew.shift();
        let target = target.as_os_str().as_bytes();
        self.reply_entry(self.ops.symlink(request, parent.0, name.as_bytes(), target), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _shift = self.crew.shift();
        let from = (parent.0, name.as_bytes());
        let to = (new_parent.0, new_name.as_bytes());
        reply_empty(self.ops.rename(from, to, flags.bits()), reply);
    }

    fn link(
        &self,
        _request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let _shift = self.crew.shift();
        self.reply_entry(self.ops.link(node.0, new_parent.0, new_name.as_bytes()), reply);
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _shift = self.crew.shift();
        match self.ops.open(node.0) {
            Ok(handle) => {
                if can_write(flags.0) {
                    self.ops.nodes.add_writer(node.0);
                }
                reply.opened(FileHandle(handle), OPEN_FLAGS);
            }
            Err(failure) => reply.error(failure.errno()),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _shift = self.crew.shift();
        let name = name.as_bytes();
        let made = self.ops.make(request, parent.0, name, FileKind::Regular, (mode, umask), 0);
        let opened = made.and_then(|inode| {
            let file = self.ops.volume.open_file(&inode)?;
            Ok((self.ops.files.insert(file), self.ops.found(inode)))
        });
        match opened {
            Ok((handle, Found { attr, generation })) => {
                let handle = FileHandle(handle);
                if can_write(flags) {
                    self.ops.nodes.add_writer(attr.ino.0);
                }
                // fuser has one time for both here; the shorter is right for each.
                let ttl = self.attr_timeout.min(self.entry_timeout);
                reply.created(&ttl, &attr, generation, handle, OPEN_FLAGS);
            }
            Err(failure) => reply.error(failure.errno()),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _shift = self.crew.shift();
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let into = &mut buffer[..size];
            match self.ops.file(handle.0).and_then(|file| Ok(file.read_at(offset, into)?)) {
                Ok(len) => reply.data(&buffer[..len]),
                Err(failure) => reply.error(failure.errno()),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _shift = self.crew.shift();
        let kill_priv = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.ops.write(handle.0, offset, data, kill_priv) {
            Ok(written) => reply.written(written),
            Err(failure) => reply.error(failure.errno()),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _shift = self.crew.shift();
        // The kernel does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _shift = self.crew.shift();
        if can_write(flags.0) {
            self.ops.nodes.remove_writer(node.0);
        }
        let file = self.ops.files.remove(handle.0);
        reply.ok();
        // Nobody waits for a release: what it brings with it comes after the answer. A writeback
        // failure stays with the inode for whoever syncs it.
        if let Some(file) = file.filter(|_| can_write(flags.0)) {
            let _ = file.flush();
        }
        self.ops.delete_unlinked();
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _shift = self.crew.shift();
        let answer = self.ops.file(handle.0).and_then(|file| engine(file.sync(data_only)));
        reply_empty(answer, reply);
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Listings carry their own position. The kernel takes this as "never ask again" and caches
        // listings; an older one without FUSE_NO_OPENDIR_SUPPORT takes it likewise since 5.1.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _shift = self.crew.shift();
        let listed = self.list(node, offset, listing::NAMES, |entry| {
            let ino = INodeNo(u64::from(entry.ino.get()));
            let kind = convert::file_type(entry.kind);
            reply.add(ino, entry.next, kind, OsStr::from_bytes(&entry.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(failure) => reply.error(failure.errno()),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _shift = self.crew.shift();
        let count = listing::WITH_ATTRIBUTES;
        match self.list(node, offset, count, |entry| self.add_plus(entry, &mut reply)) {
            Ok(()) => reply.ok(),
            Err(failure) => reply.error(failure.errno()),
        }
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _shift = self.crew.shift();
        // sync(2) does not reach a FUSE server; this is the way to make the volume durable.
        reply_empty(engine(self.ops.volume.sync()), reply);
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        let _shift = self.crew.shift();
        let s = self.ops.volume.stat_fs();
        reply.statfs(
            s.blocks,
            s.blocks_free,
            s.blocks_available,
            s.inodes,
            s.inodes_free,
            s.block_size,
            s.name_max,
            s.block_size,
        );
    }

    fn setxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _shift = self.crew.shift();
        let answer = self.ops.node(node.0).and_then(|inode| {
            let mode = xattr::mode(flags)?;
            engine(self.ops.volume.xattr_set(&inode, name.as_bytes(), value, mode))
        });
        reply_empty(answer, reply);
    }

    fn getxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let _shift = self.crew.shift();
        let inode = self.ops.node(node.0);
        let answer =
            inode.and_then(|inode| xattr::get(&self.ops.volume, node.0, &inode, name.as_bytes()));
        xattr::reply(answer, size, reply);
    }

    fn listxattr(&self, _request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let _shift = self.crew.shift();
        let inode = self.ops.node(node.0);
        let answer = inode.and_then(|inode| xattr::list(&self.ops.volume, &inode));
        xattr::reply(answer, size, reply);
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _shift = self.crew.shift();
        let inode = self.ops.node(node.0);
        let answer =
            inode.and_then(|inode| engine(self.ops.volume.xattr_remove(&inode, name.as_bytes())));
        reply_empty(answer, reply);
    }

    /// Asked only where the kernel does not check: everybody there is root of the image, who may do
    /// all but run a file that nobody may run.
    fn access(&self, _request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let _shift = self.crew.shift();
        let answer = self.ops.getattr(node.0).and_then(|attr| {
            let cannot_run = attr.kind == FileType::RegularFile && attr.perm & 0o111 == 0;
            if mask.contains(AccessFlags::X_OK) && cannot_run {
                return Err(Errno::EACCES.into());
            }
            Ok(())
        });
        reply_empty(answer, reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _shift = self.crew.shift();
        reply_empty(self.ops.fallocate(handle.0, offset, length, mode), reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _shift = self.crew.shift();
        let file = match self.ops.file(handle.0) {
            Ok(file) => file,
            Err(failure) => return reply.error(failure.errno()),
        };
        if !self.ops.nodes.has_writers(node.0) {
            return seek::reply(ops::seek(&file, offset, whence), reply);
        }
        let answer = Box::new(move || seek::reply(ops::seek(&file, offset, whence), reply));
        // A question that comes back is dropped with its reply, which then says EIO.
        let _ = self.seeker.ask(Question { node: node.0, answer });
    }
}

impl Adapter {
    /// Feeds the entries of `node` after `offset`, `count` at a time, to `add` until it says full
    /// or they end.
    fn list(
        &self,
        node: INodeNo,
        offset: u64,
        count: usize,
        mut add: impl FnMut(&listing::Entry) -> bool,
    ) -> Answer<()> {
        let dir = self.ops.node(node.0)?;
        let mut cursor = offset;
        loop {
            let batch = listing::batch(&self.ops.volume, &dir, cursor, count)?;
            let Some(last) = batch.last() else { return Ok(()) };
            cursor = last.next;
            if batch.iter().any(&mut add) {
                return Ok(());
            }
        }
    }
}
