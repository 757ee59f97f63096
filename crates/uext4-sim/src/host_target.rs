//! A load on a mounted file system, by system calls.
//!
//! # What
//! Paths from the mount point; a file is opened for each operation unless the load holds it. The
//! owner of a new inode cannot be given at its making: [`Operation::Identify`] follows.

use crate::content::{self, FileBytes};
use crate::namespace::Namespace;
use crate::operation::{FLAGS, How, Id, Kind, Operation, Place};
use crate::target::{Refusal, Target};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Performs operations below a mount point.
#[derive(Debug)]
pub struct HostTarget {
    root: PathBuf,
    held: HashMap<Id, File>,
    /// Set before the file system goes away on purpose: errors are expected from then on.
    gone: Arc<AtomicBool>,
}

impl HostTarget {
    /// A target for one thread; `gone` is set before the file system is taken away.
    #[must_use]
    pub fn new(root: &Path, gone: Arc<AtomicBool>) -> HostTarget {
        HostTarget { root: root.to_owned(), held: HashMap::new(), gone }
    }

    fn path(&self, names: &Namespace, place: &Place) -> PathBuf {
        self.join(&names.path(place))
    }

    fn join(&self, path: &[Vec<u8>]) -> PathBuf {
        path.iter().fold(self.root.clone(), |path, name| path.join(OsStr::from_bytes(name)))
    }

    fn path_of(&self, names: &Namespace, id: Id) -> io::Result<PathBuf> {
        let path = names.path_of(id).ok_or_else(|| io::Error::other("no name, and not held"))?;
        Ok(self.join(&path))
    }

    fn with_file<T>(
        &self,
        names: &Namespace,
        id: Id,
        work: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.held.get(&id) {
            Some(file) => work(file),
            None => work(&open(&self.path_of(names, id)?)?),
        }
    }

    fn create(&self, at: &Path, kind: Kind, mode: u16) -> io::Result<()> {
        let mode = Mode::from_raw_mode(u32::from(mode));
        match kind {
            Kind::Directory => rustix::fs::mkdir(at, mode)?,
            Kind::Fifo => rustix::fs::mknodat(CWD, at, FileType::Fifo, mode, 0)?,
            Kind::Whiteout => rustix::fs::mknodat(CWD, at, FileType::CharacterDevice, mode, 0)?,
            Kind::File | Kind::Symlink => {
                rustix::fs::mknodat(CWD, at, FileType::RegularFile, mode, 0)?;
            }
        }
        Ok(())
    }

    fn attributes(&self, names: &Namespace, operation: &Operation) -> io::Result<()> {
        match operation {
            Operation::Identify { id } => {
                let path = self.path_of(names, *id)?;
                let (uid, gid) = (Uid::from_raw(*id), Gid::from_raw(0));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(CWD, &path, Some(uid), Some(gid), flags)?;
            }
            Operation::SetMode { id, mode } => {
                let permissions = fs::Permissions::from_mode(u32::from(*mode));
                fs::set_permissions(self.path_of(names, *id)?, permissions)?;
            }
            Operation::SetGroup { id, gid } => {
                let path = self.path_of(names, *id)?;
                std::os::unix::fs::chown(path, None, Some(*gid))?;
            }
            Operation::SetTime { id, secs, nanos } => {
                let path = self.path_of(names, *id)?;
                let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
                let mtime = Timespec { tv_sec: *secs, tv_nsec: i64::from(*nanos) };
                let times = Timestamps { last_access: omit, last_modification: mtime };
                rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
            }
            Operation::SetFlags { id, flags } => {
                let file = File::open(self.path_of(names, *id)?)?;
                let others = rustix::fs::ioctl_getflags(&file)?.bits() & !FLAGS;
                let flags = IFlags::from_bits_retain(others | flags);
                rustix::fs::ioctl_setflags(&file, flags)?;
            }
            Operation::SetXattr { id, name, value } => {
                let path = self.path_of(names, *id)?;
                rustix::fs::lsetxattr(&path, &name[..], value, XattrFlags::empty())?;
            }
            Operation::RemoveXattr { id, name } => {
                rustix::fs::lremovexattr(self.path_of(names, *id)?, &name[..])?;
            }
            _ => {}
        }
        Ok(())
    }

