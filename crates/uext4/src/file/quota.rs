//! Opening the quota files of a volume, and making entries for new owners.
//!
//! On disk: hidden inodes that the superblock names. A file grows by the blocks that a new entry
//! needs, in a handle before that of the first inode of its owner.
//! Locking: the lock of the quota inode, after those of files and directories.

use super::FileContext;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Growth, grow, grow_credits, list};
use crate::inode::{Inode, InodeTable, cluster_bytes};
use crate::quota::{Amount, Owners, Quota, QuotaEntry, QuotaFile, QuotaHold, QuotaInfo, QuotaKind};
use crate::xattr;
use std::sync::Arc;
use uext4_ondisk::quota::BLOCK_SIZE;
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Ino, Place, RawSuperblock, RoCompat};

/// The inodes of the quota files of a volume.
fn inodes(raw: &RawSuperblock, table: &InodeTable) -> Vec<(QuotaKind, Ino)> {
    let features = table.context().space.layout().features.ro_compat;
    if !features.contains(RoCompat::QUOTA) {
        return Vec::new();
    }
    let named = |kind| match kind {
        QuotaKind::User => raw.s_usr_quota_inum.get(),
        QuotaKind::Group => raw.s_grp_quota_inum.get(),
        QuotaKind::Project if !features.contains(RoCompat::PROJECT) => 0,
        QuotaKind::Project => raw.s_prj_quota_inum.get(),
    };
    let all = QuotaKind::ALL.into_iter().map(|kind| (kind, Ino(named(kind))));
    all.filter(|&(_, ino)| ino != Ino(0)).collect()
}

/// Opens the quota file in an inode.
fn open_file(table: &Arc<InodeTable>, kind: QuotaKind, ino: Ino) -> Result<QuotaFile> {
    let inode = table.read(ino)?;
    let damaged =
        |why| Error::from(CorruptKind::Rule { what: "quota file", why }.at(Place::Inode(ino)));
    // The inodes of the first two kinds are of the format. Another inode could be a user's.
    let is_hidden = match kind {
        QuotaKind::User => ino == Ino::USER_QUOTA,
        QuotaKind::Group => ino == Ino::GROUP_QUOTA,
        QuotaKind::Project => table.context().space.is_special(ino),
    };
    if !is_hidden {
        return Err(damaged("is not an inode of the file system's own"));
    }
    if inode.kind() != FileKind::Regular || inode.attributes().links == 0 {
        return Err(damaged("is no regular file"));
    }
    let (mut runs, mut end, mut is_whole) = (Vec::new(), 0, true);
    list(&inode, FileBlock(0), &mut |extent| {
        is_whole &= extent.first.get() == end && !extent.unwritten;
        runs.push((extent.first.get(), extent.len, extent.start));
        end = extent.first.get().saturating_add(extent.len);
        is_whole
    })?;
    if !is_whole || runs.is_empty() {
        return Err(damaged("has a hole"));
    }
    QuotaFile::open(&table.context().cache, kind, ino, runs, inode.size())
}

