//! Which inodes have something to write back.
//!
//! What: a list of inode numbers. An inode enters it through its [`DirtyMark`] when its pages or
//! times become dirty; a pass over all inodes takes the list and looks at those alone, so that its
//! cost follows what is dirty and not what is in memory.
//! Invariants: a mark is set *after* the inode has become dirty, and taken off *before* the inode
//! is looked at. So an inode that is dirty is on the list, or on one that was taken and whose taker
//! has not looked at it yet. A taker holds `draining` until it has looked at all, one that takes a
//! part shared, one that takes everything and must not miss what others took exclusively.
//! Locking: `draining` comes before every writeback lock; the list is a leaf.

use super::pages::PageBudget;
use crate::sync::state::{AtomicBool, Ordering};
use crate::sync::{LockRank, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use uext4_ondisk::Ino;

/// The list, the inode that has been dirty for longest first. A number may stand in it twice, and
/// may be that of an inode that left memory.
#[derive(Debug)]
pub struct DirtyInodes {
    list: Mutex<VecDeque<Ino>>,
    draining: RwLock<()>,
}

/// An inode's way onto the list.
#[derive(Debug)]
pub struct DirtyMark {
    ino: Ino,
    listed: AtomicBool,
    budget: Arc<PageBudget>,
}

/// Numbers that were taken off the list.
#[derive(Debug)]
pub struct Drain<'a> {
    inodes: Vec<Ino>,
    _draining: Draining<'a>,
}

#[derive(Debug)]
#[allow(dead_code)] // held, never looked at
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
    /// Takes the whole list, ascending. Waits while somebody else works on one.
    pub fn drain(&self) -> Drain<'_> {
        let draining = Draining::All(self.draining.write());
        let inodes = std::mem::take(&mut *self.list.lock());
        Drain::new(inodes.into(), draining)
    }

    /// Takes the `count` that have been on the list for longest, ascending. Waits while somebody
    /// works on the whole list.
    pub fn drain_oldest(&self, count: usize) -> Drain<'_> {
        let draining = Draining::Some(self.draining.read());
        let inodes = {
            let mut list = self.list.lock();
            let count = count.min(list.len());
            list.drain(..count).collect()
        };
        Drain::new(inodes, draining)
    }

    /// Numbers on the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Whether there are none.
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

    /// The numbers.
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

    /// The inode is dirty.
    pub fn set(&self) {
        // The swap orders this with `take`: either it finds the mark taken off, or the taker looks
        // at the inode later than now.
        if !self.listed.swap(true, Ordering::AcqRel) {
            self.budget.dirty_inodes().list.lock().push_back(self.ino);
        }
    }

    /// Takes the mark off: whoever drains the list is about to look at the inode.
    pub fn take(&self) {
        self.listed.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_inode_is_listed_once_until_it_is_taken() {
        let budget = Arc::new(PageBudget::new(1 << 20, 4096));
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
        let budget = Arc::new(PageBudget::new(1 << 20, 4096));
        for ino in [9, 5, 7] {
            DirtyMark::new(Ino(ino), Arc::clone(&budget)).set();
        }
        let list = budget.dirty_inodes();
        assert_eq!(list.drain_oldest(2).inodes(), [Ino(5), Ino(9)]);
        assert_eq!(list.drain_oldest(2).inodes(), [Ino(7)]);
        assert!(list.is_empty());
    }
}
