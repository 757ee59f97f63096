//! The FUSE protocol's requests, each handed to [`Ops`](crate::ops::Ops) and answered.

mod abilities;
mod open_flags;
mod serving;

pub(crate) use open_flags::is_direct;
pub(crate) use serving::Adapter;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileHandle, FileType, Filesystem, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use uext4::{ErrorKind, FileKind, Privs};
use uext4_device::{FITRIM, TrimRange};

use crate::STATS_XATTR;
use crate::convert;
use crate::failure::{Answer, Failure};
use crate::listing;
use crate::ops::{self, Caller, Change, Found, WriteWay};
use crate::seek::{self, Question};
use crate::server::{NO_ATTR, Server};
use crate::xattr;
use open_flags::{can_write, open_flags};
use serving::with_rights;

fn reply_empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(failure) => reply.error(failure.errno()),
    }
}

fn engine(result: uext4::Result<()>) -> Answer<()> {
    Ok(result?)
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        abilities::ask(config, &self.server);
        Ok(())
    }

    fn destroy(&mut self) {
        self.overflow.finish();
        // Unlinked files that were open are freed here.
        self.server.ops.files.clear();
        self.server.ops.nodes.clear();
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.serve(move |server| {
            match server.ops.lookup(parent.0, &name) {
                Err(Failure::Engine(error))
                    if *error.kind() == ErrorKind::NotFound
                        && !server.negative_timeout.is_zero() =>
                {
                    // Node 0 is the absence of the name, which the kernel then caches.
                    let ttl = &server.negative_timeout;
                    reply.entry_with_ttls(&Duration::ZERO, ttl, &NO_ATTR, Generation(0));
                }
                answer => server.reply_entry(answer, reply),
            }
        });
    }

    /// Also each part of a batch: fuser 0.18 keeps the type of these to itself, so they can come
    /// through its own loop only.
    fn forget(&self, _request: &Request, node: INodeNo, lookups: u64) {
        self.forget_part(node.0, lookups);
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.serve(move |server| {
            server.reply_attr(server.ops.getattr(node.0), reply);
        });
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
        let caller = Caller::of(request);
        self.serve_for(request, move |server| {
            let change = Change {
                mode,
                uid,
                gid,
                size,
                atime: atime.map(convert::set_time),
                mtime: mtime.map(convert::set_time),
                ctime: ctime.map(convert::timestamp),
            };
            server.reply_attr(server.ops.setattr(caller, node.0, &change), reply);
        });
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        self.serve(move |server| {
            let target =
                server.ops.node(node.0).and_then(|i| Ok(server.ops.volume.read_link(&i)?));
            match target {
                Ok(target) => reply.data(&target),
                Err(failure) => reply.error(failure.errno()),
            }
        });
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
        let owner = ops::owner(request);
        let name = name.as_bytes().to_vec();
        self.serve_for(request, move |server| {
            let answer = match convert::kind_of_mode(mode) {
                Some(kind) => server.ops.make(owner, parent.0, &name, kind, (mode, umask), rdev),
                None => Err(Errno::EINVAL.into()),
            };
            server.reply_entry(answer.map(|inode| server.ops.found(&inode)), reply);
        });
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
        let owner = ops::owner(request);
        let name = name.as_bytes().to_vec();
        self.serve_for(request, move |server| {
            let answer =
                server.ops.make(owner, parent.0, &name, FileKind::Directory, (mode, umask), 0);
            server.reply_entry(answer.map(|inode| server.ops.found(&inode)), reply);
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.serve(move |server| {
            reply_empty(server.ops.unlink(parent.0, &name), reply);
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.serve(move |server| {
            reply_empty(server.ops.rmdir(parent.0, &name), reply);
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let owner = ops::owner(request);
        let name = name.as_bytes().to_vec();
        let target = target.as_os_str().as_bytes().to_vec();
        self.serve_for(request, move |server| {
            server.reply_entry(server.ops.symlink(owner, parent.0, &name, &target), reply);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes().to_vec();
        let new_name = new_name.as_bytes().to_vec();
        self.serve_for(request, move |server| {
            let (from, to) = ((parent.0, &name[..]), (new_parent.0, &new_name[..]));
            reply_empty(server.ops.rename(from, to, flags.bits()), reply);
        });
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let new_name = new_name.as_bytes().to_vec();
        self.serve_for(request, move |server| {
            server.reply_entry(server.ops.link(node.0, new_parent.0, &new_name), reply);
        });
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.serve(move |server| match server.ops.open(node.0) {
            Ok(handle) => {
                if can_write(flags.0) {
                    server.ops.nodes.add_writer(node.0);
                }
                reply.opened(FileHandle(handle), open_flags(flags.0));
            }
            Err(failure) => reply.error(failure.errno()),
        });
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
        let owner = ops::owner(request);
        let name = name.as_bytes().to_vec();
        let start = Instant::now();
        self.serve_for(request, move |server| {
            let made = server.ops.make(owner, parent.0, &name, FileKind::Regular, (mode, umask), 0);
            let opened = made.and_then(|inode| {
                let file = server.ops.volume.open_file_since(&inode, start)?;
                Ok((server.ops.files.insert(file), server.ops.found(&inode)))
            });
            match opened {
                Ok((handle, Found { attr, generation })) => {
                    let handle = FileHandle(handle);
                    if can_write(flags) {
                        server.ops.nodes.add_writer(attr.ino.0);
                    }
                    // fuser has one time for both here; the shorter is right for each.
                    let ttl = server.attr_timeout.min(server.entry_timeout);
                    reply.created(&ttl, &attr, generation, handle, open_flags(flags));
                }
                Err(failure) => reply.error(failure.errno()),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve(move |server| {
            server.buffers.with(size as usize, |buffer| {
                let read = |file: Arc<uext4::OpenFile>| {
                    Ok(match is_direct(flags.0) {
                        true => file.read_direct_at(offset, buffer)?,
                        false => file.read_at(offset, buffer)?,
                    })
                };
                match server.ops.file(handle.0).and_then(read) {
                    Ok(len) => reply.data(&buffer[..len]),
                    Err(failure) => reply.error(failure.errno()),
                }
            });
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Pages that the kernel writes back are no direct write, whoever made them dirty. Nor do
        // they remove rights: the kernel did when they became dirty, and new ones may have come.
        let is_cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let has = |wanted: i32| flags.0 & wanted == wanted;
        let way = match is_cached {
            true => WriteWay::Late,
            false if !is_direct(flags.0) => WriteWay::Cached,
            false if has(libc::O_SYNC) => WriteWay::DirectSync,
            false if has(libc::O_DSYNC) => WriteWay::DirectDsync,
            false => WriteWay::Direct,
        };
        let caller = Caller::of(request);
        let privs = match write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            true => Privs::All,
            false => Privs::Capabilities,
        };
        let rights = self.server.may_use_reserve(request.uid(), request.gid());
        let write = move |server: &Server, data: &[u8]| {
            let write = || server.ops.write(handle.0, offset, data, way);
            let write = || with_rights(rights, write);
            let answer = match is_cached {
                true => write(),
                false => server.ops.changing(node.0, caller, privs, write),
            };
            match answer {
                Ok(written) => reply.written(written),
                Err(failure) => reply.error(failure.errno()),
            }
        };
        let shift = self.crew.shift();
        if shift.is_last() {
            // The bytes are the worker's, which goes back to the queue.
            let data = data.to_vec();
            self.hand_over(move |server| write(server, &data));
        } else {
            write(&self.server, data);
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
        self.serve(move |server| {
            if can_write(flags.0) {
                server.ops.nodes.remove_writer(node.0);
            }
            let file = server.ops.files.remove(handle.0);
            reply.ok();
            // Nobody waits for a release: what it brings with it comes after the answer. A failure
            // of the writeback stays with the inode for whoever syncs it.
            if let Some(file) = file.filter(|_| can_write(flags.0)) {
                let _ = file.flush();
            }
            server.ops.delete_unlinked();
        });
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.serve(move |server| {
            let answer = server.ops.file(handle.0).and_then(|file| engine(file.sync(data_only)));
            reply_empty(answer, reply);
        });
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
        self.serve(move |server| {
            let listed = server.list(node, offset, listing::NAMES, |entry| {
                let ino = INodeNo(u64::from(entry.ino.get()));
                let kind = convert::file_type(entry.kind);
                reply.add(ino, entry.next, kind, OsStr::from_bytes(&entry.name))
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(failure.errno()),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.serve(move |server| {
            let count = listing::WITH_ATTRIBUTES;
            match server.list(node, offset, count, |entry| server.add_plus(entry, &mut reply)) {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(failure.errno()),
            }
        });
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.serve(move |server| {
            // sync(2) does not reach a FUSE server; this is the way to make the volume durable.
            reply_empty(engine(server.ops.volume.sync()), reply);
        });
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        self.serve(move |server| {
            server.ops.leaving.settle(&server.ops.volume);
            let s = server.ops.volume.stat_fs();
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
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes().to_vec();
        let value = value.to_vec();
        self.serve_for(request, move |server| {
            let answer = server.ops.node(node.0).and_then(|inode| {
                let mode = xattr::mode(flags)?;
                server.ops.with_room(|| server.ops.volume.xattr_set(&inode, &name, &value, mode))
            });
            reply_empty(answer, reply);
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if name.as_bytes() == STATS_XATTR.as_bytes() {
            // Answered by this worker, even if it is the last one: it takes no lock that anybody
            // waits under.
            let _shift = self.crew.shift();
            return xattr::reply(self.server.stats(request.uid()), size, reply);
        }
        let name = name.as_bytes().to_vec();
        self.serve(move |server| {
            let inode = server.ops.node(node.0);
            let answer =
                inode.and_then(|inode| xattr::get(&server.ops.volume, node.0, &inode, &name));
            xattr::reply(answer, size, reply);
        });
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let is_root = request.uid() == 0;
        self.serve(move |server| {
            let inode = server.ops.node(node.0);
            let answer = inode.and_then(|inode| xattr::list(&server.ops.volume, &inode, is_root));
            xattr::reply(answer, size, reply);
        });
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.serve(move |server| {
            let inode = server.ops.node(node.0);
            let answer =
                inode.and_then(|inode| engine(server.ops.volume.xattr_remove(&inode, &name)));
            reply_empty(answer, reply);
        });
    }

    /// Asked only where the kernel does not check: everybody there is root of the image, who may do
    /// all but run a file that nobody may run.
    fn access(&self, _request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.serve(move |server| {
            let answer = server.ops.getattr(node.0).and_then(|attr| {
                let cannot_run = attr.kind == FileType::RegularFile && attr.perm & 0o111 == 0;
                if mask.contains(AccessFlags::X_OK) && cannot_run {
                    return Err(Errno::EACCES.into());
                }
                Ok(())
            });
            reply_empty(answer, reply);
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // As in setattr: the kernel leaves the bits to us and does not say whose call it is.
        let (privs, caller) = (ops::privs_of(request.uid()), Caller::of(request));
        self.serve_for(request, move |server| {
            let work = || server.ops.fallocate(handle.0, offset, length, mode);
            reply_empty(server.ops.changing(node.0, caller, privs, work), reply);
        });
    }

    fn ioctl(
        &self,
        request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        input: &[u8],
        _output_len: u32,
        reply: ReplyIoctl,
    ) {
        let range = TrimRange::from_bytes(input).filter(|_| command == FITRIM);
        // ENOTTY is what callers take for "no such request".
        let Some(range) = range else { return reply.error(Errno::ENOTTY) };
        let uid = request.uid();
        self.serve(move |server| match server.trim(uid, range) {
            Ok(done) => reply.ioctl(0, &done.to_bytes()),
            Err(failure) => reply.error(failure.errno()),
        });
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
        self.serve(move |server| {
            let file = match server.ops.file(handle.0) {
                Ok(file) => file,
                Err(failure) => return reply.error(failure.errno()),
            };
            if !server.ops.nodes.has_writers(node.0) {
                return seek::reply(ops::seek(&file, offset, whence), reply);
            }
            let answer = Box::new(move || seek::reply(ops::seek(&file, offset, whence), reply));
            // A question that comes back is dropped with its reply, which then says EIO.
            let _ = server.seeker.ask(Question { node: node.0, answer });
        });
    }
}
