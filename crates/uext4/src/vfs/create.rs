//! Creating files, directories and special files.

use super::{Device, Vfs, add_subdirectory};
use crate::alloc::{Child, InodeAllocation};
use crate::cache::Buffer;
use crate::dir::{self, Insertion};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Growth, allocate_growth};
use crate::inode::{self, Attributes, Creation, Inode, InodeRef};
use crate::journal::Handle;
use crate::quota::QuotaHold;
use crate::xattr;
use crate::xattr::acl::Acl;
use std::sync::Arc;
use uext4_ondisk::encryption::Context;
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
    _pin: Arc<Buffer>,
}

impl AllocatedInode {
    pub(super) fn ino(&self) -> Ino {
        self.allocation.ino()
    }
}

/// A new inode that is ready to be linked into a directory.
pub(super) struct Prepared {
    pub(super) inode: Arc<Inode>,
    allocated: AllocatedInode,
    /// First block of a directory, or the target of a slow symbolic link.
    growth: Option<Growth>,
    /// Room for it below the limits of its owners.
    _held: Option<QuotaHold>,
}

/// The access control lists that a new inode inherits, and its encryption context.
pub(super) struct InheritedLists {
    access: Option<Acl>,
    default: Option<Acl>,
    context: Option<Context>,
}

impl InheritedLists {
    /// Plans to give them to a new inode. `None` if there are none.
    pub(super) fn plan<'a>(&self, inode: &'a Inode) -> Result<Option<xattr::AttributeChange<'a>>> {
        let lists: Vec<(&[u8], Vec<u8>)> =
            [(ACL_ACCESS, self.access.as_ref()), (ACL_DEFAULT, self.default.as_ref())]
                .into_iter()
                .filter_map(|(name, acl)| acl.map(|acl| (name, acl.to_caller())))
                .collect();
        if lists.is_empty() && self.context.is_none() {
            return Ok(None);
        }
        let context = self.context.as_ref().map(Context::to_bytes);
        let mode = xattr::Mode::Any;
        let edits: Vec<xattr::AttributeEdit<'_>> = lists
            .iter()
            .map(|(name, value)| xattr::AttributeEdit { name, value: Some(value), mode })
            .collect();
        xattr::AttributeChange::plan_with_context(inode, &edits, context.as_deref()).map(Some)
    }

    /// No lists, but a context.
    pub(super) fn of_context(context: Option<Context>) -> Self {
        Self { access: None, default: None, context }
    }
}

impl Prepared {
    /// Credits of [`Prepared::write`] with these access lists.
    pub(super) fn credits(&self, lists: Option<&xattr::AttributeChange<'_>>) -> u32 {
        let fill = if self.growth.is_some() { dir::init_credits(&self.inode) } else { 0 };
        let lists = lists.map_or(0, xattr::AttributeChange::credits);
        1 + self.allocated.allocation.credits() + fill + lists
    }

    /// Writes the inode, in the handle that makes it. `fill` gives it its first content, and
    /// `lists` its access lists.
    pub(super) fn write(
        &mut self,
        handle: &mut Handle<'_>,
        lists: Option<xattr::AttributeChange<'_>>,
        fill: impl FnOnce(&mut Handle<'_>, &Inode, Option<&mut Growth>) -> Result<()>,
    ) -> Result<()> {
        let is_directory = self.inode.kind() == FileKind::Directory;
        let allocation = &mut self.allocated.allocation;
        self.inode.space().mark_inode_used(handle, allocation, is_directory)?;
        self.inode.note_data_change(handle);
        self.inode.update(handle, |_| ())?;
        fill(handle, &self.inode, self.growth.as_mut())?;
        lists.map_or(Ok(()), |lists| lists.apply(handle))
    }

    /// Lets others find the inode, whose handle has ended.
    pub(super) fn finish(self) -> InodeRef {
        self.allocated.creation.finish(self.inode)
    }
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
        let created = self.create_locked(dir, name, new, early);
        // A list of access rights may have been stored before it failed.
        let created = created.or_else(|error| self.deleting_values(|| Err(error)))?;
        self.files.syncs.honour_dirsync_flags(&[dir])?;
        Ok(created)
    }

