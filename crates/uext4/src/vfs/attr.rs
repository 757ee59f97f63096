//! Attributes as callers see and set them.

use super::create::ACL_ACCESS;
use super::{Privs, Vfs};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Attributes, InodeRef, TimeField, cluster_bytes};
use crate::quota::Owners;
use crate::xattr;
use uext4_ondisk::{FileKind, Ino, InodeFlags, RawInode, Timestamp};

/// The device number of a special file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Driver.
    pub major: u32,
    /// Device of that driver.
    pub minor: u32,
}

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number.
    pub ino: Ino,
    /// Distinguishes successive files that have the same number.
    pub generation: u32,
    /// Type.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits included.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks in use, in units of 512 bytes, including those of data that is not written back yet.
    /// A file whose data is in the inode has one for them, as in the kernel.
    pub blocks_512: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation, where the inode has room for it.
    pub crtime: Option<Timestamp>,
    /// The device number, for device files.
    pub rdev: Device,
    /// Inode flags.
    pub flags: InodeFlags,
    /// Bytes of a block.
    pub block_size: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    At(Timestamp),
}

impl SetTime {
    fn resolve(self, attributes: &Attributes, field: TimeField) -> Timestamp {
        match self {
            Self::Now => attributes.now(field),
            Self::At(time) => attributes.fit(field, time),
        }
    }
}

/// Attributes to set; those that are `None` stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, set-id and sticky bits included.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes: the file is truncated, or extended by a hole.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode. If it is not given and anything changes, the current time.
    pub ctime: Option<Timestamp>,
    /// Creation.
    pub crtime: Option<Timestamp>,
    /// Rights to remove, as a write or a change of owner does.
    pub kill_priv: Option<Privs>,
}

impl Vfs {
    /// Attributes of an inode.
    #[must_use]
    pub fn attr(&self, inode: &InodeRef) -> Attr {
        let block_size = self.files.context.space.layout().block_size;
        self.files.context.show_direct_times(inode);
        let attributes = inode.attributes();
        let mut attr = Attr {
            ino: inode.ino(),
            generation: attributes.generation,
            kind: inode.kind(),
            mode: attributes.permissions(),
            uid: attributes.uid,
            gid: attributes.gid,
            links: attributes.links,
            size: attributes.size,
            blocks_512: attributes.sectors,
            atime: attributes.atime,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
            crtime: attributes.crtime,
            rdev: Device::default(),
            flags: attributes.flags,
            block_size,
        };
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            let mut raw = RawInode::zeroed();
            raw.i_block = attributes.block_map;
            let (major, minor) = raw.device();
            attr.rdev = Device { major, minor };
        }
        drop(attributes);
        if attr.kind == FileKind::Symlink
            && inode.is_encrypted()
            && let Ok(target) = self.target(inode)
        {
            // As it is read, not as it is stored.
            attr.size = target.len() as u64;
        }
        if attr.kind == FileKind::Regular {
            let reserved = u64::from(inode.pages().unmapped());
            attr.blocks_512 += reserved * (cluster_bytes(inode.space().layout()) / 512);
            if attr.flags.contains(InodeFlags::INLINE_DATA) {
                // As the kernel: to some programs a file without a block is a hole.
                attr.blocks_512 += attr.size.div_ceil(512);
            }
        }
        attr
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// `IsADirectory` or `InvalidArgument` for the size of an inode that has none; `NotPermitted`
    /// by the inode's flags; `FileTooBig`, `ReadOnly`; a device failure.
    pub fn set_attr(&self, inode: &InodeRef, change: &SetAttr) -> Result<Attr> {
        match (change.size, inode.kind()) {
            (None, _) | (_, FileKind::Regular) => {}
            (_, FileKind::Directory) => return Err(ErrorKind::IsADirectory.into()),
            _ => return Err(Error::new(ErrorKind::InvalidArgument, "a size for no file")),
        }
        self.files.context.check_writable()?;
        if let Some(size) = change.size {
            // A call that fails so takes no rights away.
            self.files.check_size(inode, size)?;
        }
        self.lengthen_fields(inode)?;
        if change.kill_priv.is_some() {
            self.remove_privs(inode, Privs::Capabilities)?;
        }
        if let Some(size) = change.size {
            self.files.set_size(inode, size)?;
        }
        let rest = SetAttr { size: None, kill_priv: None, ..change.clone() };
        let kills = change.kill_priv.is_some_and(|privs| privs.bits(&inode.attributes()) != 0);
        if kills || rest != SetAttr::default() {
            self.deleting_values(|| self.set_metadata(inode, change))?;
            self.files.syncs.honour_sync_flag(inode)?;
        }
        Ok(self.attr(inode))
    }

