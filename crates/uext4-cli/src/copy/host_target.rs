//! A directory of the host as a target.
//!
//! Invariants: every name is one checked component, taken from an open directory without following
//! symbolic links. Another name of a file copied before is reached from the target's root with
//! `RESOLVE_BENEATH`. So nothing that an image holds makes a copy leave the target directory.
//!
//! Only what the user named on the command line is written into as it is ([`Target::in_place`]):
//! a link is followed, and devices and fifos take a stream of bytes. Devices, fifos and sockets
//! are never removed but for another of their kind in a tree.

use std::cell::Cell;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use uext4::{FileKind, Timestamp};

use crate::copy::{Meta, Target, There, Try, Xattr, check_name};
use crate::failure::Why;

/// A directory to copy into.
pub(crate) struct HostTarget {
    root: Arc<OwnedFd>,
    is_root: bool,
}

/// A file made in it.
pub(crate) struct HostTargetNode {
    dir: Arc<OwnedFd>,
    name: CString,
    /// Files and directories.
    open: Option<Arc<OwnedFd>>,
    /// From the target's root.
    path: Vec<u8>,
    /// Of a device or fifo: the bytes written so far.
    stream: Option<Cell<u64>>,
    /// Neither made here nor the caller's: its attributes stay.
    is_foreign: bool,
}

impl HostTarget {
    /// Opens the directory that everything will be copied into.
    pub(crate) fn open(dir: &Path) -> Try<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Arc::new(rustix::fs::open(dir, flags, Mode::empty())?);
        Ok(Self { root, is_root: rustix::process::geteuid().is_root() })
    }

    /// The directory itself.
    pub(crate) fn root(&self) -> HostTargetNode {
        HostTargetNode {
            dir: Arc::clone(&self.root),
            name: CString::from(c"."),
            open: Some(Arc::clone(&self.root)),
            path: Vec::new(),
            stream: None,
            is_foreign: false,
        }
    }

    fn stat(dir: &OwnedFd, name: &CString) -> Try<Option<Stat>> {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file or link that stands at a name, or what is of the kind that shall stand there.
    fn clear(&self, dir: &OwnedFd, name: &CString, new: FileType) -> Try<()> {
        let Some(stat) = Self::stat(dir, name)? else { return Ok(()) };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                return Err(Why::new("cannot overwrite a directory with a non-directory"));
            }
            FileType::RegularFile | FileType::Symlink => {}
            there if there == new => {}
            there => return Err(not_replaced(there)),
        }
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
    }
}

fn not_replaced(kind: FileType) -> Why {
    let words = match kind {
        FileType::BlockDevice => "a block device",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a fifo",
        FileType::Socket => "a socket",
        FileType::Symlink => "a symbolic link",
        _ => "a file of an unknown kind",
    };
    Why::new(format!("is {words}; not replaced"))
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
    }
}

/// Writes all at an offset, or at the end of what a stream has got.
fn write_all(file: &OwnedFd, offset: Option<u64>, data: &[u8]) -> Try<()> {
    let mut done = 0;
    while done < data.len() {
        let rest = &data[done..];
        done += rustix::io::retry_on_intr(|| match offset {
            Some(offset) => rustix::io::pwrite(file, rest, offset + done as u64),
            None => rustix::io::write(file, rest),
        })?;
    }
    Ok(())
}

fn place<'n>(dir: &'n HostTargetNode, name: &[u8]) -> Try<(&'n Arc<OwnedFd>, CString, Vec<u8>)> {
    check_name(name)?;
    let open = dir.open.as_ref().ok_or_else(|| Why::new("not a directory"))?;
    let c_name = CString::new(name).map_err(|_| Why::new("name with a zero byte"))?;
    Ok((open, c_name, crate::spec::join(&dir.path, name)))
}

/// Opens a directory below `root` without leaving it and without following links.
fn open_beneath(root: &OwnedFd, path: &[u8]) -> Try<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let whole = if path.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(path) };
    match rustix::fs::openat2(root, whole, flags, Mode::empty(), resolve) {
        // Kernels before 5.6, and sandboxes that do not know the call: one part at a time.
        Err(Errno::NOSYS | Errno::PERM) => {}
        other => return Ok(other?),
    }
    let mut dir = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        check_name(part)?;
        dir = rustix::fs::openat(&dir, OsStr::from_bytes(part), flags, Mode::empty())?;
    }
    Ok(dir)
}

impl HostTargetNode {
    /// What was made, or a directory that was there.
    fn new(dir: &Arc<OwnedFd>, name: CString, open: Option<OwnedFd>, path: Vec<u8>) -> Self {
        let (dir, open) = (Arc::clone(dir), open.map(Arc::new));
        Self { dir, name, open, path, stream: None, is_foreign: false }
    }

