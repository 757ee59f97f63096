//! Which inodes have something to write back.
//!
//! What: a list of inode numbers. An inode enters it through its [`DirtyMark`] when its pages or
//! times become dirty; a sweep over all inodes takes the list and looks at those alone, so that its
//! cost follows what is dirty and not what is in memory.
//! Invariants: a mark is set *after* the inode has become dirty, and taken off *before* the inode
//! is looked at. So an inode that is dirty is on the list, or on one that was taken and whose taker
//! has not looked at it yet. The taker holds `draining` until it has looked at all: a second one,
//! who must not miss them, waits.
//! Locking: `draining` comes before every sweep lock; the list is a leaf.

use super::pages::PageBudget;
use crate::sync::{LockRank, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4_ondisk::Ino;

/// The list. A number may stand in it twice, and may be that of an inode that left memory.
#[derive(Debug)]
pub struct DirtyInodes {
    list: Mutex<Vec<Ino>>,
    draining: Mutex<()>,
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
    _draining: MutexGuard<'a, ()>,
}

impl Default for DirtyInodes {
    fn default() -> Self {
        Self {
            list: Mutex::new(LockRank::Leaf, Vec::new()),
            draining: Mutex::new(LockRank::Drain, ()),
        }
    }
}

impl DirtyInodes {
    /// Takes the whole list, ascending. Waits while somebody else works on one.
    pub fn drain(&self) -> Drain<'_> {
        let draining = self.draining.lock();
        let mut inodes = std::mem::take(&mut *self.list.lock());
        inodes.sort_unstable();
        inodes.dedup();
        Drain { inodes, _draining: draining }
    }
}

impl Drain<'_> {
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
            self.budget.dirty_inodes().list.lock().push(self.ino);
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
}
