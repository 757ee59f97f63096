//! Counting the references to values in inodes of their own (feature ea_inode).
//!
//! What: [`ValueChange`] is what a change of attributes means for the inodes that hold their
//! values: which counts rise and fall, and how much space the owner counts for them.
//! On disk: every entry counts, but the entries of a block that inodes share count once. The value
//! counts in the blocks of each inode that has the attribute.
//! Invariants: a count changes in the handle that changes the entries. At 0 the inode becomes an
//! orphan in that handle, and is deleted after it.

use super::block_change::BlockChange;
use super::stored::{Attribute, Stored, Value, ValueInode};
use super::value_inode::corrupt;
use super::value_store;
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Inode, InodeRef, KnownValues};
use crate::journal::Handle;
use crate::sync::MutexGuard;
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4_ondisk::Ino;
use uext4_ondisk::xattr::is_hash_of_value_inode;

/// The right to change attributes, where values may be in inodes of their own.
#[derive(Debug)]
pub(super) struct ValueChange<'a> {
    known: MutexGuard<'a, KnownValues>,
    /// Inodes of new values. The reference keeps one from being deleted before it is used.
    stored: Vec<InodeRef>,
    counts: Vec<Count>,
    /// Clusters that the owner counts from now on, or no more.
    clusters: i64,
}

/// A count of references that changes.
#[derive(Debug)]
struct Count {
    inode: InodeRef,
    before: u64,
    after: u64,
    _table_block: Arc<Buffer>,
}

/// Entries that refer to a value, before and after a change.
#[derive(Debug)]
struct Referred<'l> {
    entries: i64,
    at: ValueInode,
    name: &'l [u8],
}

impl<'a> ValueChange<'a> {
    /// Waits for other changes. `None`: the file system has no such values.
    pub(super) fn begin(inode: &'a Inode) -> Option<Self> {
        let known = inode.value_inodes()?.lock();
        Some(Self { known, stored: Vec::new(), counts: Vec::new(), clusters: 0 })
    }

    /// Stores the values of the list that need an inode.
    ///
    /// # Errors
    /// Those of [`value_store::store`].
    pub(super) fn store(&mut self, inode: &Inode, list: &mut [Attribute]) -> Result<()> {
        for attribute in list {
            let Value::ForInode(bytes) = &attribute.value else { continue };
            let values = &inode.context().values;
            let (at, held) =
                value_store::store(values, &self.known, inode, &attribute.name, bytes)?;
            attribute.value = Value::InInode(at);
            self.stored.push(held);
        }
        Ok(())
    }

    /// Plans the counts of a change from `before` to `after`, whose block changes as `block` says.
    ///
    /// # Errors
    /// `Corrupt` for an inode that holds no value, or whose count is too low; `NoSpace` if one
    /// transaction cannot change so many; a device failure.
    pub(super) fn plan(
        &mut self,
        inode: &Inode,
        before: &Stored,
        after: &Stored,
        block: &BlockChange,
    ) -> Result<()> {
        let sum =
            |stored: &Stored| -> i64 { stored.iter().map(|a| value_clusters(inode, a)).sum() };
        self.clusters = sum(after) - sum(before);
        let mut referred = BTreeMap::new();
        count(&mut referred, &before.inode, -1);
        count(&mut referred, &after.inode, 1);
        if !matches!(block, BlockChange::Keep) {
            // A block that others share keeps its entries.
            if !block.leaves_shared()? {
                count(&mut referred, &before.block, -1);
            }
            count(&mut referred, &after.block, 1);
        }
        for referred in referred.into_values().filter(|referred| referred.entries != 0) {
            let planned = self.plan_count(inode, &referred)?;
            self.counts.push(planned);
        }
        if self.credits(inode) > inode.space().journal().credits_max() / 2 {
            let why = "more values than one transaction changes";
            return Err(Error::new(ErrorKind::NoSpace, why));
        }
        Ok(())
    }

    fn plan_count(&self, owner: &Inode, referred: &Referred<'_>) -> Result<Count> {
        let at = referred.at;
        let stored = self.stored.iter().find(|inode| inode.ino() == at.ino);
        let inode = match stored {
            Some(inode) => inode.clone(),
            None => owner.context().values.get(owner, at.ino)?,
        };
        let (references, links, checksum, named) = {
            let of = inode.attributes();
            (of.references(), of.links, of.value_checksum(), of.value_owner())
        };
        let is_hashed = is_hash_of_value_inode(at.hash, referred.name, checksum);
        // Lustre counts no references.
        let is_lustre = !is_hashed && named == (owner.ino(), owner.generation());
        let before = if is_lustre { 1 } else { references };
        if (before == 0 || links == 0) && stored.is_none() {
            return Err(corrupt(at.ino, "is in one without references"));
        }
        let Some(after) = before.checked_add_signed(referred.entries) else {
            return Err(corrupt(at.ino, "has too few references"));
        };
        let _table_block = inode.table_block()?;
        Ok(Count { inode, before, after, _table_block })
    }

    /// Credits of [`ValueChange::apply`].
    pub(super) fn credits(&self, inode: &Inode) -> u32 {
        let orphan = inode.space().credits().orphan;
        let is_orphan = |count: &Count| (count.before == 0) != (count.after == 0);
        let of = |count: &Count| 1 + if is_orphan(count) { orphan } else { 0 };
        self.counts.iter().map(of).sum()
    }

    /// Changes the counts. Returns the clusters that the owner counts from now on, or no more. The
    /// references to the inodes go with `self`.
    ///
    /// # Errors
    /// The journal is aborted.
    pub(super) fn apply(&mut self, handle: &mut Handle<'_>, owner: &Inode) -> Result<i64> {
        let orphans = owner.context().values.orphans()?;
        for Count { inode, before, after, .. } in &self.counts {
            let checksum = inode.update(handle, |attributes| {
                attributes.set_references(*after);
                attributes.value_checksum()
            })?;
            if *after == 0 {
                self.known.forget(checksum, inode.ino());
                orphans.add(handle, inode)?;
            } else {
                self.known.note(checksum, inode.ino());
            }
            if *before == 0 {
                orphans.remove(handle, inode)?;
            }
        }
        Ok(self.clusters)
    }
}

fn value_clusters(inode: &Inode, attribute: &Attribute) -> i64 {
    let layout = inode.space().layout();
    let cluster = u64::from(layout.block_size) * u64::from(layout.cluster_blocks);
    match &attribute.value {
        Value::InInode(at) => u64::from(at.size).div_ceil(cluster).cast_signed(),
        Value::Here(_) | Value::ForInode(_) => 0,
    }
}

fn count<'l>(referred: &mut BTreeMap<Ino, Referred<'l>>, list: &'l [Attribute], by: i64) {
    for attribute in list {
        if let Value::InInode(at) = attribute.value {
            let name = &attribute.name;
            referred.entry(at.ino).or_insert(Referred { entries: 0, at, name }).entries += by;
        }
    }
}
