//! Creating files, directories and special files; hard links.

use super::{Device, Vfs, add_subdirectory, expect_directory};
use crate::alloc::{Child, InodeAllocation};
use crate::cache::Buffer;
use crate::dir::{self, Insertion};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Growth, allocate_growth};
use crate::injected_faults::Fault;
use crate::inode::{self, Attributes, Creation, Inode, InodeRef};
use crate::journal::Handle;
use crate::xattr;
use crate::xattr::acl::Acl;
use std::sync::Arc;
use uext4_ondisk::inode::LINK_MAX;
use uext4_ondisk::{FileKind, Ino, InodeFlags, RawInode};

pub(super) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// The owner of a new inode. If the directory has the set-group-id bit, its group takes the place
/// of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Description of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Type; [`Vfs::symlink`] makes symbolic links.
    pub kind: FileKind,
    /// Permission bits, after the caller's umask.
    pub mode: u16,
    /// Owner.
    pub owner: Owner,
    /// The device number, for device files.
    pub rdev: Device,
}

/// The flags that a new inode inherits from its directory: those that uext4 implements.
fn inherited(flags: InodeFlags, kind: FileKind) -> InodeFlags {
    let all = InodeFlags::SYNC | InodeFlags::NODUMP | InodeFlags::NOATIME;
    let modes = InodeFlags::JOURNAL_DATA | InodeFlags::DAX;
    match kind {
        FileKind::Directory => flags & (all | InodeFlags::DIRSYNC | modes),
        FileKind::Regular => flags & (all | modes),
        _ => flags & all,
    }
}

/// The kind of child, which decides about the group of its inode.
fn child(dir: &Inode, kind: FileKind) -> Child {
    if kind != FileKind::Directory {
        return Child::File;
    }
    let is_top = dir.ino() == Ino::ROOT || dir.attributes().flags.contains(InodeFlags::TOPDIR);
    if is_top { Child::TopDirectory } else { Child::Directory }
}

/// An allocated number for a new inode.
pub(super) struct AllocatedInode {
    /// Dropped before the allocation, because until then no other inode may get the number.
    creation: Creation,
    allocation: InodeAllocation,
    /// Its table block.
    pin: Arc<Buffer>,
}

/// A new inode that is ready to be linked into a directory.
pub(super) struct Prepared {
    pub(super) inode: Arc<Inode>,
    allocated: AllocatedInode,
    /// First block of a directory, or the target of a slow symbolic link.
    growth: Option<Growth>,
}

