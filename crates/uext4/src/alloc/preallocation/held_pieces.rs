//! Blocks held around writes in the middle of a file.
//!
//! What: a program that writes at random places of a file usually writes the places between them
//! later. Therefore an allocation for one block of a hole also takes the range around it, and keeps
//! the rest as [`HeldPieces`]. Each piece is an allocation with the block of the file that it is
//! for. A write at block `L` gets what was allocated for `L`. So the file is contiguous on the
//! device, whatever the order of the writes.
//! Invariants: pieces ascend and do not overlap. Like the tail, they are set in no bitmap that is
//! written, and are discarded with it. A block of a piece may have been mapped to other blocks
//! since, because the pieces are used for holes only.
//! Kernel counterpart: the preallocations of inodes in `fs/ext4/mballoc.c`.

use super::{Need, Preallocation, StreamTail};
use crate::alloc::{Allocation, Count, Space};
use crate::error::Result;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, GroupNo};

/// Most pieces of a file: 40 KiB of memory. Further ones are released.
const PIECES_MAX: usize = 1024;
/// The range that one write allocates has at most this part of the free blocks.
const SHARE: i64 = 8;

/// An allocation for the blocks of a file from `first` on.
#[derive(Debug)]
struct HeldPiece {
    first: u32,
    allocation: Allocation,
}

impl HeldPiece {
    fn end(&self) -> u32 {
        self.first.saturating_add(self.allocation.len())
    }
}

/// The pieces of a file.
#[derive(Debug, Default)]
pub(super) struct HeldPieces(Vec<HeldPiece>);

impl HeldPieces {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Blocks held.
    pub(super) fn blocks(&self) -> u32 {
        self.0.iter().map(|piece| piece.allocation.len()).sum()
    }

    /// How many pieces begin at or before a block.
    fn position(&self, at: u32) -> usize {
        self.0.partition_point(|piece| piece.first <= at)
    }

    /// The gap between pieces that `at`, which lies in none, belongs to.
    fn gap(&self, at: u32) -> Range<u32> {
        let next = self.position(at);
        let start = next.checked_sub(1).map_or(0, |before| self.0[before].end());
        start..self.0.get(next).map_or(u32::MAX, |piece| piece.first)
    }

    /// Takes at most `want` blocks for block `at` out of its piece. If that would leave one piece
    /// too many, the shorter rest comes with them.
    fn take(&mut self, at: u32, want: u32) -> Option<(Allocation, Option<Allocation>)> {
        let index = self.position(at).checked_sub(1)?;
        let full = self.0.len() >= PIECES_MAX;
        let piece = &mut self.0[index];
        if at >= piece.end() {
            return None;
        }
        let front = piece.allocation.split_front(at - piece.first);
        let taken = piece.allocation.split_front(want);
        if front.len() == 0 {
            piece.first = at + taken.len();
            if piece.allocation.len() == 0 {
                self.0.remove(index);
            }
            return Some((taken, None));
        }
        let behind = HeldPiece {
            first: at + taken.len(),
            allocation: std::mem::replace(&mut piece.allocation, front),
        };
        if behind.allocation.len() == 0 {
            return Some((taken, None));
        }
        if !full {
            self.0.insert(index + 1, behind);
            return Some((taken, None));
        }
        let shorter = match behind.allocation.len() > piece.allocation.len() {
            true => std::mem::replace(piece, behind),
            false => behind,
        };
        Some((taken, Some(shorter.allocation)))
    }

    /// Adds an allocation for the blocks from `first` on. Returns it if it overlaps a piece or
    /// there are too many.
    pub(super) fn insert(&mut self, first: u32, allocation: Allocation) -> Option<Allocation> {
        let piece = HeldPiece { first, allocation };
        let index = self.position(first);
        let overlaps = index > 0 && self.0[index - 1].end() > first
            || self.0.get(index).is_some_and(|next| next.first < piece.end());
        if overlaps || piece.allocation.len() == 0 || self.0.len() >= PIECES_MAX {
            return Some(piece.allocation);
        }
        self.0.insert(index, piece);
        None
    }
}

impl Preallocation {
    /// Discards the pieces, because blocks of the file move to another place in it or are removed.
    pub fn discard_pieces(&self, space: &Space) {
        let _discarded = self.change(space, |state| std::mem::take(&mut state.pieces));
    }

