//! How many blocks are free and promised to nobody.
//!
//! What: whoever claims blocks or promises them to cached data takes their number from here first,
//! and gives back what it did not get. One counter would be a cache line that all processors
//! write; so most of the time a thread takes from and gives to a cell of its own, which has a lease
//! on a part of the stock.
//! Invariants: stock, cells and reserve together never exceed the blocks that are free and not
//! promised; they may fall short of it for a moment. Who finds too little collects all the cells
//! into the stock, under a lock, before it says so: as long as a promise stands, nobody else got
//! the blocks. What moves between the three moves under that lock. Whoever claims what was promised
//! to it takes the number a second time, until it gives its promise back: that may bring the stock
//! below zero, never a cell; and while it is, nothing is taken from cells without the lock.
//! Two parts are kept back, and what is given back goes there first: the pool is for nodes of
//! extent trees that are needed to take blocks away or to convert them, which must not fail on a
//! full volume; the reserve is root's (`privilege.rs`). Takers that may have them get them when
//! the stock is empty, the reserve first.
//! Locking: `refill` is a leaf.

use super::privilege::may_use_reserve;
use crate::plant::{self, Fault};
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::sync::{LockRank, Mutex, thread};

/// Most blocks of a lease.
const LEASE: i64 = 4096;

/// Counters that many threads change, summed up when they are read.
#[derive(Debug)]
pub(super) struct Sharded {
    cells: Box<[Cell]>,
}

/// On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell(AtomicI64);

impl Sharded {
    /// Starts at `value`.
    pub(super) fn new(value: i64) -> Self {
        let cells: Box<[Cell]> = (0..thread::slots()).map(|_| Cell::default()).collect();
        cells[0].0.store(value, Ordering::Relaxed);
        Self { cells }
    }

    /// Adds to the cell that `slot` falls on.
    pub(super) fn add(&self, slot: usize, value: i64) {
        self.cells[slot % self.cells.len()].0.fetch_add(value, Ordering::AcqRel);
    }

    /// The sum; exact while nobody adds.
    pub(super) fn sum(&self) -> i64 {
        self.cells.iter().map(|cell| cell.0.load(Ordering::Acquire)).sum()
    }
}

#[derive(Debug)]
pub(super) struct Available {
    stock: AtomicI64,
    cells: Box<[Cell]>,
    /// For nodes of extent trees.
    pool: Kept,
    /// For root.
    reserve: Kept,
    refill: Mutex<()>,
}

/// Blocks kept back.
#[derive(Debug)]
struct Kept {
    left: AtomicI64,
    /// How many there should be.
    full: i64,
}

impl Kept {
    fn new(full: i64, blocks: i64) -> Self {
        let full = full.max(0);
        Self { left: AtomicI64::new(full.min(blocks.max(0))), full }
    }

    fn left(&self) -> i64 {
        self.left.load(Ordering::Acquire)
    }

    fn lack(&self) -> i64 {
        self.full - self.left()
    }
}

/// What blocks are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Anything: the reserve is for those who have the right to it.
    Any,
    /// Nodes of an extent tree that blocks are taken away from or converted in: all there is.
    Nodes,
}

impl Available {
    /// `blocks` are free, of which so many as there are up to `pool` are for nodes, and of the
    /// others up to `reserve` root's.
    pub(super) fn new(blocks: i64, reserve: i64, pool: i64) -> Self {
        let pool = Kept::new(pool, blocks);
        let reserve = Kept::new(reserve, blocks - pool.left());
        Self {
            stock: AtomicI64::new(blocks - pool.left() - reserve.left()),
            pool,
            reserve,
            cells: (0..thread::slots()).map(|_| Cell::default()).collect(),
            refill: Mutex::new(LockRank::Leaf, ()),
        }
    }

    fn cell(&self) -> &AtomicI64 {
        &self.cells[thread::slot() % self.cells.len()].0
    }

