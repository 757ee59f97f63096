//! What the threads of the loads that allocate call.

use std::fs::{self, File, OpenOptions};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use uext4::{AllocateMode, Device, FileKind, InodeRef, NewInode, OpenFile, Owner, SetAttr, Volume};

use crate::error::{Doing, Error, Result};
use crate::target::Side;

/// A file system. Paths have at most one directory and no slash at either end.
pub(crate) trait Sink: Sync {
    /// Makes a directory in the root.
    fn make_dir(&self, name: &str) -> Result<()>;

    /// Makes an empty file and opens it.
    fn create(&self, path: &str) -> Result<Box<dyn Cell + '_>>;

    /// Removes a file.
    fn remove(&self, path: &str) -> Result<()>;
}

/// A file.
pub(crate) trait Cell: Send + Sync {
    /// Blocks for `len` bytes from byte `offset` on; the size follows.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;

    /// Cuts it off at its begin.
    fn truncate(&self) -> Result<()>;

    /// Returns when all of that is durable.
    fn sync(&self) -> Result<()>;
}

/// What to call on a side.
pub(crate) fn of(side: &Side) -> Box<dyn Sink + '_> {
    match side {
        Side::Library(volume) => Box::new(Library(volume)),
        Side::Mount(mount) => Box::new(Directory(mount.dir())),
    }
}

/// A volume of this process.
struct Library<'a>(&'a Volume);

impl Library<'_> {
    fn make(&self, path: &str, kind: FileKind, mode: u16) -> Result<InodeRef> {
        let (dir, name) = self.split(path)?;
        let new = NewInode { kind, mode, owner: Owner::default(), rdev: Device::default() };
        Ok(self.0.create(&dir, name.as_bytes(), &new)?)
    }

    fn split<'p>(&self, path: &'p str) -> Result<(InodeRef, &'p str)> {
        let root = self.0.root()?;
        Ok(match path.split_once('/') {
            None => (root, path),
            Some((dir, name)) => (self.0.lookup(&root, dir.as_bytes())?, name),
        })
    }
}

impl Sink for Library<'_> {
    fn make_dir(&self, name: &str) -> Result<()> {
        self.make(name, FileKind::Directory, 0o755).map(|_| ())
    }

    fn create(&self, path: &str) -> Result<Box<dyn Cell + '_>> {
        let made = self.make(path, FileKind::Regular, 0o644)?;
        Ok(Box::new(OwnFile { volume: self.0, file: self.0.open_file(&made)? }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let (dir, name) = self.split(path)?;
        Ok(self.0.unlink(&dir, name.as_bytes())?)
    }
}

struct OwnFile<'a> {
    volume: &'a Volume,
    file: OpenFile,
}

impl Cell for OwnFile<'_> {
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        Ok(self.file.allocate(AllocateMode::Allocate { keep_size: false }, offset, len)?)
    }

    fn truncate(&self) -> Result<()> {
        let change = SetAttr { size: Some(0), ..SetAttr::default() };
        Ok(self.volume.set_attr(self.file.inode(), &change).map(|_| ())?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.file.sync(false)?)
    }
}

/// A mounted file system.
struct Directory<'a>(&'a Path);

impl Sink for Directory<'_> {
    fn make_dir(&self, name: &str) -> Result<()> {
        fs::create_dir(self.0.join(name)).doing(format_args!("mkdir {name}"))
    }

    fn create(&self, path: &str) -> Result<Box<dyn Cell + '_>> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.0.join(path));
        Ok(Box::new(file.doing(format_args!("making {path}"))?))
    }

    fn remove(&self, path: &str) -> Result<()> {
        fs::remove_file(self.0.join(path)).doing(format_args!("removing {path}"))
    }
}

impl Cell for File {
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        loop {
            match fallocate(self, FallocateFlags::empty(), offset, len) {
                Err(rustix::io::Errno::INTR) => {}
                done => return done.map_err(|error| Error::new(format!("fallocate: {error}"))),
            }
        }
    }

    fn truncate(&self) -> Result<()> {
        self.set_len(0).doing("ftruncate")
    }

    fn sync(&self) -> Result<()> {
        self.sync_all().doing("fsync")
    }
}
