//! Admission of handles to the running transaction.
//!
//! What: [`Journal::start`] joins by one compare-and-swap, or through the join queue if that is
//! refused. [`Reserved`] holds credits for a handle that starts later. An ending handle returns the
//! credits it did not use.
//! Invariants: a handle's whole need is granted before it starts, so no two handles wait for each
//! other. A reserved handle starts without a check of the size, so a thread that finishes with one
//! does so however full the transaction is.
//! Ablation: `journal_credits=worst` and `checkpoint=inline`, see [`super::ablation`].
//! Kernel counterpart: `start_this_handle` and reserved handles in `fs/jbd2/transaction.c`.

use super::durable::Urgency;
use super::join::{CommitRequest, Grant, Outcome, Request, RequestKind, Waiter};
use super::packed_state::{HANDLES_MAX, RunningState};
use super::{Handle, Journal};
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::stats::WaitFor;
use crate::sync::atomic::Ordering;
use crate::sync::time::Instant;
use crate::sync::{LockRank, RankGuard};

/// Credits for one handle that starts later. The running transaction counts them and, until the
/// handle starts, so does each one that follows. Dropping a `Reserved` returns them.
///
/// A `Reserved` is not a handle: its thread may start handles and wait for data. But the number of
/// reserved credits is limited. Therefore its thread waits for nothing that a thread may hold which
/// waits for a reservation, and it makes a second reservation only if other threads end the first.
#[derive(Debug)]
pub struct Reserved<'j> {
    journal: &'j Journal,
    credits: u32,
}

impl Journal {
    /// Starts a handle that brings at most `credits` blocks into the running transaction. Waits
    /// while that transaction is closing or full.
    ///
    /// # Errors
    /// The journal is aborted, or the need is larger than any transaction.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        let rank = RankGuard::enter(LockRank::Handle);
        let need = self.need(credits, self.credits_max)?;
        self.check_not_aborted()?;
        let joined = match self.running_state.join(need, self.credits_max) {
            Ok(joined) => joined,
            Err(_) => {
                self.stats.joins_waited.fetch_add(1, Ordering::Relaxed);
                let began = Instant::now();
                let joined = self.join_queued(RequestKind::Join, need)?;
                self.times(joined.tid).note_wait(began.elapsed());
                joined
            }
        };
        self.note_joined(&joined);
        Ok(Handle::joined(self, joined.tid, need, rank))
    }

    /// Reserves `credits` for a handle that starts later. Waits while too many credits are reserved
    /// ([`Journal::reserved_max`]) or the running transaction is full. The calling thread has no
    /// open handle.
    ///
    /// # Errors
    /// The journal is aborted, or the need is larger than what can be reserved.
    pub fn reserve(&self, credits: u32) -> Result<Reserved<'_>> {
        // Asserts that the thread has no open handle.
        let _rank = RankGuard::enter(LockRank::Handle);
        let need = self.need(credits, self.reserved_max())?;
        self.check_not_aborted()?;
        match self.submit(Request { kind: RequestKind::Reserve, credits: need })? {
            Grant::Reserved => Ok(Reserved { journal: self, credits: need }),
            _ => Err(self.aborted_error()),
        }
    }

    /// Most credits that all threads together can have reserved: half of the largest transaction.
    #[must_use]
    pub fn reserved_max(&self) -> u32 {
        self.queue.reserved_max()
    }

    /// The credits to take for an exact need of `credits`.
    fn need(&self, credits: u32, most: u32) -> Result<u32> {
        if credits > most {
            let context = format!("a handle of {credits} blocks, at most {most}");
            return Err(Error::new(ErrorKind::Internal, context));
        }
        Ok(self.config.journal_credits.need(credits, most))
    }

    fn note_joined(&self, joined: &RunningState) {
        self.times(joined.tid).note_start(&self.clock);
        self.stats.handles.fetch_add(1, Ordering::Relaxed);
        self.stats.admission.note_credits(joined.credits);
    }

    /// Joins through the queue.
    fn join_queued(&self, kind: RequestKind, credits: u32) -> Result<RunningState> {
        match self.submit(Request { kind, credits })? {
            Grant::Joined(joined) => Ok(joined),
            _ => Err(self.aborted_error()),
        }
    }

    /// Submits a request to the queue and waits until it is granted.
    fn submit(&self, request: Request) -> Result<Grant> {
        loop {
            let (outcome, commit) = self.queue.submit(&self.running_state, request);
            self.request_commit_of(commit);
            let grant = match outcome {
                Outcome::Granted(grant) => grant,
                Outcome::Queued(waiter, cause) => self.sleep(&waiter, cause),
                Outcome::Retry => continue,
            };
            if grant != Grant::MakeRoom {
                return Ok(grant);
            }
            if let Some(grant) = self.make_room(request)? {
                return Ok(grant);
            }
        }
    }

    fn sleep(&self, waiter: &Waiter, cause: WaitFor) -> Grant {
        let began = Instant::now();
        let wait = self.waits.begin(cause);
        let (grant, cause) = waiter.wait();
        drop(wait);
        let stats = &self.stats.admission;
        stats.wake_ups.fetch_add(1, Ordering::Relaxed);
        stats.waited.of(cause).add_since(began);
        grant
    }

    pub(super) fn request_commit_of(&self, commit: CommitRequest) {
        if let Some(tid) = commit {
            self.request(tid, Urgency::AtOnce);
        }
    }

    pub(super) fn extend(&self, more: u32) -> bool {
        self.running_state.extend(more, self.credits_max)
    }

    /// Ends a handle with `unused` credits.
    pub(super) fn stop(&self, unused: u32) {
        let returned = self.config.journal_credits.returned(unused);
        if Fault::SecondStop.is_injected() {
            self.running_state.leave(0);
        }
        let Some(after) = self.running_state.leave(returned) else {
            self.broken("a handle that ends is counted, with its credits");
            self.commit_wake.notify_all();
            return;
        };
        if after.closed {
            if after.handles == 0 && !Fault::LostWakeUp.is_injected() {
                let _state = self.state.lock();
                self.commit_wake.notify_one();
            }
        } else if (returned > 0 || after.handles + 1 == HANDLES_MAX) && !self.queue.is_empty() {
            self.request_commit_of(self.queue.wake(&self.running_state));
        }
    }
}

impl<'j> Reserved<'j> {
    /// Number of reserved credits.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Starts the handle, whatever the size of the running transaction. Waits only while that is
    /// closed.
    ///
    /// # Errors
    /// The journal is aborted.
    pub fn start(mut self) -> Result<Handle<'j>> {
        let rank = RankGuard::enter(LockRank::Handle);
        let journal = self.journal;
        journal.check_not_aborted()?;
        let joined = journal.join_queued(RequestKind::StartReserved, self.credits)?;
        journal.note_joined(&joined);
        let credits = std::mem::take(&mut self.credits);
        Ok(Handle::joined(journal, joined.tid, credits, rank))
    }

    /// Runs `operation` in the handle. See [`Journal::run`].
    ///
    /// # Errors
    /// Those of [`Reserved::start`] and of `operation`.
    pub fn run<T>(self, operation: impl FnOnce(&mut Handle<'_>) -> Result<T>) -> Result<T> {
        let journal = self.journal;
        journal.run_in(self.start()?, operation)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.credits > 0 {
            let journal = self.journal;
            let returned = journal.config.journal_credits.returned(self.credits);
            let queue = &journal.queue;
            let commit = queue.unreserve(&journal.running_state, self.credits, returned);
            journal.request_commit_of(commit);
        }
    }
}
