//! Paths, resolved as the kernel does below a root that cannot be left.
//!
//! What: a [`Walk`] goes down a path of bytes and follows symbolic links. [`Volume::resolve`] goes
//! to its end, [`Volume::resolve_parent`] stops before the last name, and [`Volume::resolve_end`]
//! finds where a file is made. Whether the caller may is not asked.
//! Invariants: each step is a lookup of its own, so a path that others change meanwhile is resolved
//! as the kernel would: in one of the states that each directory went through.
//! Locking: none between two steps.

use super::Volume;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::InodeRef;
use uext4_ondisk::{FileKind, Ino};

/// Symbolic links that one path may go through, as in the kernel.
pub const SYMLINKS_MAX: usize = 40;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    /// As stat(2).
    Follow,
    /// As lstat(2).
    Keep,
}

/// A resolved path: the inodes from its start down to its end. Never empty.
#[derive(Clone, Debug)]
pub struct Resolved {
    trail: Vec<InodeRef>,
}

impl Resolved {
    /// The inode at the end of the path.
    #[must_use]
    pub fn inode(&self) -> &InodeRef {
        // A trail starts with the directory that the path does.
        &self.trail[self.trail.len() - 1]
    }

    /// Whether `inode` is the end of the path or one of the directories that it goes through.
    #[must_use]
    pub fn goes_through(&self, inode: &InodeRef) -> bool {
        self.trail.iter().any(|on| on.ino() == inode.ino())
    }
}

/// Where a path leads in the end, also through symbolic links at its end.
#[derive(Clone, Debug)]
pub struct PathEnd {
    /// The directory.
    pub dir: Resolved,
    /// The name in it.
    pub name: Vec<u8>,
    /// What has the name, which is no symbolic link.
    pub inode: Option<InodeRef>,
}

impl Volume {
    /// The inode that `path` leads to. It begins at the root if its first byte is a slash, else at
    /// `from`. A slash at its end, or at the end of a symbolic link that is followed there, asks
    /// for a directory. An empty path is `from` itself.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`, `TooManySymlinks`; `Corrupt`; a device failure.
    pub fn resolve(&self, from: &InodeRef, path: &[u8], last: LastLink) -> Result<Resolved> {
        if path.is_empty() {
            return Ok(Resolved { trail: vec![from.clone()] });
        }
        let mut walk = Walk::new(self, from, path)?;
        loop {
            match walk.last()? {
                Last::Root | Last::Dot => break,
                Last::DotDot => {
                    walk.up()?;
                    break;
                }
                Last::Name(name) => {
                    let found = self.lookup(walk.here(), &name)?;
                    let follows = last == LastLink::Follow || walk.wants_directory;
                    if found.kind() != FileKind::Symlink || !follows {
                        walk.trail.push(found);
                        break;
                    }
                    walk.follow(&found)?;
                }
            }
        }
        if walk.wants_directory {
            walk.expect_directory()?;
        }
        Ok(walk.into_resolved())
    }

    /// The directory of a path's last name, and that name, which need not exist. Slashes behind the
    /// name are ignored.
    ///
    /// # Errors
    /// `NotFound` for an empty path; `InvalidArgument` for one that ends with no name, but with
    /// `/`, `.` or `..`; those of [`Volume::resolve`].
    pub fn resolve_parent(&self, from: &InodeRef, path: &[u8]) -> Result<(Resolved, Vec<u8>)> {
        let mut walk = Walk::new(self, from, path)?;
        let name = walk.last()?.name()?;
        Ok((walk.into_resolved(), name))
    }

    /// Where a file is found or made: a symbolic link at the end of the path is followed, also one
    /// that leads to nothing.
    ///
    /// # Errors
    /// `IsADirectory` for a slash behind a name that nothing has, `NotADirectory` for one behind
    /// what is none; those of [`Volume::resolve_parent`].
    pub fn resolve_end(&self, from: &InodeRef, path: &[u8]) -> Result<PathEnd> {
        let mut walk = Walk::new(self, from, path)?;
        loop {
            let name = walk.last()?.name()?;
            let inode = walk.look_up(&name)?;
            match &inode {
                Some(link) if link.kind() == FileKind::Symlink => {
                    walk.follow(link)?;
                    continue;
                }
                None if walk.wants_directory => return Err(ErrorKind::IsADirectory.into()),
                Some(found) if walk.wants_directory && found.kind() != FileKind::Directory => {
                    return Err(ErrorKind::NotADirectory.into());
                }
                _ => {}
            }
            return Ok(PathEnd { dir: walk.into_resolved(), name, inode });
        }
    }
}

