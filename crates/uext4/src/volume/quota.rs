//! Quota as callers read and set it.

use super::Volume;
use crate::error::Result;
use crate::quota::{QuotaEntry, QuotaInfo, QuotaKind};

impl Volume {
    /// Defaults, and usage and limits of all owners of a kind, by id; `None` if the file system
    /// keeps no quota of the kind. Usage of what is not written back yet is not in it.
    ///
    /// # Errors
    /// A damaged quota file; a device failure.
    pub fn quota(&self, kind: QuotaKind) -> Result<Option<(QuotaInfo, Vec<QuotaEntry>)>> {
        let table = &self.inner.vfs.files.context.table;
        crate::file::list_entries(table, &self.superblock(), kind)
    }

    /// Sets the limits of an owner; the usage in `to` has no meaning. Rights are up to the caller.
    ///
    /// # Errors
    /// `InvalidArgument` if the file system keeps no quota of the kind; `NoSpace`, `ReadOnly`; a
    /// device failure.
    pub fn set_quota_limits(&self, kind: QuotaKind, to: &QuotaEntry) -> Result<()> {
        self.change(|vfs| {
            vfs.files.context.check_writable()?;
            vfs.files.context.set_quota_limits(kind, to)
        })
    }

    /// Sets the times of grace of soft limits of space and of inodes, in seconds.
    ///
    /// # Errors
    /// Those of [`Volume::set_quota_limits`].
    pub fn set_quota_grace(&self, kind: QuotaKind, space: u32, inodes: u32) -> Result<()> {
        self.change(|vfs| {
            vfs.files.context.check_writable()?;
            vfs.files.context.set_quota_grace(kind, space, inodes)
        })
    }
}
