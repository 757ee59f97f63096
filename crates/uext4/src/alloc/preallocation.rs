//! Reservation windows: blocks allocated beyond a need, so that a stream finds its next ones where
//! its last ones are.
//!
//! What: a [`Window`] holds one allocation and where its stream goes on (`key`). A file that grows
//! takes from its own; small files of one block group share one (a locality group). A window that
//! is used up is followed by one four times its size, up to one maximal extent and a share of what
//! is free, so that streams side by side come to lie in a few long extents each. Writes in the
//! middle of a file: `around.rs`.
//! Invariants: what a window holds is allocated in memory and stands in no bitmap that is written:
//! a crash loses nothing. Only a window that somebody uses ([`Window::open`]) holds blocks.
//! Preallocations are given back before an allocation fails or waits for a commit, and count as
//! free for statfs(2). Blocks go back into a window only if the running transaction has taken them,
//! see [`Space::free_or_recycle`].
//! Locking: a window's lock and the list's are leaves; an allocation is dropped after they are
//! released, for that takes its group. Who changes metadata with a window's blocks takes the
//! allocation out ([`Space::draw`]) and puts the rest back.
//! Kernel counterpart: preallocation in `fs/ext4/mballoc.c`.

mod around;
mod list;
mod recycle;

pub use list::PreallocationStats;
pub(super) use list::Preallocations;

use super::{Allocation, Count, Space};
use crate::error::Result;
use crate::journal::Handle;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{LockRank, Mutex};
use around::Pieces;
use recycle::Fresh;
use std::sync::Arc;
use uext4_ondisk::extent::MAX_UNWRITTEN_LEN;
use uext4_ondisk::{BlockNo, Tid};

/// Blocks of a stream's first window.
const FIRST_BLOCKS: u32 = 16;
/// How much larger each following window is.
const GROWTH: u32 = 4;
/// A window holds at most this part of the free blocks.
const SHARE: i64 = 32;

/// Blocks held for a stream, or for the small files of a group.
#[derive(Debug)]
pub struct Preallocation {
    inner: Mutex<Inner>,
    /// Whether the list of the space names it.
    listed: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// Where the stream goes on: a block of the file; the group, for a locality group.
    key: u32,
    /// Blocks of the last window.
    size: u32,
    users: u32,
    /// What is held around writes in the middle of the file.
    pieces: Pieces,
    /// What the transaction has taken for the file; see [`Space::free_or_recycle`].
    fresh: Fresh,
}

#[derive(Debug)]
enum State {
    Empty,
    Held(Allocation),
    /// Somebody takes from it in a handle.
    Borrowed,
    /// Likewise, and what is left is to be given back.
    DiscardOnReturn,
}

/// What a stream asks for.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Where in the stream.
    pub key: u32,
    /// Most blocks.
    pub want: u32,
    /// Blocks of a new window at least; 0: as the stream's windows have grown.
    pub ahead: u32,
    /// Where a new window would best begin.
    pub goal: BlockNo,
    /// The blocks that are wanted were promised before.
    pub reserved: bool,
}

impl Default for Preallocation {
    fn default() -> Self {
        Self::new()
    }
}

impl Preallocation {
    /// An empty window that nobody uses.
    #[must_use]
    pub fn new() -> Self {
        let inner = Inner {
            state: State::Empty,
            key: 0,
            size: 0,
            users: 0,
            pieces: Pieces::default(),
            fresh: Fresh::default(),
        };
        Self { inner: Mutex::new(LockRank::Leaf, inner), listed: AtomicBool::new(false) }
    }

    /// One more user: from the first on it may hold blocks.
    pub fn open(&self) {
        self.inner.lock().users += 1;
    }

    /// A user goes; with the last one the blocks go back.
    pub fn close(&self, space: &Space) {
        let (allocation, pieces) = {
            let mut inner = self.inner.lock();
            inner.users = inner.users.saturating_sub(1);
            if inner.users > 0 {
                return;
            }
            inner.size = 0;
            (inner.empty(), std::mem::take(&mut inner.pieces))
        };
        space.release_tail(allocation);
        space.release_pieces(pieces);
    }

    /// Blocks held now, those not counted that somebody takes from.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        let inner = self.inner.lock();
        let ahead = match &inner.state {
            State::Held(allocation) => allocation.len(),
            State::Empty | State::Borrowed | State::DiscardOnReturn => 0,
        };
        ahead + inner.pieces.blocks()
    }

    /// The transaction of `handle` has taken a run for the file that this is the window of, and no
    /// data is on its way there.
    pub fn note_used(&self, handle: &Handle<'_>, start: BlockNo, len: u32) {
        self.inner.lock().fresh.note(handle.tid(), start, len);
    }
}

impl Inner {
    /// Takes the allocation out; what somebody works with, he is to give back.
    fn empty(&mut self) -> Option<Allocation> {
        match std::mem::replace(&mut self.state, State::Empty) {
            State::Held(allocation) => Some(allocation),
            State::Empty => None,
            State::Borrowed | State::DiscardOnReturn => {
                self.state = State::DiscardOnReturn;
                None
            }
        }
    }
}

/// A window's allocation, taken out so that a handle can take from it. Dropping it puts the rest
/// back.
#[derive(Debug)]
pub struct BorrowedPreallocation<'a> {
    space: &'a Space,
    preallocation: &'a Preallocation,
    allocation: Option<Allocation>,
    taken: u32,
    fresh: Option<(Tid, BlockNo)>,
}

