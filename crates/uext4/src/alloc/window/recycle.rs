//! Blocks that a transaction takes and frees go back into the window that they came from.

use super::{State, Window};
use crate::alloc::{Claim, Space};
use crate::error::Result;
use crate::journal::Handle;
use crate::plant::{self, Fault};
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, Tid};

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

    /// What of a run transaction `tid` has taken, and forgets that.
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
                // Files are cut from their end; what remains of anything else is not worth knowing.
                let left = from.get() - self.runs[index].0.get();
                self.runs[index].1 = u32::try_from(left).unwrap_or(0);
                self.runs.retain(|&(_, count)| count > 0);
                (from, part)
            })
    }
}

impl Space {
    /// Frees blocks of a file as [`Space::free`] does; but what the running transaction has taken
    /// for the file goes back into its window and can be taken again at once.
    ///
    /// Why that is safe: a block that T takes is one that no durable or committing transaction
    /// says is in use, or it could not have been claimed. If T takes it and frees it, then nothing
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
        window: &Arc<Window>,
        start: BlockNo,
        len: u32,
    ) -> Result<()> {
        let fresh = window
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
        self.windows.recycled_blocks.fetch_add(u64::from(part), Ordering::Relaxed);
        let (mut at, mut left) = (from, part);
        while left > 0 {
            // A stream goes on from the end of a group in the next one; a claim does not.
            let (group, bit) = self.locate(at)?;
            let here = left.min(self.layout.blocks_in_group(group) - bit);
            self.restore(window, self.free_to_claim(handle, at, here)?);
            at = at.plus(u64::from(here));
            left -= here;
        }
        Ok(())
    }

    /// Puts blocks back before those that a window holds, if they lie there.
    fn restore(&self, window: &Arc<Window>, mut claim: Claim) {
        self.windows.list(window);
        let mut inner = window.inner.lock();
        let mut left = None;
        if inner.users == 0 {
            left = Some(claim);
        } else {
            match std::mem::replace(&mut inner.state, State::Empty) {
                State::Empty => {
                    inner.state = State::Held(claim);
                    self.windows.held.fetch_add(1, Ordering::AcqRel);
                }
                State::Held(rest) => {
                    // The one that the stream comes to next is the better one to hold.
                    left = claim.join(rest);
                    inner.state = State::Held(claim);
                }
                state => {
                    inner.state = state;
                    left = Some(claim);
                }
            }
        }
        drop(inner);
        drop(left);
    }
}
