//! How many blocks are free and not reserved.
//!
//! What: an allocation and a reservation first take their number of blocks from [`Available`], and
//! return what they did not get. A single counter would be a cache line that all processors write.
//! Therefore most calls change a cell of their own thread, which has a lease on a part of the stock
//! (as the kernel's `percpu_counter` has batches).
//!
//! Two parts are set aside. The *node pool* is for nodes of extent trees that are needed to remove
//! or convert blocks, because these operations must not fail on a full volume. The *root reserve*
//! is for privileged callers (`privilege.rs`). A caller with the right to them gets them when the
//! stock is empty, the root reserve first. Released blocks refill the node pool first, then the
//! root reserve.
//! Invariants: stock, cells and both parts together never exceed the blocks that are free and not
//! reserved. They may fall short of that for a moment. A caller that finds too little moves all
//! cells into the stock, under a lock, before it reports a failure: so an existing reservation
//! always has its blocks. Numbers move between stock, cells and the two parts under that lock only.
//! A caller that has allocated the blocks of its reservation counts them twice until it shrinks the
//! reservation ([`Available::force_reserve`]). That can bring the stock below zero, never a cell;
//! and while the stock is below zero, no cell is used without the lock.
//! Locking: `refill` is a leaf.

use super::privilege::may_use_root_reserve;
use crate::injected_faults::Fault;
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::sync::{LockRank, Mutex, thread};
use uext4_ondisk::GroupNo;

/// Most blocks of a lease.
const LEASE: i64 = 4096;

/// A counter that many threads change. It is summed up when it is read.
#[derive(Debug)]
pub(super) struct ShardedCounter {
    cells: Box<[CounterCell]>,
}

/// On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterCell(AtomicI64);

impl ShardedCounter {
    /// Starts at `value`.
    pub(super) fn new(value: i64) -> Self {
        let cells: Box<[CounterCell]> =
            (0..thread::slots()).map(|_| CounterCell::default()).collect();
        cells[0].0.store(value, Ordering::Relaxed);
        Self { cells }
    }

    /// Adds to the cell of a group.
    pub(super) fn add(&self, group: GroupNo, value: i64) {
        let cell = group.get() as usize % self.cells.len();
        self.cells[cell].0.fetch_add(value, Ordering::AcqRel);
    }

    /// The sum; exact while no thread adds.
    pub(super) fn sum(&self) -> i64 {
        self.cells.iter().map(|cell| cell.0.load(Ordering::Acquire)).sum()
    }
}

#[derive(Debug)]
pub(super) struct Available {
    stock: AtomicI64,
    cells: Box<[CounterCell]>,
    node_pool: SetAside,
    root_reserve: SetAside,
    refill: Mutex<()>,
}

/// Blocks that are set aside for one purpose.
#[derive(Debug)]
struct SetAside {
    left: AtomicI64,
    /// How many there should be.
    full: i64,
}

impl SetAside {
    fn new(full: i64, blocks: i64) -> Self {
        let full = full.max(0);
        Self { left: AtomicI64::new(full.min(blocks.max(0))), full }
    }

    fn left(&self) -> i64 {
        self.left.load(Ordering::Acquire)
    }

    fn deficit(&self) -> i64 {
        self.full - self.left()
    }
}

/// What blocks are needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Anything. Privileged callers may use the root reserve.
    Any,
    /// Nodes of an extent tree from which blocks are removed, or in which they are converted. All
    /// that is set aside may be used.
    Nodes,
}

impl Available {
    /// `blocks` are free. Up to `node_pool` of them are set aside for nodes, and up to
    /// `root_reserve` of the others for root.
    pub(super) fn new(blocks: i64, root_reserve: i64, node_pool: i64) -> Self {
        let node_pool = SetAside::new(node_pool, blocks);
        let root_reserve = SetAside::new(root_reserve, blocks - node_pool.left());
        Self {
            stock: AtomicI64::new(blocks - node_pool.left() - root_reserve.left()),
            node_pool,
            root_reserve,
            cells: (0..thread::slots()).map(|_| CounterCell::default()).collect(),
            refill: Mutex::new(LockRank::Leaf, ()),
        }
    }

    fn cell(&self) -> &AtomicI64 {
        &self.cells[thread::slot() % self.cells.len()].0
    }

