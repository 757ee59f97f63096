//! What the threads of a load call: the library, or system calls on a mount.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use uext4::{AllocateMode, Device, FileKind, InodeRef, NewInode, OpenFile, SetAttr, Volume};

use crate::error::{Doing, Error, Result};
use crate::machine::caller;
use crate::target::Opened;

fn not_here<T>() -> Result<T> {
    Err(Error::new("this target does not do that"))
}

/// A file system. Paths have at most one directory and no slash at either end. A target implements
/// what its loads need.
pub(crate) trait FileSystem: Sync {
    /// Makes a directory in the root.
    fn make_dir(&self, _name: &str) -> Result<()> {
        not_here()
    }

    /// Makes an empty file and opens it.
    fn create(&self, _path: &str) -> Result<Box<dyn LoadFile + '_>> {
        not_here()
    }

    /// Opens a file.
    fn open(&self, _path: &str) -> Result<Box<dyn LoadFile + '_>> {
        not_here()
    }

    /// Removes a file.
    fn remove(&self, _path: &str) -> Result<()> {
        not_here()
    }
}

/// An open file.
pub(crate) trait LoadFile: Send + Sync {
    /// Writes all of `data` at an offset in bytes.
    fn write(&self, _offset: u64, _data: &[u8]) -> Result<()> {
        not_here()
    }

    /// Blocks for `len` bytes from byte `offset` on; the size follows.
    fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        not_here()
    }

    /// Truncates it to nothing.
    fn truncate(&self) -> Result<()> {
        not_here()
    }

    /// Returns when all of that is durable.
    fn sync(&self) -> Result<()>;
}

impl dyn FileSystem + '_ {
    /// Makes a file that is written in full and durable, in pieces of `piece` bytes that `fill`
    /// makes by their offset.
    pub(crate) fn write_file(
        &self,
        path: &str,
        bytes: u64,
        piece: usize,
        fill: impl Fn(u64, &mut [u8]),
    ) -> Result<()> {
        let file = self.create(path)?;
        let mut data = vec![0; piece];
        for offset in (0..bytes).step_by(piece) {
            let len = usize::try_from(bytes - offset).unwrap_or(usize::MAX);
            let part = &mut data[..len.min(piece)];
            fill(offset, part);
            file.write(offset, part)?;
        }
        file.sync()
    }
}

/// What to call on a target.
pub(crate) fn of(opened: &Opened) -> Box<dyn FileSystem + '_> {
    match opened {
        Opened::Library(volume) => Box::new(Library(volume)),
        Opened::Mount(mount) => Box::new(Directory(mount.dir())),
    }
}

/// A volume of this process.
pub(crate) struct Library<'a>(pub(crate) &'a Volume);

impl Library<'_> {
    fn make(&self, path: &str, kind: FileKind, mode: u16) -> Result<InodeRef> {
        let (dir, name) = self.split(path)?;
        let new = NewInode { kind, mode, owner: caller(), rdev: Device::default() };
        Ok(self.0.create(&dir, name.as_bytes(), &new)?)
    }

    fn split<'p>(&self, path: &'p str) -> Result<(InodeRef, &'p str)> {
        let root = self.0.root()?;
        Ok(match path.split_once('/') {
            None => (root, path),
            Some((dir, name)) => (self.0.lookup(&root, dir.as_bytes())?, name),
        })
    }

    fn opened(&self, inode: &InodeRef) -> Result<Box<dyn LoadFile + '_>> {
        Ok(Box::new(LibraryFile { volume: self.0, file: self.0.open_file(inode)? }))
    }
}

impl FileSystem for Library<'_> {
    fn make_dir(&self, name: &str) -> Result<()> {
        self.make(name, FileKind::Directory, 0o755).map(|_| ())
    }

    fn create(&self, path: &str) -> Result<Box<dyn LoadFile + '_>> {
        self.opened(&self.make(path, FileKind::Regular, 0o644)?)
    }

    fn open(&self, path: &str) -> Result<Box<dyn LoadFile + '_>> {
        let (dir, name) = self.split(path)?;
        self.opened(&self.0.lookup(&dir, name.as_bytes())?)
    }

    fn remove(&self, path: &str) -> Result<()> {
        let (dir, name) = self.split(path)?;
        Ok(self.0.unlink(&dir, name.as_bytes())?)
    }
}

struct LibraryFile<'a> {
    volume: &'a Volume,
    file: OpenFile,
}

impl LoadFile for LibraryFile<'_> {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.file.write_at(offset, data)?;
        if written == data.len() { Ok(()) } else { Err(Error::new("uext4: short write")) }
    }

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
pub(crate) struct Directory<'a>(pub(crate) &'a Path);

impl FileSystem for Directory<'_> {
    fn make_dir(&self, name: &str) -> Result<()> {
        fs::create_dir(self.0.join(name)).doing(format_args!("mkdir {name}"))
    }

    fn create(&self, path: &str) -> Result<Box<dyn LoadFile + '_>> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.0.join(path));
        Ok(Box::new(file.doing(format_args!("making {path}"))?))
    }

    fn open(&self, path: &str) -> Result<Box<dyn LoadFile + '_>> {
        let file = OpenOptions::new().read(true).write(true).open(self.0.join(path));
        Ok(Box::new(file.doing(format_args!("opening {path}"))?))
    }

    fn remove(&self, path: &str) -> Result<()> {
        fs::remove_file(self.0.join(path)).doing(format_args!("removing {path}"))
    }
}

impl LoadFile for File {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_all_at(data, offset).doing("write")
    }

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