impl BorrowedPreallocation<'_> {
    /// First block.
    #[must_use]
    pub fn start(&self) -> BlockNo {
        self.allocation.as_ref().map_or(BlockNo(0), Allocation::start)
    }

    /// Blocks left.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // an empty one is not drawn
    pub fn len(&self) -> u32 {
        self.allocation.as_ref().map_or(0, Allocation::len)
    }

    /// As [`Space::take`].
    ///
    /// # Errors
    /// As [`Space::take`].
    pub fn mark_used(&mut self, handle: &mut Handle<'_>, len: u32) -> Result<BlockNo> {
        let allocation = self
            .allocation
            .as_mut()
            .expect("a drawn preallocation has its allocation until it is dropped");
        let start = self.space.mark_used(handle, allocation, len)?;
        self.taken += len;
        self.fresh = Some((handle.tid(), start));
        Ok(start)
    }
}

impl Drop for BorrowedPreallocation<'_> {
    fn drop(&mut self) {
        let mut rest = self.allocation.take();
        let is_empty = {
            let mut inner = self.preallocation.inner.lock();
            inner.key += self.taken;
            if let Some((tid, start)) = self.fresh {
                inner.fresh.note(tid, start, self.taken);
            }
            let is_wanted = matches!(inner.state, State::Borrowed) && inner.users > 0;
            let kept = rest.take_if(|rest| is_wanted && rest.len() > 0);
            inner.state = kept.map_or(State::Empty, State::Held);
            matches!(inner.state, State::Empty)
        };
        if is_empty {
            self.space.preallocations.held.fetch_sub(1, Ordering::AcqRel);
        }
        drop(rest);
    }
}

impl Space {
    /// Allocates one run of at most `need.want` blocks: from the window if it goes on there, else
    /// from a new one. Not to be called with a handle open.
    ///
    /// # Errors
    /// As [`Space::allocation`].
    pub fn allocate_from(
        &self,
        preallocation: &Arc<Preallocation>,
        need: Need,
        moves: bool,
    ) -> Result<Allocation> {
        let (size, stale) = {
            let mut inner = preallocation.inner.lock();
            if moves && let Some(taken) = self.take_piece(&mut inner.pieces, need.key, need.want) {
                drop(inner);
                return Ok(taken.0);
            }
            let goes_on = inner.key == need.key;
            if let State::Held(allocation) = &mut inner.state
                && goes_on
            {
                let front = allocation.split_front(need.want);
                if allocation.len() == 0 {
                    inner.state = State::Empty;
                    self.preallocations.held.fetch_sub(1, Ordering::AcqRel);
                }
                inner.key += if moves { front.len() } else { 0 };
                self.shared.counters.add(Count::PreallocationHits, 1);
                return Ok(front);
            }
            let size = match inner.size {
                _ if inner.users == 0 || !self.shared.options.reserve => 0,
                _ if need.ahead > 0 => need.ahead,
                0 => FIRST_BLOCKS,
                size if goes_on => (size * GROWTH).min(MAX_UNWRITTEN_LEN),
                size => size,
            };
            (size, inner.empty())
        };
        self.release_tail(stale);
        let mut allocation = self.allocate_ahead(need, size, SHARE)?;
        let front = allocation.split_front(need.want);
        if size > 0 {
            let key = need.key + if moves { front.len() } else { 0 };
            self.settle(preallocation, allocation, key, size);
        }
        Ok(front)
    }

    /// Allocations what is wanted and up to `size` blocks together, or what part of the free blocks
    /// `share` allows.
    fn allocate_ahead(&self, need: Need, size: u32, share: i64) -> Result<Allocation> {
        let share =
            u32::try_from(self.shared.available.for_data().max(0) / share).unwrap_or(u32::MAX);
        let extra = size.min(share).saturating_sub(need.want);
        if !need.reserved {
            return self.allocate_with_ahead(need.goal, need.want, extra);
        }
        // What is allocated ahead must leave what others were promised alone.
        let taken = self.reserve_ahead(extra);
        let allocation =
            self.allocate_reserved(need.goal, need.want + u32::try_from(taken).unwrap_or(0));
        self.shared.available.release(taken);
        allocation
    }

    /// Puts the rest of a new allocation into its window.
    fn settle(
        &self,
        preallocation: &Arc<Preallocation>,
        allocation: Allocation,
        key: u32,
        size: u32,
    ) {
        let mut allocation = Some(allocation).filter(|allocation| allocation.len() > 0);
        if allocation.is_some() {
            self.preallocations.list(preallocation);
        }
        let mut inner = preallocation.inner.lock();
        if inner.users > 0 && matches!(inner.state, State::Empty) {
            (inner.key, inner.size) = (key, size);
            if let Some(allocation) = allocation.take() {
                inner.state = State::Held(allocation);
                self.preallocations.held.fetch_add(1, Ordering::AcqRel);
                self.preallocations.filled.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(inner);
        drop(allocation);
    }

    /// Takes a window out that goes on at `key`, for a handle to take from.
    pub fn borrow_preallocation<'a>(
        &'a self,
        preallocation: &'a Preallocation,
        key: u32,
    ) -> Option<BorrowedPreallocation<'a>> {
        let mut inner = preallocation.inner.lock();
        if inner.key != key || !matches!(inner.state, State::Held(_)) {
            return None;
        }
        let State::Held(allocation) = std::mem::replace(&mut inner.state, State::Borrowed) else {
            unreachable!("looked at above")
        };
        self.shared.counters.add(Count::PreallocationHits, 1);
        Some(BorrowedPreallocation {
            space: self,
            preallocation,
            allocation: Some(allocation),
            taken: 0,
            fresh: None,
        })
    }

    fn release_tail(&self, allocation: Option<Allocation>) {
        if allocation.is_some() {
            self.preallocations.held.fetch_sub(1, Ordering::AcqRel);
        }
        drop(allocation);
    }
}