/// Opens the quota of a volume that is to be written; `None` without the feature. `limited` says
/// which limits are enforced.
///
/// # Errors
/// A damaged quota file; `InvalidArgument` for limits of a kind that the volume does not keep.
pub(crate) fn open(
    table: &Arc<InodeTable>,
    raw: &RawSuperblock,
    limited: [bool; 3],
) -> Result<Option<Arc<Quota>>> {
    let found = inodes(raw, table);
    for kind in QuotaKind::ALL.into_iter().filter(|kind| limited[kind.number()]) {
        if !found.iter().any(|&(of, _)| of == kind) {
            let why =
                format!("limits of {0}s: the file system keeps no quota of {0}s", kind.name());
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
    }
    let open =
        |(kind, ino): (QuotaKind, Ino)| Ok((open_file(table, kind, ino)?, limited[kind.number()]));
    let files = found.into_iter().map(open).collect::<Result<Vec<_>>>()?;
    Ok((!files.is_empty()).then(|| Quota::new(&table.context().cache, files)))
}

/// All entries of one kind, as they are on the device or in memory; `None` if the file system keeps
/// no quota of the kind.
///
/// # Errors
/// A damaged quota file; a device failure.
pub(crate) fn list_entries(
    table: &Arc<InodeTable>,
    raw: &RawSuperblock,
    kind: QuotaKind,
) -> Result<Option<(QuotaInfo, Vec<QuotaEntry>)>> {
    let found = inodes(raw, table).into_iter().find(|&(of, _)| of == kind);
    let Some((_, ino)) = found else { return Ok(None) };
    let mut entries = Vec::new();
    let file = open_file(table, kind, ino)?;
    let info = file.list(&table.context().cache, &mut |entry| entries.push(entry))?;
    entries.sort_unstable_by_key(|entry| entry.id);
    Ok(Some((info, entries)))
}

impl FileContext {
    /// Makes the entries of owners that have none. No handle may be open.
    ///
    /// # Errors
    /// `NoSpace`; a damaged quota file; a device failure.
    pub(crate) fn prepare_owners(&self, owners: Owners) -> Result<()> {
        let Some(quota) = self.space.quota() else { return Ok(()) };
        for kind in quota.missing(owners)? {
            self.add_owner(quota, kind, owners)?;
        }
        Ok(())
    }

    /// Makes the entries of a new inode's owners, and takes room below their limits for it.
    ///
    /// # Errors
    /// `QuotaExceeded`; those of [`FileContext::prepare_owners`].
    pub(crate) fn hold_inode(&self, owners: Owners) -> Result<Option<QuotaHold>> {
        let Some(quota) = self.space.quota() else { return Ok(None) };
        self.prepare_owners(owners)?;
        let mut hold = QuotaHold::empty(quota, owners);
        hold.grow(Amount { space: 0, inodes: 1 })?;
        Ok(Some(hold))
    }

    /// Makes the entries of the owners that an inode is about to get, and takes room below their
    /// limits. Owners that stay are not asked for more. Returns the credits of the change, too.
    ///
    /// # Errors
    /// Those of [`FileContext::hold_inode`].
    pub(crate) fn hold_transfer(&self, inode: &Inode, to: Owners) -> Result<(Vec<QuotaHold>, u32)> {
        let Some(quota) = self.space.quota().filter(|_| inode.is_charged()) else {
            return Ok((Vec::new(), 0));
        };
        if inode.usage().0 == to {
            return Ok((Vec::new(), 0));
        }
        // Its values in inodes of their own count for the new owners, too.
        xattr::count_values(inode)?;
        let (owners, amount) = inode.usage();
        self.prepare_owners(to)?;
        let unit = cluster_bytes(self.space.layout());
        let reserved = u64::from(inode.pages().unmapped()) * unit;
        let more = Amount { space: amount.space.saturating_add(reserved), ..amount };
        // A block of each file for the former owner, and one for the new.
        Ok((quota.hold_transfer(owners, to, more)?, 6))
    }

    /// Makes an entry, and lengthens the file for it.
    fn add_owner(&self, quota: &Arc<Quota>, kind: QuotaKind, owners: Owners) -> Result<()> {
        let inode = self.table.get(quota.file_ino(kind)?)?;
        let _exclusive = inode.lock().write();
        if !quota.missing(owners)?.contains(&kind) {
            return Ok(());
        }
        let id = owners.id(kind);
        let (needed, there) = quota.blocks_with(kind, id)?;
        let per_block = self.space.layout().block_size / BLOCK_SIZE as u32;
        let more = needed.saturating_sub(there).div_ceil(per_block);
        let end = FileBlock(there / per_block);
        let mut growth = (more > 0).then(|| Growth::allocate(&inode, end, more)).transpose()?;
        let _pin = inode.table_block()?;
        // Three tree blocks, the data block, the one behind it in the list, parent and header.
        let credits = 8 + more + grow_credits(&inode, more);
        self.journal().run(credits, |handle| {
            for n in 0..more {
                let Some(growth) = growth.as_mut() else { break };
                let block = grow(handle, &inode, growth, end.plus(n))?;
                handle.create(block, crate::cache::BlockKind::Quota)?;
                quota.note_block(kind, block)?;
            }
            let size = quota.insert(handle, kind, id)?;
            inode.note_data_change(handle);
            inode.update(handle, |attributes| {
                attributes.set_size(size.max(attributes.size));
                attributes.touch_content();
            })
        })
    }

    /// Sets the limits of an owner.
    ///
    /// # Errors
    /// Those of [`FileContext::prepare_owners`]; `InvalidArgument` without quota of the kind.
    pub(crate) fn set_quota_limits(&self, kind: QuotaKind, to: &QuotaEntry) -> Result<()> {
        let quota = self.quota_kept()?;
        quota.file_ino(kind)?;
        let mut owners = [0; 3];
        owners[kind.number()] = to.id;
        if quota.missing(Owners(owners))?.contains(&kind) {
            self.add_owner(quota, kind, Owners(owners))?;
        }
        self.journal().run(1, |handle| quota.set_limits(handle, kind, to))
    }

    /// Sets the times of grace of a kind, in seconds.
    ///
    /// # Errors
    /// `InvalidArgument` without quota of the kind; a device failure.
    pub(crate) fn set_quota_grace(&self, kind: QuotaKind, space: u32, inodes: u32) -> Result<()> {
        let quota = self.quota_kept()?;
        self.journal().run(1, |handle| quota.set_grace(handle, kind, space, inodes))
    }

    fn quota_kept(&self) -> Result<&Arc<Quota>> {
        let none = || Error::new(ErrorKind::InvalidArgument, "the file system keeps no quota");
        self.space.quota().ok_or_else(none)
    }
}
