//! A directory of this host as a source.
//!
//! How: threads share a stack of directories that are still to be read; what they find is put
//! together in the order of the names at the end. Paths are opened below the top directory without
//! following any link on the way, so that a tree that changes meanwhile leads nowhere else.

use super::faked;
use super::holes::{WHOLE_MAX, data_ranges};
use super::tree::{
    Attributes, Body, ContentId, Contents, FileBody, Node, NodeId, Piece, Tree, Xattr, source,
};
use crate::error::{MkfsError, Result};
use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard};
use uext4_ondisk::{FileKind, Timestamp};

/// Most that the kernel lets the names of a file's attributes take, in bytes; the same for values.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Descriptors as files.
const PROC_FD: &str = "/proc/self/fd";

/// A directory that was read, with its tree.
#[derive(Debug)]
pub struct HostTree {
    /// What was found.
    pub tree: Tree,
    /// Whether extended attributes of symbolic links and special files could be asked for, which
    /// needs /proc.
    pub has_all_attributes: bool,
    top: Top,
    /// The regular files, as they were.
    files: Vec<Known>,
}

/// The top directory.
#[derive(Debug)]
struct Top {
    fd: OwnedFd,
    /// As the caller calls it.
    path: Vec<u8>,
}

/// A regular file as it was when the tree was read.
#[derive(Debug)]
struct Known {
    path: Box<[u8]>,
    version: Version,
}

/// By what a change of a file shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    ino: u64,
    size: i64,
    mtime: (i64, u64),
}

impl Version {
    fn of(stat: &Stat) -> Self {
        let mtime = (stat.st_mtime, u64::from(stat.st_mtime_nsec as u32));
        Self { ino: stat.st_ino, size: stat.st_size, mtime }
    }
}

/// What a directory has under a name.
struct Found {
    name: Box<[u8]>,
    attributes: Attributes,
    body: FoundBody,
    /// Device and inode of a file with several names.
    id: Option<(u64, u64)>,
}

enum FoundBody {
    /// Index of what was found in it.
    Directory(usize),
    File(FileBody, Version),
    Other(Body),
}

/// What the threads share.
struct Work {
    /// Paths that are still to be read, and where their names go.
    waiting: Vec<(Box<[u8]>, usize)>,
    /// What each directory has.
    found: Vec<Vec<Found>>,
    /// Directories that are being read.
    reading: usize,
    failure: Option<MkfsError>,
}

impl HostTree {
    /// Reads the tree below `path`, by several threads.
    ///
    /// # Errors
    /// [`MkfsError::Source`].
    pub fn read(path: &Path, threads: usize) -> Result<Self> {
        let name = path.as_os_str().as_bytes();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| source(name, e))?;
        let stat = faked::fstat(&fd).map_err(|e| source(name, e))?;
        let mut attributes = attributes(&stat);
        attributes.xattrs = match xattrs(Place::Descriptor(&fd)) {
            Err(Errno::NOTSUP) => Vec::new(),
            other => other.map_err(|e| source(name, e))?,
        };
        let top = Top { fd, path: name.to_vec() };
        let has_proc = rustix::fs::stat(PROC_FD).is_ok();
        let scan = Scan {
            top: &top,
            has_proc,
            work: Mutex::new(Work {
                waiting: vec![(Box::default(), 0)],
                found: vec![Vec::new()],
                reading: 0,
                failure: None,
            }),
            changed: Condvar::new(),
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                scope.spawn(|| scan.run());
            }
            scan.run();
        });
        let work = scan.work.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(failure) = work.failure {
            return Err(failure);
        }
        let mut tree = Tree::new(attributes);
        tree.has_root_attributes = false;
        let mut assembly =
            Assembly { tree, found: work.found, files: Vec::new(), links: HashMap::new() };
        assembly.run()?;
        let has_all_attributes = has_proc;
        Ok(Self { tree: assembly.tree, has_all_attributes, top, files: assembly.files })
    }
}

/// Reading directories.
struct Scan<'a> {
    top: &'a Top,
    has_proc: bool,
    work: Mutex<Work>,
    changed: Condvar,
}