    /// Reserves `want` blocks, or as many as there are if that is at least `least` (one or more).
    /// Returns how many, 0 for none.
    pub(super) fn reserve(&self, want: i64, least: i64, purpose: Use) -> i64 {
        if self.reserve_from_cell(want) {
            return want;
        }
        let _refill = self.refill.lock();
        let lease = (self.stock.load(Ordering::Acquire) / (4 * self.cells.len() as i64)).min(LEASE);
        if lease > 0 && self.stock.load(Ordering::Acquire) >= want + lease {
            self.stock.fetch_sub(want + lease, Ordering::AcqRel);
            self.cell().fetch_add(lease, Ordering::AcqRel);
            return want;
        }
        self.drain_cells();
        let stock = self.stock.load(Ordering::Acquire);
        let is_for_nodes = purpose == Use::Nodes;
        let root_reserve = (is_for_nodes || may_use_root_reserve()).then_some(&self.root_reserve);
        let node_pool = is_for_nodes.then_some(&self.node_pool);
        let set_aside = || [root_reserve, node_pool].into_iter().flatten();
        let taken = (stock + set_aside().map(SetAside::left).sum::<i64>()).min(want);
        if taken < least.max(1) {
            return 0;
        }
        let mut missing = (taken - stock).max(0);
        self.stock.fetch_sub(taken - missing, Ordering::AcqRel);
        for part in set_aside() {
            let used = missing.min(part.left());
            part.left.fetch_sub(used, Ordering::AcqRel);
            missing -= used;
        }
        taken
    }

    /// Reserves blocks whether there are so many or not. For a caller that has allocated the blocks
    /// of its reservation and is about to shrink the reservation.
    pub(super) fn force_reserve(&self, blocks: i64) {
        if !self.reserve_from_cell(blocks) {
            let _refill = self.refill.lock();
            self.drain_cells();
            self.stock.fetch_sub(blocks, Ordering::AcqRel);
        }
    }