    fn set_metadata(&self, inode: &InodeRef, change: &SetAttr) -> Result<()> {
        let _exclusive = inode.lock().write();
        self.files.context.fold_direct_times(inode);
        self.check_flags(inode, change)?;
        let space = &self.files.context.space;
        let _pin = inode.table_block()?;
        let to = {
            let attributes = inode.attributes();
            let (uid, gid) = (change.uid, change.gid);
            let [old_uid, old_gid, project] = attributes.owners().0;
            Owners([uid.unwrap_or(old_uid), gid.unwrap_or(old_gid), project])
        };
        let (_held, transfer) = self.files.context.hold_transfer(inode, to)?;
        let acl = change.mode.map_or(Ok(None), |mode| Self::plan_acl_mode(inode, mode))?;
        let credits = 1 + transfer + acl.as_ref().map_or(0, xattr::AttributeChange::credits);
        space.journal().run(credits, |handle| {
            if let Some(acl) = acl {
                acl.apply(handle)?;
            }
            inode.update(handle, |attributes| {
                if let Some(privs) = change.kill_priv {
                    attributes.mode &= !privs.bits(attributes);
                }
                if let Some(mode) = change.mode {
                    attributes.mode = (attributes.mode & !0o7777) | (mode & 0o7777);
                }
                attributes.uid = change.uid.unwrap_or(attributes.uid);
                attributes.gid = change.gid.unwrap_or(attributes.gid);
                if let Some(time) = change.atime {
                    attributes.atime = time.resolve(attributes, TimeField::Access);
                }
                if let Some(time) = change.mtime {
                    attributes.mtime = time.resolve(attributes, TimeField::Modification);
                }
                if attributes.crtime.is_some()
                    && let Some(crtime) = change.crtime
                {
                    attributes.crtime = Some(attributes.fit(TimeField::Creation, crtime));
                }
                attributes.touch();
                if let Some(ctime) = change.ctime {
                    attributes.ctime = attributes.fit(TimeField::Change, ctime);
                }
            })
        })
    }

    /// Checks the flags of an inode whose attributes are to change. An immutable inode refuses all
    /// changes. An append-only one accepts times, but times of the caller's choice only together
    /// with a change time: that is how a cache above brings the times of its own writes.
    fn check_flags(&self, inode: &InodeRef, change: &SetAttr) -> Result<()> {
        let chosen = |time| matches!(time, Some(SetTime::At(_)));
        let times = change.ctime.is_none() && (chosen(change.atime) || chosen(change.mtime));
        let owner = change.uid.is_some() || change.gid.is_some();
        if times || owner || change.mode.is_some() || change.crtime.is_some() {
            return self.files.context.check_not_protected(inode);
        }
        self.files.context.check_not_protected(inode).or_else(|error| {
            self.files.context.check_not_append_only(inode).map_or(Ok(()), |()| Err(error))
        })
    }

    /// Plans the change of the access list by chmod(2), if the file has a list.
    fn plan_acl_mode(inode: &InodeRef, mode: u16) -> Result<Option<xattr::AttributeChange<'_>>> {
        let Some(acl) = Self::acl(inode, ACL_ACCESS)? else { return Ok(None) };
        let value = acl.with_mode(mode).to_caller();
        xattr::AttributeChange::plan(inode, ACL_ACCESS, Some(&value), xattr::Mode::Any).map(Some)
    }
}