    /// Takes `want` blocks, or what there is if that is at least `least` (one or more); returns how
    /// many, 0 for none.
    pub(super) fn take(&self, want: i64, least: i64, what_for: Use) -> i64 {
        if self.take_from_cell(want) {
            return want;
        }
        let _refill = self.refill.lock();
        let lease = (self.stock.load(Ordering::Acquire) / (4 * self.cells.len() as i64)).min(LEASE);
        if lease > 0 && self.stock.load(Ordering::Acquire) >= want + lease {
            self.stock.fetch_sub(want + lease, Ordering::AcqRel);
            self.cell().fetch_add(lease, Ordering::AcqRel);
            return want;
        }
        self.collect();
        let stock = self.stock.load(Ordering::Acquire);
        let is_for_nodes = what_for == Use::Nodes;
        let reserve = (is_for_nodes || may_use_reserve()).then_some(&self.reserve);
        let pool = is_for_nodes.then_some(&self.pool);
        let kept = || [reserve, pool].into_iter().flatten();
        let taken = (stock + kept().map(Kept::left).sum::<i64>()).min(want);
        if taken < least.max(1) {
            return 0;
        }
        let mut lack = (taken - stock).max(0);
        self.stock.fetch_sub(taken - lack, Ordering::AcqRel);
        for kept in kept() {
            let part = lack.min(kept.left());
            kept.left.fetch_sub(part, Ordering::AcqRel);
            lack -= part;
        }
        taken
    }

    /// Takes blocks, whether there are so many or not: for whoever has claimed what was promised to
    /// it, and gives the promise back next.
    pub(super) fn take_promised(&self, blocks: i64) {
        if !self.take_from_cell(blocks) {
            let _refill = self.refill.lock();
            self.collect();
            self.stock.fetch_sub(blocks, Ordering::AcqRel);
        }
    }

