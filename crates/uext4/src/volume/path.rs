//! Paths, resolved as the kernel does below a root that cannot be left.
//!
//! What: [`Volume::resolve`] goes down a path of bytes and follows symbolic links,
//! [`Volume::resolve_parent`] stops before the last name, and [`Volume::resolve_end`] finds where
//! open(2) would make a file. Whether the caller may is not asked.
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
    /// `from`. A slash at its end asks for a directory, also behind a link. An empty path is `from`
    /// itself.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`, `TooManySymlinks`; `Corrupt`; a device failure.
    pub fn resolve(&self, from: &InodeRef, path: &[u8], last: LastLink) -> Result<Resolved> {
        let wants_directory = path.last() == Some(&b'/');
        let last = if wants_directory { LastLink::Follow } else { last };
        let mut trail = vec![self.start(from, path)?];
        // Parts still to go, the next one at the end.
        let mut parts = parts_reversed(path);
        let mut links = 0;
        while let Some(part) = parts.pop() {
            let here = trail[trail.len() - 1].clone();
            if here.kind() != FileKind::Directory {
                return Err(ErrorKind::NotADirectory.into());
            }
            match part.as_slice() {
                b"." => continue,
                b".." if trail.len() > 1 => {
                    trail.pop();
                    continue;
                }
                b".." => {
                    trail[0] = self.lookup(&here, b"..")?;
                    continue;
                }
                _ => {}
            }
            let next = self.lookup(&here, &part)?;
            if next.kind() != FileKind::Symlink || (last == LastLink::Keep && parts.is_empty()) {
                trail.push(next);
                continue;
            }
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(ErrorKind::TooManySymlinks.into());
            }
            let target = self.read_link(&next)?;
            if target.first() == Some(&b'/') {
                trail = vec![self.root()?];
            }
            parts.extend(parts_reversed(&target));
        }
        let resolved = Resolved { trail };
        if wants_directory && resolved.inode().kind() != FileKind::Directory {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(resolved)
    }

    /// The directory of a path's last name, and that name, which need not exist. Slashes behind the
    /// name are ignored.
    ///
    /// # Errors
    /// `NotFound` for an empty path; `InvalidArgument` for one that ends with no name, but with
    /// `/`, `.` or `..`; those of [`Volume::resolve`].
    pub fn resolve_parent(&self, from: &InodeRef, path: &[u8]) -> Result<(Resolved, Vec<u8>)> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let invalid = |why| Err(Error::new(ErrorKind::InvalidArgument, why));
        match &path[start..end] {
            _ if path.is_empty() => Err(ErrorKind::NotFound.into()),
            b"" => invalid("is the root directory"),
            b"." | b".." => invalid("needs a name at its end"),
            name => {
                let parent = self.resolve(from, &path[..start], LastLink::Follow)?;
                if parent.inode().kind() != FileKind::Directory {
                    return Err(ErrorKind::NotADirectory.into());
                }
                Ok((parent, name.to_vec()))
            }
        }
    }

    /// Where open(2) finds or makes a file: a symbolic link at the end of the path is followed,
    /// also one that leads to nothing.
    ///
    /// # Errors
    /// `IsADirectory` for a slash behind a name that nothing has; those of
    /// [`Volume::resolve_parent`].
    pub fn resolve_end(&self, from: &InodeRef, path: &[u8]) -> Result<PathEnd> {
        let (mut from, mut path) = (from.clone(), path.to_vec());
        for _ in 0..=SYMLINKS_MAX {
            let (dir, name) = self.resolve_parent(&from, &path)?;
            let inode = match self.lookup(dir.inode(), &name) {
                Ok(found) => Some(found),
                Err(error) if *error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            match inode {
                Some(link) if link.kind() == FileKind::Symlink => path = self.read_link(&link)?,
                None if path.last() == Some(&b'/') => return Err(ErrorKind::IsADirectory.into()),
                inode => return Ok(PathEnd { dir, name, inode }),
            }
            from = dir.inode().clone();
        }
        Err(ErrorKind::TooManySymlinks.into())
    }

    /// Where a path begins.
    fn start(&self, from: &InodeRef, path: &[u8]) -> Result<InodeRef> {
        if path.first() == Some(&b'/') && from.ino() != Ino::ROOT {
            return self.root();
        }
        Ok(from.clone())
    }
}

fn parts_reversed(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.rev().map(<[u8]>::to_vec).collect()
}