    fn content(&self, names: &Namespace, operation: &Operation) -> io::Result<()> {
        let keep = |keep_size: bool| {
            if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() }
        };
        match *operation {
            Operation::Write { id, offset, len, generation, .. } => {
                let mut bytes = vec![0; len as usize];
                content::fill(&mut bytes, id, generation, offset);
                self.with_file(names, id, |file| file.write_all_at(&bytes, offset))
            }
            Operation::Resize { id, size } => self.with_file(names, id, |file| file.set_len(size)),
            Operation::Allocate { id, offset, len, keep_size } => self.with_file(names, id, |f| {
                Ok(rustix::fs::fallocate(f, keep(keep_size), offset, len)?)
            }),
            Operation::Punch { id, offset, len } => self.with_file(names, id, |file| {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(file, flags, offset, len)?)
            }),
            Operation::Zero { id, offset, len, keep_size } => self.with_file(names, id, |file| {
                let flags = FallocateFlags::ZERO_RANGE | keep(keep_size);
                Ok(rustix::fs::fallocate(file, flags, offset, len)?)
            }),
            Operation::Collapse { id, offset, len } => self.with_file(names, id, |file| {
                Ok(rustix::fs::fallocate(file, FallocateFlags::COLLAPSE_RANGE, offset, len)?)
            }),
            Operation::Insert { id, offset, len } => self.with_file(names, id, |file| {
                Ok(rustix::fs::fallocate(file, FallocateFlags::INSERT_RANGE, offset, len)?)
            }),
            _ => Ok(()),
        }
    }

    fn sync(&self, names: &Namespace, operation: &Operation) -> io::Result<()> {
        match operation {
            Operation::Sync { id, data_only: true } => self.with_file(names, *id, File::sync_data),
            Operation::Sync { id, data_only: false } => self.with_file(names, *id, File::sync_all),
            Operation::SyncDirectory { id } => {
                File::open(self.join(&names.directory_path(*id)))?.sync_all()
            }
            _ => {
                // syncfs(2) hands the kernel's dirty pages to a FUSE server; the fsync of a
                // directory makes the whole volume durable there.
                let root = File::open(&self.root)?;
                rustix::fs::syncfs(&root)?;
                root.sync_all()
            }
        }
    }

    fn change(&mut self, names: &Namespace, operation: &Operation) -> io::Result<()> {
        match operation {
            Operation::Create { at, kind, mode, .. } => {
                self.create(&self.path(names, at), *kind, *mode)
            }
            Operation::CreateUnlinked { id, dir, mode } => {
                let dir = self.join(&names.directory_path(*dir));
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(u32::from(*mode));
                let file = File::from(rustix::fs::open(&dir, flags, mode)?);
                rustix::fs::fchown(&file, Some(Uid::from_raw(*id)), Some(Gid::from_raw(0)))?;
                self.held.insert(*id, file);
                Ok(())
            }
            Operation::Symlink { at, target, .. } => {
                std::os::unix::fs::symlink(OsStr::from_bytes(target), self.path(names, at))
            }
            Operation::Link { id, at } => match (names.path_of(*id), self.held.get(id)) {
                (None, Some(file)) => {
                    let (to, flags) = (self.path(names, at), AtFlags::EMPTY_PATH);
                    Ok(rustix::fs::linkat(file, "", CWD, &to, flags)?)
                }
                _ => fs::hard_link(self.path_of(names, *id)?, self.path(names, at)),
            },
            Operation::Unlink { at, .. } => fs::remove_file(self.path(names, at)),
            Operation::Rmdir { at, .. } => fs::remove_dir(self.path(names, at)),
            Operation::Rename { from, to, how, .. } => {
                let flags = match how {
                    How::Replace => RenameFlags::empty(),
                    How::NoReplace => RenameFlags::NOREPLACE,
                    How::Exchange => RenameFlags::EXCHANGE,
                    How::Whiteout(_) => RenameFlags::WHITEOUT,
                };
                let (from, to) = (self.path(names, from), self.path(names, to));
                Ok(rustix::fs::renameat_with(CWD, &from, CWD, &to, flags)?)
            }
            Operation::Hold { id } => {
                let file = open(&self.path_of(names, *id)?)?;
                self.held.insert(*id, file);
                Ok(())
            }
            Operation::Release { id } => {
                self.held.remove(id);
                Ok(())
            }
            operation if operation.is_sync() => self.sync(names, operation),
            operation if operation.content_of().is_some() => self.content(names, operation),
            operation => self.attributes(names, operation),
        }
    }

    fn refusal(&self, operation: &Operation, error: &io::Error) -> Refusal {
        if self.gone.load(Ordering::SeqCst) {
            return Refusal::Gone;
        }
        let full = error.raw_os_error() == Some(Errno::NOSPC.raw_os_error());
        if full && matches!(operation, Operation::SetXattr { .. }) {
            return Refusal::Harmless;
        }
        Refusal::Fault(error.to_string())
    }
}

impl Target for HostTarget {
    fn perform(&mut self, names: &Namespace, operation: &Operation) -> Result<(), Refusal> {
        let done = self.change(names, operation);
        done.map_err(|error| self.refusal(operation, &error))
    }

    fn read(&mut self, names: &Namespace, id: Id) -> Result<FileBytes, Refusal> {
        let read = self.with_file(names, id, |file| {
            let size = file.metadata()?.len();
            read_data(file, size)
        });
        read.map_err(|error| self.refusal(&Operation::Check { id }, &error))
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

/// Reads the data ranges of a file.
pub(crate) fn read_data(file: &File, size: u64) -> io::Result<FileBytes> {
    use rustix::fs::SeekFrom;
    let mut data = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        let mut bytes = vec![0; (end - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        data.push((start, bytes));
        at = end.max(start + 1);
    }
    Ok(FileBytes { size, data })
}
