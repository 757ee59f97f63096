//! Operations on inodes, names and attributes: those of [`Vfs`](crate::vfs::Vfs). Damage that they
//! meet has the consequences of `errors=`.

use super::Volume;
use crate::dir::DirEntry;
use crate::error::Result;
use crate::file::{DirectOptions, DirectQueue, Unlinked};
use crate::inode::InodeRef;
use crate::sync::time::Instant;
use crate::vfs::{Attr, NewInode, OpenFile, Owner, RenameMode, SetAttr};
use crate::xattr;
use std::sync::Arc;
use uext4_ondisk::Ino;
use uext4_ondisk::encryption::{Context, Policy};
use uext4_ondisk::verity::Parameters as VerityParameters;

impl Volume {
    /// The root directory.
    ///
    /// # Errors
    /// Those of [`Volume::inode`]; `Corrupt` when the root is no directory.
    pub fn root(&self) -> Result<InodeRef> {
        self.inode(Ino::ROOT)
    }

    /// An inode by number.
    ///
    /// # Errors
    /// See [`Vfs::inode`](crate::vfs::Vfs::inode).
    pub fn inode(&self, ino: Ino) -> Result<InodeRef> {
        self.watch(self.inner.vfs.inode(ino))
    }

    /// An inode by number and generation, even without links as long as it is in use.
    ///
    /// # Errors
    /// See [`Vfs::inode_again`](crate::vfs::Vfs::inode_again).
    pub fn inode_again(&self, ino: Ino, generation: u32) -> Result<InodeRef> {
        self.watch(self.inner.vfs.inode_again(ino, generation))
    }

