//! Inodes in memory by number.
//!
//! What: a sharded map. An inode stays in memory after the last reference is dropped, until the
//! table is over its limit. Then inodes leave that have neither references nor dirty state.
//! Invariants: a number never has two `Inode`s, because a reference is taken under the shard's
//! lock, and an inode leaves under that lock and only if it has no reference. If an inode leaves
//! the shard while another thread reads the inode table, that thread reads again, because what it
//! has read may be older than the last change of the one that left. An inode that is unlinked and
//! loses its last reference goes to the `unlinked` queue, whose consumer deletes it. An inode
//! without links is read only for orphan clean-up. A number whose inode is being created is
//! `NotFound` until the creator has inserted the complete inode. Otherwise: thread A writes the
//! slot of a new directory; thread B looks up its number, reads a directory without a block, and
//! keeps it in the table for good.

use super::{Attributes, Inode, InodeContext};
use crate::cache::PageBudget;
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::sync::state::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{LockRank, Mutex};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Deref;
use std::sync::Arc;
use uext4_ondisk::Ino;

/// Few in the simulation: its volumes are so small that otherwise no inode would ever be evicted.
const SHARD_COUNT: usize = if cfg!(feature = "simulate") { 4 } else { 64 };

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
    context: Arc<InodeContext>,
    shards: Box<[Mutex<InodeShard>]>,
    shard_inodes_max: usize,
    unlinked: Mutex<Vec<Arc<Inode>>>,
    unlinked_len: AtomicUsize,
    /// Bit set of the shards that are over their limit and have nothing to evict.
    overfull: AtomicU64,
}

#[derive(Debug, Default)]
struct InodeShard {
    inodes: FxHashMap<Ino, Arc<Inode>>,
    /// Numbers whose inodes are being created.
    creating: FxHashSet<Ino>,
    /// Second-chance queue of the inodes. Some of its numbers may have left.
    clock: std::collections::VecDeque<Ino>,
    /// Number of inodes that have left, and of creations that were abandoned.
    departures: u64,
}

/// What a number is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sought {
    /// An inode that names refer to.
    Named,
    /// An orphan of any kind.
    Orphan,
    /// An inode that holds the value of an attribute, which no name refers to.
    Value,
}

impl Sought {
    fn may_be(self, inode: &Inode) -> bool {
        match self {
            Self::Named => !inode.is_value(),
            Self::Orphan => true,
            Self::Value => inode.is_value(),
        }
    }
}

/// The number of an inode that is being created. A look-up does not find it before
/// [`Creation::finish`]. Dropping this abandons the creation.
#[derive(Debug)]
pub(crate) struct Creation {
    table: Arc<InodeTable>,
    ino: Ino,
}

impl Creation {
    /// Inserts the new inode, which is complete in its transaction.
    pub(crate) fn finish(self, inode: Arc<Inode>) -> InodeRef {
        debug_assert_eq!(inode.ino(), self.ino, "another inode than was announced");
        self.table.insert(inode)
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        let mut shard = self.table.shard(self.ino).lock();
        // `finish` may have removed it already.
        if shard.creating.remove(&self.ino) {
            shard.departures += 1;
        }
    }
}

impl InodeShard {
    fn remove(&mut self, ino: Ino) {
        self.inodes.remove(&ino);
        self.departures += 1;
    }

    fn insert(&mut self, inode: Arc<Inode>) {
        self.clock.push_back(inode.ino());
        self.inodes.insert(inode.ino(), inode);
        // Numbers of deleted inodes pile up where inodes come and go.
        if self.clock.len() > 2 * self.inodes.len() + 64 {
            let inodes = &self.inodes;
            let mut seen = rustc_hash::FxHashSet::default();
            self.clock.retain(|ino| inodes.contains_key(ino) && seen.insert(*ino));
        }
    }
}

