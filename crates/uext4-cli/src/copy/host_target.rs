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
use std::sync::{Arc, OnceLock};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use uext4::{FileKind, Timestamp};
use uext4_archive::{Acl, XATTR_ACCESS, XATTR_DEFAULT};

use crate::copy::{Meta, Target, There, Try, Undo, Xattr, check_name};
use crate::failure::Why;

/// Numbers of file systems, as of statfs(2), that tell errors of writes when a file is closed or
/// synced: AFS, Ceph, CIFS, FUSE, NFS, SMB, SMB 2, 9P.
const LATE: &[u32] =
    &[0x5346_414f, 0x00c3_6400, 0xff53_4d42, 0x6573_5546, 0x6969, 0x517b, 0xfe53_4d42, 0x0102_1997];

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
    /// Symbolic links, devices, fifos and sockets: what was made, whatever has its name by now.
    held: Option<OwnedFd>,
    /// From the target's root.
    path: Vec<u8>,
    /// Of a device or fifo: the bytes written so far.
    stream: Option<Cell<u64>>,
    /// Neither made here nor the caller's: its attributes stay.
    is_foreign: bool,
    /// A directory that was made here, and what is made in it: nobody else can write there, and
    /// there is no access list to inherit.
    own: Option<Arc<Own>>,
}