impl Scan<'_> {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Reads directories until there are no more.
    fn run(&self) {
        let mut work = self.lock();
        loop {
            if let Some((path, index)) = work.waiting.pop() {
                work.reading += 1;
                drop(work);
                let outcome = self.directory(&path);
                work = self.lock();
                work.reading -= 1;
                match outcome {
                    Ok(found) => Self::enter(&mut work, &path, index, found),
                    Err(failure) => {
                        work.waiting.clear();
                        work.failure.get_or_insert(failure);
                    }
                }
                self.changed.notify_all();
            } else if work.reading == 0 || work.failure.is_some() {
                self.changed.notify_all();
                return;
            } else {
                let woken = self.changed.wait(work);
                work = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }

    /// Keeps what a directory has, and has its own directories read.
    fn enter(work: &mut Work, path: &[u8], index: usize, mut found: Vec<Found>) {
        let at = work.waiting.len();
        for entry in &mut found {
            if let FoundBody::Directory(index) = &mut entry.body {
                *index = work.found.len();
                work.found.push(Vec::new());
                if work.failure.is_none() {
                    work.waiting.push((join(path, &entry.name), *index));
                }
            }
        }
        // The first one is popped first, so that the disk sees the order of the tree.
        work.waiting[at..].reverse();
        work.found[index] = found;
    }

    fn directory(&self, path: &[u8]) -> Result<Vec<Found>> {
        let bad = |error: Errno| self.top.error(path, error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = self.top.open(path, flags).map_err(bad)?;
        let mut found = Vec::new();
        let (mut without, mut buffer) = (Without::default(), Vec::new());
        for entry in Dir::read_from(&dir).map_err(bad)? {
            let entry = entry.map_err(bad)?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                let one = self.entry(&dir, name, &mut without, &mut buffer);
                found.push(one.map_err(|why| self.top.error(&join(path, name.to_bytes()), why))?);
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn entry(
        &self,
        dir: &OwnedFd,
        name: &CStr,
        without: &mut Without,
        buffer: &mut Vec<u8>,
    ) -> std::result::Result<Found, Errno> {
        let stat = faked::statat(dir, name)?;
        let mut attributes = attributes(&stat);
        attributes.xattrs = without.ask(&stat, || self.xattrs(dir, name, &stat))?;
        let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let bits = u16::try_from(stat.st_mode & libc_mode()).unwrap_or(0);
        let body = match FileKind::from_mode(bits).ok_or(Errno::INVAL)? {
            FileKind::Directory => FoundBody::Directory(0),
            FileKind::Regular => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                let data = match size > WHOLE_MAX {
                    true => data_ranges(&open(dir, name)?, &stat, buffer)?,
                    false => None,
                };
                FoundBody::File(FileBody { size, data, content: ContentId(0) }, Version::of(&stat))
            }
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                FoundBody::Other(Body::Symlink(target.into_bytes()))
            }
            FileKind::CharDevice => FoundBody::Other(Body::CharDevice(device.0, device.1)),
            FileKind::BlockDevice => FoundBody::Other(Body::BlockDevice(device.0, device.1)),
            FileKind::Fifo => FoundBody::Other(Body::Fifo),
            FileKind::Socket => FoundBody::Other(Body::Socket),
        };
        let has_names = stat.st_nlink > 1 && !matches!(body, FoundBody::Directory(_));
        let id = has_names.then_some((stat.st_dev, stat.st_ino));
        Ok(Found { name: name.to_bytes().into(), attributes, body, id })
    }

    /// The extended attributes of a file. Without /proc there are none of what cannot be opened.
    fn xattrs(
        &self,
        dir: &OwnedFd,
        name: &CStr,
        stat: &Stat,
    ) -> std::result::Result<Vec<Xattr>, Errno> {
        let bits = u16::try_from(stat.st_mode & libc_mode()).unwrap_or(0);
        match FileKind::from_mode(bits) {
            _ if self.has_proc => xattrs(Place::Path(&proc_path(dir, name))),
            Some(FileKind::Regular | FileKind::Directory) => {
                xattrs(Place::Descriptor(&open(dir, name)?))
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// What has no extended attributes, by device and kind of file: a directory may have files of
/// several file systems, because files can be mounted, too.
#[derive(Default)]
struct Without(Vec<(u64, u32)>);

impl Without {
    /// The attributes of a file. Nothing of a sort that has none is asked again.
    fn ask(
        &mut self,
        stat: &Stat,
        ask: impl FnOnce() -> std::result::Result<Vec<Xattr>, Errno>,
    ) -> std::result::Result<Vec<Xattr>, Errno> {
        let sort = (stat.st_dev, stat.st_mode & libc_mode());
        if self.0.contains(&sort) {
            return Ok(Vec::new());
        }
        match ask() {
            Err(Errno::NOTSUP) => {
                self.0.push(sort);
                Ok(Vec::new())
            }
            other => other,
        }
    }
}

/// The bits of a mode that are the kind.
const fn libc_mode() -> u32 {
    uext4_ondisk::inode::S_IFMT as u32
}

fn join(path: &[u8], name: &[u8]) -> Box<[u8]> {
    let mut joined = Vec::with_capacity(path.len() + 1 + name.len());
    joined.extend_from_slice(path);
    if !path.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined.into()
}

fn attributes(stat: &Stat) -> Attributes {
    let time = |secs, nanos: u64| Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) };
    Attributes {
        // The mask leaves 12 bits, so the cast loses nothing.
        mode: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        xattrs: Vec::new(),
    }
}

/// A path for the calls that take no descriptor of a symbolic link or special file.
fn proc_path(dir: &OwnedFd, name: &CStr) -> PathBuf {
    let mut path = format!("{PROC_FD}/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    PathBuf::from(OsStr::from_bytes(&path))
}

/// Opens a regular file or directory, and leaves the time of its access alone if it can.
fn open(dir: &OwnedFd, name: &CStr) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        // Only its owner may.
        Err(Errno::PERM) => rustix::fs::openat(dir, name, flags, Mode::empty()),
        other => other,
    }
}

/// What the attributes of a file are asked of.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// The file itself, also if it is a symbolic link.
    Path(&'a Path),
    Descriptor(&'a OwnedFd),
}

/// The extended attributes of a file, by name. Without those the caller may not read.
fn xattrs(place: Place<'_>) -> std::result::Result<Vec<Xattr>, Errno> {
    let mut names = vec![0; 1024];
    let list = |names: &mut Vec<u8>| match place {
        Place::Path(path) => rustix::fs::llistxattr(path, &mut names[..]),
        Place::Descriptor(file) => rustix::fs::flistxattr(file, &mut names[..]),
    };
    let len = match list(&mut names) {
        Err(Errno::RANGE) => {
            names.resize(XATTR_BYTES_MAX, 0);
            list(&mut names)?
        }
        other => other?,
    };
    let mut xattrs = Vec::new();
    let mut value = Vec::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        value.resize(XATTR_BYTES_MAX, 0);
        let os_name = OsStr::from_bytes(name);
        let got = match place {
            Place::Path(path) => rustix::fs::lgetxattr(path, os_name, &mut value[..]),
            Place::Descriptor(file) => rustix::fs::fgetxattr(file, os_name, &mut value[..]),
        };
        match got {
            Ok(len) => xattrs.push(Xattr { name: name.to_vec(), value: value[..len].to_vec() }),
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

impl Top {
    fn error(&self, path: &[u8], why: Errno) -> MkfsError {
        source(&self.full(path), why)
    }

    /// A path as the caller would have it.
    fn full(&self, path: &[u8]) -> Vec<u8> {
        let mut full = self.path.clone();
        if !path.is_empty() {
            if full.last() != Some(&b'/') {
                full.push(b'/');
            }
            full.extend_from_slice(path);
        }
        full
    }

    /// Opens what is below the top, through directories alone. Paths may be longer than the
    /// kernel takes.
    fn open(&self, path: &[u8], flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        const PATH_MAX: usize = 4000;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut held: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > PATH_MAX {
            let cut = rest[..PATH_MAX].iter().rposition(|byte| *byte == b'/');
            let cut = cut.ok_or(Errno::NAMETOOLONG)?;
            let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            held = Some(below(held.as_ref().unwrap_or(&self.fd), &rest[..cut], way)?);
            rest = &rest[cut + 1..];
        }
        below(held.as_ref().unwrap_or(&self.fd), rest, flags)
    }
}

fn below(dir: &OwnedFd, path: &[u8], flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
        // A kernel of before 5.6, or a filter of system calls that does not know this one.
        Err(Errno::NOSYS | Errno::PERM) => part_by_part(dir, path, flags),
        other => other,
    }
}

/// Opens what is below a directory without following a link on the way.
fn part_by_part(dir: &OwnedFd, path: &[u8], flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
    let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut held: Option<OwnedFd> = None;
    let mut rest = path;
    while let Some(slash) = rest.iter().position(|byte| *byte == b'/') {
        let here = held.as_ref().unwrap_or(dir);
        held = Some(rustix::fs::openat(here, &rest[..slash], way, Mode::empty())?);
        rest = &rest[slash + 1..];
    }
    rustix::fs::openat(held.as_ref().unwrap_or(dir), rest, flags | OFlags::NOFOLLOW, Mode::empty())
}

/// Putting the tree together, in the order of the names.
struct Assembly {
    tree: Tree,
    found: Vec<Vec<Found>>,
    files: Vec<Known>,
    /// The nodes of files with several names.
    links: HashMap<(u64, u64), NodeId>,
}

impl Assembly {
    fn run(&mut self) -> Result<()> {
        let mut waiting: Vec<(Box<[u8]>, usize, NodeId)> =
            vec![(Box::default(), 0, self.tree.root())];
        while let Some((path, index, id)) = waiting.pop() {
            let at = waiting.len();
            for found in std::mem::take(&mut self.found[index]) {
                let (own, name) = (join(&path, &found.name), found.name.clone());
                if let Some(node) = found.id.and_then(|id| self.links.get(&id)) {
                    let linked = self.tree.link(id, &name, *node);
                    linked.map_err(|why| source(&own, why))?;
                    continue;
                }
                let (mut below, link) = (None, found.id);
                let body = match found.body {
                    FoundBody::Directory(index) => {
                        below = Some(index);
                        Body::directory()
                    }
                    FoundBody::File(mut file, version) => {
                        file.content = ContentId(self.files.len() as u64);
                        self.files.push(Known { path: own.clone(), version });
                        Body::File(file)
                    }
                    FoundBody::Other(body) => body,
                };
                let node = Node { attributes: found.attributes, body };
                let node = self.tree.add(id, &name, node).map_err(|why| source(&own, why))?;
                if let Some(link) = link {
                    self.links.insert(link, node);
                }
                if let Some(index) = below {
                    waiting.push((own, index, node));
                }
            }
            waiting[at..].reverse();
        }
        Ok(())
    }
}

impl Contents for HostTree {
    fn read(&self, content: ContentId, pieces: &mut [Piece<'_>]) -> Result<()> {
        let index = usize::try_from(content.0).unwrap_or(usize::MAX);
        let Some(known) = self.files.get(index) else {
            return Err(source(&self.top.path, "no such content"));
        };
        let bad = |error: Errno| self.top.error(&known.path, error);
        let changed = || source(&self.top.full(&known.path), "changed while it was read");
        let check = |file: &OwnedFd| {
            let stat = rustix::fs::fstat(file).map_err(bad)?;
            if Version::of(&stat) == known.version { Ok(()) } else { Err(changed()) }
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOATIME;
        let file = match self.top.open(&known.path, flags) {
            // Only its owner may leave the time of the access alone.
            Err(Errno::PERM) => self.top.open(&known.path, flags - OFlags::NOATIME),
            other => other,
        };
        let file = file.map_err(bad)?;
        check(&file)?;
        for piece in pieces {
            let (mut offset, mut rest) = (piece.offset, &mut *piece.buf);
            while !rest.is_empty() {
                let got =
                    rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut *rest, offset));
                match got.map_err(bad)? {
                    0 => return Err(changed()),
                    got => {
                        rest = &mut rest[got..];
                        offset += got as u64;
                    }
                }
            }
        }
        check(&file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: one file on a file system without attributes hides those of all behind it.
    #[test]
    fn only_what_is_on_the_same_file_system_is_not_asked() {
        let dir = tempfile::tempdir().unwrap();
        let mut stat = rustix::fs::stat(dir.path()).unwrap();
        let mut without = Without::default();
        let one = || Ok(vec![Xattr { name: b"user.x".to_vec(), value: Vec::new() }]);
        assert_eq!(without.ask(&stat, || Err(Errno::NOTSUP)), Ok(Vec::new()));
        assert_eq!(without.ask(&stat, one), Ok(Vec::new()));
        stat.st_dev += 1;
        assert_eq!(without.ask(&stat, one), one());
        assert_eq!(without.ask(&stat, || Err(Errno::IO)), Err(Errno::IO));
    }

    /// Fault model: without openat2(2) a link on the way leads elsewhere.
    #[test]
    fn no_link_is_followed_on_the_way() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a/link")).unwrap();
        let top = rustix::fs::open(dir.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        for open in [below, part_by_part] {
            open(&top, b"a/b/file", OFlags::RDONLY).unwrap();
            open(&top, b".", OFlags::RDONLY).unwrap();
            for path in [&b"a/link"[..], b"a/link/file"] {
                let outcome = open(&top, path, OFlags::RDONLY);
                assert!(matches!(outcome, Err(Errno::LOOP | Errno::NOTDIR)), "{outcome:?}");
            }
        }
    }
}
