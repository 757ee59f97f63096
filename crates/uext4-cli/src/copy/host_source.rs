//! Files of the host as a source.

use std::ffi::{CString, OsStr};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use uext4::{FileKind, Timestamp};
use uext4_mkfs::populate::faked;

use crate::copy::{Meta, Source, Try, Xattr};
use crate::failure::Why;

/// The host's files.
pub(crate) struct HostSource;

/// A file of the host: a name in an open directory; files and directories are open themselves.
pub(crate) struct HostSourceNode {
    dir: Arc<OwnedFd>,
    name: CString,
    stat: Stat,
    kind: FileKind,
    open: Option<Arc<OwnedFd>>,
    /// It is read to its end, from where it stands: a fifo, a device, a file that tells no size.
    is_stream: bool,
}

/// Most that the kernel lets the names of a file's attributes take, in bytes; the same for values.
const XATTR_BYTES_MAX: usize = 64 << 10;

impl HostSource {
    /// The file that `path` names, for its contents, as cp(1) reads it: symbolic links are
    /// followed, fifos and devices are read to their end.
    pub(crate) fn open_contents(&self, path: &Path) -> Try<HostSourceNode> {
        let kind = kind_of(&rustix::fs::stat(path)?)?;
        let is_stream =
            matches!(kind, FileKind::Fifo | FileKind::CharDevice | FileKind::BlockDevice);
        if kind == FileKind::Socket {
            return Err(Why::new("is a socket; cannot be read"));
        }
        // Not by a canonical path: /dev/stdin leads to what has none. The open of a fifo waits for
        // a writer; nothing else may wait.
        let wait = if is_stream { OFlags::empty() } else { OFlags::NONBLOCK };
        let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC | wait;
        let file = Arc::new(rustix::fs::open(path, flags, Mode::empty())?);
        let stat = faked::fstat(&file)?;
        let kind = if is_stream { FileKind::Regular } else { kind_of(&stat)? };
        let (dir, open) = (Arc::clone(&file), Some(file));
        let mut node =
            HostSourceNode { dir, name: CString::from(c"."), stat, kind, open, is_stream };
        node.is_stream |= node.tells_no_size();
        Ok(node)
    }

    /// Whether a file is read to its end, and not made again: as a device that holds an image.
    pub(crate) fn is_stream(node: &HostSourceNode) -> bool {
        node.is_stream
    }

    /// The file that `path` names, whatever it is: a symbolic link at its end is not followed.
    pub(crate) fn open(&self, path: &Path) -> Try<HostSourceNode> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => (parent_or_here(parent), name),
            // `/`, `.` and `..` are directories.
            _ => (path, OsStr::new(".")),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent, flags, Mode::empty())?;
        node(&Arc::new(dir), name.as_bytes())
    }
}

fn parent_or_here(parent: &Path) -> &Path {
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
}

fn node(dir: &Arc<OwnedFd>, name: &[u8]) -> Try<HostSourceNode> {
    let name = CString::new(name).map_err(|_| Why::new("name with a zero byte"))?;
    let mut stat = faked::statat(dir, &name)?;
    let mut kind = kind_of(&stat)?;
    let mut open = None;
    if matches!(kind, FileKind::Regular | FileKind::Directory) {
        // NONBLOCK: if the file is swapped for a fifo meanwhile, the open must not hang.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, &name, flags, Mode::empty())?;
        stat = faked::fstat(&file)?;
        kind = kind_of(&stat)?;
        open = Some(Arc::new(file));
    }
    let mut node =
        HostSourceNode { dir: Arc::clone(dir), name, stat, kind, open, is_stream: false };
    node.is_stream = node.tells_no_size();
    Ok(node)
}

fn kind_of(stat: &Stat) -> Try<FileKind> {
    let bits = u16::try_from(stat.st_mode & libc::S_IFMT).unwrap_or(0);
    FileKind::from_mode(bits).ok_or_else(|| Why::new("unknown kind of file"))
}