impl Vfs {
    /// Creates an inode and links it as `name`.
    ///
    /// # Errors
    /// `Exists`, `NameTooLong`, `NoSpace`, `TooManyLinks`, `ReadOnly`; a device failure.
    pub fn create(&self, dir: &InodeRef, name: &[u8], new: &NewInode) -> Result<InodeRef> {
        if new.kind == FileKind::Symlink {
            return Err(Error::new(ErrorKind::InvalidArgument, "a symbolic link needs a target"));
        }
        Self::check_name(name)?;
        self.files.syncs.trim_inodes();
        // Before the directory is locked, so that other threads do not wait for it. Not if few
        // inodes are left: a caller that is about to fail because its name exists must not hold one
        // of the last even for a moment. A failure is reported below, after errors of the name.
        let early = match self.files.context.space.has_many_inodes() {
            true => self.allocate_child(dir, new.kind).ok(),
            false => None,
        };
        let exclusive = dir.lock().write_adaptive();
        self.check_parent(dir)?;
        let insertion = Insertion::plan(dir, name)?;
        let default = Self::acl(dir, ACL_DEFAULT)?;
        let inherited = default.as_ref().map(|acl| acl.inherit(new.mode));
        let mode = inherited.as_ref().map_or(new.mode, |inherited| inherited.mode);
        let mut attributes = self.new_attributes(dir, new.kind, mode, new.owner);
        if matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            let mut raw = RawInode::zeroed();
            raw.set_device(new.rdev.major, new.rdev.minor);
            attributes.block_map = raw.i_block;
        }
        let is_directory = new.kind == FileKind::Directory;
        if is_directory {
            self.check_links(dir)?;
            attributes.links = 2;
        }
        let allocated = early.map_or_else(|| self.allocate_child(dir, new.kind), Ok)?;
        let prepared = self.prepare(allocated, new.kind, attributes, u32::from(is_directory))?;
        let inode = Arc::clone(&prepared.inode);
        let access = inherited.and_then(|inherited| inherited.access);
        let default = default.filter(|_| is_directory);
        let lists = Self::plan_acls(&inode, access.as_ref(), default.as_ref())?;
        let fill = |handle: &mut Handle<'_>, inode: &Inode, growth: Option<&mut Growth>| {
            growth.map_or(Ok(()), |growth| dir::init(handle, inode, growth, dir.ino()))
        };
        let created = self.link_new(dir, insertion, prepared, lists, fill)?;
        drop(exclusive);
        self.files.syncs.honour_dirsync_flags(&[dir])?;
        Ok(created)
    }

    /// The access control list of an inode in the attribute `name`.
    pub(super) fn acl(inode: &Inode, name: &[u8]) -> Result<Option<Acl>> {
        if !inode.may_have_xattrs() {
            return Ok(None);
        }
        match xattr::get(inode, name) {
            Ok(value) => Ok(Acl::from_caller(&value)?),
            Err(error) if *error.kind() == ErrorKind::NoXattr => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn plan_acls<'a>(
        inode: &'a Inode,
        access: Option<&Acl>,
        default: Option<&Acl>,
    ) -> Result<Option<xattr::AttributeChange<'a>>> {
        let lists: Vec<(&[u8], Vec<u8>)> = [(ACL_ACCESS, access), (ACL_DEFAULT, default)]
            .into_iter()
            .filter_map(|(name, acl)| acl.map(|acl| (name, acl.to_caller())))
            .collect();
        if lists.is_empty() {
            return Ok(None);
        }
        let mode = xattr::Mode::Any;
        let edits: Vec<xattr::AttributeEdit<'_>> = lists
            .iter()
            .map(|(name, value)| xattr::AttributeEdit { name, value: Some(value), mode })
            .collect();
        xattr::AttributeChange::plan_all(inode, &edits).map(Some)
    }

    /// Attributes of a new child of `dir`.
    pub(super) fn new_attributes(
        &self,
        dir: &Inode,
        kind: FileKind,
        mode: u16,
        owner: Owner,
    ) -> Attributes {
        let generation = crate::sync::random();
        let layout = self.files.context.space.layout();
        let mut attributes = Attributes::new(layout, kind, mode & 0o7777, generation);
        let parent = dir.attributes();
        attributes.uid = owner.uid;
        attributes.gid = owner.gid;
        if parent.mode & 0o2000 != 0 {
            attributes.gid = parent.gid;
            if kind == FileKind::Directory {
                attributes.mode |= 0o2000;
            }
        }
        attributes.flags = inherited(parent.flags, kind);
        attributes
    }

    /// Allocates a number for an inode in `dir`, and reads its table block.
    pub(super) fn allocate_child(&self, dir: &Inode, kind: FileKind) -> Result<AllocatedInode> {
        let space = &self.files.context.space;
        let allocation = space.allocate_inode(dir.ino(), child(dir, kind))?;
        let creation = self.files.context.table.begin_creation(allocation.ino());
        let pin = inode::table_block_of(self.files.context.table.context(), allocation.ino())?;
        Ok(AllocatedInode { creation, allocation, pin })
    }

    /// Makes a new inode in memory, and allocates `blocks` blocks for it.
    pub(super) fn prepare(
        &self,
        allocated: AllocatedInode,
        kind: FileKind,
        attributes: Attributes,
        blocks: u32,
    ) -> Result<Prepared> {
        let inode = Inode::create(
            self.files.context.table.context(),
            allocated.allocation.ino(),
            allocated.allocation.data_group(),
            kind,
            attributes,
        )?;
        let inode = Arc::new(inode);
        let growth = (blocks > 0).then(|| allocate_growth(&inode, blocks)).transpose()?;
        Ok(Prepared { inode, allocated, growth })
    }

    /// Links a prepared inode. In the same handle `fill` gives it its first content, and `lists`
    /// its access lists.
    pub(super) fn link_new(
        &self,
        dir: &InodeRef,
        insertion: Insertion<'_>,
        prepared: Prepared,
        lists: Option<xattr::AttributeChange<'_>>,
        fill: impl FnOnce(&mut Handle<'_>, &Inode, Option<&mut Growth>) -> Result<()>,
    ) -> Result<InodeRef> {
        let Prepared { inode, mut growth, allocated } = prepared;
        // The creation is abandoned before its number is free again, because these are dropped in
        // reverse order.
        let AllocatedInode { mut allocation, pin: _pin, creation } = allocated;
        let _dir_pin = dir.table_block()?;
        let space = &self.files.context.space;
        let is_directory = inode.kind() == FileKind::Directory;
        let fill_credits = if growth.is_some() { dir::init_credits(&inode) } else { 0 };
        // The inode and its parent.
        let list_credits = lists.as_ref().map_or(0, xattr::AttributeChange::credits);
        let credits = insertion.credits() + allocation.credits() + fill_credits + list_credits + 2;
        space.journal().run(credits, |handle| {
            space.mark_inode_used(handle, &mut allocation, is_directory)?;
            inode.note_data_change(handle);
            inode.update(handle, |_| ())?;
            fill(handle, &inode, growth.as_mut())?;
            if let Some(lists) = lists {
                lists.apply(handle)?;
            }
            insertion.apply(handle, inode.ino(), inode.kind())?;
            dir.update(handle, |attributes| {
                if is_directory {
                    add_subdirectory(attributes);
                }
                attributes.touch_content();
            })
        })?;
        Ok(creation.finish(inode))
    }

    /// Adds a hard link `name` to an inode.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory and for an immutable or append-only inode,
    /// `TooManyLinks`, `NoSpace`, `ReadOnly`; a device failure.
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
        if links == 0 {
            return Err(Error::new(ErrorKind::NotFound, "inode is unlinked"));
        }
        if links >= u32::from(LINK_MAX) {
            return Err(ErrorKind::TooManyLinks.into());
        }
        let insertion = Insertion::plan(dir, name)?;
        let _pins = super::pin(&[inode, dir])?;
        self.files.context.space.journal().run(insertion.credits() + 2, |handle| {
            insertion.apply(handle, inode.ino(), inode.kind())?;
            inode.update(handle, |attributes| {
                attributes.links += u32::from(!Fault::WrongLinkCount.is_injected());
                attributes.touch();
            })?;
            dir.update(handle, Attributes::touch_content)
        })?;
        drop((locked, exclusive));
        self.files.syncs.honour_dirsync_flags(&[dir])
    }
}
