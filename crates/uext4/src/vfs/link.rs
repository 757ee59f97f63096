//! Hard links, and files that are made without a name.
//!
//! Invariants: a file without a name is an orphan from the handle that makes it, so a crash, or its
//! last user, deletes it. The handle that gives it its first name takes it off the orphans. A file
//! that has lost its last name gets no other one.

use super::{NewInode, Vfs, expect_directory};
use crate::dir::Insertion;
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::inode::{Attributes, InodeRef};
use uext4_ondisk::FileKind;
use uext4_ondisk::inode::LINK_MAX;

impl Vfs {
    /// Creates a regular file without a name, as `O_TMPFILE` of open(2) does. It inherits from
    /// `dir` what a file that is linked there inherits. [`Vfs::link`] can give it its first name;
    /// otherwise it is deleted when it is no longer in use.
    ///
    /// # Errors
    /// `InvalidArgument` for other types, `NotADirectory`, `NotPermitted` for a directory that is
    /// immutable or removed, `NoSpace`, `ReadOnly`; a device failure.
    pub fn create_unlinked(&self, dir: &InodeRef, new: &NewInode) -> Result<InodeRef> {
        if new.kind != FileKind::Regular {
            let why = "only a regular file can be made without a name";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        self.files.syncs.trim_inodes();
        let created = self.create_unlinked_locked(dir, new);
        // What it inherits may have been stored before it failed.
        created.or_else(|error| self.deleting_values(|| Err(error)))
    }

    /// Creates a file without a name under the lock of the directory.
    fn create_unlinked_locked(&self, dir: &InodeRef, new: &NewInode) -> Result<InodeRef> {
        let _shared = dir.lock().read();
        self.check_parent(dir).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(ErrorKind::NotPermitted, "directory is removed"),
            _ => error,
        })?;
        let (mut attributes, lists) = self.inherit(dir, new)?;
        attributes.links = 0;
        let allocated = self.allocate_child(dir, new.kind)?;
        let mut prepared = self.prepare(allocated, new.kind, attributes, 0)?;
        let inode = std::sync::Arc::clone(&prepared.inode);
        inode.set_awaits_name(true);
        let lists = lists.plan(&inode)?;
        let space = &self.files.context.space;
        let credits = prepared.credits(lists.as_ref()) + space.credits().orphan;
        space.journal().run(credits, |handle| {
            prepared.write(handle, lists, |_, _, _| Ok(()))?;
            self.files.context.orphans.add(handle, &inode)
        })?;
        Ok(prepared.finish())
    }

    /// Adds a hard link `name` to an inode.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory and for an immutable or append-only inode,
    /// `NotFound` for one that has lost its last name, `CrossesProjects`, `TooManyLinks`,
    /// `NoSpace`, `ReadOnly`; a device failure.
    pub fn link(&self, inode: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<()> {
        Self::check_name(name)?;
        expect_directory(dir)?;
        if inode.kind() == FileKind::Directory {
            return Err(Error::new(ErrorKind::NotPermitted, "a hard link to a directory"));
        }
        let exclusive = dir.lock().write();
        self.check_parent(dir)?;
        let locked = inode.lock().write();
        self.files.context.check_not_protected(inode)?;
        let links = inode.attributes().links;
        let is_first = links == 0;
        if is_first && !inode.awaits_name() {
            return Err(Error::new(ErrorKind::NotFound, "inode is unlinked"));
        }
        if links >= u32::from(LINK_MAX) {
            return Err(ErrorKind::TooManyLinks.into());
        }
        self.check_project(dir, inode)?;
        dir.check_key()?;
        self.check_policy(dir, inode)?;
        let insertion = Insertion::plan(dir, name)?;
        let _pins = super::pin(&[inode, dir])?;
        let space = &self.files.context.space;
        let orphan_credits = if is_first { space.credits().orphan } else { 0 };
        space.journal().run(insertion.credits() + orphan_credits + 2, |handle| {
            insertion.apply(handle, inode.ino(), inode.kind())?;
            inode.update(handle, |attributes| {
                attributes.links += u32::from(!Fault::WrongLinkCount.is_injected());
                attributes.touch();
            })?;
            // With a truncate to complete it stays an orphan, as any file does.
            if is_first && !inode.has_unfinished_truncate() {
                self.files.context.orphans.remove(handle, inode)?;
            }
            dir.update(handle, Attributes::touch_content)
        })?;
        inode.set_awaits_name(false);
        drop((locked, exclusive));
        self.files.syncs.honour_dirsync_flags(&[dir])
    }
}
