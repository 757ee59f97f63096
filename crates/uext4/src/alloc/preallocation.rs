//! Preallocation: blocks allocated beyond a need, so that a stream finds its next blocks behind its
//! last ones.
//!
//! What: a [`Preallocation`] holds one allocation, its *tail*, and where its stream continues
//! (`key`). A file that grows allocates from its own. The small files of a block group share one (a
//! locality group). A tail that is used up is followed by one four times its size, up to one
//! maximal extent and a share of the free blocks, so that concurrent streams get few long extents
//! each. For writes in the middle of a file it holds further allocations, the *pieces*, see
//! `held_pieces.rs`.
//! Invariants: preallocated blocks are allocated in memory only, and set in no bitmap that is
//! written. A crash loses nothing. Only a preallocation with users ([`Preallocation::open`]) holds
//! blocks. All are discarded before an allocation fails or waits for a commit, and statfs(2) counts
//! them as free. Freed blocks return to a preallocation only if the running transaction has
//! allocated them, see [`Space::free_or_recycle`].
//! Locking: the lock of a preallocation and that of the list are leaves. An allocation is dropped
//! after they are released, because that takes its group's lock. A caller that changes metadata
//! borrows the tail ([`Space::borrow_preallocation`]) and returns the rest.
//! Kernel counterpart: preallocation in `fs/ext4/mballoc.c`.

mod held_pieces;
mod list;
mod recycle;

pub use list::PreallocationStats;
pub(super) use list::Preallocations;

use super::available::Use;
use super::{Allocation, Count, Space};
use crate::error::Result;
use crate::journal::Handle;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{LockRank, Mutex};
use held_pieces::HeldPieces;
use recycle::RecentRuns;
use std::sync::Arc;
use uext4_ondisk::extent::MAX_UNWRITTEN_LEN;
use uext4_ondisk::{BlockNo, Tid};

/// Blocks of a stream's first tail.
const FIRST_BLOCKS: u32 = 16;
/// Factor by which each following tail is larger.
const GROWTH: u32 = 4;
/// A tail has at most this part of the free blocks.
const SHARE: i64 = 32;

/// Blocks held for a stream, or for the small files of a block group.
#[derive(Debug)]
pub struct Preallocation {
    state: Mutex<PreallocationState>,
    /// Whether the list of the space has it.
    listed: AtomicBool,
}

#[derive(Debug, Default)]
struct PreallocationState {
    tail: StreamTail,
    /// Where the stream continues: a block of the file; the group, for a locality group.
    key: u32,
    /// Blocks of the last tail.
    size: u32,
    users: u32,
    /// Blocks held around writes in the middle of the file.
    pieces: HeldPieces,
    /// Blocks that the running transaction has allocated for the file; see
    /// [`Space::free_or_recycle`].
    recent: RecentRuns,
}

#[derive(Debug, Default)]
enum StreamTail {
    #[default]
    Empty,
    Held(Allocation),
    /// A caller allocates from it in a handle.
    Borrowed,
    /// A caller allocates from it in a handle, and then discards the rest.
    DiscardOnReturn,
}