/// The last part of a path.
pub(super) enum Last {
    /// There is none: the path is `/`, or leads there.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// A name.
    Name(Vec<u8>),
}

impl Last {
    /// The name, where there must be one.
    fn name(self) -> Result<Vec<u8>> {
        let invalid = |why| Err(Error::new(ErrorKind::InvalidArgument, why));
        match self {
            Self::Root => invalid("is the root directory"),
            Self::Dot | Self::DotDot => invalid("needs a name at its end"),
            Self::Name(name) => Ok(name),
        }
    }
}

/// A path on its way down.
pub(super) struct Walk<'a> {
    volume: &'a Volume,
    /// The inodes from the start down to where it is. Never empty.
    trail: Vec<InodeRef>,
    /// Parts still to go, the next one at the end.
    parts: Vec<Vec<u8>>,
    /// A slash is behind the last part, of the path or of a link that was followed there.
    pub(super) wants_directory: bool,
    /// Symbolic links that it went through, wherever they were.
    links: usize,
}

impl<'a> Walk<'a> {
    /// A path at its start: the root if its first byte is a slash, else `from`.
    ///
    /// # Errors
    /// `NotFound` for an empty path.
    pub(super) fn new(volume: &'a Volume, from: &InodeRef, path: &[u8]) -> Result<Self> {
        let start = match path.first() {
            None => return Err(ErrorKind::NotFound.into()),
            Some(b'/') if from.ino() != Ino::ROOT => volume.root()?,
            Some(_) => from.clone(),
        };
        Ok(Self {
            volume,
            trail: vec![start],
            parts: parts_reversed(path),
            wants_directory: path.last() == Some(&b'/'),
            links: 0,
        })
    }

    /// Where it is.
    pub(super) fn here(&self) -> &InodeRef {
        &self.trail[self.trail.len() - 1]
    }

    /// Goes down to the directory of the last part, and takes that part.
    pub(super) fn last(&mut self) -> Result<Last> {
        loop {
            self.expect_directory()?;
            let Some(part) = self.parts.pop() else { return Ok(Last::Root) };
            let last = match part.as_slice() {
                b"." => Last::Dot,
                b".." => Last::DotDot,
                _ => Last::Name(part),
            };
            match last {
                last if self.parts.is_empty() => return Ok(last),
                Last::Root | Last::Dot => {}
                Last::DotDot => self.up()?,
                Last::Name(name) => {
                    let found = self.volume.lookup(self.here(), &name)?;
                    match found.kind() {
                        FileKind::Symlink => self.follow(&found)?,
                        _ => self.trail.push(found),
                    }
                }
            }
        }
    }

    /// Goes on where a symbolic link leads.
    pub(super) fn follow(&mut self, link: &InodeRef) -> Result<()> {
        self.links += 1;
        if self.links > SYMLINKS_MAX {
            return Err(ErrorKind::TooManySymlinks.into());
        }
        let target = self.volume.read_link(link)?;
        if target.first() == Some(&b'/') {
            self.trail = vec![self.volume.root()?];
        }
        if self.parts.is_empty() {
            self.wants_directory |= target.last() == Some(&b'/');
        }
        self.parts.extend(parts_reversed(&target));
        Ok(())
    }

    /// Takes a last name back, to look at it again.
    pub(super) fn again(&mut self, name: Vec<u8>) {
        self.parts.push(name);
    }

    /// What has a name here.
    pub(super) fn look_up(&self, name: &[u8]) -> Result<Option<InodeRef>> {
        match self.volume.lookup(self.here(), name) {
            Err(error) if *error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    fn up(&mut self) -> Result<()> {
        if self.trail.len() > 1 {
            self.trail.pop();
        } else {
            self.trail[0] = self.volume.lookup(self.here(), b"..")?;
        }
        Ok(())
    }

    fn expect_directory(&self) -> Result<()> {
        match self.here().kind() {
            FileKind::Directory => Ok(()),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn into_resolved(self) -> Resolved {
        Resolved { trail: self.trail }
    }
}

fn parts_reversed(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.rev().map(<[u8]>::to_vec).collect()
}