impl HostSourceNode {
    /// Whether it is empty or, as those of /proc, only says so.
    fn tells_no_size(&self) -> bool {
        let kind = FileType::from_raw_mode(self.stat.st_mode);
        kind == FileType::RegularFile && self.stat.st_size == 0
    }

    fn file(&self) -> Try<&OwnedFd> {
        self.open.as_deref().ok_or_else(|| Why::new("not open"))
    }

    /// A path for the calls that take no descriptor of a symbolic link or special file.
    fn proc_path(&self) -> std::path::PathBuf {
        Path::new("/proc/self/fd")
            .join(self.dir.as_raw_fd().to_string())
            .join(OsStr::from_bytes(self.name.as_bytes()))
    }

    fn list_xattrs(&self, names: &mut [u8]) -> rustix::io::Result<usize> {
        match &self.open {
            Some(file) => rustix::fs::flistxattr(file, names),
            None => rustix::fs::llistxattr(self.proc_path(), names),
        }
    }

    fn get_xattr(&self, name: &OsStr, value: &mut [u8]) -> rustix::io::Result<usize> {
        match &self.open {
            Some(file) => rustix::fs::fgetxattr(file, name, value),
            None => rustix::fs::lgetxattr(self.proc_path(), name, value),
        }
    }
}

impl Source for HostSource {
    type Node = HostSourceNode;

    fn meta(&self, node: &HostSourceNode) -> Meta {
        let stat = &node.stat;
        let time = |secs, nanos: u64| Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) };
        Meta {
            kind: node.kind,
            // The mask leaves 12 bits, so the cast loses nothing.
            mode: (stat.st_mode & 0o7777) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            links: if node.is_stream && !node.tells_no_size() { 1 } else { stat.st_nlink },
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            device: (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)),
            id: (stat.st_dev, stat.st_ino),
        }
    }

    fn names(&self, dir: &HostSourceNode) -> Try<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(dir.file()?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn child(&self, dir: &HostSourceNode, name: &[u8]) -> Try<HostSourceNode> {
        let dir = dir.open.as_ref().ok_or_else(|| Why::new("not open"))?;
        node(dir, name)
    }

    fn link_target(&self, node: &HostSourceNode) -> Try<Vec<u8>> {
        let target = rustix::fs::readlinkat(&node.dir, &node.name, Vec::new())?;
        Ok(target.into_bytes())
    }

    fn xattrs(&self, node: &HostSourceNode) -> Try<Vec<Xattr>> {
        let mut names = vec![0; XATTR_BYTES_MAX];
        let len = match node.list_xattrs(&mut names) {
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            other => other?,
        };
        let mut xattrs = Vec::new();
        let mut value = Vec::new();
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            value.resize(XATTR_BYTES_MAX, 0);
            match node.get_xattr(OsStr::from_bytes(name), &mut value) {
                Ok(len) => {
                    xattrs.push(Xattr { name: name.to_vec(), value: value[..len].to_vec() });
                }
                // Removed meanwhile, or listed but not for us to read.
                Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::NOTSUP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(xattrs)
    }

    fn next_data(&self, node: &HostSourceNode, from: u64) -> Try<Option<Range<u64>>> {
        if node.is_stream {
            return Ok(Some(from..u64::MAX));
        }
        let (file, size) = (node.file()?, u64::try_from(node.stat.st_size).unwrap_or(0));
        if from >= size {
            return Ok(None);
        }
        let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
            Ok(start) => start,
            // A hole to the end, or the end has come nearer, which is found by reading.
            Err(Errno::NXIO) if rustix::fs::fstat(file)?.st_size < node.stat.st_size => {
                return Ok(Some(from..size));
            }
            Err(Errno::NXIO) => return Ok(None),
            // A file system that does not know its holes.
            Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => return Ok(Some(from..size)),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        Ok(Some(start..end.min(size)))
    }

    fn read(&self, node: &HostSourceNode, offset: u64, buffer: &mut [u8]) -> Try<usize> {
        let file = node.file()?;
        Ok(rustix::io::retry_on_intr(|| match node.is_stream {
            true => rustix::io::read(file, &mut *buffer),
            false => rustix::io::pread(file, &mut *buffer, offset),
        })?)
    }
}
