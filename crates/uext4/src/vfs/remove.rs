//! Removing names.
//!
//! Invariants: the last link of an inode goes in the handle in which it becomes an orphan. Its
//! blocks are freed when it is no longer in use.

use super::attempt::{Attempt, Done};
use super::{Vfs, drop_subdirectory};
use crate::dir;
use crate::error::{ErrorKind, Result};
use crate::inode::{Attributes, InodeRef};
use crate::journal::Handle;
use uext4_ondisk::FileKind;

impl Vfs {
    /// Removes a name of an inode that is not a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `NotPermitted`, `ReadOnly`; a device failure.
    pub fn unlink(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        Self::check_name(name)?;
        {
            let _exclusive = dir.lock().write_adaptive();
            self.check_loser(dir)?;
            let space = &self.files.context.space;
            let entry = dir::lookup(dir, name)?.ok_or(ErrorKind::NotFound)?;
            let inode = self.linked(dir, entry.ino)?;
            if inode.kind() == FileKind::Directory {
                return Err(ErrorKind::IsADirectory.into());
            }
            self.check_removable(&inode)?;
            let _inode = inode.lock().write();
            let _pins = super::pin(&[dir, &inode])?;
            space.journal().run(3 + space.credits().orphan, |handle| {
                entry.remove(handle, dir)?;
                self.drop_link(handle, &inode)?;
                dir.update(handle, Attributes::touch_content)
            })?;
        }
        self.files.syncs.honour_dirsync_flags(&[dir])?;
        self.files.deletion.delete_unlinked()
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NotEmpty`, `ReadOnly`; a device failure.
    pub fn rmdir(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        Self::check_name(name)?;
        self.attempt(false, |attempt| self.try_rmdir(attempt, dir, name))?;
        self.files.syncs.honour_dirsync_flags(&[dir])?;
        self.files.deletion.delete_unlinked()
    }

    fn try_rmdir(&self, attempt: Attempt<'_>, dir: &InodeRef, name: &[u8]) -> Result<Done> {
        let _exclusive = dir.lock().write_adaptive();
        self.check_loser(dir)?;
        let space = &self.files.context.space;
        let entry = dir::lookup(dir, name)?.ok_or(ErrorKind::NotFound)?;
        let child = self.linked(dir, entry.ino)?;
        super::expect_directory(&child)?;
        self.check_removable(&child)?;
        let Some(_child) = attempt.lock(&child) else { return Ok(Done::NotYet) };
        if !dir::is_empty(&child)? {
            return Err(ErrorKind::NotEmpty.into());
        }
        let _pins = super::pin(&[dir, &child])?;
        space.journal().run(3 + space.credits().orphan, |handle| {
            entry.remove(handle, dir)?;
            self.drop_link(handle, &child)?;
            dir.update(handle, |attributes| {
                drop_subdirectory(attributes);
                attributes.touch_content();
            })
        })?;
        Ok(Done::Yes)
    }

    /// Takes away a link of a file, or the last one of a directory. An inode without links is an
    /// orphan.
    pub(super) fn drop_link(&self, handle: &mut Handle<'_>, inode: &InodeRef) -> Result<()> {
        let is_directory = inode.kind() == FileKind::Directory;
        let links = inode.update(handle, |attributes| {
            attributes.links = if is_directory { 0 } else { attributes.links.saturating_sub(1) };
            attributes.touch();
            attributes.links
        })?;
        if links == 0 { self.files.context.orphans.add(handle, inode) } else { Ok(()) }
    }
}
