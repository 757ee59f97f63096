//! A load on a volume in this process.
//!
//! # What
//! Every operation walks from the root by look-ups and drops what it found: inodes leave memory and
//! come back. Only files that the load holds stay open.

use crate::content::{self, FileBytes};
use crate::encrypted;
use crate::folded;
use crate::namespace::Namespace;
use crate::operation::{
    FLAGS, How, Id, Kind, Operation, Place, SHARED, SHARED_NAME, own_directory, own_name,
};
use crate::target::{Refusal, Target};
use crate::view;
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4::{
    AllocateMode, DirectOp, DirectOptions, DirectRequest, Error, ErrorKind, FileKind, InodeRef,
    IoBuf, NewInode, OpenFile, Owner, RenameMode, SetAttr, SetTime, Timestamp, Volume, XattrMode,
};
use uext4_device::FaultDevice;
use uext4_ondisk::InodeFlags;

/// Why an operation need not succeed.
pub trait Excuse: std::fmt::Debug + Send + Sync {
    /// What is to be made of the failure; `None`: there is no excuse.
    fn for_failure(&self, operation: Option<&Operation>, error: &Error) -> Option<Refusal>;
}

/// Once the device has failed, an operation that fails ends the load.
impl Excuse for FaultDevice {
    fn for_failure(&self, _: Option<&Operation>, _: &Error) -> Option<Refusal> {
        (self.struck() > 0).then_some(Refusal::Gone)
    }
}

/// Performs operations on a volume.
#[derive(Debug)]
pub struct VolumeTarget {
    volume: Volume,
    held: BTreeMap<Id, OpenFile>,
    /// Syncs are answered and not done, as an injected fault.
    skips_syncs: bool,
    /// The volume may be full.
    may_be_full: bool,
    /// What an operation that failed may be excused with.
    excuse: Option<Arc<dyn Excuse>>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Fault(error.to_string())
    }
}

/// Makes the directories that a load of `threads` threads works in.
///
/// # Errors
/// Those of the volume.
pub fn set_up(volume: &Volume, threads: u32) -> Result<(), Error> {
    let root = volume.root()?;
    let directories = (1..=threads).map(|thread| (own_name(thread), own_directory(thread)));
    for (name, id) in directories.chain([(SHARED_NAME.to_vec(), SHARED)]) {
        let new = NewInode {
            kind: FileKind::Directory,
            mode: 0o777,
            owner: Owner { uid: id, gid: 0 },
            rdev: Default::default(),
        };
        let directory = volume.create(&root, &name, &new)?;
        encrypted::encrypt(volume, &directory)?;
        folded::fold(volume, &directory)?;
    }
    Ok(())
}

impl VolumeTarget {
    /// A target for one thread.
    #[must_use]
    pub fn new(volume: Volume, skips_syncs: bool) -> VolumeTarget {
        VolumeTarget {
            volume,
            held: BTreeMap::new(),
            skips_syncs,
            may_be_full: false,
            excuse: None,
        }
    }

    /// Operations may find the volume full.
    #[must_use]
    pub fn may_be_full(self) -> VolumeTarget {
        VolumeTarget { may_be_full: true, ..self }
    }

    /// Operations may fail for a reason that `excuse` knows.
    #[must_use]
    pub fn may_fail(self, excuse: Arc<dyn Excuse>) -> VolumeTarget {
        VolumeTarget { excuse: Some(excuse), ..self }
    }

    fn judge(&self, operation: Option<&Operation>, error: Error) -> Refusal {
        let excuse = self.excuse.as_ref();
        excuse.and_then(|e| e.for_failure(operation, &error)).unwrap_or_else(|| error.into())
    }

    fn walk(&self, path: &[Vec<u8>]) -> Result<InodeRef, Error> {
        let mut at = self.volume.root()?;
        for (depth, name) in path.iter().enumerate() {
            // The root does not fold case.
            let name = if depth == 0 { name.clone() } else { self.spelling(name) };
            at = self.volume.lookup(&at, &name)?;
        }
        Ok(at)
    }

    /// The spelling by which an existing name is looked up.
    fn spelling(&self, name: &[u8]) -> Vec<u8> {
        match folded::folds(&self.volume) {
            true => folded::other_spelling(name),
            false => name.to_vec(),
        }
    }

