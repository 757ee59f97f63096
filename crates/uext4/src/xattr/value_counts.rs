//! Counting the references to values in inodes of their own (feature ea_inode).
//!
//! What: [`ValueChange`] is what a change of attributes means for the inodes that hold their
//! values: which counts rise and fall, and how much space the owner counts for them.
//! On disk: every entry counts, but the entries of a block that inodes share count once. The value
//! counts in the blocks of each inode that has the attribute.
//! Invariants: a count changes in the handle that changes the entries. At 0 the inode becomes an
//! orphan in that handle, and is deleted after it. Quota counts each entry as an inode with the
//! space of the value (`inode/usage.rs`). An orphan belongs to the owners of the inode that
//! referred to it last: with the last entry their usage changes by the blocks of its map at most,
//! until it is deleted. One without room for a project is charged to project 0 meanwhile.

use super::block_change::BlockChange;
use super::read::{in_block, in_inode};
use super::stored::{Attribute, Stored, Value, ValueInode};
use super::value_inode::corrupt;
use super::value_store;
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Attributes, Inode, InodeRef, KnownValues};
use crate::journal::Handle;
use crate::quota::QuotaHold;
use crate::sync::MutexGuard;
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4_ondisk::Layout;
use uext4_ondisk::xattr::is_hash_of_value_inode;

/// The right to change attributes, where values may be in inodes of their own.
#[derive(Debug)]
pub(super) struct ValueChange<'a> {
    known: MutexGuard<'a, KnownValues>,
    /// Inodes of new values. The reference keeps one from being deleted before it is used.
    stored: Vec<InodeRef>,
    counts: Vec<Count>,
    /// Room below the limits of the owners: for values that had inodes already, and for new ones
    /// between the end of the orphan's charge and the beginning of the file's.
    held: Vec<QuotaHold>,
    /// Entries with a value in an inode, after the change.
    entries: u32,
    /// Clusters that the owner counts from now on, or no more.
    clusters: i64,
    /// The owner counts for more or less after the change, even if no count of references changes:
    /// entries may be skipped.
    changes_usage: bool,
    misfits: Misfits,
    /// Entries that are skipped.
    skipped: Vec<Error>,
}

/// A count of references that changes.
#[derive(Debug)]
struct Count {
    inode: InodeRef,
    before: u64,
    after: u64,
    _table_block: Arc<Buffer>,
}

/// What becomes of an entry that names an inode which cannot hold its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfits {
    /// It cannot change.
    Refuse,
    /// It goes, and the inode stays as it is: the entry is one of a file that is deleted.
    Skip,
}

/// An entry that refers to a value: where that is, and the name that its hash takes in.
type Reference<'l> = (ValueInode, &'l [u8]);

/// How many more entries of each kind there are after a change.
type Changes<'l> = BTreeMap<Reference<'l>, i64>;

impl<'a> ValueChange<'a> {
    /// Waits for other changes. `None`: the file system has no such values.
    pub(super) fn begin(inode: &'a Inode) -> Option<Self> {
        let known = inode.value_inodes()?.lock();
        Some(Self {
            known,
            stored: Vec::new(),
            counts: Vec::new(),
            held: Vec::new(),
            entries: 0,
            clusters: 0,
            changes_usage: false,
            misfits: Misfits::Refuse,
            skipped: Vec::new(),
        })
    }

    /// Decides about entries that do not fit their inodes.
    pub(super) fn treat(self, misfits: Misfits) -> Self {
        Self { misfits, ..self }
    }