/// What is known of all files that are made in a directory of our own.
#[derive(Default)]
struct Own {
    /// Their owner and group as they are made, once the first one is there.
    owner: OnceLock<(u32, u32)>,
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
            held: None,
            path: Vec::new(),
            stream: None,
            is_foreign: false,
            own: None,
        }
    }

    /// Hears of errors that a file system tells after its writes, as those over a network do when a
    /// file is closed. A local one has told all: syncing it would wait for the writes of others.
    pub(crate) fn hear_late_errors(&self) -> Try<()> {
        let found = rustix::fs::fstatfs(&self.root)?;
        let is_late = u32::try_from(found.f_type).is_ok_and(|magic| LATE.contains(&magic));
        if is_late { Ok(rustix::fs::syncfs(&self.root)?) } else { Ok(()) }
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
        Self { dir, name, open, held: None, path, stream: None, is_foreign: false, own: None }
    }

    /// A directory that was just made, if it is that.
    fn into_own(self) -> Try<Self> {
        let dir = self.file()?;
        let stat = rustix::fs::fstat(dir)?;
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o77 == 0;
        let list = rustix::fs::fgetxattr(dir, c"system.posix_acl_default", &mut [0_u8; 0]);
        let has_none = matches!(list, Err(Errno::NODATA | Errno::NOTSUP));
        let own = (is_own && has_none).then(Arc::default);
        Ok(Self { own, ..self })
    }

    /// A file that was just made in `dir`.
    fn made_in(self, dir: &Self) -> Try<Self> {
        let Some(own) = &dir.own else { return Ok(self) };
        if own.owner.get().is_none() {
            let stat = rustix::fs::fstat(self.file()?)?;
            let _ = own.owner.set((stat.st_uid, stat.st_gid));
        }
        Ok(Self { own: Some(Arc::clone(own)), ..self })
    }

    /// Whether it was made with the owner that `meta` names.
    fn is_born_as(&self, meta: &Meta) -> bool {
        let is_directory = meta.kind == FileKind::Directory;
        let owner = self.own.as_ref().filter(|_| !is_directory).and_then(|own| own.owner.get());
        owner == Some(&(meta.uid, meta.gid))
    }

    /// What was just made and is not opened. Another program may have put
    /// something else there, which must get neither owner nor mode.
    fn hold(mut self, kind: FileType, device: u64) -> Try<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&held)?;
        let there = (FileType::from_raw_mode(stat.st_mode), stat.st_rdev, stat.st_nlink);
        if there != (kind, device, 1) {
            return Err(Why::new("was replaced by another program"));
        }
        self.held = Some(held);
        Ok(self)
    }

    fn held(&self) -> Try<&OwnedFd> {
        self.held.as_ref().ok_or_else(|| Why::new("not open"))
    }

    /// A path for the calls that take no descriptor of what cannot be opened.
    fn proc_path(&self) -> Try<PathBuf> {
        Ok(Path::new("/proc/self/fd").join(self.held()?.as_raw_fd().to_string()))
    }

    /// Whether owner and group are those that `meta` names.
    fn is_owned_as(&self, meta: &Meta) -> Try<bool> {
        if self.is_born_as(meta) {
            return Ok(true);
        }
        let stat = match &self.open {
            Some(file) => rustix::fs::fstat(file)?,
            None => rustix::fs::fstat(self.held()?)?,
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

impl Undo for HostTarget {
    fn undo(&self, made: &HostTargetNode) -> Try<()> {
        Ok(rustix::fs::unlinkat(&made.dir, &made.name, AtFlags::empty())?)
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
            held: None,
            path,
            stream: (!is_file).then(Cell::default),
            is_foreign: !is_file || !is_own,
            own: None,
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
        let is_new = match rustix::fs::mkdirat(open, &name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = match rustix::fs::openat(open, &name, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(Why::new("cannot overwrite a non-directory with a directory"));
            }
            other => other?,
        };
        let node = HostTargetNode::new(open, name, Some(made), path);
        if is_new { node.into_own() } else { Ok(node) }
    }

    fn new_file(&self, dir: &HostTargetNode, name: &[u8]) -> Try<Option<HostTargetNode>> {
        let (open, name, path) = place(dir, name)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(open, &name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => HostTargetNode::new(open, name, Some(file), path).made_in(dir).map(Some),
            Err(Errno::EXIST) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn file(&self, dir: &HostTargetNode, name: &[u8]) -> Try<HostTargetNode> {
        let (open, c_name, _) = place(dir, name)?;
        self.clear(open, &c_name, FileType::RegularFile)?;
        self.new_file(dir, name)?.ok_or_else(|| Errno::EXIST.into())
    }

    fn discard(&self, dir: &HostTargetNode, name: &[u8]) -> Try<()> {
        let (open, name, _) = place(dir, name)?;
        Ok(rustix::fs::unlinkat(open, &name, AtFlags::empty())?)
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
        HostTargetNode::new(open, name, None, path).hold(FileType::Symlink, 0)
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
        HostTargetNode::new(open, name, None, path).hold(kind, device)
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
        if node.is_foreign || node.is_born_as(meta) {
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
        match &node.open {
            Some(file) => rustix::fs::fchown(file, uid, gid)?,
            None => rustix::fs::chownat(node.held()?, c"", uid, gid, AtFlags::EMPTY_PATH)?,
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
            // The link of /proc leads to the file itself, also to a symbolic link.
            None => rustix::fs::setxattr(node.proc_path()?, name, &xattr.value, flags),
        };
        let is_list = is_list(xattr);
        match set {
            Err(Errno::NOTSUP) if !is_list => Ok(()),
            // Only root may set those of other name spaces; cp(1) leaves them out, too.
            Err(Errno::PERM) if !self.is_root && !is_list && !xattr.name.starts_with(b"user.") => {
                Ok(())
            }
            Err(error) => {
                let name = crate::spec::show(&xattr.name);
                Err(Why::new(format!("attribute {name}: {}", Why::from(error))))
            }
            Ok(()) => Ok(()),
        }
    }

    fn remove_xattr(&self, node: &HostTargetNode, name: &[u8]) -> Try<()> {
        if node.is_foreign || node.own.is_some() {
            return Ok(());
        }
        let name = OsStr::from_bytes(name);
        let removed = match &node.open {
            Some(file) => rustix::fs::fremovexattr(file, name),
            None => rustix::fs::removexattr(node.proc_path()?, name),
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
                    rustix::fs::chmod(node.proc_path()?, mode)?;
                }
                set_times(node, &times)?;
            }
        }
        Ok(())
    }
}

/// By the descriptor, and by its path where the kernel is older than 5.8.
fn set_times(node: &HostTargetNode, times: &Timestamps) -> Try<()> {
    let held = node.held()?;
    match rustix::fs::utimensat(held, c"", times, AtFlags::EMPTY_PATH) {
        Err(Errno::INVAL) => {
            let path = node.proc_path()?;
            Ok(rustix::fs::utimensat(rustix::fs::CWD, path, times, AtFlags::empty())?)
        }
        set => Ok(set?),
    }
}

/// Whether an attribute is an access list that says more than the mode does.
fn is_list(xattr: &Xattr) -> bool {
    match &xattr.name[..] {
        XATTR_DEFAULT => true,
        XATTR_ACCESS => Acl::from_xattr(&xattr.value).is_none_or(|acl| acl.entries().len() > 3),
        _ => false,
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.secs, tv_nsec: i64::from(time.nanos) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    /// Another program puts a link where a fifo was made: what that leads to stays as it is.
    #[test]
    fn what_takes_the_place_of_a_fifo_gets_no_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (target, victim) = (HostTarget::open(dir.path()).unwrap(), dir.path().join("victim"));
        fs::write(&victim, b"").unwrap();
        fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).unwrap();
        let own = fs::metadata(dir.path()).unwrap();
        let meta = Meta {
            kind: FileKind::Fifo,
            mode: 0o666,
            uid: std::os::unix::fs::MetadataExt::uid(&own),
            gid: std::os::unix::fs::MetadataExt::gid(&own),
            size: 0,
            links: 1,
            atime: Timestamp { secs: 1, nanos: 2 },
            mtime: Timestamp { secs: 3, nanos: 4 },
            device: (0, 0),
            id: (0, 0),
        };
        let made = target.special(&target.root(), b"fifo", &meta).unwrap();
        let (fifo, moved) = (dir.path().join("fifo"), dir.path().join("moved"));
        fs::rename(&fifo, &moved).unwrap();
        symlink(&victim, &fifo).unwrap();
        target.set_owner(&made, &meta).unwrap();
        target.finish(&made, &meta).unwrap();
        assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o7777, 0o600);
        let moved = fs::metadata(&moved).unwrap();
        assert!(moved.file_type().is_fifo());
        assert_eq!(moved.permissions().mode() & 0o7777, 0o666);
        assert_eq!(
            moved.modified().unwrap(),
            std::time::UNIX_EPOCH + std::time::Duration::new(3, 4)
        );
    }
}