impl InodeTable {
    /// An empty table that keeps about `inodes_max` unused inodes.
    #[must_use]
    pub fn new(context: InodeContext, inodes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            context: Arc::new(context),
            shards: (0..SHARD_COUNT)
                .map(|_| Mutex::new(LockRank::Table, InodeShard::default()))
                .collect(),
            shard_inodes_max: (inodes_max / SHARD_COUNT).max(4),
            unlinked: Mutex::new(LockRank::Leaf, Vec::new()),
            unlinked_len: AtomicUsize::new(0),
            overfull: AtomicU64::new(0),
        })
    }

    /// The parts of the volume that all inodes share.
    #[must_use]
    pub fn context(&self) -> &Arc<InodeContext> {
        &self.context
    }

    /// The budget of the pages of all files.
    #[must_use]
    pub fn budget(&self) -> &Arc<PageBudget> {
        &self.context.budget
    }

    /// The inode with a number, read if it is not in memory.
    ///
    /// # Errors
    /// Those of [`Inode::read`]; `NotFound` for one that is being created, that has no links and is
    /// not in memory, or that holds the value of an attribute.
    pub fn get(self: &Arc<Self>, ino: Ino) -> Result<InodeRef> {
        self.load(ino, Sought::Named)
    }

    /// The inode with a number, which may be an orphan without links.
    pub(crate) fn get_orphan(self: &Arc<Self>, ino: Ino) -> Result<InodeRef> {
        self.load(ino, Sought::Orphan)
    }

    /// The inode with a number, which holds the value of an attribute.
    ///
    /// # Errors
    /// `NotFound` for one that holds no value; those of [`Inode::read`].
    pub(crate) fn get_value(self: &Arc<Self>, ino: Ino) -> Result<InodeRef> {
        self.load(ino, Sought::Value)
    }

    /// An inode as it is on the device. It is not inserted into the table and must not be changed.
    pub(crate) fn read(&self, ino: Ino) -> Result<Inode> {
        Inode::read(&self.context, ino)
    }

    /// Begins the creation of an inode, whose number the caller has allocated.
    pub(crate) fn begin_creation(self: &Arc<Self>, ino: Ino) -> Creation {
        if !Fault::VisibleCreation.is_injected() {
            let is_new = self.shard(ino).lock().creating.insert(ino);
            debug_assert!(is_new, "inode {ino} is being created twice");
        }
        Creation { table: Arc::clone(self), ino }
    }

    fn load(self: &Arc<Self>, ino: Ino, sought: Sought) -> Result<InodeRef> {
        let not_found = || Error::new(ErrorKind::NotFound, format!("inode {ino}"));
        loop {
            let departures = {
                let shard = self.shard(ino).lock();
                if let Some(inode) = shard.inodes.get(&ino) {
                    if !sought.may_be(inode) {
                        return Err(not_found());
                    }
                    inode.referenced.store(true, Ordering::Relaxed);
                    return Ok(self.reference(inode));
                }
                shard.departures
            };
            let read = self.read(ino);
            let is_sought = read.as_ref().is_ok_and(|inode| {
                sought.may_be(inode) && (sought == Sought::Orphan || inode.attributes().links != 0)
            });
            let mut shard = self.shard(ino).lock();
            // What was read of an inode that is being created is incomplete, even if it is an
            // error.
            if shard.creating.contains(&ino) {
                return Err(not_found());
            }
            if let Some(inode) = shard.inodes.get(&ino) {
                if !sought.may_be(inode) {
                    return Err(not_found());
                }
                return Ok(self.reference(inode));
            }
            if shard.departures == departures || Fault::StaleArrival.is_injected() {
                let inode = read?;
                if !is_sought {
                    return Err(not_found());
                }
                return Ok(self.insert_in(&mut shard, Arc::new(inode)));
            }
        }
    }

    /// The inode if it is in memory.
    #[must_use]
    pub fn find(self: &Arc<Self>, ino: Ino) -> Option<InodeRef> {
        let shard = self.shard(ino).lock();
        let inode = shard.inodes.get(&ino)?;
        inode.referenced.store(true, Ordering::Relaxed);
        Some(self.reference(inode))
    }

    /// The inode if it is in memory and names may lead to it.
    pub(crate) fn find_named(self: &Arc<Self>, ino: Ino) -> Option<InodeRef> {
        self.find(ino).filter(|inode| Sought::Named.may_be(inode))
    }

    /// Inserts a new inode.
    fn insert(self: &Arc<Self>, inode: Arc<Inode>) -> InodeRef {
        let mut shard = self.shard(inode.ino()).lock();
        shard.creating.remove(&inode.ino());
        self.insert_in(&mut shard, inode)
    }

    fn insert_in(self: &Arc<Self>, shard: &mut InodeShard, inode: Arc<Inode>) -> InodeRef {
        if let Some(there) = shard.inodes.get(&inode.ino()) {
            return self.reference(there);
        }
        let reference = self.reference(&inode);
        self.make_room(shard);
        shard.insert(inode);
        reference
    }

    /// Number of inodes in memory.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().inodes.len()).sum()
    }

    /// Removes the inodes from the table that are unlinked and have no reference. The caller
    /// deletes them.
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

    /// Every inode in memory that may have no links. Called when a volume is closed.
    pub(crate) fn all_unlinked(self: &Arc<Self>) -> Vec<InodeRef> {
        let may_be = |inode: &Inode| inode.attributes.try_lock().is_none_or(|a| a.links == 0);
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let unlinked = shard.inodes.values().filter(|inode| may_be(inode));
            all.extend(unlinked.map(|inode| self.reference(inode)));
        }
        all
    }

    /// Calls `visit` with the inodes of one shard of `0..shard_count()`.
    pub(crate) fn for_shard(self: &Arc<Self>, index: usize, mut visit: impl FnMut(InodeRef)) {
        let shard = self.shards[index % SHARD_COUNT].lock();
        let inodes: Vec<InodeRef> = shard.inodes.values().map(|i| self.reference(i)).collect();
        drop(shard);
        inodes.into_iter().for_each(&mut visit);
    }

    /// Calls `visit` with the inodes of one shard until it returns false. The shard's lock is held
    /// and no reference is taken, so `visit` may try locks and must not wait for one.
    pub(crate) fn look_at_shard(&self, index: usize, mut visit: impl FnMut(&Inode) -> bool) {
        let shard = self.shards[index % SHARD_COUNT].lock();
        _ = shard.inodes.values().all(|inode| visit(inode));
    }

    pub(crate) const fn shard_count(&self) -> usize {
        SHARD_COUNT
    }

    fn shard(&self, ino: Ino) -> &Mutex<InodeShard> {
        &self.shards[shard_index(ino)]
    }

    /// The caller holds the shard's lock.
    fn reference(self: &Arc<Self>, inode: &Arc<Inode>) -> InodeRef {
        inode.refs.fetch_add(1, Ordering::AcqRel);
        InodeRef { inode: Arc::clone(inode), table: Arc::clone(self) }
    }

    fn remove_unreferenced(&self, inode: &Arc<Inode>) -> bool {
        let mut shard = self.shard(inode.ino()).lock();
        // The blocks of a lost inode can never be freed. Closing the volume reports it.
        if inode.refs.load(Ordering::Acquire) > 0 || inode.is_lost_to_direct() {
            return false;
        }
        let same = shard.inodes.get(&inode.ino()).is_some_and(|i| Arc::ptr_eq(i, inode));
        if same {
            shard.remove(inode.ino());
        }
        same
    }

    /// Takes the numbers of the shards that hold too many inodes with something to write.
    pub(crate) fn take_overfull(&self) -> impl Iterator<Item = usize> + use<> {
        let mut shards = 0;
        if self.overfull.load(Ordering::Relaxed) != 0 {
            shards = self.overfull.swap(0, Ordering::Relaxed);
        }
        (0..SHARD_COUNT).filter(move |index| shards & (1 << index) != 0)
    }

    fn make_room(&self, shard: &mut InodeShard) {
        // Three looks for each inode that comes keep the table near its limit at a bounded cost.
        // More would not help: where most inodes are in use or dirty, looks find nothing. Among
        // inodes that are used once, two looks make room for one.
        let mut looks = 3;
        while shard.inodes.len() >= self.shard_inodes_max && looks > 0 {
            looks -= 1;
            let Some(ino) = shard.clock.pop_front() else { return };
            let Some(inode) = shard.inodes.get(&ino) else { continue };
            let used = inode.referenced.swap(false, Ordering::Relaxed);
            if !used && inode.is_evictable() {
                shard.remove(ino);
                continue;
            }
            if !used && inode.refs.load(Ordering::Relaxed) == 0 {
                self.overfull.fetch_or(1 << shard_index(ino), Ordering::Relaxed);
            }
            shard.clock.push_back(ino);
        }
    }

    fn queue_unlinked(&self, inode: &Arc<Inode>) {
        let mut queue = self.unlinked.lock();
        queue.push(Arc::clone(inode));
        self.unlinked_len.store(queue.len(), Ordering::Release);
    }
}

