//! What an inode counts for in the quota of its owners.
//!
//! Invariants: usage changes in the handle that changes the inode's count of blocks or its owners,
//! or that makes or frees the inode. The attributes are locked meanwhile.

use super::{Attributes, Inode, cluster_bytes};
use crate::error::Result;
use crate::journal::Handle;
use crate::quota::{Amount, Change, Owners, QuotaHold};

/// Owners, and bytes of blocks in use.
pub(crate) type Usage = (Owners, u64);

/// Takes holds back that were lent.
#[derive(Debug)]
pub(crate) struct LentHolds<'a>(&'a Inode);

impl Drop for LentHolds<'_> {
    fn drop(&mut self) {
        self.0.pages().lent.clear();
    }
}

impl Attributes {
    /// User, group and project.
    #[must_use]
    pub fn owners(&self) -> Owners {
        Owners([self.uid, self.gid, self.project])
    }

    pub(super) fn usage(&self) -> Usage {
        (self.owners(), self.sectors.saturating_mul(512))
    }
}

impl Inode {
    /// Whether the volume keeps quota, and the inode counts.
    pub(crate) fn is_charged(&self) -> bool {
        self.is_charged
    }

    /// What the inode counts for.
    pub(crate) fn usage(&self) -> Usage {
        self.attributes().usage()
    }

    /// Brings the entries of the owners into memory, for a hold.
    ///
    /// # Errors
    /// A damaged quota file; a device failure.
    pub(crate) fn load_usage(&self) -> Result<()> {
        match self.space().quota().filter(|_| self.is_charged) {
            Some(quota) => quota.load(self.usage().0),
            None => Ok(()),
        }
    }

    /// Takes room for `blocks` blocks below the limits of the owners.
    ///
    /// # Errors
    /// `QuotaExceeded`; those of [`Inode::load_usage`].
    pub(crate) fn hold_blocks(&self, blocks: u32) -> Result<Option<QuotaHold>> {
        // In the best case with clusters: the holder asks again once it knows their places.
        self.hold_units(self.space().layout().bits_for(blocks))
    }

    /// Takes room for `units` blocks or clusters below the limits of the owners.
    ///
    /// # Errors
    /// Those of [`Inode::hold_blocks`].
    pub(crate) fn hold_units(&self, units: u32) -> Result<Option<QuotaHold>> {
        let Some(quota) = self.space().quota().filter(|_| self.is_charged && units > 0) else {
            return Ok(None);
        };
        self.load_usage()?;
        let layout = self.space().layout();
        let mut hold = QuotaHold::empty(quota, self.usage().0);
        hold.grow(Amount { space: u64::from(units) * cluster_bytes(layout), inodes: 0 })?;
        Ok(Some(hold))
    }

    /// Has the mapping that the caller inserts take the room of `holds`, until the result is
    /// dropped: what is charged is held no more. The caller holds the writeback lock.
    pub(crate) fn lend(&self, holds: Vec<QuotaHold>) -> Option<LentHolds<'_>> {
        if holds.is_empty() {
            return None;
        }
        self.pages().lent = holds;
        Some(LentHolds(self))
    }

    /// Charges a change of the inode to its owners; one that is `new` counts from now on.
    pub(super) fn charge(
        &self,
        handle: &mut Handle<'_>,
        before: Usage,
        after: Usage,
        new: bool,
    ) -> Result<()> {
        let Some(quota) = self.space().quota() else { return Ok(()) };
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let (space, all) = (bytes(after.1).saturating_sub(bytes(before.1)), bytes(after.1));
        if new {
            return quota.charge(handle, after.0, Change { space: all, ..Change::INODE });
        }
        if before.0 == after.0 {
            let held = u64::try_from(space).map_or(0, |more| self.pages().take_room(more));
            return quota.charge(handle, after.0, Change { space, held, inodes: 0 });
        }
        self.pages().move_quota(after.0);
        quota.transfer(handle, [before, after])
    }

    /// Takes the inode, which is freed in this handle, off the usage of its owners.
    ///
    /// # Errors
    /// A damaged quota file; those of [`Handle::write`].
    pub(crate) fn uncharge(&self, handle: &mut Handle<'_>) -> Result<()> {
        let Some(quota) = self.space().quota().filter(|_| self.is_charged) else { return Ok(()) };
        let (owners, space) = self.usage();
        let space = i64::try_from(space).unwrap_or(i64::MAX);
        quota.charge(handle, owners, Change { space: -space, inodes: -1, held: 0 })
    }
}
