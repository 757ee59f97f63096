//! What an inode counts for in the quota of its owners.
//!
//! Invariants: usage changes in the handle that changes the inode's count of blocks or its owners,
//! or that makes or frees the inode. The attributes are locked meanwhile. An inode that holds the
//! value of an attribute (ea_inode) counts for nobody while it is marked as one. Instead each
//! attribute that refers to it counts for the owners of its file: as an inode, and with the
//! clusters of the value, which are in the file's count of blocks. As an orphan it counts as any
//! file.
//! Kernel counterpart: `ext4_get_inode_usage` in `fs/ext4/xattr.c`.

use super::{Attributes, Inode, cluster_bytes};
use crate::error::Result;
use crate::journal::Handle;
use crate::quota::{Amount, Change, Owners, QuotaHold};
use uext4_ondisk::InodeFlags;

/// Owners, and what counts for them.
pub(crate) type Usage = (Owners, Amount);

/// Takes holds back that were lent.
#[derive(Debug)]
pub(crate) struct LentHolds<'a>(&'a Inode);

impl Drop for LentHolds<'_> {
    fn drop(&mut self) {
        if let Some(quota) = &mut self.0.pages().quota {
            quota.lent.clear();
        }
    }
}

impl Attributes {
    /// User, group and project.
    #[must_use]
    pub fn owners(&self) -> Owners {
        Owners([self.uid, self.gid, self.project])
    }

    pub(super) fn usage(&self) -> Usage {
        let amount = match self.flags.contains(InodeFlags::EA_INODE) {
            true => Amount::default(),
            false => Amount {
                space: self.sectors.saturating_mul(512),
                inodes: 1 + u64::from(self.values),
            },
        };
        (self.owners(), amount)
    }

    /// Notes how many attributes have values in inodes of their own.
    pub(crate) fn note_values(&mut self, values: u32) {
        self.values = values;
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
        let space = u64::from(units) * cluster_bytes(self.space().layout());
        self.hold(Amount { space, inodes: 0 })
    }

    /// Takes room for a value of `len` bytes in an inode of its own below the limits of the owners.
    ///
    /// # Errors
    /// Those of [`Inode::hold_blocks`].
    pub(crate) fn hold_value(&self, len: u64) -> Result<Option<QuotaHold>> {
        let space = len.next_multiple_of(cluster_bytes(self.space().layout()));
        self.hold(Amount { space, inodes: 1 })
    }

    fn hold(&self, more: Amount) -> Result<Option<QuotaHold>> {
        let is_counted = self.is_charged && more != Amount::default();
        let Some(quota) = self.space().quota().filter(|_| is_counted) else { return Ok(None) };
        self.load_usage()?;
        let mut hold = QuotaHold::empty(quota, self.usage().0);
        hold.grow(more)?;
        Ok(Some(hold))
    }

    /// Has the mapping that the caller inserts take the room of `holds`, until the result is
    /// dropped: what is charged is held no more. The caller holds the writeback lock.
    pub(crate) fn lend(&self, holds: Vec<QuotaHold>) -> Option<LentHolds<'_>> {
        if holds.is_empty() {
            return None;
        }
        self.pages().quota.as_mut()?.lent = holds;
        Some(LentHolds(self))
    }

    /// Holds of as much as the orphan counts for. Taken before the orphan's charge ends, dropped
    /// after the file's begins.
    pub(crate) fn hold_usage(&self) -> Vec<QuotaHold> {
        let (owners, amount) = self.usage();
        let quota = self.space().quota().filter(|_| self.is_charged);
        quota.map_or_else(Vec::new, |quota| QuotaHold::of(quota, owners, amount))
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
        if new {
            return quota.charge(handle, after.0, Change::between(Amount::default(), after.1));
        }
        if before.0 == after.0 {
            let change = Change::between(before.1, after.1);
            let held = u64::try_from(change.space).map_or(0, |more| self.pages().take_room(more));
            return quota.charge(handle, after.0, Change { held, ..change });
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
        let (owners, amount) = self.usage();
        quota.charge(handle, owners, Change::between(amount, Amount::default()))
    }
}