impl StreamTail {
    /// Takes the blocks, if they are held. The tail is then `left`.
    fn take(&mut self, left: Self) -> Option<Allocation> {
        match std::mem::replace(self, left) {
            Self::Held(tail) => Some(tail),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// What a stream asks for.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Position in the stream.
    pub key: u32,
    /// Most blocks.
    pub want: u32,
    /// Least blocks of a new tail; 0: as the stream's tails have grown.
    pub ahead: u32,
    /// Goal of a new tail.
    pub goal: BlockNo,
    /// The wanted blocks are reserved.
    pub reserved: bool,
}

impl Default for Preallocation {
    /// Without blocks and users.
    fn default() -> Self {
        let state = Mutex::new(LockRank::Leaf, PreallocationState::default());
        Self { state, listed: AtomicBool::new(false) }
    }
}

impl Preallocation {
    /// Adds a user. With the first one it may hold blocks.
    pub fn open(&self) {
        self.state.lock().users += 1;
    }

    /// Changes the state, and counts in the space what holds blocks afterwards. What `change`
    /// takes out is dropped by the caller, because that takes the locks of groups.
    fn change<T>(&self, space: &Space, change: impl FnOnce(&mut PreallocationState) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.held();
        let result = change(&mut state);
        let after = state.held();
        if after != before {
            let more = after.wrapping_sub(before);
            space.preallocations.held.fetch_add(more, Ordering::AcqRel);
        }
        result
    }

    /// Removes a user. With the last one the blocks are discarded.
    pub fn close(&self, space: &Space) {
        let _discarded = self.change(space, |state| {
            state.users = state.users.saturating_sub(1);
            (state.users == 0).then(|| {
                state.size = 0;
                (state.take_tail(), std::mem::take(&mut state.pieces))
            })
        });
    }

    /// Blocks held now, without a borrowed tail.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        let state = self.state.lock();
        let tail = if let StreamTail::Held(tail) = &state.tail { tail.len() } else { 0 };
        tail + state.pieces.blocks()
    }

    /// The transaction of `handle` has allocated a run for the file of this preallocation, and no
    /// data is under way to it.
    pub fn note_used(&self, handle: &Handle<'_>, start: BlockNo, len: u32) {
        self.state.lock().recent.note(handle.tid(), start, len);
    }
}

impl PreallocationState {
    /// How many hold blocks, of the tail and the pieces. A borrowed tail does.
    fn held(&self) -> usize {
        usize::from(!matches!(self.tail, StreamTail::Empty)) + usize::from(!self.pieces.is_empty())
    }

    fn is_borrowed(&self) -> bool {
        matches!(self.tail, StreamTail::Borrowed | StreamTail::DiscardOnReturn)
    }

    /// Removes the tail. The borrower of a tail discards it when it returns it.
    fn take_tail(&mut self) -> Option<Allocation> {
        let tail = self.tail.take(StreamTail::Empty);
        if matches!(self.tail, StreamTail::Borrowed) {
            self.tail = StreamTail::DiscardOnReturn;
        }
        tail
    }
}

/// The tail of a preallocation, borrowed so that a handle can allocate from it. Dropping it returns
/// the rest.
#[derive(Debug)]
pub struct BorrowedPreallocation<'a> {
    space: &'a Space,
    preallocation: &'a Preallocation,
    tail: Option<Allocation>,
    used: u32,
    first_used: Option<(Tid, BlockNo)>,
}

impl BorrowedPreallocation<'_> {
    /// First block.
    #[must_use]
    pub fn start(&self) -> BlockNo {
        self.tail.as_ref().map_or(BlockNo(0), Allocation::start)
    }

    /// Blocks left.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // an empty one is not borrowed
    pub fn len(&self) -> u32 {
        self.tail.as_ref().map_or(0, Allocation::len)
    }

    /// Marks the first `len` blocks used, see [`Space::mark_used`].
    ///
    /// # Errors
    /// The errors of [`Space::mark_used`].
    pub fn mark_used(&mut self, handle: &mut Handle<'_>, len: u32) -> Result<BlockNo> {
        let tail = self.tail.as_mut().expect("a borrowed tail is there until it is dropped");
        let start = self.space.mark_used(handle, tail, len)?;
        self.used += len;
        self.first_used = Some((handle.tid(), start));
        Ok(start)
    }
}

impl Drop for BorrowedPreallocation<'_> {
    fn drop(&mut self) {
        let mut rest = self.tail.take();
        self.preallocation.change(self.space, |state| {
            state.key += self.used;
            if let Some((tid, start)) = self.first_used {
                state.recent.note(tid, start, self.used);
            }
            let is_wanted = matches!(state.tail, StreamTail::Borrowed) && state.users > 0;
            let kept = rest.take_if(|rest| is_wanted && rest.len() > 0);
            state.tail = kept.map_or(StreamTail::Empty, StreamTail::Held);
        });
        drop(rest);
    }
}

