// SPDX-License-Identifier: GPL-2.0-only
//! Files of a session, by path.
//!
//! # What
//! fio names files by paths of the host; here they start at the root of the image, with or without
//! a slash. Directories that are missing are made with the first file in them, as fio does on the
//! host.

use std::path::Path;
use std::sync::Arc;

use uext4::{
    AllocateMode, Device, ErrorKind, FileKind, InodeRef, NewInode, OpenFile, Owner, SetAttr, Volume,
};

use crate::line::{Failure, Result};
use crate::session::Session;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Make the file if it is missing.
    pub create: bool,
    /// Past the page cache.
    pub direct: bool,
}

/// An open file of one job.
#[derive(Debug)]
pub struct File {
    session: Arc<Session>,
    open: OpenFile,
    direct: bool,
}

impl File {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// Of the volume; `..` in the path.
    pub fn open(session: &Arc<Session>, path: &[u8], how: How) -> Result<Self> {
        let volume = session.volume();
        let (dir, name) = parent(volume, path, how.create)?;
        let inode = match volume.lookup(&dir, name) {
            Err(error) if how.create && *error.kind() == ErrorKind::NotFound => {
                make(volume, &dir, name, FileKind::Regular, 0o644)?
            }
            found => found?,
        };
        let open = volume.open_file(&inode)?;
        Ok(Self { session: Arc::clone(session), open, direct: how.direct })
    }

    /// The inode.
    #[must_use]
    pub fn inode(&self) -> &InodeRef {
        self.open.inode()
    }

    /// Reads; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    /// See [`OpenFile::read_at`], [`OpenFile::read_direct_at`].
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let open = &self.open;
        Ok(if self.direct { open.read_direct_at(offset, buf) } else { open.read_at(offset, buf) }?)
    }

    /// Writes.
    ///
    /// # Errors
    /// See [`OpenFile::write_at`], [`OpenFile::write_direct_at`].
    pub fn write(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        let open = &self.open;
        let written = match self.direct {
            true => open.write_direct_at(offset, buf),
            false => open.write_at(offset, buf),
        };
        Ok(written?)
    }

    /// Writes as with `O_DSYNC`.
    ///
    /// # Errors
    /// See [`OpenFile::write_direct_durably_at`], [`OpenFile::sync`].
    pub fn write_durably(&self, offset: u64, buf: &[u8]) -> Result<usize> {
        if self.direct {
            return Ok(self.open.write_direct_durably_at(offset, buf)?);
        }
        let written = self.open.write_at(offset, buf)?;
        self.open.sync(true)?;
        Ok(written)
    }

    /// fsync, or fdatasync if `data_only`.
    ///
    /// # Errors
    /// See [`OpenFile::sync`].
    pub fn sync(&self, data_only: bool) -> Result<()> {
        Ok(self.open.sync(data_only)?)
    }

    /// Drops what is cached of the file, as posix_fadvise(2) with `DONTNEED` does.
    ///
    /// # Errors
    /// See [`OpenFile::drop_cached`].
    pub fn invalidate(&self) -> Result<()> {
        Ok(self.open.drop_cached()?)
    }

    /// fallocate.
    ///
    /// # Errors
    /// See [`OpenFile::allocate`].
    pub fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        Ok(self.open.allocate(mode, offset, len)?)
    }

    /// Cuts the file, or extends it by a hole.
    ///
    /// # Errors
    /// See [`Volume::set_attr`].
    pub fn truncate(&self, size: u64) -> Result<()> {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        self.session.volume().set_attr(self.open.inode(), &change)?;
        Ok(())
    }

    /// What close(2) does.
    ///
    /// # Errors
    /// A writeback failure that this file has not been told of.
    pub fn close(self) -> Result<()> {
        Ok(self.open.flush()?)
    }
}

/// Bytes of the file at `path`.
///
/// # Errors
/// Of the volume; `EISDIR` for what is no file.
pub fn size(session: &Session, path: &[u8]) -> Result<u64> {
    let volume = session.volume();
    let (dir, name) = parent(volume, path, false)?;
    let inode = volume.lookup(&dir, name)?;
    if inode.kind() != FileKind::Regular {
        return Err(Failure::new(libc::EISDIR, format_args!("{}: no file", shown(path))));
    }
    Ok(volume.attr(&inode).size)
}

/// Removes the file at `path`.
///
/// # Errors
/// Of the volume.
pub fn unlink(session: &Session, path: &[u8]) -> Result<()> {
    let volume = session.volume();
    let (dir, name) = parent(volume, path, false)?;
    Ok(volume.unlink(&dir, name)?)
}

/// The directory that holds the last name of `path`, and that name.
fn parent<'a>(volume: &Volume, path: &'a [u8], create: bool) -> Result<(InodeRef, &'a [u8])> {
    let mut names = path.split(|byte| *byte == b'/').filter(|n| !n.is_empty() && *n != b".");
    let last = names.next_back().ok_or_else(|| {
        Failure::invalid(format_args!("{}: the root of the image is no file", shown(path)))
    })?;
    let mut dir = volume.root()?;
    for name in names {
        refuse_parent(path, name)?;
        dir = match volume.lookup(&dir, name) {
            Err(error) if create && *error.kind() == ErrorKind::NotFound => {
                make(volume, &dir, name, FileKind::Directory, 0o755)?
            }
            found => found?,
        };
    }
    refuse_parent(path, last)?;
    Ok((dir, last))
}

fn refuse_parent(path: &[u8], name: &[u8]) -> Result<()> {
    if name != b".." {
        return Ok(());
    }
    Err(Failure::invalid(format_args!("{}: '..' has no meaning in an image", shown(path))))
}

/// Creates a name, or finds what another job created meanwhile.
fn make(
    volume: &Volume,
    dir: &InodeRef,
    name: &[u8],
    kind: FileKind,
    mode: u16,
) -> Result<InodeRef> {
    let new = NewInode { kind, mode, owner: Owner::default(), rdev: Device::default() };
    match volume.create(dir, name, &new) {
        Err(error) if *error.kind() == ErrorKind::Exists => Ok(volume.lookup(dir, name)?),
        made => Ok(made?),
    }
}

fn shown(path: &[u8]) -> std::path::Display<'_> {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(path)).display()
}