    fn take_from_cell(&self, want: i64) -> bool {
        let enough = |now: i64| (now >= want).then_some(now - want);
        let cell = self.cell();
        if self.stock.load(Ordering::Acquire) < 0 {
            return false;
        }
        if cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, enough).is_err() {
            return false;
        }
        // And again afterwards: what was in the cell may be the blocks that the stock lacks by now.
        let is_there = plant::is(Fault::UncheckedCell) || self.stock.load(Ordering::SeqCst) >= 0;
        if !is_there {
            cell.fetch_add(want, Ordering::AcqRel);
        }
        is_there
    }

    /// Brings all cells into the stock. The caller holds the lock.
    fn collect(&self) {
        for cell in self.cells.iter() {
            if cell.0.load(Ordering::Acquire) != 0 {
                self.stock.fetch_add(cell.0.swap(0, Ordering::AcqRel), Ordering::AcqRel);
            }
        }
    }

    /// Gives blocks back.
    pub(super) fn give(&self, blocks: i64) {
        if blocks == 0 {
            return;
        }
        if self.pool.lack() > 0 || self.reserve.lack() > 0 {
            return self.give_to_kept(blocks);
        }
        let cell = self.cell();
        if cell.fetch_add(blocks, Ordering::AcqRel) + blocks <= 2 * LEASE {
            return;
        }
        let _refill = self.refill.lock();
        let surplus = |now: i64| (now > LEASE).then_some(LEASE);
        if let Ok(before) = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, surplus) {
            self.stock.fetch_add(before - LEASE, Ordering::AcqRel);
        }
    }

    /// Gives blocks back while what is kept back is not all there. Who took a promise a second time
    /// left the stock below zero: that is made up for first.
    fn give_to_kept(&self, blocks: i64) {
        let _refill = self.refill.lock();
        let mut stock = self.stock.fetch_add(blocks, Ordering::AcqRel) + blocks;
        for kept in [&self.pool, &self.reserve] {
            let part = stock.clamp(0, kept.lack());
            self.stock.fetch_sub(part, Ordering::AcqRel);
            kept.left.fetch_add(part, Ordering::AcqRel);
            stock -= part;
        }
    }

    /// Blocks that the pool should have.
    pub(super) fn pool_full(&self) -> i64 {
        self.pool.full
    }

    /// Those that data may have, root's among them.
    pub(super) fn for_data(&self) -> i64 {
        self.total() - self.pool.left()
    }

    /// All of them, what is kept back among them.
    pub(super) fn total(&self) -> i64 {
        let _refill = self.refill.lock();
        let cells: i64 = self.cells.iter().map(|cell| cell.0.load(Ordering::Acquire)).sum();
        self.stock.load(Ordering::Acquire) + cells + self.reserve.left() + self.pool.left()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::super::privilege::as_user;
    use super::*;

    #[test]
    fn what_lies_in_cells_of_others_is_found() {
        let all = Available::new(10_000, 0, 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert_eq!(all.take(10, 10, Use::Any), 10);
                    all.give(10);
                });
            }
        });
        assert_eq!(all.total(), 10_000);
        assert_eq!(all.take(10_001, 10_001, Use::Any), 0);
        assert_eq!(all.take(20_000, 1, Use::Any), 10_000);
        assert_eq!(all.take(1, 1, Use::Any), 0);
        all.take_promised(5);
        std::thread::scope(|scope| {
            scope.spawn(|| all.give(3));
        });
        all.give(1);
        assert_eq!(all.take(1, 1, Use::Any), 0, "one short of the promise");
        all.give(2);
        assert_eq!((all.take(1, 1, Use::Any), all.total()), (1, 0));
    }

    #[test]
    fn users_leave_roots_blocks_alone_and_roots_come_back_first() {
        let all = Available::new(100, 10, 0);
        let user = |want, least| as_user(|| all.take(want, least, Use::Any));
        assert_eq!((user(91, 91), user(95, 1), all.total()), (0, 90, 10));
        assert_eq!((user(1, 1), all.take(4, 4, Use::Any)), (0, 4));
        all.give(3);
        assert_eq!(user(1, 1), 0, "root lacks one yet");
        all.give(3);
        assert_eq!((user(5, 1), all.take(20, 1, Use::Any), all.total()), (2, 10, 0));
    }

    #[test]
    fn the_pool_is_for_nodes_and_fills_first() {
        let all = Available::new(100, 10, 20);
        let user = |want| as_user(|| all.take(want, 1, Use::Any));
        let nodes = |want| as_user(|| all.take(want, 1, Use::Nodes));
        assert_eq!((user(200), all.take(200, 1, Use::Any), all.total()), (70, 10, 20));
        assert_eq!(
            (user(1), all.take(1, 1, Use::Any), nodes(5), nodes(50), nodes(1)),
            (0, 0, 5, 15, 0)
        );
        all.give(25);
        assert_eq!((user(1), all.take(9, 1, Use::Any), nodes(1)), (0, 5, 1));
        all.give(1 + 10 + 3);
        assert_eq!((user(9), nodes(40), all.total()), (3, 30, 0));
        assert_eq!(Available::new(15, 10, 20).take(5, 1, Use::Any), 0, "the pool comes first");
    }

    #[test]
    fn what_was_taken_twice_is_made_up_for_before_the_reserve() {
        let all = Available::new(10, 4, 0);
        assert_eq!(all.take(6, 6, Use::Any), 6);
        all.take_promised(6);
        assert_eq!(all.take(4, 4, Use::Any), 0, "the reserve makes up for what was taken twice");
        all.give(6);
        assert_eq!(
            (as_user(|| all.take(1, 1, Use::Any)), all.take(9, 1, Use::Any), all.total()),
            (0, 4, 0)
        );
        assert_eq!(Available::new(3, 4, 0).take(5, 1, Use::Any), 3);
    }

    /// Threads that want more than there is: never is more given out, and who is alone gets all.
    #[test]
    fn never_more_than_there_is() {
        const BLOCKS: i64 = 100;
        let (all, out) = (Available::new(BLOCKS, 0, 0), AtomicI64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (all, out) = (&all, &out);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let got = all.take(1 + (round * 7 + thread) % 60, 1, Use::Any);
                        let now = out.fetch_add(got, Ordering::SeqCst) + got;
                        assert!(now <= BLOCKS, "{now}");
                        out.fetch_sub(got, Ordering::SeqCst);
                        all.give(got);
                    }
                });
            }
        });
        assert_eq!(all.take(BLOCKS, BLOCKS, Use::Any), BLOCKS);
    }
}
