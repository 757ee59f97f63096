//! Where a path leads: from an inode or the root, as with openat(2).

use uext4::{InodeRef, LastLink, Volume};

use crate::failure::{Failure, Result};
use crate::inode::{InodeHandle, UEXT4_NOFOLLOW};
use crate::volume::VolumeHandle;

/// What C names: a path that begins at an inode, or the inode itself.
pub(crate) struct Place<'a> {
    volume: &'a VolumeHandle,
    at: Option<&'a InodeHandle>,
    path: Option<&'a [u8]>,
}

impl<'a> Place<'a> {
    pub(crate) fn new(
        volume: &'a VolumeHandle,
        at: Option<&'a InodeHandle>,
        path: Option<&'a [u8]>,
    ) -> Result<Self> {
        if at.is_some_and(|at| !at.volume().is(volume)) {
            return Err(Failure::new(libc::EXDEV, "at is an inode of another volume"));
        }
        if at.is_none() && path.is_none() {
            return Err(Failure::invalid("path is NULL, and so is at"));
        }
        Ok(Self { volume, at, path })
    }

    /// The inode.
    pub(crate) fn inode(&self, flags: u32) -> Result<InodeRef> {
        if flags & !UEXT4_NOFOLLOW != 0 {
            return Err(Failure::invalid("flags that this call does not have"));
        }
        let Some(path) = self.path else { return self.start() };
        let last = if flags & UEXT4_NOFOLLOW == 0 { LastLink::Follow } else { LastLink::Keep };
        self.volume.volume().find_at(&self.start()?, path, last).map_err(|error| self.failed(error))
    }

    /// Where the path begins, and the path, where there must be one.
    pub(crate) fn parts(&self) -> Result<(InodeRef, &'a [u8])> {
        let path = self.path.ok_or_else(|| Failure::invalid("path is NULL"))?;
        Ok((self.start()?, path))
    }

    /// Does work of the engine that begins at an inode and has a path.
    pub(crate) fn work<T>(
        &self,
        work: impl FnOnce(&Volume, &InodeRef, &[u8]) -> uext4::Result<T>,
    ) -> Result<T> {
        let (from, path) = self.parts()?;
        work(self.volume.volume(), &from, path).map_err(|error| self.failed(error))
    }

    /// Adds the path to a failure of the engine.
    pub(crate) fn failed(&self, error: uext4::Error) -> Failure {
        let failure = Failure::from(error);
        match self.path {
            Some(path) => failure.at(path),
            None => failure,
        }
    }

    /// Where the path begins.
    fn start(&self) -> Result<InodeRef> {
        match self.at {
            Some(at) => Ok(at.inode().clone()),
            None => Ok(self.volume.volume().root()?),
        }
    }
}
