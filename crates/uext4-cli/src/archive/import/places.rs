//! The directories that entries go into.

use std::collections::{HashMap, HashSet};

use uext4::{Device, ErrorKind, FileKind, InodeRef, NewInode, Owner, Volume};
use uext4_archive::XATTR_DEFAULT;

use super::Place;
use crate::failure::Why;
use crate::image_path::{Last, resolve};
use crate::operands::{Try, entry};
use crate::spec;

/// Directories that are kept open.
const DIRS_MAX: usize = 4096;
/// Permission bits of parents that the archive does not have.
const PARENT_MODE: u16 = 0o755;

/// A directory that files are made in.
#[derive(Clone)]
pub(super) struct Dir {
    pub(super) inode: InodeRef,
    /// What is made in it inherits an ACL, which must be removed again.
    pub(super) gives_acl: bool,
}

impl Dir {
    pub(super) fn new(volume: &Volume, inode: InodeRef) -> Try<Self> {
        let gives_acl = match volume.xattr_get(&inode, XATTR_DEFAULT) {
            Ok(_) => true,
            Err(error) if *error.kind() == ErrorKind::NoXattr => false,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { inode, gives_acl })
    }
}

/// Directories by their paths in the archive.
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

    pub(super) fn knows(&self, path: &[u8]) -> bool {
        self.known.contains_key(path)
    }

    /// Forgets all: one of them may be replaced.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    pub(super) fn keep(&mut self, path: &[u8], dir: Dir) {
        if self.known.len() >= DIRS_MAX {
            self.known.clear();
        }
        self.known.insert(path.to_vec(), dir);
    }

    /// The directory of a path; missing ones are made. `None` if a part of the path is among
    /// `queued`, for what that will be is not decided yet.
    pub(super) fn dir(&mut self, path: &[u8], queued: &HashSet<Vec<u8>>) -> Try<Option<Dir>> {
        if let Some(dir) = self.known.get(path) {
            return Ok(Some(dir.clone()));
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
            if let Some(known) = self.known.get(prefix) {
                dir = known.clone();
                continue;
            }
            if queued.contains(prefix) {
                return Ok(None);
            }
            dir = match self.parent(&dir, name, prefix)? {
                Some(found) => found,
                None => self.make(&dir, name)?,
            };
            self.keep(prefix, dir.clone());
        }
        if path.is_empty() {
            self.keep(path, dir.clone());
        }
        Ok(Some(dir))
    }

    /// What stands where a parent is wanted: a directory, or nothing.
    fn parent(&self, dir: &Dir, name: &[u8], path: &[u8]) -> Try<Option<Dir>> {
        let Some(inode) = entry(self.place.volume, &dir.inode, name)? else { return Ok(None) };
        match inode.kind() {
            FileKind::Directory => Dir::new(self.place.volume, inode).map(Some),
            FileKind::Symlink if self.follow_links => match self.end_of_link(path)? {
                Some(dir) => Ok(Some(dir)),
                None => {
                    let path = spec::show(path);
                    Err(Why::new(format!("'{path}' is a symbolic link that leads to no directory")))
                }
            },
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

    /// A directory that stands at the name of an entry, to be used as it is.
    pub(super) fn existing(&self, dir: &Dir, name: &[u8], path: &[u8]) -> Try<Option<Dir>> {
        let Some(inode) = entry(self.place.volume, &dir.inode, name)? else { return Ok(None) };
        match inode.kind() {
            FileKind::Directory => Dir::new(self.place.volume, inode).map(Some),
            FileKind::Symlink if self.follow_links => self.end_of_link(path),
            _ => Ok(None),
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
