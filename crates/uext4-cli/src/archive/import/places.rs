//! The directories that entries go into.

use std::collections::HashMap;

use uext4::{Device, ErrorKind, FileKind, InodeRef, NewInode, Owner, Volume};
use uext4_archive::XATTR_DEFAULT;
use uext4_ondisk::InodeFlags;

use super::Place;
use super::queued::Queued;
use crate::failure::Why;
use crate::image_path::{Last, resolve};
use crate::operands::{Try, entry};
use crate::spec;

/// Directories that are kept open.
const DIRS_MAX: usize = 4096;
/// A directory with a longer path is looked up each time.
const KEPT_PATH_MAX: usize = 1024;
/// Permission bits of parents that the archive does not have.
const PARENT_MODE: u16 = 0o755;

/// A directory that files are made in.
#[derive(Clone)]
pub(super) struct Dir {
    pub(super) inode: InodeRef,
    /// What is made in it inherits an ACL, which must be removed again.
    pub(super) gives_acl: bool,
    /// Several spellings are one name in it.
    pub(super) folds_case: bool,
}

impl Dir {
    /// A directory that was just made.
    pub(super) fn made(volume: &Volume, inode: InodeRef, gives_acl: bool) -> Self {
        let flags = InodeFlags::from_bits_retain(volume.flags(&inode));
        Self { inode, gives_acl, folds_case: flags.contains(InodeFlags::CASEFOLD) }
    }

    pub(super) fn new(volume: &Volume, inode: InodeRef) -> Try<Self> {
        let gives_acl = match volume.xattr_get(&inode, XATTR_DEFAULT) {
            Ok(_) => true,
            Err(error) if *error.kind() == ErrorKind::NoXattr => false,
            Err(error) => return Err(error.into()),
        };
        Ok(Self::made(volume, inode, gives_acl))
    }
}

/// What there is at a name.
pub(super) enum Found {
    Dir(Dir),
    /// Nothing, or what gives way to a directory.
    No,
    /// What the queue has decides it.
    NotYet,
}

/// What becomes of directories that are not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// They are made: an entry goes into them.
    Made,
    /// They are an error: the target of a hard link would be there.
    Refused,
}

/// Directories by their paths in the archive. What is kept may be forgotten at any time.
pub(super) struct Places<'a> {
    place: Place<'a>,
    follow_links: bool,
    known: HashMap<Vec<u8>, Dir>,
}

impl<'a> Places<'a> {
    pub(super) fn new(place: Place<'a>, follow_links: bool) -> Self {
        Self { place, follow_links, known: HashMap::new() }
    }

    /// The target.
    pub(super) fn root(&self) -> Try<Dir> {
        Dir::new(self.place.volume, self.place.dir.clone())
    }

    /// Forgets all: one of them may be replaced.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    pub(super) fn keep(&mut self, path: &[u8], dir: Dir) {
        if path.len() > KEPT_PATH_MAX {
            return;
        }
        if self.known.len() >= DIRS_MAX {
            self.known.clear();
        }
        self.known.insert(path.to_vec(), dir);
    }

    /// The directory of a path. `None` if the queue decides what a part of the path will be.
    pub(super) fn dir(
        &mut self,
        path: &[u8],
        missing: Missing,
        queued: &Queued,
    ) -> Try<Option<Dir>> {
        if let Some(dir) = self.kept(path) {
            return Ok(Some(dir));
        }
        let mut dir = self.root()?;
        let mut end = 0;
        while end < path.len() {
            let start = end + usize::from(end > 0);
            end = path[start..]
                .iter()
                .position(|byte| *byte == b'/')
                .map_or(path.len(), |at| start + at);
            let (prefix, name) = (&path[..end], &path[start..end]);
            if let Some(kept) = self.kept(prefix) {
                dir = kept;
                continue;
            }
            dir = match self.parent(&dir, name, prefix, queued)? {
                Found::Dir(found) => found,
                Found::No if missing == Missing::Made => self.make(&dir, name)?,
                Found::No => {
                    let why = format!("'{}' is not there", spec::show(prefix));
                    return Err(Why::new(why));
                }
                Found::NotYet => return Ok(None),
            };
            self.keep(prefix, dir.clone());
        }
        if path.is_empty() {
            self.keep(path, dir.clone());
        }
        Ok(Some(dir))
    }

    fn kept(&self, path: &[u8]) -> Option<Dir> {
        // A path of any length is not hashed part by part.
        self.known.get(path).filter(|_| path.len() <= KEPT_PATH_MAX).cloned()
    }

    /// What stands where a parent is wanted: a directory, or nothing.
    fn parent(&self, dir: &Dir, name: &[u8], path: &[u8], queued: &Queued) -> Try<Found> {
        match self.existing(dir, name, path, queued)? {
            Found::No => {}
            found => return Ok(found),
        }
        let Some(inode) = entry(self.place.volume, &dir.inode, name)? else { return Ok(Found::No) };
        match inode.kind() {
            FileKind::Symlink if self.follow_links => {
                let path = spec::show(path);
                Err(Why::new(format!("'{path}' is a symbolic link that leads to no directory")))
            }
            FileKind::Symlink => {
                let path = spec::show(path);
                let why = format!(
                    "'{path}' is a symbolic link, which is not followed without --follow-links"
                );
                Err(Why::new(why))
            }
            _ => Err(Why::new(format!("'{}' is no directory", spec::show(path)))),
        }
    }

    /// A directory that stands at a name, to be used as it is.
    pub(super) fn existing(
        &self,
        dir: &Dir,
        name: &[u8],
        path: &[u8],
        queued: &Queued,
    ) -> Try<Found> {
        if queued.has(dir.inode.ino(), name) {
            return Ok(Found::NotYet);
        }
        let Some(inode) = entry(self.place.volume, &dir.inode, name)? else { return Ok(Found::No) };
        match inode.kind() {
            FileKind::Directory => Ok(Found::Dir(Dir::new(self.place.volume, inode)?)),
            // Where it leads may depend on any name.
            FileKind::Symlink if self.follow_links && queued.len() > 0 => Ok(Found::NotYet),
            FileKind::Symlink if self.follow_links => {
                Ok(self.end_of_link(path)?.map_or(Found::No, Found::Dir))
            }
            _ => Ok(Found::No),
        }
    }

    /// The directory that a symbolic link leads to within the image.
    fn end_of_link(&self, path: &[u8]) -> Try<Option<Dir>> {
        let volume = self.place.volume;
        let path = spec::join(&self.place.path.path, path);
        match resolve(volume, &path, Last::Follow) {
            Ok(found) if found.inode().kind() == FileKind::Directory => {
                Dir::new(volume, found.inode().clone()).map(Some)
            }
            Ok(_) => Ok(None),
            Err(why) if why.is_not_found() => Ok(None),
            Err(why) => Err(why),
        }
    }

    fn make(&self, dir: &Dir, name: &[u8]) -> Try<Dir> {
        let new = NewInode {
            kind: FileKind::Directory,
            mode: PARENT_MODE,
            owner: Owner::default(),
            rdev: Device::default(),
        };
        Dir::new(self.place.volume, self.place.volume.create(&dir.inode, name, &new)?)
    }
}
