//! The projects of inodes.
//!
//! On disk: `i_projid`, with the feature `project`. Its quota has a feature of its own.
//! Invariants: a directory with PROJINHERIT hands its project on to what is made in it, and takes
//! no entry of an inode that belongs to another project.

use super::Vfs;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Attributes, Inode, InodeRef};
use crate::quota::Owners;
use uext4_ondisk::{InodeFlags, Layout, RoCompat};

impl Attributes {
    /// The project of what is made in a directory with these attributes.
    pub(super) fn project_of_children(&self, layout: &Layout) -> u32 {
        let inherits = self.flags.contains(InodeFlags::PROJINHERIT) && has_projects(layout);
        if inherits { self.project } else { 0 }
    }
}

fn has_projects(layout: &Layout) -> bool {
    layout.features.ro_compat.contains(RoCompat::PROJECT)
}

impl Vfs {
    /// The project of an inode; 0 on a file system without the feature.
    #[must_use]
    pub fn project_id(&self, inode: &InodeRef) -> u32 {
        let project = inode.attributes().project;
        if has_projects(self.files.context.space.layout()) { project } else { 0 }
    }

    /// Sets the project of an inode, and its change time. Rights are up to the caller.
    ///
    /// # Errors
    /// `Unsupported` on a file system without the feature, unless `project` is 0, and for an inode
    /// without room for it; `QuotaExceeded`; `NotPermitted` for an immutable inode; `ReadOnly`; a
    /// device failure.
    pub fn set_project_id(&self, inode: &InodeRef, project: u32) -> Result<()> {
        self.files.context.check_writable()?;
        let layout = self.files.context.space.layout();
        if !has_projects(layout) && project != 0 {
            return Err(Error::new(ErrorKind::Unsupported, "a file system without projects"));
        }
        let exclusive = inode.lock().write();
        if self.project_id(inode) == project {
            return Ok(());
        }
        let (is_immutable, has_room) = {
            let attributes = inode.attributes();
            let is_immutable = attributes.flags.contains(InodeFlags::IMMUTABLE);
            (is_immutable, attributes.has_room_for_project(layout))
        };
        if is_immutable {
            return Err(Error::new(ErrorKind::NotPermitted, "the project of an immutable inode"));
        }
        if !has_room {
            return Err(Error::new(ErrorKind::Unsupported, "an inode without room for a project"));
        }
        let _pin = inode.table_block()?;
        let [uid, gid, _] = inode.attributes().owners().0;
        let to = Owners([uid, gid, project]);
        let (_held, transfer) = self.files.context.hold_transfer(inode, to)?;
        self.files.context.space.journal().run(1 + transfer, |handle| {
            inode.update(handle, |attributes| {
                attributes.project = project;
                attributes.touch();
            })
        })?;
        drop(exclusive);
        self.files.syncs.honour_sync_flag(inode)
    }

    /// Checks that a directory may get an entry of an inode that exists.
    pub(super) fn check_project(&self, dir: &Inode, inode: &Inode) -> Result<()> {
        let wanted = {
            let attributes = dir.attributes();
            let inherits = attributes.flags.contains(InodeFlags::PROJINHERIT);
            inherits.then_some(attributes.project)
        };
        if wanted.is_some_and(|project| inode.attributes().project != project) {
            return Err(ErrorKind::CrossesProjects.into());
        }
        Ok(())
    }
}
