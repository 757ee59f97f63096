//! Blocks that a transaction takes and frees go back into the window that they came from.

use super::{Inner, Preallocation, State};
use crate::alloc::{Allocation, Space};
use crate::error::Result;
use crate::journal::Handle;
use crate::plant::{self, Fault};
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, FileBlock, Tid};

/// The latest runs that a transaction has taken.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    tid: Option<Tid>,
    runs: Vec<(BlockNo, u32)>,
}

impl Fresh {
    /// Most runs that are kept in mind: those of a larger file wait for the commit when it is cut.
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

    /// What of a run transaction `tid` has taken, in one piece, and forgets that.
    fn forget(&mut self, tid: Tid, start: BlockNo, len: u32) -> Option<(BlockNo, u32)> {
        if self.tid != Some(tid) && !plant::is(Fault::LateRecycling) {
            return None;
        }
        let end = start.get() + u64::from(len);
        self.runs
            .iter()
            .enumerate()
            .rev()
            .find_map(|(index, &(first, count))| {
                let from = first.max(start);
                let to = end.min(first.get() + u64::from(count));
                let part =
                    u32::try_from(to.checked_sub(from.get())?).ok().filter(|&part| part > 0)?;
                Some((index, from, part))
            })
            .map(|(index, from, part)| {
                let (first, count) = self.runs[index];
                let before = u32::try_from(from.get() - first.get()).unwrap_or(0);
                let behind = count - before - part;
                self.runs[index].1 = before;
                if behind > 0 && (before == 0 || self.runs.len() < Self::RUNS_MAX) {
                    self.runs.insert(index + 1, (from.plus(u64::from(part)), behind));
                }
                self.runs.retain(|&(_, count)| count > 0);
                (from, part)
            })
    }
}

impl Space {
    /// Frees blocks of a file, of which the first was its block `at`, as [`Space::free`] does; but
    /// what the running transaction has taken for the file goes back into its window and can be
    /// taken again at once.
    ///
    /// Why that is safe: a block that T takes is one that no durable or committing transaction says
    /// is in use, or it could not have been allocated. If T takes it and frees it, then nothing
    /// that a crash may bring back leads there: before T is durable the state before it counts, in
    /// which the block is free; after that the state at its end, in which it is free, or what T
    /// took it for last. So whatever is written there meanwhile is written to a free block, or to
    /// its owner. Blocks with an image in the log are not recycled (the caller sees to it), nor are
    /// blocks that data may still be on its way to. Had an earlier transaction taken the block, a
    /// crash before T is durable would bring the file back with the block of another.
    ///
    /// # Errors
    /// As [`Space::free`].
    pub fn free_or_recycle(
        &self,
        handle: &mut Handle<'_>,
        preallocation: &Arc<Preallocation>,
        at: FileBlock,
        (start, len): (BlockNo, u32),
    ) -> Result<()> {
        let fresh = preallocation
            .inner
            .lock()
            .fresh
            .forget(handle.tid(), start, len)
            .filter(|_| self.shared.options.reserve);
        let Some((from, part)) = fresh else { return self.free(handle, start, len) };
        let before = u32::try_from(from.get() - start.get()).unwrap_or(0);
        if before > 0 {
            self.free(handle, start, before)?;
        }
        if len > before + part {
            self.free(handle, from.plus(u64::from(part)), len - before - part)?;
        }
        self.preallocations.recycled_blocks.fetch_add(u64::from(part), Ordering::Relaxed);
        let mut done = 0;
        while done < part {
            // A stream goes on from the end of a group in the next one; an allocation does not.
            let next = from.plus(u64::from(done));
            let (group, bit) = self.locate(next)?;
            let here = (part - done).min(self.layout.blocks_in_group(group) - bit);
            let allocation = self.free_to_allocation(handle, next, here)?;
            self.restore(preallocation, at.get().saturating_add(before + done), allocation);
            done += here;
        }
        Ok(())
    }

    /// Puts blocks back that were those of the file from `at` on.
    fn restore(&self, preallocation: &Arc<Preallocation>, at: u32, allocation: Allocation) {
        self.preallocations.list(preallocation);
        let left = self.restore_in(&mut preallocation.inner.lock(), at, allocation);
        drop(left);
    }

    /// To what the stream goes on in, if they lie before or behind that in the file and on the
    /// device; else they are held for the blocks that they were, until the file is cut. What nobody
    /// holds comes back.
    fn restore_in(
        &self,
        inner: &mut Inner,
        at: u32,
        mut allocation: Allocation,
    ) -> Option<Allocation> {
        if inner.users == 0 {
            return Some(allocation);
        }
        let left = match std::mem::replace(&mut inner.state, State::Empty) {
            State::Empty => {
                (inner.state, inner.key) = (State::Held(allocation), at);
                self.preallocations.held.fetch_add(1, Ordering::AcqRel);
                return None;
            }
            State::Held(mut held) => {
                if at.saturating_add(allocation.len()) == inner.key {
                    match allocation.join(held) {
                        None => {
                            (inner.state, inner.key) = (State::Held(allocation), at);
                            return None;
                        }
                        Some(apart) => {
                            inner.state = State::Held(apart);
                            allocation
                        }
                    }
                } else {
                    let follows = inner.key.saturating_add(held.len()) == at;
                    let left = if follows { held.join(allocation) } else { Some(allocation) };
                    inner.state = State::Held(held);
                    left?
                }
            }
            state => {
                inner.state = state;
                return Some(allocation);
            }
        };
        self.put_piece(&mut inner.pieces, at, left)
    }
}
