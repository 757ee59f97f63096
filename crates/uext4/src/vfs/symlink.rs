//! Symbolic links.
//!
//! On disk: a target shorter than 60 bytes is in `i_block`; a longer one is in a block of its own,
//! which is journaled like other metadata.

use super::create::InheritedLists;
use super::{Owner, Vfs};
use crate::cache::BlockKind;
use crate::dir::Insertion;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{block_of, grow};
use crate::inode::{Inode, InodeRef};
use std::borrow::Cow;
use std::sync::Arc;
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, InodeFlags, Place};

impl Vfs {
    /// Creates a symbolic link.
    ///
    /// # Errors
    /// `NameTooLong` for a target that does not fit a block; those of [`Vfs::create`].
    pub fn symlink(
        &self,
        dir: &InodeRef,
        name: &[u8],
        target: &[u8],
        owner: Owner,
    ) -> Result<InodeRef> {
        Self::check_name(name)?;
        let block_size = self.files.context.space.layout().block_size as usize;
        if target.is_empty() || target.contains(&0) {
            return Err(Error::new(ErrorKind::InvalidArgument, "a target that no link can have"));
        }
        if target.len() >= block_size {
            return Err(Error::new(ErrorKind::NameTooLong, "target of a symbolic link"));
        }
        let created = self.symlink_locked(dir, name, target, owner);
        // An encryption context may have been stored before it failed.
        let created = created.or_else(|error| self.deleting_values(|| Err(error)))?;
        self.files.syncs.honour_dirsync_flags(&[dir])?;
        Ok(created)
    }

    /// Creates a symbolic link under the lock of the directory.
    fn symlink_locked(
        &self,
        dir: &InodeRef,
        name: &[u8],
        target: &[u8],
        owner: Owner,
    ) -> Result<InodeRef> {
        let _exclusive = dir.lock().write();
        self.check_parent(dir)?;
        let block_size = self.files.context.space.layout().block_size as usize;
        let insertion = Insertion::plan(dir, name)?;
        let mut attributes = self.new_attributes(dir, FileKind::Symlink, 0o777, owner);
        let allocated = self.allocate_child(dir, FileKind::Symlink)?;
        let context = self.new_context(dir, FileKind::Symlink)?;
        let target = match &context {
            Some(context) => {
                attributes.flags |= InodeFlags::ENCRYPT;
                let stored = self.encrypt_target(context, allocated.ino(), target, block_size)?;
                Cow::Owned(stored)
            }
            None => Cow::Borrowed(target),
        };
        attributes.set_size(target.len() as u64);
        let is_slow = attributes.size >= Inode::FAST_SYMLINK_MAX;
        if !is_slow {
            attributes.block_map[..target.len()].copy_from_slice(&target);
        }
        let prepared =
            self.prepare(allocated, FileKind::Symlink, attributes, u32::from(is_slow))?;
        let inode = Arc::clone(&prepared.inode);
        let lists = InheritedLists::of_context(context).plan(&inode)?;
        self.link_new(dir, insertion, prepared, lists, |handle, inode, growth| {
            let Some(growth) = growth else { return Ok(()) };
            let block = grow(handle, inode, growth, FileBlock(0))?;
            let buffer = handle.create(block, BlockKind::Plain)?;
            handle.write(&buffer)?[..target.len()].copy_from_slice(&target);
            Ok(())
        })
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidArgument` for an inode that is no symbolic link; `Corrupt`; a device failure.
    pub fn read_link(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        if inode.kind() != FileKind::Symlink {
            return Err(Error::new(ErrorKind::InvalidArgument, "not a symbolic link"));
        }
        self.files.context.note_access(inode, false);
        self.target(inode)
    }

    /// [`Vfs::read_link`] of a symbolic link, without a trace.
    pub(super) fn target(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        let size = inode.size();
        let corrupt = |why| {
            let kind = CorruptKind::Rule { what: "symbolic link", why };
            Error::from(kind.at(Place::Inode(inode.ino())))
        };
        if size == 0 || size >= u64::from(inode.space().layout().block_size) {
            return Err(corrupt("has an impossible length"));
        }
        let target = if inode.attributes().is_inline() {
            inode.inline_bytes()?
        } else if inode.has_blocks() {
            let block = block_of(inode, FileBlock(0))?;
            let buffer = inode.cache().read(block, BlockKind::Plain)?;
            buffer.read()[..size as usize].to_vec()
        } else {
            inode.attributes().block_map[..size as usize].to_vec()
        };
        let target = match inode.is_encrypted() {
            true => self.decrypt_target(inode, &target)?,
            false => target,
        };
        if target.contains(&0) { Err(corrupt("has a NUL in its target")) } else { Ok(target) }
    }
}