    /// The entries that were skipped.
    pub(super) fn take_skipped(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.skipped)
    }

    /// Checks the entries of `before` that `after` has no more. Called before values are stored,
    /// because an entry may name a free inode, whose number a new value could get.
    ///
    /// # Errors
    /// `Corrupt` for an inode that cannot hold the value; a device failure.
    pub(super) fn check_leaving(
        &self,
        inode: &Inode,
        before: &Stored,
        after: &Stored,
    ) -> Result<()> {
        let mut changes = Changes::new();
        count(&mut changes, before.iter(), -1);
        count(&mut changes, after.iter(), 1);
        for (reference, _) in changes.into_iter().filter(|(_, by)| *by < 0) {
            match self.find(inode, reference) {
                Err(error) if !self.may_skip(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn may_skip(&self, error: &Error) -> bool {
        self.misfits == Misfits::Skip && matches!(error.kind(), ErrorKind::Corrupt(_))
    }

    /// Stores the values of the list that need an inode.
    ///
    /// # Errors
    /// Those of [`value_store::store`].
    pub(super) fn store(&mut self, inode: &Inode, list: &mut [Attribute]) -> Result<()> {
        for attribute in list {
            let Value::ForInode(bytes) = &attribute.value else { continue };
            let values = &inode.context().values;
            let stored = value_store::store(values, &self.known, inode, &attribute.name, bytes)?;
            attribute.value = Value::InInode(stored.at);
            self.stored.push(stored.inode);
            self.held.extend(stored.held);
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
        self.entries = values_of(after.iter());
        let entries_before = values_of(before.iter());
        self.changes_usage = self.clusters != 0 || self.entries != entries_before;
        inode.attributes().note_values(entries_before);
        let mut changes = Changes::new();
        count(&mut changes, &before.inode, -1);
        count(&mut changes, &after.inode, 1);
        if !matches!(block, BlockChange::Keep) {
            // A block that others share keeps its entries.
            if !block.leaves_shared()? {
                count(&mut changes, &before.block, -1);
            }
            count(&mut changes, &after.block, 1);
        }
        let changes: Vec<_> = changes.into_iter().filter(|(_, by)| *by != 0).collect();
        for of_one in changes.chunk_by(|((one, _), _), ((other, _), _)| one.ino == other.ino) {
            match self.plan_count(inode, of_one) {
                Ok(planned) => self.counts.extend(planned),
                Err(error) if self.may_skip(&error) => self.skipped.push(error),
                Err(error) => return Err(error),
            }
        }
        if self.credits(inode) > inode.space().journal().credits_max() / 2 {
            let why = "more values than one transaction changes";
            return Err(Error::new(ErrorKind::NoSpace, why));
        }
        Ok(())
    }

    /// Plans the count of one inode, whose entries change so. `None`: it stays.
    fn plan_count(
        &mut self,
        owner: &Inode,
        changes: &[(Reference<'_>, i64)],
    ) -> Result<Option<Count>> {
        let mut found = None;
        let mut by = 0;
        for (reference, entries) in changes {
            match self.find(owner, *reference) {
                Ok(there) => {
                    found = Some((reference.0.ino, there));
                    by += entries;
                }
                Err(error) if self.may_skip(&error) => self.skipped.push(error),
                Err(error) => return Err(error),
            }
        }
        let Some((ino, (inode, before))) = found else { return Ok(None) };
        if before == 0 && by <= 0 {
            return Err(corrupt(ino, "is in one without references"));
        }
        let Some(after) = before.checked_add_signed(by) else {
            return Err(corrupt(ino, "has too few references"));
        };
        if by == 0 {
            return Ok(None);
        }
        let _table_block = inode.table_block()?;
        Ok(Some(Count { inode, before, after, _table_block }))
    }

    /// The inode that an entry of `owner` refers to, and its count of references.
    fn find(&self, owner: &Inode, (at, name): Reference<'_>) -> Result<(InodeRef, u64)> {
        let stored = self.stored.iter().find(|inode| inode.ino() == at.ino);
        let inode = match stored {
            Some(inode) => inode.clone(),
            None => owner.context().values.get(owner, at.ino)?,
        };
        let (references, links, checksum, named) = {
            let of = inode.attributes();
            (of.references(), of.links, of.value_checksum(), of.value_owner())
        };
        if inode.size() != u64::from(at.size) {
            return Err(corrupt(at.ino, "has another size"));
        }
        let is_hashed = is_hash_of_value_inode(at.hash, name, checksum);
        // Lustre counts no references: the words hold a time and a version.
        let is_count = (2..1 << 32).contains(&references);
        let is_lustre = named == (owner.ino(), owner.generation()) && !is_count;
        if !is_hashed && !is_lustre {
            return Err(corrupt(at.ino, "has another hash"));
        }
        let references = if is_hashed { references } else { 1 };
        if (references == 0 || links == 0) && stored.is_none() {
            return Err(corrupt(at.ino, "is in one without references"));
        }
        Ok((inode, references))
    }

    /// Credits of [`ValueChange::apply`], and of the charge for the values.
    pub(super) fn credits(&self, inode: &Inode) -> u32 {
        let steps = inode.space().credits();
        let orphan = steps.orphan;
        let charges = self.changes_usage || !self.counts.is_empty();
        // Twice, because a value inode without room for a project is charged to project 0, and the
        // file to its own.
        let usage = if charges { 2 * steps.usage } else { 0 };
        let is_orphan = |count: &Count| (count.before == 0) != (count.after == 0);
        let of = |count: &Count| 1 + if is_orphan(count) { orphan } else { 0 };
        usage + self.counts.iter().map(of).sum::<u32>()
    }

    /// Changes the counts. The references to the inodes go with `self`.
    ///
    /// # Errors
    /// The journal is aborted.
    pub(super) fn apply(&mut self, handle: &mut Handle<'_>, owner: &Inode) -> Result<()> {
        let orphans = owner.context().values.orphans()?;
        let owners = owner.attributes().owners();
        let layout = owner.space().layout();
        for Count { inode, before, after, .. } in &self.counts {
            if *before == 0 {
                self.held.extend(inode.hold_usage());
            }
            let checksum = inode.update(handle, |attributes| {
                if *after == 0 {
                    attributes.set_owners(owners, layout);
                }
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
        Ok(())
    }

    /// Notes in the owner's attributes, which change in this handle, what its values count for.
    pub(super) fn note_in(&self, owner: &mut Attributes, layout: &Layout) {
        owner.note_values(self.entries);
        owner.add_blocks(layout, self.clusters * i64::from(layout.cluster_blocks));
    }
}

/// Counts the values of an inode, for a change of its owners. The caller holds the lock of the
/// content exclusively.
///
/// # Errors
/// `Corrupt`; a device failure.
pub(crate) fn count_values(inode: &Inode) -> Result<()> {
    if inode.value_inodes().is_none() {
        return Ok(());
    }
    let (in_inode, in_block) = (in_inode(inode)?, in_block(inode)?);
    inode.attributes().note_values(values_of(in_inode.iter().chain(&in_block)));
    Ok(())
}

fn values_of<'l>(list: impl Iterator<Item = &'l Attribute>) -> u32 {
    let count = list.filter(|attribute| matches!(attribute.value, Value::InInode(_))).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn value_clusters(inode: &Inode, attribute: &Attribute) -> i64 {
    let layout = inode.space().layout();
    let cluster = u64::from(layout.block_size) * u64::from(layout.cluster_blocks);
    match &attribute.value {
        Value::InInode(at) => u64::from(at.size).div_ceil(cluster).cast_signed(),
        Value::Here(_) | Value::ForInode(_) => 0,
    }
}

fn count<'l>(changes: &mut Changes<'l>, list: impl IntoIterator<Item = &'l Attribute>, by: i64) {
    for attribute in list {
        if let Value::InInode(at) = attribute.value {
            *changes.entry((at, &attribute.name)).or_default() += by;
        }
    }
}