    /// The inode that `name` leads to in `dir`.
    ///
    /// # Errors
    /// See [`Vfs::lookup`](crate::vfs::Vfs::lookup).
    pub fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        self.watch(self.inner.vfs.lookup(dir, name))
    }

    /// Attributes of an inode.
    #[must_use]
    pub fn attr(&self, inode: &InodeRef) -> Attr {
        self.inner.vfs.attr(inode)
    }

    /// The group of a file that has set-group-id without its group's right to run it: a caller who
    /// removes [`Privs::All`](crate::Privs::All) outside of that group removes
    /// [`Privs::AllOutsideGroup`](crate::Privs::AllOutsideGroup).
    #[must_use]
    pub fn bare_set_gid(&self, inode: &InodeRef) -> Option<u32> {
        let attributes = inode.attributes();
        attributes.has_bare_set_gid().then_some(attributes.gid)
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// See [`Vfs::set_attr`](crate::vfs::Vfs::set_attr).
    pub fn set_attr(&self, inode: &InodeRef, change: &SetAttr) -> Result<Attr> {
        self.change(|vfs| vfs.set_attr(inode, change))
    }

    /// Inode flags, as `FS_IOC_GETFLAGS` shows them.
    #[must_use]
    pub fn flags(&self, inode: &InodeRef) -> u32 {
        self.inner.vfs.flags(inode)
    }

    /// Sets inode flags, as `FS_IOC_SETFLAGS` does.
    ///
    /// # Errors
    /// See [`Vfs::set_flags`](crate::vfs::Vfs::set_flags).
    pub fn set_flags(&self, inode: &InodeRef, flags: u32) -> Result<()> {
        self.change(|vfs| vfs.set_flags(inode, flags))
    }

    /// Gives a regular file a Merkle tree (fs-verity): from then on its content never changes, and
    /// every read of it is verified.
    ///
    /// # Errors
    /// `Exists` if it has one; `Unsupported` without the feature `verity`, and for files without an
    /// extent tree, with journaled data or in DAX mode; `InvalidArgument` for parameters that no
    /// tree has; `FileTooBig` if the tree has more than 8 levels or no place behind the data;
    /// `NoSpace`, `ReadOnly`; a device failure. The file has its content and size then, but blocks
    /// that were allocated behind its end may be gone.
    pub fn enable_verity(&self, inode: &InodeRef, parameters: VerityParameters) -> Result<()> {
        self.change(|vfs| vfs.files.sealing.seal(inode, parameters))
    }

    /// The digest of a file that has a Merkle tree, and what it is made with. Reads nothing of the
    /// content.
    ///
    /// # Errors
    /// `NoXattr` for a file without a tree; `Corrupt`; a device failure.
    pub fn verity_digest(&self, inode: &InodeRef) -> Result<(VerityParameters, Vec<u8>)> {
        self.inner.vfs.files.reader.verity_digest(inode)
    }

    /// The project of an inode; 0 on a file system without the feature `project`.
    #[must_use]
    pub fn project_id(&self, inode: &InodeRef) -> u32 {
        self.inner.vfs.project_id(inode)
    }

    /// Sets the project of an inode.
    ///
    /// # Errors
    /// See [`Vfs::set_project_id`](crate::vfs::Vfs::set_project_id).
    pub fn set_project_id(&self, inode: &InodeRef, project: u32) -> Result<()> {
        self.change(|vfs| vfs.set_project_id(inode, project))
    }

    /// The encryption context of an inode; `None` if it is not encrypted.
    ///
    /// # Errors
    /// See [`Vfs::encryption_context`](crate::vfs::Vfs::encryption_context).
    pub fn encryption_context(&self, inode: &InodeRef) -> Result<Option<Context>> {
        self.watch(self.inner.vfs.encryption_context(inode))
    }

    /// Sets the encryption policy of an empty directory.
    ///
    /// # Errors
    /// See [`Vfs::set_encryption_policy`](crate::vfs::Vfs::set_encryption_policy).
    pub fn set_encryption_policy(&self, dir: &InodeRef, policy: &Policy) -> Result<()> {
        self.change(|vfs| vfs.set_encryption_policy(dir, policy))
    }

    /// Creates an inode that is not a symbolic link.
    ///
    /// # Errors
    /// See [`Vfs::create`](crate::vfs::Vfs::create).
    pub fn create(&self, dir: &InodeRef, name: &[u8], new: &NewInode) -> Result<InodeRef> {
        self.change(|vfs| vfs.create(dir, name, new))
    }

    /// Creates a regular file without a name (`O_TMPFILE`). [`Volume::link`] can give it its first
    /// one.
    ///
    /// # Errors
    /// See [`Vfs::create_unlinked`](crate::vfs::Vfs::create_unlinked).
    pub fn create_unlinked(&self, dir: &InodeRef, new: &NewInode) -> Result<InodeRef> {
        self.change(|vfs| vfs.create_unlinked(dir, new))
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// See [`Vfs::symlink`](crate::vfs::Vfs::symlink).
    pub fn symlink(
        &self,
        dir: &InodeRef,
        name: &[u8],
        target: &[u8],
        owner: Owner,
    ) -> Result<InodeRef> {
        self.change(|vfs| vfs.symlink(dir, name, target, owner))
    }

    /// Creates a hard link.
    ///
    /// # Errors
    /// See [`Vfs::link`](crate::vfs::Vfs::link).
    pub fn link(&self, inode: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<()> {
        self.change(|vfs| vfs.link(inode, dir, name))
    }

    /// Removes a name of an inode that is not a directory.
    ///
    /// # Errors
    /// See [`Vfs::unlink`](crate::vfs::Vfs::unlink).
    pub fn unlink(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        self.change(|vfs| vfs.unlink(dir, name))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// See [`Vfs::rmdir`](crate::vfs::Vfs::rmdir).
    pub fn rmdir(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        self.change(|vfs| vfs.rmdir(dir, name))
    }

    /// Renames.
    ///
    /// # Errors
    /// See [`Vfs::rename`](crate::vfs::Vfs::rename).
    pub fn rename(
        &self,
        dir: &InodeRef,
        name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.change(|vfs| vfs.rename(dir, name, new_dir, new_name, mode))
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// See [`Vfs::read_link`](crate::vfs::Vfs::read_link).
    pub fn read_link(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        self.watch(self.inner.vfs.read_link(inode))
    }

    /// Lists a directory from `cursor` (0 for the start, else [`DirEntry::next`] of an entry).
    /// `visit` returns false to stop; it has not consumed that entry then.
    ///
    /// # Errors
    /// See [`Vfs::read_dir`](crate::vfs::Vfs::read_dir).
    pub fn read_dir(
        &self,
        dir: &InodeRef,
        cursor: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.watch(self.inner.vfs.read_dir(dir, cursor, visit))
    }

    /// Opens a regular file, or a directory for syncing.
    ///
    /// # Errors
    /// `InvalidArgument` for other types.
    pub fn open_file(&self, inode: &InodeRef) -> Result<OpenFile> {
        self.open_file_since(inode, Instant::now())
    }

    /// [`Volume::open_file`] at the end of a call that began at `start`, such as an open(2) that
    /// created the file. The latency in [`Volume::stats`] is measured from there.
    ///
    /// # Errors
    /// Those of [`Volume::open_file`].
    pub fn open_file_since(&self, inode: &InodeRef, start: Instant) -> Result<OpenFile> {
        OpenFile::new(Arc::clone(&self.inner.vfs), inode, start)
    }

    /// A queue of direct requests for the calling thread.
    ///
    /// # Errors
    /// `Io` for an invalid depth, or an error of the system.
    pub fn direct_queue(&self, options: DirectOptions) -> Result<DirectQueue> {
        DirectQueue::new(&self.inner.vfs.files.direct, options)
    }

    /// Value of an extended attribute, by its full name.
    ///
    /// # Errors
    /// `NoXattr`; `Corrupt`; a device failure.
    pub fn xattr_get(&self, inode: &InodeRef, name: &[u8]) -> Result<Vec<u8>> {
        self.watch(xattr::get(inode, name))
    }

    /// Full names of the extended attributes.
    ///
    /// # Errors
    /// `Corrupt`; a device failure.
    pub fn xattr_list(&self, inode: &InodeRef) -> Result<Vec<Vec<u8>>> {
        self.watch(xattr::list(inode))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// See [`Vfs::xattr_change`](crate::vfs::Vfs::xattr_change).
    pub fn xattr_set(
        &self,
        inode: &InodeRef,
        name: &[u8],
        value: &[u8],
        mode: xattr::Mode,
    ) -> Result<()> {
        self.change(|vfs| vfs.xattr_change(inode, name, Some(value), mode))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// See [`Vfs::xattr_change`](crate::vfs::Vfs::xattr_change).
    pub fn xattr_remove(&self, inode: &InodeRef, name: &[u8]) -> Result<()> {
        self.change(|vfs| vfs.xattr_change(inode, name, None, xattr::Mode::Replace))
    }

    /// Numbers of unlinked inodes that are not deleted yet, and that have been. A caller that finds
    /// no space may try again when these numbers have changed.
    #[must_use]
    pub fn unlinked(&self) -> Unlinked {
        self.inner.vfs.files.deletion.unlinked()
    }

    /// [`Unlinked::deleted`] alone, without a lock.
    #[must_use]
    pub fn deletions(&self) -> u64 {
        self.inner.vfs.files.deletion.deletions()
    }

    /// Deletes the unlinked inodes that are no longer in use. Callers that drop references of their
    /// own (a FUSE server on `forget`) call it after that.
    ///
    /// # Errors
    /// The first failure. An inode that could not be deleted is an orphan, which the next mount
    /// deletes.
    pub fn delete_unlinked(&self) -> Result<()> {
        let files = &self.inner.vfs.files;
        // Closing the volume deletes them as well.
        let Ok(_call) = files.context.begin_call() else { return Ok(()) };
        self.watch(files.deletion.delete_unlinked())
    }
}