    fn proc_path(&self) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.dir.as_raw_fd().to_string())
            .join(OsStr::from_bytes(self.name.as_bytes()))
    }

    /// Whether owner and group are those that `meta` names.
    fn is_owned_as(&self, meta: &Meta) -> Try<bool> {
        let stat = match &self.open {
            Some(file) => rustix::fs::fstat(file)?,
            None => rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)?,
        };
        Ok((stat.st_uid, stat.st_gid) == (meta.uid, meta.gid))
    }

    fn file(&self) -> Try<&OwnedFd> {
        self.open.as_deref().ok_or_else(|| Why::new("not open"))
    }

    /// Fills a stream with zeros up to an offset: it has no holes.
    fn zeros_to(&self, at: &Cell<u64>, offset: u64) -> Try<()> {
        static ZEROS: [u8; 65_536] = [0; 65_536];
        while at.get() < offset {
            let len = ZEROS.len().min(usize::try_from(offset - at.get()).unwrap_or(usize::MAX));
            write_all(self.file()?, None, &ZEROS[..len])?;
            at.set(at.get() + len as u64);
        }
        Ok(())
    }
}

impl Target for HostTarget {
    type Node = HostTargetNode;
    /// Path from the root.
    type Saved = Vec<u8>;

    fn in_place(
        &self,
        dir: &HostTargetNode,
        name: &[u8],
        kind: FileKind,
    ) -> Try<Option<HostTargetNode>> {
        let (open, name, path) = place(dir, name)?;
        let Some(there) = Self::stat(open, &name)? else { return Ok(None) };
        let there = FileType::from_raw_mode(there.st_mode);
        if matches!(there, FileType::RegularFile | FileType::Directory) {
            return Ok(None);
        }
        if kind != FileKind::Regular {
            return if there == file_type(kind) { Ok(None) } else { Err(not_replaced(there)) };
        }
        let end = match rustix::fs::statat(open, &name, AtFlags::empty()) {
            Ok(end) => FileType::from_raw_mode(end.st_mode),
            Err(Errno::NOENT) => {
                return Err(Why::new("not writing through a dangling symbolic link"));
            }
            Err(error) => return Err(error.into()),
        };
        let check = |end| match end {
            FileType::Directory => {
                Err(Why::new("cannot overwrite a directory with a non-directory"))
            }
            FileType::BlockDevice | FileType::Socket => Err(not_replaced(end)),
            _ => Ok(end),
        };
        check(end)?;
        let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(open, &name, flags, Mode::empty())?;
        // It may have been swapped meanwhile.
        let stat = rustix::fs::fstat(&file)?;
        let end = check(FileType::from_raw_mode(stat.st_mode))?;
        let is_file = end == FileType::RegularFile;
        if is_file {
            rustix::fs::ftruncate(&file, 0)?;
        }
        let is_own = self.is_root || stat.st_uid == rustix::process::geteuid().as_raw();
        Ok(Some(HostTargetNode {
            dir: Arc::clone(open),
            name,
            open: Some(Arc::new(file)),
            path,
            stream: (!is_file).then(Cell::default),
            is_foreign: !is_file || !is_own,
        }))
    }

    fn there(&self, dir: &HostTargetNode, name: &[u8]) -> Try<Option<There>> {
        let (open, name, _) = place(dir, name)?;
        Ok(Self::stat(open, &name)?.map(|stat| There {
            id: (stat.st_dev, stat.st_ino),
            mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        }))
    }

    fn directory(&self, dir: &HostTargetNode, name: &[u8]) -> Try<HostTargetNode> {
        let (open, name, path) = place(dir, name)?;
        match rustix::fs::mkdirat(open, &name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = match rustix::fs::openat(open, &name, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(Why::new("cannot overwrite a non-directory with a directory"));
            }
            other => other?,
        };
        Ok(HostTargetNode::new(open, name, Some(made), path))
    }

