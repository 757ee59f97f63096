//! `checkpoint=inline`: joiners make room in the log.
//!
//! What: no checkpoint runs in the background. When a commit leaves no room for the next
//! transaction, none opens. Joiners then checkpoint, one thread at a time and one transaction at a
//! time, and the first to find enough room opens the next transaction.
//! Locking: a joiner takes the checkpoint lock with any rank up to `Handle` held.

use crate::config::CheckpointMode;
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::journal::Journal;
use crate::journal::join::{CommitRequest, Grant, JoinQueue, Request};
use crate::journal::packed_state::PackedState;
use crate::journal::recovery::AbortOnPanic;
use crate::stats::WaitFor;
use crate::sync::atomic::Ordering;
use crate::sync::time::Instant;
use std::collections::VecDeque;
use uext4_ondisk::Tid;

/// One transaction per checkpoint, 64 blocks per write, as in jbd2.
const BATCH_BLOCKS: usize = 1;
const WRITE_BLOCKS: usize = 64;

/// The opening of the next transaction is left to joiners, because the log has no room for it.
#[derive(Debug)]
pub(in crate::journal) struct Delegation {
    /// The transaction to open.
    tid: Tid,
    /// A queued joiner has been sent to make room.
    is_assigned: bool,
}

impl Delegation {
    /// True for the first caller, which makes room.
    pub(in crate::journal) fn assign(&mut self) -> bool {
        !std::mem::replace(&mut self.is_assigned, true)
    }
}

impl JoinQueue {
    /// Leaves the opening of transaction `tid` to joiners. With a FIFO queue one waiter is sent, or
    /// the next request if there is none; a herd is woken as a whole.
    pub(super) fn delegate(&self, running: &PackedState, tid: Tid) {
        let mut inner = self.inner.lock();
        inner.delegation = Some(Delegation { tid, is_assigned: false });
        if Fault::UnsentJoiner.is_injected() {
            return;
        }
        let Some(waiter) = inner.queues.iter_mut().find_map(VecDeque::pop_front) else {
            // The queue is empty, so this wakes the herd or does nothing.
            let _ = self.serve(&mut inner, running);
            return;
        };
        waiter.grant(Grant::MakeRoom);
        inner.delegation.as_mut().map(Delegation::assign);
        self.update_len(&inner);
    }

    pub(super) fn is_delegated(&self) -> bool {
        self.inner.lock().delegation.is_some()
    }

    /// Opens the delegated transaction unless another joiner has opened it. Serves `request` first,
    /// because its thread made the room. Returns what it was granted.
    pub(super) fn open_delegated(
        &self,
        running: &PackedState,
        request: Request,
    ) -> (Option<Grant>, CommitRequest) {
        let mut inner = self.inner.lock();
        let Some(Delegation { tid, .. }) = inner.delegation else { return (None, None) };
        inner.open(running, tid);
        let granted = self.attempt(&mut inner.admission, running, request).ok();
        (granted, self.serve(&mut inner, running))
    }
}

impl Journal {
    /// With `checkpoint=inline`, leaves the opening of `tid` to joiners if the log still has no
    /// room for it. False if the caller opens it.
    pub(in crate::journal) fn delegates_opening(&self, tid: Tid) -> bool {
        let delegates =
            self.config.checkpoint == CheckpointMode::Inline && !self.has_room(&self.state.lock());
        if delegates {
            self.queue.delegate(&self.running_state, tid);
        }
        delegates
    }

    /// A joiner makes room in the log, one transaction at a time, and opens the next transaction
    /// when it fits. Returns what `request` was granted, if this joiner opened it.
    ///
    /// # Errors
    /// The journal is or gets aborted.
    pub(in crate::journal) fn make_room(&self, request: Request) -> Result<Option<Grant>> {
        let _guard = AbortOnPanic(self);
        let _wait = self.waits.begin(WaitFor::LogSpace);
        let began = Instant::now();
        let made = loop {
            let one = self.checkpoint_lock.lock();
            if self.is_aborted() {
                break Err(self.aborted_error());
            }
            if !self.queue.is_delegated() {
                break Ok(None);
            }
            if self.has_room(&self.state.lock()) {
                let (granted, commit) = self.queue.open_delegated(&self.running_state, request);
                self.request_commit_of(commit);
                break Ok(granted);
            }
            let checkpoints = || self.stats.checkpoints.load(Ordering::Relaxed);
            let before = checkpoints();
            let round = self.checkpoint_locked(BATCH_BLOCKS, WRITE_BLOCKS);
            self.stats.checkpoints_forced.fetch_add(checkpoints() - before, Ordering::Relaxed);
            drop(one);
            match round {
                // Other threads must go on before there is an image to write.
                Ok(0) => crate::sync::thread::pause(),
                Ok(_) => {}
                Err(error) => {
                    self.abort(error.clone());
                    break Err(error);
                }
            }
        };
        self.stats.admission.waited.log_space.add_since(began);
        made
    }
}