    /// Creates an inode under the lock of the directory.
    fn create_locked(
        &self,
        dir: &InodeRef,
        name: &[u8],
        new: &NewInode,
        early: Option<AllocatedInode>,
    ) -> Result<InodeRef> {
        let _exclusive = dir.lock().write_adaptive();
        self.check_parent(dir)?;
        let insertion = Insertion::plan(dir, name)?;
        let (mut attributes, lists) = self.inherit(dir, new)?;
        let is_directory = new.kind == FileKind::Directory;
        if is_directory {
            self.check_links(dir)?;
            attributes.links = 2;
        }
        let allocated = early.map_or_else(|| self.allocate_child(dir, new.kind), Ok)?;
        let layout = self.files.context.space.layout();
        let needs_block = is_directory && !attributes.become_inline_directory(layout, dir.ino());
        let prepared = self.prepare(allocated, new.kind, attributes, u32::from(needs_block))?;
        let inode = Arc::clone(&prepared.inode);
        let lists = lists.plan(&inode)?;
        let fill = |handle: &mut Handle<'_>, inode: &Inode, growth: Option<&mut Growth>| {
            growth.map_or(Ok(()), |growth| dir::init(handle, inode, growth, dir.ino()))
        };
        self.link_new(dir, insertion, prepared, lists, fill)
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

    /// Attributes and access lists of a new inode, with what it inherits from `dir`.
    pub(super) fn inherit(
        &self,
        dir: &Inode,
        new: &NewInode,
    ) -> Result<(Attributes, InheritedLists)> {
        let default = Self::acl(dir, ACL_DEFAULT)?;
        let inherited = default.as_ref().map(|acl| acl.inherit(new.mode));
        let mode = inherited.as_ref().map_or(new.mode, |inherited| inherited.mode);
        let mut attributes = self.new_attributes(dir, new.kind, mode, new.owner);
        if matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            let mut raw = RawInode::zeroed();
            raw.set_device(new.rdev.major, new.rdev.minor);
            attributes.block_map = raw.i_block;
        }
        let access = inherited.and_then(|inherited| inherited.access);
        let default = default.filter(|_| new.kind == FileKind::Directory);
        let context = self.new_context(dir, new.kind)?;
        if context.is_some() {
            attributes.flags |= InodeFlags::ENCRYPT;
        }
        Ok((attributes, InheritedLists { access, default, context }))
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
        // As ext4: with `grpid` the group goes on, the bit does not.
        if self.files.context.options.parent_group {
            attributes.gid = parent.gid;
        } else if parent.mode & 0o2000 != 0 {
            attributes.gid = parent.gid;
            if kind == FileKind::Directory {
                attributes.mode |= 0o2000;
            }
        }
        attributes.flags = parent.flags.inherited(kind);
        attributes.project = parent.project_of_children(layout);
        attributes
    }

    /// Allocates a number for an inode in `dir`, and reads its table block.
    pub(super) fn allocate_child(&self, dir: &Inode, kind: FileKind) -> Result<AllocatedInode> {
        let space = &self.files.context.space;
        let allocation = space.allocate_inode(dir.ino(), child(dir, kind))?;
        let creation = self.files.context.table.begin_creation(allocation.ino());
        let pin = inode::table_block_of(self.files.context.table.context(), allocation.ino())?;
        Ok(AllocatedInode { creation, allocation, _pin: pin })
    }

    /// Makes a new inode in memory, and allocates `blocks` blocks for it.
    pub(super) fn prepare(
        &self,
        allocated: AllocatedInode,
        kind: FileKind,
        attributes: Attributes,
        blocks: u32,
    ) -> Result<Prepared> {
        let held = self.files.context.hold_inode(attributes.owners())?;
        let inode = Inode::create(
            self.files.context.table.context(),
            allocated.allocation.ino(),
            allocated.allocation.data_group(),
            kind,
            attributes,
        )?;
        let inode = Arc::new(inode);
        let growth = (blocks > 0).then(|| allocate_growth(&inode, blocks)).transpose()?;
        Ok(Prepared { inode, allocated, growth, _held: held })
    }

    /// Links a prepared inode. In the same handle `fill` gives it its first content, and `lists`
    /// its access lists.
    pub(super) fn link_new(
        &self,
        dir: &InodeRef,
        insertion: Insertion<'_>,
        mut prepared: Prepared,
        lists: Option<xattr::AttributeChange<'_>>,
        fill: impl FnOnce(&mut Handle<'_>, &Inode, Option<&mut Growth>) -> Result<()>,
    ) -> Result<InodeRef> {
        let _dir_pin = dir.table_block()?;
        let is_directory = prepared.inode.kind() == FileKind::Directory;
        // One more for the parent.
        let credits = insertion.credits() + prepared.credits(lists.as_ref()) + 1;
        self.files.context.space.journal().run(credits, |handle| {
            prepared.write(handle, lists, fill)?;
            insertion.apply(handle, prepared.inode.ino(), prepared.inode.kind())?;
            dir.update(handle, |attributes| {
                if is_directory {
                    add_subdirectory(attributes);
                }
                attributes.touch_content();
            })
        })?;
        Ok(prepared.finish())
    }
}