    fn file(&self, dir: &HostTargetNode, name: &[u8]) -> Try<HostTargetNode> {
        let (open, name, path) = place(dir, name)?;
        self.clear(open, &name, FileType::RegularFile)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(open, &name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(HostTargetNode::new(open, name, Some(file), path))
    }

    fn write(&self, node: &HostTargetNode, offset: u64, data: &[u8]) -> Try<()> {
        let Some(at) = &node.stream else { return write_all(node.file()?, Some(offset), data) };
        node.zeros_to(at, offset)?;
        write_all(node.file()?, None, data)?;
        at.set(offset + data.len() as u64);
        Ok(())
    }

    fn set_len(&self, node: &HostTargetNode, len: u64) -> Try<()> {
        match &node.stream {
            Some(at) => node.zeros_to(at, len),
            None => Ok(rustix::fs::ftruncate(node.file()?, len)?),
        }
    }

    fn symlink(&self, dir: &HostTargetNode, name: &[u8], target: &[u8]) -> Try<HostTargetNode> {
        let (open, name, path) = place(dir, name)?;
        self.clear(open, &name, FileType::Symlink)?;
        rustix::fs::symlinkat(OsStr::from_bytes(target), open, &name)?;
        Ok(HostTargetNode::new(open, name, None, path))
    }

    fn special(&self, dir: &HostTargetNode, name: &[u8], meta: &Meta) -> Try<HostTargetNode> {
        let (open, name, path) = place(dir, name)?;
        let kind = file_type(meta.kind);
        self.clear(open, &name, kind)?;
        let device = match meta.kind {
            FileKind::CharDevice | FileKind::BlockDevice => meta.device,
            _ => (0, 0),
        };
        let device = rustix::fs::makedev(device.0, device.1);
        rustix::fs::mknodat(open, &name, kind, Mode::RUSR | Mode::WUSR, device)?;
        Ok(HostTargetNode::new(open, name, None, path))
    }

    fn save(&self, node: &HostTargetNode) -> Vec<u8> {
        node.path.clone()
    }

    fn link(&self, dir: &HostTargetNode, name: &[u8], saved: &Vec<u8>) -> Try<()> {
        let (open, name, _) = place(dir, name)?;
        self.clear(open, &name, FileType::RegularFile)?;
        let first = crate::spec::last_part(saved);
        let above = open_beneath(&self.root, &saved[..saved.len() - first.len()])?;
        let first = OsStr::from_bytes(first);
        Ok(rustix::fs::linkat(&above, first, open, &name, AtFlags::empty())?)
    }

    fn set_owner(&self, node: &HostTargetNode, meta: &Meta) -> Try<()> {
        if node.is_foreign {
            return Ok(());
        }
        if !self.is_root {
            // A group that the caller is in can be kept, as cp(1) does; `finish` looks.
            if let Some(file) = &node.open {
                let _ = rustix::fs::fchown(file, None, Some(Gid::from_raw(meta.gid)));
            }
            return Ok(());
        }
        let (uid, gid) = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match &node.open {
            Some(file) => rustix::fs::fchown(file, uid, gid)?,
            None => rustix::fs::chownat(&node.dir, &node.name, uid, gid, flags)?,
        }
        Ok(())
    }

    fn set_xattr(&self, node: &HostTargetNode, xattr: &Xattr) -> Try<()> {
        if node.is_foreign {
            return Ok(());
        }
        let (name, flags) = (OsStr::from_bytes(&xattr.name), XattrFlags::empty());
        let set = match &node.open {
            Some(file) => rustix::fs::fsetxattr(file, name, &xattr.value, flags),
            None => rustix::fs::lsetxattr(node.proc_path(), name, &xattr.value, flags),
        };
        match set {
            Err(Errno::NOTSUP) => Ok(()),
            // Only root may set those of other name spaces; cp(1) leaves them out, too.
            Err(Errno::PERM) if !self.is_root && !xattr.name.starts_with(b"user.") => Ok(()),
            Err(error) => {
                let name = crate::spec::show(&xattr.name);
                Err(Why::new(format!("attribute {name}: {}", Why::from(error))))
            }
            Ok(()) => Ok(()),
        }
    }

    fn remove_xattr(&self, node: &HostTargetNode, name: &[u8]) -> Try<()> {
        if node.is_foreign {
            return Ok(());
        }
        let name = OsStr::from_bytes(name);
        let removed = match &node.open {
            Some(file) => rustix::fs::fremovexattr(file, name),
            None => rustix::fs::lremovexattr(node.proc_path(), name),
        };
        match removed {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn finish(&self, node: &HostTargetNode, meta: &Meta) -> Try<()> {
        if node.is_foreign {
            return Ok(());
        }
        let times = Timestamps {
            last_access: timespec(meta.atime),
            last_modification: timespec(meta.mtime),
        };
        // Set-id bits for another owner than the image's would give away rights.
        let mask = if self.is_root || node.is_owned_as(meta)? { 0o7777 } else { 0o1777 };
        let mode = Mode::from_raw_mode(u32::from(meta.mode & mask));
        match &node.open {
            Some(file) => {
                rustix::fs::fchmod(file, mode)?;
                rustix::fs::futimens(file, &times)?;
            }
            None => {
                if meta.kind != FileKind::Symlink {
                    rustix::fs::chmodat(&node.dir, &node.name, mode, AtFlags::empty())?;
                }
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(&node.dir, &node.name, &times, flags)?;
            }
        }
        Ok(())
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) }
}
