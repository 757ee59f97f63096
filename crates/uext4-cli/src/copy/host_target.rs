//! A directory of the host as a target.
//!
//! Invariants: every name is one checked component, taken from an open directory without following
//! symbolic links. Another name of a file copied before is reached from the target's root with
//! `RESOLVE_BENEATH`. So nothing that an image holds makes a copy leave the target directory.

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

use crate::copy::{Id, Meta, Target, Try, Xattr, check_name};
use crate::failure::Why;

/// A directory to copy into.
pub(crate) struct HostTarget {
    root: Arc<OwnedFd>,
    is_root: bool,
}

/// A file made in it.
pub(crate) struct HostNode {
    dir: Arc<OwnedFd>,
    name: CString,
    /// Files and directories.
    open: Option<Arc<OwnedFd>>,
    /// From the target's root.
    path: Vec<u8>,
}

impl HostTarget {
    /// Opens the directory that everything will be copied into.
    pub(crate) fn open(dir: &Path) -> Try<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Arc::new(rustix::fs::open(dir, flags, Mode::empty())?);
        Ok(Self { root, is_root: rustix::process::geteuid().is_root() })
    }

    /// The directory itself.
    pub(crate) fn root(&self) -> HostNode {
        HostNode {
            dir: Arc::clone(&self.root),
            name: CString::from(c"."),
            open: Some(Arc::clone(&self.root)),
            path: Vec::new(),
        }
    }

    fn stat(dir: &OwnedFd, name: &CString) -> Try<Option<Stat>> {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what stands at a name, unless that is a directory.
    fn clear(dir: &OwnedFd, name: &CString) -> Try<()> {
        match Self::stat(dir, name)? {
            None => Ok(()),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                Err(Why::new("cannot overwrite a directory with a non-directory"))
            }
            Some(_) => Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?),
        }
    }
}

fn place<'n>(dir: &'n HostNode, name: &[u8]) -> Try<(&'n Arc<OwnedFd>, CString, Vec<u8>)> {
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

impl HostNode {
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
}

impl Target for HostTarget {
    type Node = HostNode;
    /// Path from the root.
    type Saved = Vec<u8>;

    fn identity(&self, dir: &HostNode, name: &[u8]) -> Try<Option<Id>> {
        let (open, name, _) = place(dir, name)?;
        Ok(Self::stat(open, &name)?.map(|stat| (stat.st_dev, stat.st_ino)))
    }

    fn directory(&self, dir: &HostNode, name: &[u8]) -> Try<HostNode> {
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
        Ok(HostNode { dir: Arc::clone(open), name, open: Some(Arc::new(made)), path })
    }

    fn file(&self, dir: &HostNode, name: &[u8]) -> Try<HostNode> {
        let (open, name, path) = place(dir, name)?;
        Self::clear(open, &name)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(open, &name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(HostNode { dir: Arc::clone(open), name, open: Some(Arc::new(file)), path })
    }

    fn write(&self, node: &HostNode, offset: u64, data: &[u8]) -> Try<()> {
        let file = node.file()?;
        let mut done = 0;
        while done < data.len() {
            let (rest, at) = (&data[done..], offset + done as u64);
            done += rustix::io::retry_on_intr(|| rustix::io::pwrite(file, rest, at))?;
        }
        Ok(())
    }

    fn set_len(&self, node: &HostNode, len: u64) -> Try<()> {
        Ok(rustix::fs::ftruncate(node.file()?, len)?)
    }

    fn symlink(&self, dir: &HostNode, name: &[u8], target: &[u8]) -> Try<HostNode> {
        let (open, name, path) = place(dir, name)?;
        Self::clear(open, &name)?;
        rustix::fs::symlinkat(OsStr::from_bytes(target), open, &name)?;
        Ok(HostNode { dir: Arc::clone(open), name, open: None, path })
    }

    fn special(&self, dir: &HostNode, name: &[u8], meta: &Meta) -> Try<HostNode> {
        let (open, name, path) = place(dir, name)?;
        Self::clear(open, &name)?;
        let (kind, device) = match meta.kind {
            FileKind::CharDevice => (FileType::CharacterDevice, meta.device),
            FileKind::BlockDevice => (FileType::BlockDevice, meta.device),
            FileKind::Fifo => (FileType::Fifo, (0, 0)),
            _ => (FileType::Socket, (0, 0)),
        };
        let device = rustix::fs::makedev(device.0, device.1);
        rustix::fs::mknodat(open, &name, kind, Mode::RUSR | Mode::WUSR, device)?;
        Ok(HostNode { dir: Arc::clone(open), name, open: None, path })
    }

    fn save(&self, node: &HostNode) -> Vec<u8> {
        node.path.clone()
    }

    fn link(&self, dir: &HostNode, name: &[u8], saved: &Vec<u8>) -> Try<()> {
        let (open, name, _) = place(dir, name)?;
        Self::clear(open, &name)?;
        let first = crate::spec::last_part(saved);
        let above = open_beneath(&self.root, &saved[..saved.len() - first.len()])?;
        let first = OsStr::from_bytes(first);
        Ok(rustix::fs::linkat(&above, first, open, &name, AtFlags::empty())?)
    }

    fn set_owner(&self, node: &HostNode, meta: &Meta) -> Try<()> {
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

    fn set_xattr(&self, node: &HostNode, xattr: &Xattr) -> Try<()> {
        let (name, flags) = (OsStr::from_bytes(&xattr.name), XattrFlags::empty());
        let set = match &node.open {
            Some(file) => rustix::fs::fsetxattr(file, name, &xattr.value, flags),
            None => rustix::fs::lsetxattr(node.proc_path(), name, &xattr.value, flags),
        };
        match set {
            Err(Errno::NOTSUP) => Ok(()),
            // Only root may set those of other name spaces; cp(1) leaves them out likewise.
            Err(Errno::PERM) if !self.is_root && !xattr.name.starts_with(b"user.") => Ok(()),
            Err(error) => {
                let name = crate::spec::show(&xattr.name);
                Err(Why::new(format!("attribute {name}: {}", Why::from(error))))
            }
            Ok(()) => Ok(()),
        }
    }

    fn finish(&self, node: &HostNode, meta: &Meta) -> Try<()> {
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
