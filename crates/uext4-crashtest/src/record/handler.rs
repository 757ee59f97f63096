//! The requests of a recorded mount: made by the adapter, and recorded where they change something.

use std::sync::Arc;

use uext4_fuse_server::abi::{
    Attr, AttrOut, CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, IoctlIn, LseekIn, MknodIn,
    OpenOut, ReadIn, ReleaseIn, SetattrIn, StatfsOut, StatxIn, StatxOut, WriteIn,
};
use uext4_fuse_server::{
    Answer, Caller, DirBuffer, Errno, Handler, Notifier, Offer, SetattrFlags, Wanted, WriteFlags,
};

use super::log::{Log, Recording};
use super::process;
use crate::trace::{Attributes, Call, Name, NewFile};

/// A handler that records what another one has done.
pub struct Recorder {
    inner: Arc<dyn Handler>,
    recording: Arc<Recording>,
}

impl Recorder {
    /// Records into `recording` what `inner` does.
    #[must_use]
    pub fn new(inner: Arc<dyn Handler>, recording: Arc<Recording>) -> Self {
        Self { inner, recording }
    }

    /// Makes an inode with a name, and records it.
    fn make(
        &self,
        caller: Caller,
        (parent, name): (u64, &[u8]),
        kind: impl FnOnce() -> NewFile,
        make: impl FnOnce() -> Answer<EntryOut>,
    ) -> Answer<EntryOut> {
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        let entry = make()?;
        let name = named(&mut log, parent, name);
        let call = create(&mut log, &entry, Some(name), kind());
        self.recording.add(&mut log, begun, call);
        Ok(entry)
    }

    /// Removes a name, and records it.
    fn remove(
        &self,
        caller: Caller,
        (parent, name): (u64, &[u8]),
        remove: impl FnOnce() -> Answer<()>,
    ) -> Answer<()> {
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        let node = self.node_of(caller, parent, name);
        remove()?;
        if let Some(node) = node {
            let (file, name) = (log.file(node), named(&mut log, parent, name));
            self.recording.add(&mut log, begun, Call::Remove { file, name });
        }
        Ok(())
    }

    /// The node of a name, if it is there. Under the lock it stays there.
    fn node_of(&self, caller: Caller, parent: u64, name: &[u8]) -> Option<u64> {
        let entry = self.inner.lookup(caller, parent, name).ok()?;
        if entry.nodeid == 0 {
            return None;
        }
        self.inner.forget(&mut std::iter::once((entry.nodeid, 1)));
        Some(entry.nodeid)
    }

    /// Makes a change of one inode, and records it.
    fn change<T>(
        &self,
        caller: Caller,
        node: u64,
        change: impl FnOnce() -> Answer<T>,
        call: impl FnOnce(crate::trace::FileId, &T) -> Call,
    ) -> Answer<T> {
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        let answer = change()?;
        if !log.is_output(node) {
            let call = call(log.file(node), &answer);
            self.recording.add(&mut log, begun, call);
        }
        Ok(answer)
    }

    /// Makes something durable without the lock, and records it at the place where it began.
    fn sync(
        &self,
        caller: Caller,
        call: impl FnOnce(&mut Log) -> Option<Call>,
        sync: impl FnOnce() -> Answer<()>,
    ) -> Answer<()> {
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        let pending = call(&mut log).map(|call| self.recording.place(&mut log, begun, call));
        drop(log);
        sync()?;
        if let Some(pending) = pending {
            self.recording.returned(pending);
        }
        Ok(())
    }
}

fn named(log: &mut Log, parent: u64, name: &[u8]) -> Name {
    Name { parent: log.file(parent), name: name.to_owned() }
}

fn create(log: &mut Log, entry: &EntryOut, name: Option<Name>, kind: NewFile) -> Call {
    let Attr { mode, uid, gid, .. } = entry.attr;
    let attributes = Attributes { mode: Some(mode & 0o7777), uid: Some(uid), gid: Some(gid) };
    Call::Create { file: log.new_file(entry.nodeid), name, kind, attributes }
}

fn has(flags: u32, wanted: i32) -> bool {
    flags.cast_signed() & wanted == wanted
}

