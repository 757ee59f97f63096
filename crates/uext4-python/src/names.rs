//! Operations by path, without Python: what [`crate::volume`] calls while the interpreter is
//! released.

use crate::error::Failure;
use pyo3::prelude::*;
use uext4::{
    FileKind, InodeRef, LastLink, NewInode, OpenFile, Owner, RenameMode, SetAttr, SetTime,
    Timestamp, Volume,
};

type Result<T> = std::result::Result<T, Failure>;

/// The inode that a path leads to. Paths begin at the root, with a slash or without.
pub(crate) fn find(volume: &Volume, path: &[u8], follow: bool) -> Result<InodeRef> {
    let last = if follow { LastLink::Follow } else { LastLink::Keep };
    Ok(volume.find_at(&volume.root()?, path, last)?)
}

/// How a file is opened, as by the flags of open(2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFlags {
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    /// Permission bits of a file that is made, and its owner.
    pub(crate) mode: u16,
    pub(crate) owner: Owner,
}

impl OpenFlags {
    /// Opens or makes a regular file.
    pub(crate) fn open(self, volume: &Volume, path: &[u8]) -> Result<OpenFile> {
        let inode = self.find_or_create(volume, path)?;
        if inode.kind() == FileKind::Directory {
            return Err(Failure::errno(libc::EISDIR));
        }
        if self.write && volume.read_only() {
            return Err(Failure::errno(libc::EROFS));
        }
        let file = volume.open_file(&inode)?;
        if self.truncate {
            volume.set_attr(&inode, &cut(volume, &inode, 0, self.owner.gid))?;
        }
        Ok(file)
    }

    fn find_or_create(self, volume: &Volume, path: &[u8]) -> Result<InodeRef> {
        if !self.create {
            return find(volume, path, true);
        }
        let new = NewInode {
            kind: FileKind::Regular,
            mode: self.mode,
            owner: self.owner,
            rdev: uext4::Device::default(),
        };
        let (root, last) = (volume.root()?, LastLink::Follow);
        Ok(volume.find_or_create_at(&root, path, last, self.exclusive, &new)?)
    }
}

/// A new length of a file, set by a caller of `group`.
pub(crate) fn cut(volume: &Volume, inode: &InodeRef, size: u64, group: u32) -> SetAttr {
    let kill_priv = Some(volume.privs_for(inode, group));
    SetAttr { size: Some(size), kill_priv, ..SetAttr::default() }
}

/// Attributes: mode with type, inode, links, user, group, bytes, blocks of 512 bytes, bytes of a
/// block, device number; times of access, content, inode and creation as seconds and nanoseconds;
/// inode flags, generation.
#[derive(IntoPyObject)]
pub(crate) struct Stat {
    mode: u16,
    ino: u32,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    block_size: u32,
    device: (u32, u32),
    atime: (i64, u32),
    mtime: (i64, u32),
    ctime: (i64, u32),
    crtime: Option<(i64, u32)>,
    flags: u32,
    generation: u32,
}

/// Attributes of what a path leads to.
pub(crate) fn stat(volume: &Volume, path: &[u8], follow: bool) -> Result<Stat> {
    let attr = volume.attr(&find(volume, path, follow)?);
    let time = |time: Timestamp| (time.secs, time.nanos);
    Ok(Stat {
        mode: attr.kind.mode() | attr.mode,
        ino: attr.ino.get(),
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        blocks: attr.blocks_512,
        block_size: attr.block_size,
        device: (attr.rdev.major, attr.rdev.minor),
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        crtime: attr.crtime.map(time),
        flags: attr.flags.bits(),
        generation: attr.generation,
    })
}

/// Names of a directory but `.` and `..`.
pub(crate) fn list(volume: &Volume, path: &[u8]) -> Result<Vec<(Vec<u8>, u32, u16)>> {
    let dir = find(volume, path, true)?;
    let mut names = Vec::new();
    volume.read_dir(&dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            let kind = entry.kind.map_or(0, FileKind::mode);
            names.push((entry.name.to_vec(), entry.ino.get(), kind));
        }
        true
    })?;
    Ok(names)
}

pub(crate) fn mkdir(volume: &Volume, path: &[u8], mode: u16, owner: Owner) -> Result<()> {
    let kind = FileKind::Directory;
    let new = NewInode { kind, mode, owner, rdev: uext4::Device::default() };
    volume.create_at(&volume.root()?, path, &new)?;
    Ok(())
}

pub(crate) fn symlink(volume: &Volume, target: &[u8], path: &[u8], owner: Owner) -> Result<()> {
    volume.symlink_at(&volume.root()?, path, target, owner)?;
    Ok(())
}

pub(crate) fn link(volume: &Volume, target: &[u8], path: &[u8], follow: bool) -> Result<()> {
    let inode = find(volume, target, follow)?;
    Ok(volume.link_at(&inode, &volume.root()?, path)?)
}

pub(crate) fn remove(volume: &Volume, path: &[u8], is_directory: bool) -> Result<()> {
    let root = volume.root()?;
    match is_directory {
        true => volume.rmdir_at(&root, path)?,
        false => volume.unlink_at(&root, path)?,
    }
    Ok(())
}

pub(crate) fn rename(volume: &Volume, from: &[u8], to: &[u8], replace: bool) -> Result<()> {
    let root = volume.root()?;
    let mode = if replace { RenameMode::Replace } else { RenameMode::NoReplace };
    Ok(volume.rename_at(&root, from, &root, to, mode)?)
}

pub(crate) fn readlink(volume: &Volume, path: &[u8]) -> Result<Vec<u8>> {
    let inode = find(volume, path, false)?;
    if inode.kind() != FileKind::Symlink {
        return Err(Failure::errno(libc::EINVAL));
    }
    Ok(volume.read_link(&inode)?)
}

/// Attributes to set; those that are `None` stay.
pub(crate) struct Change {
    pub(crate) mode: Option<u16>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<(i64, u32)>,
    pub(crate) mtime: Option<(i64, u32)>,
}

impl Change {
    /// Sets them for what a path leads to, by a caller of `group` without `CAP_FSETID`.
    pub(crate) fn apply(
        self,
        volume: &Volume,
        path: &[u8],
        follow: bool,
        group: u32,
    ) -> Result<()> {
        let inode = find(volume, path, follow)?;
        let removes = self.size.is_some() || self.uid.is_some() || self.gid.is_some();
        let kill_priv = (removes && inode.kind() != FileKind::Directory)
            .then(|| volume.privs_for(&inode, group));
        let time = |time: Option<(i64, u32)>| {
            time.map(|(secs, nanos)| SetTime::At(Timestamp { secs, nanos }))
        };
        let change = SetAttr {
            mode: self.mode.map(|mode| mode & 0o7777),
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime: time(self.atime),
            mtime: time(self.mtime),
            kill_priv,
            ..SetAttr::default()
        };
        volume.set_attr(&inode, &change)?;
        Ok(())
    }
}