    fn reserve_from_cell(&self, want: i64) -> bool {
        let enough = |now: i64| (now >= want).then_some(now - want);
        let cell = self.cell();
        if self.stock.load(Ordering::Acquire) < 0 {
            return false;
        }
        if cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, enough).is_err() {
            return false;
        }
        // The stock is checked a second time. Thread A finds it at zero; thread B brings it below
        // zero; A takes from its cell the blocks that the stock now lacks.
        let is_there = Fault::UncheckedCell.is_injected() || self.stock.load(Ordering::SeqCst) >= 0;
        if !is_there {
            cell.fetch_add(want, Ordering::AcqRel);
        }
        is_there
    }

    /// Moves all cells into the stock. The caller holds `refill`.
    fn drain_cells(&self) {
        for cell in self.cells.iter() {
            if cell.0.load(Ordering::Acquire) != 0 {
                self.stock.fetch_add(cell.0.swap(0, Ordering::AcqRel), Ordering::AcqRel);
            }
        }
    }

    /// Returns blocks.
    pub(super) fn release(&self, blocks: i64) {
        if blocks == 0 {
            return;
        }
        if self.node_pool.deficit() > 0 || self.root_reserve.deficit() > 0 {
            return self.release_to_set_aside(blocks);
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

    /// Returns blocks while the parts that are set aside are not full. A forced reservation may
    /// have left the stock below zero; the blocks make up for that first.
    fn release_to_set_aside(&self, blocks: i64) {
        let _refill = self.refill.lock();
        let mut stock = self.stock.fetch_add(blocks, Ordering::AcqRel) + blocks;
        for part in [&self.node_pool, &self.root_reserve] {
            let refilled = stock.clamp(0, part.deficit());
            self.stock.fetch_sub(refilled, Ordering::AcqRel);
            part.left.fetch_add(refilled, Ordering::AcqRel);
            stock -= refilled;
        }
    }

    /// Blocks of a full node pool.
    pub(super) fn full_node_pool(&self) -> i64 {
        self.node_pool.full
    }

    /// Blocks that data may use, the root reserve included.
    pub(super) fn for_data(&self) -> i64 {
        self.total() - self.node_pool.left()
    }

    /// All blocks, those set aside included.
    pub(super) fn total(&self) -> i64 {
        let _refill = self.refill.lock();
        let cells: i64 = self.cells.iter().map(|cell| cell.0.load(Ordering::Acquire)).sum();
        let set_aside = self.root_reserve.left() + self.node_pool.left();
        self.stock.load(Ordering::Acquire) + cells + set_aside
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::super::privilege::as_user;
    use super::*;

    #[test]
    fn blocks_in_cells_of_other_threads_are_found() {
        let all = Available::new(10_000, 0, 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert_eq!(all.reserve(10, 10, Use::Any), 10);
                    all.release(10);
                });
            }
        });
        assert_eq!(all.total(), 10_000);
        assert_eq!(all.reserve(10_001, 10_001, Use::Any), 0);
        assert_eq!(all.reserve(20_000, 1, Use::Any), 10_000);
        assert_eq!(all.reserve(1, 1, Use::Any), 0);
        all.force_reserve(5);
        std::thread::scope(|scope| {
            scope.spawn(|| all.release(3));
        });
        all.release(1);
        assert_eq!(all.reserve(1, 1, Use::Any), 0, "one less than is reserved");
        all.release(2);
        assert_eq!((all.reserve(1, 1, Use::Any), all.total()), (1, 0));
    }

    #[test]
    fn users_cannot_take_the_root_reserve_and_it_refills_first() {
        let all = Available::new(100, 10, 0);
        let user = |want, least| as_user(|| all.reserve(want, least, Use::Any));
        assert_eq!((user(91, 91), user(95, 1), all.total()), (0, 90, 10));
        assert_eq!((user(1, 1), all.reserve(4, 4, Use::Any)), (0, 4));
        all.release(3);
        assert_eq!(user(1, 1), 0, "the root reserve still lacks one block");
        all.release(3);
        assert_eq!((user(5, 1), all.reserve(20, 1, Use::Any), all.total()), (2, 10, 0));
    }

    #[test]
    fn the_node_pool_is_for_nodes_and_refills_first() {
        let all = Available::new(100, 10, 20);
        let user = |want| as_user(|| all.reserve(want, 1, Use::Any));
        let nodes = |want| as_user(|| all.reserve(want, 1, Use::Nodes));
        assert_eq!((user(200), all.reserve(200, 1, Use::Any), all.total()), (70, 10, 20));
        assert_eq!(
            (user(1), all.reserve(1, 1, Use::Any), nodes(5), nodes(50), nodes(1)),
            (0, 0, 5, 15, 0)
        );
        all.release(25);
        assert_eq!((user(1), all.reserve(9, 1, Use::Any), nodes(1)), (0, 5, 1));
        all.release(1 + 10 + 3);
        assert_eq!((user(9), nodes(40), all.total()), (3, 30, 0));
        assert_eq!(
            Available::new(15, 10, 20).reserve(5, 1, Use::Any),
            0,
            "the node pool comes first"
        );
    }

    #[test]
    fn a_forced_reservation_is_made_up_for_before_the_root_reserve() {
        let all = Available::new(10, 4, 0);
        assert_eq!(all.reserve(6, 6, Use::Any), 6);
        all.force_reserve(6);
        assert_eq!(
            all.reserve(4, 4, Use::Any),
            0,
            "the root reserve makes up for the forced reservation"
        );
        all.release(6);
        assert_eq!(
            (as_user(|| all.reserve(1, 1, Use::Any)), all.reserve(9, 1, Use::Any), all.total()),
            (0, 4, 0)
        );
        assert_eq!(Available::new(3, 4, 0).reserve(5, 1, Use::Any), 3);
    }

    /// Threads want more than there is. The sum of what they get never exceeds it, and a thread
    /// that is alone gets everything.
    #[test]
    fn never_more_is_reserved_than_there_is() {
        const BLOCKS: i64 = 100;
        let (all, out) = (Available::new(BLOCKS, 0, 0), AtomicI64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (all, out) = (&all, &out);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let got = all.reserve(1 + (round * 7 + thread) % 60, 1, Use::Any);
                        let now = out.fetch_add(got, Ordering::SeqCst) + got;
                        assert!(now <= BLOCKS, "{now}");
                        out.fetch_sub(got, Ordering::SeqCst);
                        all.release(got);
                    }
                });
            }
        });
        assert_eq!(all.reserve(BLOCKS, BLOCKS, Use::Any), BLOCKS);
    }
}
