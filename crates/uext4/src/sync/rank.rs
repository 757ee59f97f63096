//! The order of the locks, and the ranks that a thread holds.

/// The order in which locks may be taken, lowest first. `docs/locking.md` lists the operations that
/// take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LockRank {
    /// The result of closing a volume. Held while it is closed.
    End,
    /// Serialises renames that move a directory to another parent.
    Rename,
    /// Contents of a directory: ancestors before descendants, then by inode number.
    Directory,
    /// Contents and size of a file: by inode number.
    File,
    /// One pass over all dirty inodes at a time.
    Drain,
    /// One writeback pass over an inode at a time.
    Writeback,
    /// Counts of references to the inodes that hold values of attributes.
    Values,
    /// The right to commit.
    Commit,
    /// Not a lock: an open handle. Its thread waits for no lock of a lower rank.
    Handle,
    /// Orphan list of the volume.
    Orphan,
    /// Extent tree of an inode.
    ExtentTree,
    /// Extended attributes of an inode.
    Xattr,
    /// Attributes of an inode.
    Attributes,
    /// Quota file of one kind of owners.
    Quota,
    /// All frees of blocks, with `mb_free=global`.
    Frees,
    /// Bitmaps and counts of a block group.
    Group,
    /// Bytes of one metadata block. Only the owner of a structure holds several of its blocks.
    Buffer,
    /// Pages of one inode.
    Pages,
    /// Tables of inodes and orphans in memory.
    Table,
    /// State of the running and the committing transaction.
    Transaction,
    /// State of the journal: log, queue of joiners, durable id.
    Journal,
    /// One shard of a cache.
    Shard,
    /// Requests of one queue of direct I/O.
    Requests,
    /// Leaves: statistics, queues of background threads.
    Leaf,
}

impl LockRank {
    /// All ranks, lowest first, with their names.
    pub const ALL: [(Self, &'static str); 24] = [
        (Self::End, "End"),
        (Self::Rename, "Rename"),
        (Self::Directory, "Directory"),
        (Self::File, "File"),
        (Self::Drain, "Drain"),
        (Self::Writeback, "Writeback"),
        (Self::Values, "Values"),
        (Self::Commit, "Commit"),
        (Self::Handle, "Handle"),
        (Self::Orphan, "Orphan"),
        (Self::ExtentTree, "ExtentTree"),
        (Self::Xattr, "Xattr"),
        (Self::Attributes, "Attributes"),
        (Self::Quota, "Quota"),
        (Self::Frees, "Frees"),
        (Self::Group, "Group"),
        (Self::Buffer, "Buffer"),
        (Self::Pages, "Pages"),
        (Self::Table, "Table"),
        (Self::Transaction, "Transaction"),
        (Self::Journal, "Journal"),
        (Self::Shard, "Shard"),
        (Self::Requests, "Requests"),
        (Self::Leaf, "Leaf"),
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Whether one thread may hold several locks of this rank.
    #[must_use]
    pub const fn is_nestable(self) -> bool {
        matches!(self, Self::Directory | Self::File | Self::Buffer)
    }
}

#[cfg(any(feature = "simulate", all(debug_assertions, not(feature = "shuttle"))))]
mod held {
    use super::LockRank;
    use std::cell::{Cell, RefCell};

    thread_local! {
        static HELD: RefCell<Vec<LockRank>> = const { RefCell::new(Vec::new()) };
        static TAKEN: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn taken() -> u64 {
        TAKEN.get()
    }

    pub(super) fn push(rank: LockRank, ordered: bool) {
        HELD.with_borrow_mut(|held| {
            if ordered {
                TAKEN.set(TAKEN.get() + 1);
                if let Some(&top) = held.iter().max() {
                    let rises = rank > top || (rank == top && rank.is_nestable());
                    assert!(rises, "lock order: {rank:?} taken while holding {held:?}");
                }
            }
            held.push(rank);
        });
    }

    pub(super) fn pop(rank: LockRank) {
        HELD.with_borrow_mut(|held| {
            let at = held.iter().rposition(|&r| r == rank).expect("released lock was held");
            held.remove(at);
        });
    }
}

/// Tells the simulation that the thread waits for a condition.
pub(super) fn note_condition_wait() {
    #[cfg(feature = "simulate")]
    uext4_schedule::about("a condition");
}

/// Number of ranked locks and handles that this thread has taken so far, without try-locks. `None`
/// in a build that does not track ranks.
#[must_use]
pub fn locks_taken() -> Option<u64> {
    #[cfg(any(feature = "simulate", all(debug_assertions, not(feature = "shuttle"))))]
    let taken = Some(held::taken());
    #[cfg(not(any(feature = "simulate", all(debug_assertions, not(feature = "shuttle")))))]
    let taken = None;
    taken
}

/// Marks a rank as held by this thread for its lifetime (an open handle, for instance).
#[derive(Debug)]
pub struct RankGuard {
    #[cfg(any(feature = "simulate", all(debug_assertions, not(feature = "shuttle"))))]
    rank: LockRank,
    // Ranks are tracked per thread, so a guard must stay on its thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl RankGuard {
    /// Enters `rank`. A debug build panics if it does not rise.
    #[must_use]
    pub fn enter(rank: LockRank) -> Self {
        let guard = Self::push(rank, true);
        #[cfg(feature = "simulate")]
        uext4_schedule::about(rank.name());
        guard
    }

    /// Enters `rank` after a successful try-lock, which may break the order because it did not
    /// wait.
    pub(super) fn enter_unordered(rank: LockRank) -> Self {
        Self::push(rank, false)
    }

    fn push(rank: LockRank, ordered: bool) -> Self {
        #[cfg(any(feature = "simulate", all(debug_assertions, not(feature = "shuttle"))))]
        held::push(rank, ordered);
        let _ = (rank, ordered);
        Self {
            #[cfg(any(feature = "simulate", all(debug_assertions, not(feature = "shuttle"))))]
            rank,
            _not_send: std::marker::PhantomData,
        }
    }
}

#[cfg(any(feature = "simulate", all(debug_assertions, not(feature = "shuttle"))))]
impl Drop for RankGuard {
    fn drop(&mut self) {
        held::pop(self.rank);
    }
}
