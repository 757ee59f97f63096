//! The list of dirty inodes.
//!
//! What: a list of inode numbers. An inode enters it through its [`DirtyMark`] when its pages or
//! timestamps become dirty. A writeback pass takes the list and looks only at these inodes, so its
//! cost depends on what is dirty and not on what is in memory.
//! Invariants: a mark is set *after* the inode became dirty and cleared *before* the inode is
//! examined. So a dirty inode is on the list, or on a taken list and not yet examined. A pass holds
//! `draining` until it has examined all the inodes it took: shared if it took a part, exclusively
//! if it took everything and must not miss what another pass took.
//! Locking: `draining` ranks below every writeback lock; the list is a leaf.

use super::pages::PageBudget;
use crate::sync::state::{AtomicBool, Ordering};
use crate::sync::{LockRank, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use uext4_ondisk::Ino;

/// The list, oldest entry first. It may contain a number twice, or the number of an inode that is
/// no longer in memory.
#[derive(Debug)]
pub struct DirtyInodes {
    list: Mutex<VecDeque<Ino>>,
    draining: RwLock<()>,
}

/// The mark through which an inode enters the list.
#[derive(Debug)]
pub struct DirtyMark {
    ino: Ino,
    listed: AtomicBool,
    budget: Arc<PageBudget>,
}

/// Inode numbers that a pass took from the list.
#[derive(Debug)]
pub struct Drain<'a> {
    inodes: Vec<Ino>,
    _draining: Draining<'a>,
}

#[derive(Debug)]
#[allow(dead_code)] // held, never read
enum Draining<'a> {
    All(RwLockWriteGuard<'a, ()>),
    Some(RwLockReadGuard<'a, ()>),
}

impl Default for DirtyInodes {
    fn default() -> Self {
        Self {
            list: Mutex::new(LockRank::Leaf, VecDeque::new()),
            draining: RwLock::new(LockRank::Drain, ()),
        }
    }
}

impl DirtyInodes {
    /// Takes the whole list, ascending. Waits for all other passes.
    pub fn drain(&self) -> Drain<'_> {
        let draining = Draining::All(self.draining.write());
        let inodes = std::mem::take(&mut *self.list.lock());
        Drain::new(inodes.into(), draining)
    }

    /// Takes the `count` oldest entries, ascending. Waits for passes over the whole list.
    pub fn drain_oldest(&self, count: usize) -> Drain<'_> {
        let draining = Draining::Some(self.draining.read());
        let inodes = {
            let mut list = self.list.lock();
            let count = count.min(list.len());
            list.drain(..count).collect()
        };
        Drain::new(inodes, draining)
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Drain<'a> {
    fn new(mut inodes: Vec<Ino>, draining: Draining<'a>) -> Self {
        // Neighbours in the inode table share its blocks, and their data is allocated together.
        inodes.sort_unstable();
        inodes.dedup();
        Self { inodes, _draining: draining }
    }

    /// The inode numbers.
    #[must_use]
    pub fn inodes(&self) -> &[Ino] {
        &self.inodes
    }
}

impl DirtyMark {
    /// The mark of an inode whose pages count against `budget`.
    #[must_use]
    pub fn new(ino: Ino, budget: Arc<PageBudget>) -> Self {
        Self { ino, listed: AtomicBool::new(false), budget }
    }

    pub(super) fn budget(&self) -> &PageBudget {
        &self.budget
    }

    /// Puts the inode on the list, because it is dirty.
    pub fn set(&self) {
        // The swap orders this with `take`: either it finds the mark cleared, or the pass examines
        // the inode after this.
        if !self.listed.swap(true, Ordering::AcqRel) {
            self.budget.dirty_inodes().list.lock().push_back(self.ino);
        }
    }

    /// Clears the mark, because a pass is about to examine the inode.
    pub fn take(&self) {
        self.listed.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_inode_is_listed_once_until_it_is_taken() {
        let budget = Arc::new(PageBudget::new(1 << 20, 4096, &Arc::default()));
        let mark = |ino| DirtyMark::new(Ino(ino), Arc::clone(&budget));
        let (nine, five) = (mark(9), mark(5));
        for mark in [&nine, &five, &nine] {
            mark.set();
        }
        let drain = budget.dirty_inodes().drain();
        assert_eq!(drain.inodes(), [Ino(5), Ino(9)]);
        nine.take();
        nine.set();
        drop(drain);
        assert_eq!(budget.dirty_inodes().drain().inodes(), [Ino(9)]);
    }

    #[test]
    fn the_oldest_leave_first() {
        let budget = Arc::new(PageBudget::new(1 << 20, 4096, &Arc::default()));
        for ino in [9, 5, 7] {
            DirtyMark::new(Ino(ino), Arc::clone(&budget)).set();
        }
        let list = budget.dirty_inodes();
        assert_eq!(list.drain_oldest(2).inodes(), [Ino(5), Ino(9)]);
        assert_eq!(list.drain_oldest(2).inodes(), [Ino(7)]);
        assert!(list.is_empty());
    }
}