impl Space {
    /// Allocates one run of at most `need.want` blocks: from the preallocation if the stream
    /// continues there, else with a new one. `moves`: the stream then continues behind the run. No
    /// handle may be open.
    ///
    /// # Errors
    /// The errors of [`Space::allocate`].
    pub fn allocate_from(
        &self,
        preallocation: &Arc<Preallocation>,
        need: Need,
        moves: bool,
    ) -> Result<Allocation> {
        let found = preallocation.change(self, |state| {
            if moves && let Some(taken) = self.take_piece(&mut state.pieces, need.key, need.want) {
                return Ok(taken);
            }
            let continues = state.key == need.key;
            if let StreamTail::Held(tail) = &mut state.tail
                && continues
            {
                let front = tail.split_front(need.want);
                if tail.len() == 0 {
                    state.tail = StreamTail::Empty;
                }
                state.key += if moves { front.len() } else { 0 };
                self.shared.counters.add(Count::PreallocationHits, 1);
                return Ok((front, None));
            }
            let size = match state.size {
                _ if state.users == 0 || !self.shared.policy.preallocates() => 0,
                _ if need.ahead > 0 => need.ahead,
                0 => FIRST_BLOCKS,
                size if continues => (size * GROWTH).min(MAX_UNWRITTEN_LEN),
                size => size,
            };
            Err((size, state.take_tail()))
        });
        let (size, stale) = match found {
            Ok((front, _rest)) => return Ok(front),
            Err(missing) => missing,
        };
        drop(stale);
        let mut allocation = self.allocate_ahead(need, size, SHARE)?;
        let front = allocation.split_front(need.want);
        if size > 0 {
            let key = need.key + if moves { front.len() } else { 0 };
            self.store_tail(preallocation, allocation, key, size);
        }
        Ok(front)
    }

    /// Allocates the wanted blocks and more, up to `size` blocks together, or to the part of the
    /// free blocks that `share` allows.
    fn allocate_ahead(&self, need: Need, size: u32, share: i64) -> Result<Allocation> {
        let share =
            u32::try_from(self.shared.available.for_data().max(0) / share).unwrap_or(u32::MAX);
        let extra = size.min(share).saturating_sub(need.want);
        if !need.reserved {
            return self.allocate_for(need.goal, need.want, extra, Use::Any);
        }
        // The extra blocks must not be blocks that are reserved for others.
        let extra = self.reserve_ahead(extra);
        let want = need.want + u32::try_from(extra).unwrap_or(0);
        let allocation = self.allocate_reserved(need.goal, want);
        self.shared.available.release(extra);
        allocation
    }

    /// Stores the rest of a new allocation as the tail.
    fn store_tail(
        &self,
        preallocation: &Arc<Preallocation>,
        rest: Allocation,
        key: u32,
        size: u32,
    ) {
        let mut rest = Some(rest).filter(|rest| rest.len() > 0);
        if rest.is_some() {
            self.preallocations.list(preallocation);
        }
        preallocation.change(self, |state| {
            if state.users > 0 && matches!(state.tail, StreamTail::Empty) {
                (state.key, state.size) = (key, size);
                if let Some(tail) = rest.take() {
                    state.tail = StreamTail::Held(tail);
                    self.shared.counters.add(Count::PreallocationsFilled, 1);
                }
            }
        });
        drop(rest);
    }

    /// Borrows the tail for a handle, if the stream continues at `key`.
    pub fn borrow_preallocation<'a>(
        &'a self,
        preallocation: &'a Preallocation,
        key: u32,
    ) -> Option<BorrowedPreallocation<'a>> {
        let mut state = preallocation.state.lock();
        if state.key != key {
            return None;
        }
        let tail = Some(state.tail.take(StreamTail::Borrowed)?);
        self.shared.counters.add(Count::PreallocationHits, 1);
        Some(BorrowedPreallocation { space: self, preallocation, tail, used: 0, first_used: None })
    }
}