fn shard_index(ino: Ino) -> usize {
    ino.get() as usize % SHARD_COUNT
}

impl InodeRef {
    /// Whether this is the only reference.
    pub(crate) fn is_only_ours(&self) -> bool {
        self.inode.refs.load(Ordering::Acquire) == 1
    }
}

impl Inode {
    /// Whether the inode may leave memory. Called with the shard's lock held, so it only tries
    /// locks. An inode on the orphan list stays, because the list writes it when its neighbour
    /// leaves the list: a second `Inode` of that number would lose its changes. An inode whose
    /// blocks a lost queue may still write to stays as well.
    fn is_evictable(&self) -> bool {
        let is_listed = self.has_unfinished_truncate() && !Fault::ForgottenOrphan.is_injected();
        if self.refs.load(Ordering::Acquire) > 0 || is_listed || self.is_lost_to_direct() {
            return false;
        }
        let is_clean = |a: &Attributes| !a.times_dirty && a.links > 0 && !self.is_size_ahead(a);
        let clean = self.attributes.try_lock().is_some_and(|a| is_clean(&a));
        clean
            && !self.has_lazy_direct_times()
            && self.try_pages().is_some_and(|pages| pages.map.dirty() == 0)
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
        // Links are read while this reference is still held, so that the inode cannot be deleted
        // meanwhile. The drop may happen under any lock, so the attributes are only tried. If they
        // are busy the inode is queued, because the consumer of the queue looks at the links again.
        let unlinked = self.inode.attributes.try_lock().is_none_or(|a| a.links == 0);
        if self.inode.refs.fetch_sub(1, Ordering::AcqRel) == 1 && unlinked {
            self.table.queue_unlinked(&self.inode);
        }
    }
}