impl Handler for Recorder {
    fn init(&self, offer: &Offer, notifier: &Notifier) -> Wanted {
        self.inner.init(offer, notifier)
    }

    fn end(&self) {
        self.inner.end();
    }

    fn lookup(&self, caller: Caller, parent: u64, name: &[u8]) -> Answer<EntryOut> {
        self.inner.lookup(caller, parent, name)
    }

    fn forget(&self, nodes: &mut dyn Iterator<Item = (u64, u64)>) {
        self.inner.forget(nodes);
    }

    fn getattr(&self, caller: Caller, node: u64) -> Answer<AttrOut> {
        self.inner.getattr(caller, node)
    }

    fn setattr(&self, caller: Caller, node: u64, change: &SetattrIn) -> Answer<AttrOut> {
        let sets = |flag| SetattrFlags::from_bits_retain(change.valid).intersects(flag);
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        let before = self.inner.getattr(caller, node)?.attr;
        let answer = self.inner.setattr(caller, node, change)?;
        if log.is_output(node) {
            return Ok(answer);
        }
        let is_set = |time, now| sets(time) && !sets(now);
        if is_set(SetattrFlags::MTIME, SetattrFlags::MTIME_NOW)
            || is_set(SetattrFlags::ATIME, SetattrFlags::ATIME_NOW)
        {
            log.remark("times were set, which are not traced: states have other ones");
        }
        let (file, now) = (log.file(node), answer.attr);
        if sets(SetattrFlags::SIZE) {
            let call = Call::Truncate { file, before: before.size, size: now.size };
            self.recording.add(&mut log, begun, call);
        }
        let change = Attributes {
            mode: (now.mode != before.mode).then_some(now.mode & 0o7777),
            uid: (now.uid != before.uid).then_some(now.uid),
            gid: (now.gid != before.gid).then_some(now.gid),
        };
        if change != Attributes::default() {
            self.recording.add(&mut log, begun, Call::SetAttributes { file, change });
        }
        Ok(answer)
    }

    fn readlink(&self, caller: Caller, node: u64) -> Answer<Vec<u8>> {
        self.inner.readlink(caller, node)
    }

    fn symlink(&self, caller: Caller, parent: u64, name: &[u8], to: &[u8]) -> Answer<EntryOut> {
        let make = || self.inner.symlink(caller, parent, name, to);
        self.make(caller, (parent, name), || NewFile::Symlink(to.to_owned()), make)
    }

    fn mknod(&self, caller: Caller, parent: u64, name: &[u8], new: &MknodIn) -> Answer<EntryOut> {
        let kind = || match new.mode & libc::S_IFMT {
            libc::S_IFREG | 0 => NewFile::Regular,
            kind => NewFile::Special { kind, device: new.rdev },
        };
        let make = || self.inner.mknod(caller, parent, name, new);
        self.make(caller, (parent, name), kind, make)
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: (u32, u32),
    ) -> Answer<EntryOut> {
        let make = || self.inner.mkdir(caller, parent, name, mode);
        self.make(caller, (parent, name), || NewFile::Directory, make)
    }

    fn unlink(&self, caller: Caller, parent: u64, name: &[u8]) -> Answer<()> {
        self.remove(caller, (parent, name), || self.inner.unlink(caller, parent, name))
    }

    fn rmdir(&self, caller: Caller, parent: u64, name: &[u8]) -> Answer<()> {
        self.remove(caller, (parent, name), || self.inner.rmdir(caller, parent, name))
    }

    fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Answer<()> {
        if flags & libc::RENAME_WHITEOUT != 0 {
            return Err(Errno::INVAL);
        }
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        let node = self.node_of(caller, from.0, from.1);
        let replaced = self.node_of(caller, to.0, to.1);
        self.inner.rename(caller, from, to, flags)?;
        // Two names of one inode: nothing happens, the manual says.
        if let Some(node) = node.filter(|_| node != replaced) {
            let call = Call::Rename {
                file: log.file(node),
                from: named(&mut log, from.0, from.1),
                to: named(&mut log, to.0, to.1),
                replaced: replaced.map(|node| log.file(node)),
                exchange: flags & libc::RENAME_EXCHANGE != 0,
            };
            self.recording.add(&mut log, begun, call);
        }
        Ok(())
    }

