//! Recycling: blocks that one transaction allocates and frees return to the preallocation of their
//! file.

use super::{Preallocation, PreallocationState, StreamTail};
use crate::alloc::{Allocation, Count, Space};
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, FileBlock, Tid};

/// The latest runs that a transaction has allocated for a file.
#[derive(Debug, Default)]
pub(super) struct RecentRuns {
    tid: Option<Tid>,
    runs: Vec<(BlockNo, u32)>,
}

impl RecentRuns {
    /// Most runs that are remembered. When a larger file is truncated, its other runs wait for the
    /// commit.
    const RUNS_MAX: usize = 16;

    pub(super) fn note(&mut self, tid: Tid, start: BlockNo, len: u32) {
        if self.tid.replace(tid) != Some(tid) {
            self.runs.clear();
        }
        match self.runs.last_mut() {
            Some((last, count)) if last.plus(u64::from(*count)) == start => *count += len,
            _ => {
                if self.runs.len() == Self::RUNS_MAX {
                    self.runs.remove(0);
                }
                self.runs.push((start, len));
            }
        }
    }

    /// Removes and returns the part of a run that transaction `tid` has allocated, as one piece.
    fn take(&mut self, tid: Tid, start: BlockNo, len: u32) -> Option<(BlockNo, u32)> {
        if self.tid != Some(tid) && !Fault::LateRecycling.is_injected() {
            return None;
        }
        let end = start.get() + u64::from(len);
        let common = |&(first, count): &(BlockNo, u32)| {
            let from = first.max(start);
            let to = end.min(first.get() + u64::from(count));
            let part = u32::try_from(to.checked_sub(from.get())?).ok()?;
            (part > 0).then_some((from, part))
        };
        let mut runs = self.runs.iter().enumerate().rev();
        let (index, (from, part)) = runs.find_map(|(index, run)| Some((index, common(run)?)))?;
        let (first, count) = self.runs[index];
        let before = u32::try_from(from.get() - first.get()).unwrap_or(0);
        let behind = count - before - part;
        self.runs[index].1 = before;
        if behind > 0 && (before == 0 || self.runs.len() < Self::RUNS_MAX) {
            self.runs.insert(index + 1, (from.plus(u64::from(part)), behind));
        }
        self.runs.retain(|&(_, count)| count > 0);
        Some((from, part))
    }
}

impl Space {
    /// Frees blocks of a file as [`Space::free`] does. The first of them was block `at` of the
    /// file. Blocks that the running transaction has allocated for the file return to its
    /// preallocation instead, and can be allocated again at once.
    ///
    /// Why that is safe: let transaction T allocate a block and free it. No durable or committing
    /// transaction says that the block is in use, or it could not have been allocated. Therefore no
    /// state that a crash can bring back refers to it. Before T is durable, a crash brings back the
    /// state before T, in which the block is free. After that, it brings back the state at the end
    /// of T, in which the block is free or belongs to its last owner. So data that is written there
    /// meanwhile goes to a free block or to its owner. If an earlier transaction had allocated the
    /// block, a crash before T is durable would bring the file back with a block of another file.
    /// Blocks with an image in the log are not recycled (the caller sees to that), nor are blocks
    /// to which data may still be under way.
    ///
    /// # Errors
    /// The errors of [`Space::free`].
    pub fn free_or_recycle(
        &self,
        handle: &mut Handle<'_>,
        preallocation: &Arc<Preallocation>,
        at: FileBlock,
        (start, len): (BlockNo, u32),
    ) -> Result<()> {
        let recent = preallocation
            .state
            .lock()
            .recent
            .take(handle.tid(), start, len)
            .filter(|_| self.shared.policy.preallocates());
        let Some((from, part)) = recent else { return self.free(handle, start, len) };
        let before = u32::try_from(from.get() - start.get()).unwrap_or(0);
        if before > 0 {
            self.free(handle, start, before)?;
        }
        if len > before + part {
            self.free(handle, from.plus(u64::from(part)), len - before - part)?;
        }
        self.shared.counters.add(Count::RecycledBlocks, part.into());
        let mut at = at.get().saturating_add(before);
        // A run may cross the end of a group; an allocation may not.
        for part in self.group_parts(from, part) {
            let (_, _, next, here) = part?;
            let allocation = self.free_to_allocation(handle, next, here)?;
            self.put_back(preallocation, at, allocation);
            at = at.saturating_add(here);
        }
        Ok(())
    }

    /// Returns blocks to a preallocation that were the blocks of its file from `at` on.
    fn put_back(&self, preallocation: &Arc<Preallocation>, at: u32, allocation: Allocation) {
        self.preallocations.list(preallocation);
        let _left = preallocation.change(self, |state| state.put_back(at, allocation));
    }
}

impl PreallocationState {
    /// Joins blocks with the tail, if they are adjacent to it in the file and on the device. Else
    /// they become a piece, until the file is truncated. Returns what is not held.
    fn put_back(&mut self, at: u32, mut allocation: Allocation) -> Option<Allocation> {
        if self.users == 0 || self.is_borrowed() {
            return Some(allocation);
        }
        let Some(mut tail) = self.tail.take(StreamTail::Empty) else {
            (self.tail, self.key) = (StreamTail::Held(allocation), at);
            return None;
        };
        if at.saturating_add(allocation.len()) == self.key {
            let Some(apart) = allocation.join(tail) else {
                (self.tail, self.key) = (StreamTail::Held(allocation), at);
                return None;
            };
            tail = apart;
        } else if self.key.saturating_add(tail.len()) == at {
            let Some(apart) = tail.join(allocation) else {
                self.tail = StreamTail::Held(tail);
                return None;
            };
            allocation = apart;
        }
        self.tail = StreamTail::Held(tail);
        self.pieces.insert(at, allocation)
    }
}
