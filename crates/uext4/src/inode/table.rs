//! Inodes in memory by number.
//!
//! What: a sharded map. An inode stays in memory after the last reference is dropped, until the
//! table is over its limit; then inodes without references and without dirty state leave.
//! Invariants: a reference is taken under the shard's lock, and an inode leaves under it only
//! while it has none: a number never has two `Inode`s. An inode that is unlinked and loses its
//! last reference goes to the `unlinked` queue, whose consumer deletes it.

use super::Inode;
use crate::alloc::Space;
use crate::cache::PageBudget;
use crate::error::Result;
use crate::sync::{LockRank, Mutex};
use rustc_hash::FxHashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use uext4_ondisk::Ino;

const SHARD_COUNT: usize = 64;

/// A reference to an inode. Dropping the last reference to an unlinked inode queues it for
/// deletion.
#[derive(Debug)]
pub struct InodeRef {
    inode: Arc<Inode>,
    table: Arc<InodeTable>,
}

/// All inodes in memory.
#[derive(Debug)]
pub struct InodeTable {
    space: Arc<Space>,
    budget: Arc<PageBudget>,
    shards: Box<[Mutex<Shard>]>,
    shard_inodes_max: usize,
    unlinked: Mutex<Vec<Arc<Inode>>>,
    unlinked_len: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    inodes: FxHashMap<Ino, Arc<Inode>>,
    clock: std::collections::VecDeque<Ino>,
}

impl InodeTable {
    /// An empty table that keeps about `inodes_max` unused inodes.
    #[must_use]
    pub fn new(space: Arc<Space>, budget: Arc<PageBudget>, inodes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            space,
            budget,
            shards: (0..SHARD_COUNT)
                .map(|_| Mutex::new(LockRank::Table, Shard::default()))
                .collect(),
            shard_inodes_max: (inodes_max / SHARD_COUNT).max(4),
            unlinked: Mutex::new(LockRank::Leaf, Vec::new()),
            unlinked_len: AtomicUsize::new(0),
        })
    }

    /// Pages of all files.
    #[must_use]
    pub fn budget(&self) -> &Arc<PageBudget> {
        &self.budget
    }

    /// The inode, read if it is not in memory.
    ///
    /// # Errors
    /// Those of [`Inode::read`].
    pub fn get(self: &Arc<Self>, ino: Ino) -> Result<InodeRef> {
        if let Some(inode) = self.find(ino) {
            return Ok(inode);
        }
        let inode = Arc::new(Inode::read(&self.space, &self.budget, ino)?);
        Ok(self.insert(inode))
    }

    /// The inode if it is in memory.
    #[must_use]
    pub fn find(self: &Arc<Self>, ino: Ino) -> Option<InodeRef> {
        let shard = self.shard(ino).lock();
        let inode = shard.inodes.get(&ino)?;
        inode.referenced.store(true, Ordering::Relaxed);
        Some(self.reference(inode))
    }

    /// Puts an inode in; one that another thread has put in meanwhile wins.
    pub(crate) fn insert(self: &Arc<Self>, inode: Arc<Inode>) -> InodeRef {
        let mut shard = self.shard(inode.ino()).lock();
        if let Some(there) = shard.inodes.get(&inode.ino()) {
            return self.reference(there);
        }
        let reference = self.reference(&inode);
        self.make_room(&mut shard);
        shard.clock.push_back(inode.ino());
        shard.inodes.insert(inode.ino(), inode);
        reference
    }

    /// Takes inodes that are unlinked and have no reference out of the table. The caller deletes
    /// them, or puts them back with [`InodeTable::keep`].
    pub(crate) fn take_unlinked(self: &Arc<Self>) -> Vec<Arc<Inode>> {
        if self.unlinked_len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let queued = {
            let mut queue = self.unlinked.lock();
            self.unlinked_len.store(0, Ordering::Release);
            std::mem::take(&mut *queue)
        };
        queued
            .into_iter()
            .filter(|inode| inode.attributes().links == 0 && self.remove_unreferenced(inode))
            .collect()
    }

    /// The inodes of one shard of `0..shard_count()`.
    pub(crate) fn for_shard(self: &Arc<Self>, index: usize, mut visit: impl FnMut(InodeRef)) {
        let shard = self.shards[index % SHARD_COUNT].lock();
        let inodes: Vec<InodeRef> = shard.inodes.values().map(|i| self.reference(i)).collect();
        drop(shard);
        inodes.into_iter().for_each(&mut visit);
    }

    pub(crate) const fn shard_count(&self) -> usize {
        SHARD_COUNT
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.get() as usize % SHARD_COUNT]
    }

    /// The caller holds the shard's lock.
    fn reference(self: &Arc<Self>, inode: &Arc<Inode>) -> InodeRef {
        inode.refs.fetch_add(1, Ordering::AcqRel);
        InodeRef { inode: Arc::clone(inode), table: Arc::clone(self) }
    }

    fn remove_unreferenced(&self, inode: &Arc<Inode>) -> bool {
        let mut shard = self.shard(inode.ino()).lock();
        if inode.refs.load(Ordering::Acquire) > 0 {
            return false;
        }
        let same = shard.inodes.get(&inode.ino()).is_some_and(|i| Arc::ptr_eq(i, inode));
        if same {
            shard.inodes.remove(&inode.ino());
        }
        same
    }

    fn make_room(&self, shard: &mut Shard) {
        // A few looks for each inode that comes keep the table near its limit at a bounded cost,
        // and no more: where most are in use, or dirty, looks find nothing. Two make room for one
        // among inodes that are used once.
        let mut looks = 3;
        while shard.inodes.len() >= self.shard_inodes_max && looks > 0 {
            looks -= 1;
            let Some(ino) = shard.clock.pop_front() else { return };
            let Some(inode) = shard.inodes.get(&ino) else { continue };
            let used = inode.referenced.swap(false, Ordering::Relaxed);
            if used || !inode.is_evictable() {
                shard.clock.push_back(ino);
            } else {
                shard.inodes.remove(&ino);
            }
        }
    }

    fn queue_unlinked(&self, inode: &Arc<Inode>) {
        let mut queue = self.unlinked.lock();
        queue.push(Arc::clone(inode));
        self.unlinked_len.store(queue.len(), Ordering::Release);
    }
}

impl Inode {
    /// Whether nobody would miss it. Called with the shard's lock held, so by try-locks only.
    fn is_evictable(&self) -> bool {
        if self.refs.load(Ordering::Acquire) > 0 {
            return false;
        }
        let clean = self.attributes.try_lock().is_some_and(|a| !a.times_dirty && a.links > 0);
        clean && self.try_pages().is_some_and(|pages| pages.map.dirty() == 0)
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> Self {
        self.inode.refs.fetch_add(1, Ordering::AcqRel);
        Self { inode: Arc::clone(&self.inode), table: Arc::clone(&self.table) }
    }
}

impl Deref for InodeRef {
    type Target = Arc<Inode>;
    fn deref(&self) -> &Arc<Inode> {
        &self.inode
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        // Links are read while we still hold a reference: nobody can delete the inode meanwhile.
        // The drop may happen under any lock, so only a try-lock may be used; a miss means that
        // somebody else works on the inode and holds a reference of their own, or that the
        // deletion waits for the next one.
        let unlinked = self.inode.attributes.try_lock().is_none_or(|a| a.links == 0);
        if self.inode.refs.fetch_sub(1, Ordering::AcqRel) == 1 && unlinked {
            self.table.queue_unlinked(&self.inode);
        }
    }
}