    fn link(&self, caller: Caller, node: u64, parent: u64, name: &[u8]) -> Answer<EntryOut> {
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        let entry = self.inner.link(caller, node, parent, name)?;
        if log.is_output(node) {
            log.remark("the file of the standard output got a name, which is not traced");
            return Ok(entry);
        }
        let (file, name) = (log.file(node), named(&mut log, parent, name));
        self.recording.add(&mut log, begun, Call::Link { file, name });
        Ok(entry)
    }

    fn open(&self, caller: Caller, node: u64, flags: u32) -> Answer<OpenOut> {
        self.inner.open(caller, node, flags)
    }

    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: &CreateIn,
    ) -> Answer<(EntryOut, OpenOut)> {
        let mut opened = OpenOut::default();
        let make = || {
            let (entry, open) = self.inner.create(caller, parent, name, new)?;
            opened = open;
            Ok(entry)
        };
        let entry = self.make(caller, (parent, name), || NewFile::Regular, make)?;
        Ok((entry, opened))
    }

    fn tmpfile(&self, caller: Caller, dir: u64, new: &CreateIn) -> Answer<(EntryOut, OpenOut)> {
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        let made = self.inner.tmpfile(caller, dir, new)?;
        if !log.takes_as_output(made.0.nodeid) {
            let call = create(&mut log, &made.0, None, NewFile::Regular);
            self.recording.add(&mut log, begun, call);
        }
        Ok(made)
    }

    fn read(&self, caller: Caller, node: u64, read: &ReadIn, out: &mut [u8]) -> Answer<usize> {
        self.inner.read(caller, node, read, out)
    }

    fn write(&self, caller: Caller, node: u64, write: &WriteIn, data: &[u8]) -> Answer<u32> {
        let begun = self.recording.begin(caller);
        let mut log = self.recording.lock();
        if log.is_output(node) {
            self.recording.add(&mut log, begun, Call::Output(data.into()));
            // A request has 1 MiB at most.
            return Ok(data.len() as u32);
        }
        // Pages that the kernel writes back have the flags of whichever descriptor it found.
        let is_cached = WriteFlags::from_bits_retain(write.write_flags).contains(WriteFlags::CACHE);
        if is_cached {
            log.has_mapped_writes = true;
            log.remark(
                "writes to mappings are seen when they are written back here: states in which they \
                 reach the disk earlier are missing",
            );
        }
        let syncs = !is_cached && has(write.flags, libc::O_DSYNC);
        let direct = !is_cached && has(write.flags, libc::O_DIRECT);
        let flags = write.flags & !(libc::O_SYNC.cast_unsigned());
        let written = self.inner.write(caller, node, &WriteIn { flags, ..*write }, data)?;
        let data = data[..data.len().min(written as usize)].into();
        let call = Call::Write { file: log.file(node), offset: write.offset, data, direct };
        self.recording.add(&mut log, begun, call);
        drop(log);
        if syncs {
            let range = Some(write.offset..write.offset + u64::from(written));
            let data_only = !has(write.flags, libc::O_SYNC);
            let call = |log: &mut Log| Some(Call::Sync { file: log.file(node), data_only, range });
            self.sync(caller, call, || self.inner.fsync(caller, node, write.fh, data_only))?;
            self.recording.lock().synced_write(caller.pid, node);
        }
        Ok(written)
    }

    fn flush(&self, caller: Caller, node: u64, handle: u64) -> Answer<()> {
        self.inner.flush(caller, node, handle)
    }

    fn release(&self, caller: Caller, node: u64, release: &ReleaseIn) -> Answer<()> {
        let begun = self.recording.begin(caller);
        let answer = self.inner.release(caller, node, release);
        let mut log = self.recording.lock();
        let writes = release.flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY;
        // A reader's close counts, too, of a file that has been changed.
        if (writes || log.is_known(node)) && !log.is_output(node) {
            let file = log.file(node);
            self.recording.add(&mut log, begun, Call::Close { file });
        }
        answer
    }

    fn fsync(&self, caller: Caller, node: u64, handle: u64, data_only: bool) -> Answer<()> {
        let call = |log: &mut Log| match log.is_output(node) || log.ends_write(caller.pid, node) {
            true => None,
            false => Some(Call::Sync { file: log.file(node), data_only, range: None }),
        };
        self.sync(caller, call, || self.inner.fsync(caller, node, handle, data_only))
    }

    fn opendir(&self, caller: Caller, node: u64, flags: u32) -> Answer<OpenOut> {
        self.inner.opendir(caller, node, flags)
    }

    fn readdir(
        &self,
        caller: Caller,
        node: u64,
        read: &ReadIn,
        list: &mut DirBuffer<'_>,
    ) -> Answer<()> {
        self.inner.readdir(caller, node, read, list)
    }

    fn readdirplus(
        &self,
        caller: Caller,
        node: u64,
        read: &ReadIn,
        list: &mut DirBuffer<'_>,
    ) -> Answer<()> {
        self.inner.readdirplus(caller, node, read, list)
    }

    fn releasedir(&self, caller: Caller, node: u64, handle: u64) -> Answer<()> {
        self.inner.releasedir(caller, node, handle)
    }

    fn fsyncdir(&self, caller: Caller, node: u64, handle: u64, data_only: bool) -> Answer<()> {
        let call =
            |log: &mut Log| Some(Call::Sync { file: log.file(node), data_only, range: None });
        self.sync(caller, call, || self.inner.fsyncdir(caller, node, handle, data_only))
    }

    fn statfs(&self, caller: Caller, node: u64) -> Answer<StatfsOut> {
        self.inner.statfs(caller, node)
    }

    fn setxattr(
        &self,
        caller: Caller,
        node: u64,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        more: u32,
    ) -> Answer<()> {
        let set = || self.inner.setxattr(caller, node, (name, value), flags, more);
        self.change(caller, node, set, |file, ()| Call::SetXattr {
            file,
            name: name.to_owned(),
            value: Some(value.to_owned()),
        })
    }

    fn getxattr(&self, caller: Caller, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        self.inner.getxattr(caller, node, name)
    }

    fn listxattr(&self, caller: Caller, node: u64) -> Answer<Vec<u8>> {
        self.inner.listxattr(caller, node)
    }

    fn removexattr(&self, caller: Caller, node: u64, name: &[u8]) -> Answer<()> {
        let remove = || self.inner.removexattr(caller, node, name);
        let call = |file, (): &()| Call::SetXattr { file, name: name.to_owned(), value: None };
        self.change(caller, node, remove, call)
    }

    fn access(&self, caller: Caller, node: u64, mask: u32) -> Answer<()> {
        self.inner.access(caller, node, mask)
    }

    fn fallocate(&self, caller: Caller, node: u64, range: &FallocateIn) -> Answer<()> {
        let FallocateIn { offset, length: len, mode, .. } = *range;
        let allocate = || self.inner.fallocate(caller, node, range);
        self.change(caller, node, allocate, |file, ()| Call::Allocate { file, mode, offset, len })
    }

    fn lseek(&self, caller: Caller, node: u64, seek: &LseekIn) -> Answer<u64> {
        self.inner.lseek(caller, node, seek)
    }

    /// The kernel then reads and writes.
    fn copy_file_range(&self, _: Caller, _: u64, _: &CopyFileRangeIn) -> Answer<u64> {
        Err(Errno::NOSYS)
    }

    fn ioctl(
        &self,
        caller: Caller,
        node: u64,
        ioctl: &IoctlIn,
        data: &[u8],
    ) -> Answer<(i32, Vec<u8>)> {
        let answer = self.inner.ioctl(caller, node, ioctl, data)?;
        // Those that bring nothing only ask.
        if !data.is_empty() {
            self.recording.lock().remark("an ioctl changed an inode, which is not traced");
        }
        Ok(answer)
    }

    fn statx(&self, caller: Caller, node: u64, statx: &StatxIn) -> Answer<StatxOut> {
        self.inner.statx(caller, node, statx)
    }

    /// sync(2) of any process of the machine comes here: only the program's own count.
    fn syncfs(&self, caller: Caller) -> Answer<()> {
        let is_own = process::is_descendant(caller.pid);
        self.sync(caller, |_| is_own.then_some(Call::SyncAll), || self.inner.syncfs(caller))
    }

    fn destroy(&self) {
        self.inner.destroy();
    }
}