    fn directory(&self, names: &Namespace, place: &Place) -> Result<InodeRef, Error> {
        self.walk(&names.directory_path(place.dir))
    }

    fn inode(&self, names: &Namespace, id: Id) -> Result<InodeRef, Error> {
        if let Some(file) = self.held.get(&id) {
            return Ok(file.inode().clone());
        }
        let path = names.path_of(id).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("{id:#x} has no name and is not held"))
        })?;
        self.walk(&path)
    }

    fn with_file<T>(
        &self,
        names: &Namespace,
        id: Id,
        work: impl FnOnce(&OpenFile) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.held.get(&id) {
            Some(file) => work(file),
            None => {
                let file = self.volume.open_file(&self.inode(names, id)?)?;
                let done = work(&file)?;
                file.flush()?;
                Ok(done)
            }
        }
    }

    fn create(&self, names: &Namespace, operation: &Operation) -> Result<(), Error> {
        match operation {
            Operation::Create { id, at, kind, mode } => {
                let kind = match kind {
                    Kind::File => FileKind::Regular,
                    Kind::Directory => FileKind::Directory,
                    Kind::Fifo => FileKind::Fifo,
                    Kind::Symlink => FileKind::Symlink,
                    Kind::Whiteout => FileKind::CharDevice,
                };
                let owner = Owner { uid: *id, gid: 0 };
                let new = NewInode { kind, mode: *mode, owner, rdev: Default::default() };
                let dir = self.directory(names, at)?;
                self.volume.create(&dir, &at.name, &new).map(drop)
            }
            Operation::Symlink { id, at, target } => {
                let owner = Owner { uid: *id, gid: 0 };
                let dir = self.directory(names, at)?;
                self.volume.symlink(&dir, &at.name, target, owner).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Tries to make a node at a place that is taken.
    ///
    /// # Errors
    /// See [`Refusal`]: a fault unless it was refused for that.
    #[cfg(feature = "simulate")]
    pub(crate) fn collide(&self, names: &Namespace, at: &Place, kind: u32) -> Result<(), Refusal> {
        let (kind, id, mode) = match kind {
            0 => (Kind::File, 0, 0o600),
            1 => (Kind::Directory, 0, 0o700),
            _ => (Kind::Fifo, 0, 0o600),
        };
        let at = Place { dir: at.dir, name: self.spelling(&at.name) };
        let operation = Operation::Create { id, at, kind, mode };
        match self.create(names, &operation) {
            Ok(()) => Err(Refusal::Fault("it was made".into())),
            Err(error) if *error.kind() == ErrorKind::Exists => Ok(()),
            Err(error) if *error.kind() == ErrorKind::NoSpace => Err(Refusal::NoSpace),
            Err(error) => Err(self.judge(None, error)),
        }
    }

    fn create_unlinked(
        &mut self,
        names: &Namespace,
        id: Id,
        dir: Id,
        mode: u16,
    ) -> Result<(), Error> {
        let dir = self.walk(&names.directory_path(dir))?;
        let (kind, owner) = (FileKind::Regular, Owner { uid: id, gid: 0 });
        let new = NewInode { kind, mode, owner, rdev: Default::default() };
        let file = self.volume.open_file(&self.volume.create_unlinked(&dir, &new)?)?;
        self.held.insert(id, file);
        Ok(())
    }

    fn rename(
        &self,
        names: &Namespace,
        (from, to): (&Place, &Place),
        how: How,
        other: Option<Id>,
    ) -> Result<(), Error> {
        let owner = |uid| Owner { uid, gid: 0 };
        let mode = match how {
            How::Whiteout(id) if other.is_none() => RenameMode::WhiteoutNoReplace(owner(id)),
            How::Whiteout(id) => RenameMode::Whiteout(owner(id)),
            How::Replace => RenameMode::Replace,
            How::NoReplace => RenameMode::NoReplace,
            How::Exchange => RenameMode::Exchange,
        };
        let (dir, new_dir) = (self.directory(names, from)?, self.directory(names, to)?);
        // Not if the other spelling is the new name.
        let (mut name, mut new_name) = (self.spelling(&from.name), to.name.clone());
        if name == new_name {
            name = from.name.clone();
        } else if other.is_some() {
            new_name = self.spelling(&to.name);
        }
        self.volume.rename(&dir, &name, &new_dir, &new_name, mode)
    }

    fn set(&self, names: &Namespace, id: Id, change: SetAttr) -> Result<(), Error> {
        let inode = self.inode(names, id)?;
        self.volume.set_attr(&inode, &change).map(drop)
    }

    fn write(&self, names: &Namespace, operation: &Operation) -> Result<(), Error> {
        let Operation::Write { id, offset, len, generation, append, direct } = *operation else {
            return Ok(());
        };
        let mut bytes = vec![0; len as usize];
        content::fill(&mut bytes, id, generation, offset);
        let (at, count) = self.with_file(names, id, |file| match (append, direct) {
            (true, _) => file.append(&bytes),
            (false, false) => Ok((offset, file.write_at(offset, &bytes)?)),
            (false, true) if !content::is_queued(generation) => {
                Ok((offset, file.write_direct_at(offset, &bytes)?))
            }
            (false, true) => Ok((offset, self.write_queued(file, offset, &bytes)?)),
        })?;
        if (at, count) != (offset, bytes.len()) {
            let context = format!("wrote {count} bytes at {at}");
            let is_full = self.may_be_full && at == offset && count < bytes.len();
            let kind = if is_full { ErrorKind::NoSpace } else { ErrorKind::Internal };
            return Err(Error::new(kind, context));
        }
        Ok(())
    }

    /// In two requests of a queue, on both sides of a sector.
    fn write_queued(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, Error> {
        let options = DirectOptions { depth: 2, polled: false, memory: Vec::new() };
        let mut queue = self.volume.direct_queue(options)?;
        let known = queue.register(file.inode())?;
        let front_len = content::queued_front(bytes.len() as u64) as usize;
        let (front, back) = bytes.split_at(front_len);
        for (part, offset) in [(front, offset), (back, offset + front.len() as u64)] {
            let mut buf = IoBuf::new(part.len().max(512)).map_err(|e| Error::io("a buffer", e))?;
            buf.set_len(part.len());
            buf.copy_from_slice(part);
            let op = DirectOp::Write;
            let request = DirectRequest { file: known, op, offset, buf, tag: offset };
            queue.push(request).expect("it has room for two");
        }
        queue.submit()?;
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.reap(1, &mut done)?;
        }
        // In order, so that a write without space is a front of it.
        done.sort_by_key(|one| one.tag);
        done.into_iter().map(|one| one.result).sum()
    }

    fn allocate(
        &self,
        names: &Namespace,
        id: Id,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<(), Error> {
        self.with_file(names, id, |file| file.allocate(mode, offset, len))
    }

    fn sync(&self, names: &Namespace, operation: &Operation) -> Result<(), Error> {
        if self.skips_syncs {
            return Ok(());
        }
        match operation {
            Operation::Sync { id, data_only } => {
                self.with_file(names, *id, |file| file.sync(*data_only))
            }
            Operation::SyncDirectory { id } => {
                let dir = self.walk(&names.directory_path(*id))?;
                self.volume.open_file(&dir)?.sync(false)
            }
            _ => self.volume.sync(),
        }
    }
}

impl Target for VolumeTarget {
    fn perform(&mut self, names: &Namespace, operation: &Operation) -> Result<(), Refusal> {
        let result = self.try_perform(names, operation);
        // The attributes of one inode have one block at most, so that one may be refused always.
        let harmless = match operation {
            Operation::SetXattr { .. } => true,
            // An operation that removes names or space needs none.
            Operation::Unlink { .. } | Operation::Rmdir { .. } => false,
            // Data that leaves the inode needs a block.
            Operation::Resize { id, .. } => self.may_be_full && self.is_in_inode(names, *id),
            operation => self.may_be_full && !operation.is_sync(),
        };
        match result {
            Err(error) if *error.kind() == ErrorKind::NoSpace && harmless => {
                let is_content = operation.content_of().is_some();
                Err(if is_content { Refusal::NoSpace } else { Refusal::Harmless })
            }
            other => other.map_err(|error| self.judge(Some(operation), error)),
        }
    }

    fn read(&mut self, names: &Namespace, id: Id) -> Result<FileBytes, Refusal> {
        let read = self.inode(names, id).and_then(|inode| {
            let size = self.volume.attr(&inode).size;
            self.with_file(names, id, |file| view::read_content(file, size))
        });
        read.map_err(|error| self.judge(None, error))
    }
}

impl VolumeTarget {
    /// Whether the data of a file is in its inode.
    fn is_in_inode(&self, names: &Namespace, id: Id) -> bool {
        let is_inline =
            |inode: InodeRef| self.volume.flags(&inode) & InodeFlags::INLINE_DATA.bits() != 0;
        self.inode(names, id).is_ok_and(is_inline)
    }

    fn try_perform(&mut self, names: &Namespace, operation: &Operation) -> Result<(), Error> {
        match operation {
            Operation::Create { .. } | Operation::Symlink { .. } => {
                self.create(names, operation)?
            }
            Operation::Link { id, at } => {
                let inode = self.inode(names, *id)?;
                self.volume.link(&inode, &self.directory(names, at)?, &at.name)?;
            }
            Operation::Unlink { at, .. } => {
                self.volume.unlink(&self.directory(names, at)?, &self.spelling(&at.name))?;
            }
            Operation::Rmdir { at, .. } => {
                self.volume.rmdir(&self.directory(names, at)?, &self.spelling(&at.name))?;
            }
            Operation::Rename { from, to, how, other, .. } => {
                self.rename(names, (from, to), *how, *other)?;
            }
            Operation::CreateUnlinked { id, dir, mode } => {
                self.create_unlinked(names, *id, *dir, *mode)?;
            }
            Operation::SetMode { id, mode } => {
                self.set(names, *id, SetAttr { mode: Some(*mode), ..SetAttr::default() })?;
            }
            Operation::SetGroup { id, gid } => {
                self.set(names, *id, SetAttr { gid: Some(*gid), ..SetAttr::default() })?;
            }
            Operation::SetTime { id, secs, nanos } => {
                let mtime = Some(SetTime::At(Timestamp { secs: *secs, nanos: *nanos }));
                self.set(names, *id, SetAttr { mtime, ..SetAttr::default() })?;
            }
            Operation::SetFlags { id, flags } => {
                let inode = self.inode(names, *id)?;
                let others = self.volume.flags(&inode) & !FLAGS;
                self.volume.set_flags(&inode, others | flags)?;
            }
            Operation::SetXattr { id, name, value } => {
                let inode = self.inode(names, *id)?;
                self.volume.xattr_set(&inode, name, value, XattrMode::Any)?;
            }
            Operation::RemoveXattr { id, name } => {
                self.volume.xattr_remove(&self.inode(names, *id)?, name)?;
            }
            Operation::Write { .. } => self.write(names, operation)?,
            Operation::Resize { id, size } => {
                self.set(names, *id, SetAttr { size: Some(*size), ..SetAttr::default() })?;
            }
            Operation::Allocate { id, offset, len, keep_size } => {
                let mode = AllocateMode::Allocate { keep_size: *keep_size };
                self.allocate(names, *id, mode, *offset, *len)?;
            }
            Operation::Punch { id, offset, len } => {
                self.allocate(names, *id, AllocateMode::PunchHole, *offset, *len)?;
            }
            Operation::Zero { id, offset, len, keep_size } => {
                let mode = AllocateMode::ZeroRange { keep_size: *keep_size };
                self.allocate(names, *id, mode, *offset, *len)?;
            }
            Operation::Collapse { id, offset, len } => {
                self.allocate(names, *id, AllocateMode::CollapseRange, *offset, *len)?;
            }
            Operation::Insert { id, offset, len } => {
                self.allocate(names, *id, AllocateMode::InsertRange, *offset, *len)?;
            }
            Operation::Hold { id } => {
                let file = self.volume.open_file(&self.inode(names, *id)?)?;
                self.held.insert(*id, file);
            }
            Operation::Release { id } => {
                if let Some(file) = self.held.remove(id) {
                    file.flush()?;
                }
            }
            Operation::Identify { .. } | Operation::Check { .. } => {}
            Operation::Sync { .. } | Operation::SyncDirectory { .. } | Operation::SyncVolume => {
                self.sync(names, operation)?;
            }
        }
        Ok(())
    }
}