    /// The file was truncated to `key` blocks: the stream continues there, in the piece for that
    /// block if there is one. Discards all other pieces.
    pub fn truncate(&self, space: &Space, key: u32) {
        let _discarded = self.change(space, |state| {
            let mut pieces = std::mem::take(&mut state.pieces);
            let here = match !state.is_borrowed() && state.key > key {
                true => pieces.take(key, u32::MAX),
                false => None,
            };
            let mut stale = None;
            if let Some((mut tail, _)) = here {
                stale = state.take_tail();
                if let Some(behind) = stale.take_if(|_| state.key == key + tail.len()) {
                    stale = tail.join(behind);
                }
                state.tail = StreamTail::Held(tail);
            }
            state.key = state.key.min(key);
            (stale, pieces)
        });
    }
}

impl Space {
    /// Allocates at most `need.want` blocks for the block `need.key` of a file: from the piece for
    /// it, else new ones. New ones come with the rest of `range` around them, which is held for the
    /// writes that follow. All of `range` is a hole. No handle may be open.
    ///
    /// # Errors
    /// The errors of [`Space::allocate`].
    pub fn allocate_around(
        &self,
        preallocation: &Arc<Preallocation>,
        need: Need,
        mut range: Range<u32>,
    ) -> Result<Allocation> {
        let (found, stale) = preallocation.change(self, |state| {
            // The tail of the stream becomes a piece.
            let tail = state.tail.take(StreamTail::Empty);
            let stale = tail.and_then(|tail| state.pieces.insert(state.key, tail));
            let found = match self.take_piece(&mut state.pieces, need.key, need.want) {
                Some(taken) => Ok(taken),
                None => Err((state.pieces.gap(need.key), state.users > 0)),
            };
            (found, stale)
        });
        drop(stale);
        let (gap, is_open) = match found {
            Ok((taken, _rest)) => return Ok(taken),
            Err(missing) => missing,
        };
        range = range.start.max(gap.start)..range.end.min(gap.end);
        let want = need.want.min(range.end - need.key);
        if !is_open || !self.shared.policy.preallocates() {
            range = need.key..need.key + want;
        }
        self.allocate_range(preallocation, Need { want, ..need }, range)
    }

    /// Allocates a range that no piece overlaps. A range at the goal is cut to the group.
    fn allocate_range(
        &self,
        preallocation: &Arc<Preallocation>,
        need: Need,
        range: Range<u32>,
    ) -> Result<Allocation> {
        // A goal behind the last block of the device cuts nothing.
        let (group, bit) = self.layout.bit_of(need.goal).unwrap_or((GroupNo(0), 0));
        let behind = self.layout.bits_in_group(group) - bit;
        let start = range.start.max(need.key.saturating_sub(bit));
        let end = range.end.min(need.key.saturating_add(behind)).max(need.key + 1);
        let goal = BlockNo(need.goal.get() - u64::from(need.key - start));
        let want = need.want.min(end - need.key);
        let mut allocation =
            self.allocate_ahead(Need { goal, want, ..need }, end - start, SHARE)?;
        let len = allocation.len();
        let reaches = start + len > need.key && (allocation.start() == goal || len == end - start);
        // A shorter allocation elsewhere begins at the block that is needed.
        let first = if reaches { start } else { need.key.min(end.saturating_sub(len)).max(start) };
        let front = allocation.split_front(need.key - first);
        let taken = allocation.split_front(want);
        let rest = [(first, front), (need.key + taken.len(), allocation)];
        self.hold_pieces(preallocation, rest);
        Ok(taken)
    }

    fn hold_pieces(&self, preallocation: &Arc<Preallocation>, rest: [(u32, Allocation); 2]) {
        if rest.iter().all(|(_, allocation)| allocation.len() == 0) {
            return;
        }
        self.preallocations.list(preallocation);
        let _left = preallocation.change(self, |state| {
            rest.map(|(first, allocation)| match state.users > 0 {
                true => state.pieces.insert(first, allocation),
                false => Some(allocation),
            })
        });
        self.shared.counters.add(Count::PreallocationsFilled, 1);
    }

    /// Takes blocks out of a piece, see [`HeldPieces::take`]. The caller drops the second
    /// allocation after it has released the lock.
    pub(super) fn take_piece(
        &self,
        pieces: &mut HeldPieces,
        at: u32,
        want: u32,
    ) -> Option<(Allocation, Option<Allocation>)> {
        pieces.take(at, want).inspect(|_| self.shared.counters.add(Count::PreallocationHits, 1))
    }
}
