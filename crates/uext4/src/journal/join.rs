//! The queue of requests that do not fit into the running transaction.
//!
//! What: joining without a wait is one compare-and-swap on the journal's [`PackedState`]. A request
//! that it refuses comes here: a handle with its need, a handle whose credits are reserved, or a
//! reservation.
//! Order: each kind of request has a FIFO queue. Ending handles, ending reservations and opening
//! transactions grant from the heads of the queues as long as the heads fit, so a waiter is woken
//! exactly when it has what it asked for, or when the journal is aborted. A new handle may overtake
//! the queue, because the fast path takes what fits without looking at it. Overtaking ends when the
//! transaction is full or closed: a waiter makes its caller request a commit, and the next
//! transaction grants from the heads as it opens.
//! Invariants: `reserved` changes, and a transaction opens, under the queue's lock only. An open
//! transaction counts all reserved credits. A handle whose need does not fit beside the reserved
//! credits does not block the requests behind it, because one of them may have to be granted before
//! the reservation can end.
//! Locking: under the queue's lock only the waiters' locks are taken; nothing is waited for.
//! Ablation: with `journal_join=herd` the waiters are those of [`Herd`], and the queues stay empty.
//! Kernel counterpart: `add_transaction_credits` and its waits in `fs/jbd2/transaction.c`.

mod request;

pub(super) use request::{CommitRequest, Grant, Outcome, Request, RequestKind, Waiter};

use super::ablation::{Delegation, Herd};
use super::admission_stats::AdmissionStats;
use super::packed_state::{PackedState, Refusal};
use crate::config::JoinMode;
use crate::stats::{WaitFor, Waits};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use uext4_ondisk::Tid;

#[derive(Debug)]
pub(super) struct JoinQueue {
    /// `journal_join=herd`: how joiners wait instead.
    herd: Option<Herd>,
    credits_max: u32,
    pub(super) inner: Mutex<JoinState>,
    /// Number of waiters. An ending handle reads it to see without the lock that there are none.
    pub(super) len: AtomicUsize,
    pub(super) stats: Arc<AdmissionStats>,
}

#[derive(Debug)]
pub(super) struct JoinState {
    /// Waiters by [`RequestKind`], oldest first.
    pub(super) queues: [VecDeque<Arc<Waiter>>; 3],
    pub(super) admission: AdmissionState,
    /// `checkpoint=inline`: joiners open the next transaction.
    pub(super) delegation: Option<Delegation>,
}

/// What an attempt to join depends on besides the [`PackedState`].
#[derive(Debug, Default)]
pub(super) struct AdmissionState {
    /// Credits of reservations whose handles have not started.
    pub(super) reserved: u32,
    /// Number of openings so far. A transaction that is closed and found empty opens again.
    pub(super) openings: u64,
    /// The opening whose commit has been requested.
    commit_requested: Option<u64>,
    /// The log has no room for the next transaction.
    is_short: bool,
    aborted: bool,
}

impl JoinQueue {
    pub(super) fn new(
        mode: JoinMode,
        waits: &Arc<Waits>,
        credits_max: u32,
        stats: Arc<AdmissionStats>,
    ) -> Self {
        let admission = AdmissionState::default();
        let inner = JoinState { queues: Default::default(), admission, delegation: None };
        Self {
            herd: (mode == JoinMode::Herd).then(|| Herd::new(Arc::clone(waits))),
            credits_max,
            inner: Mutex::new(LockRank::Journal, inner),
            len: AtomicUsize::new(0),
            stats,
        }
    }

    /// Most credits that can be reserved: half of the largest transaction, so that handles without
    /// a reservation still fit beside them.
    pub(super) const fn reserved_max(&self) -> u32 {
        self.credits_max / 2
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Grants the request if it fits and no earlier request blocks it; otherwise the caller waits
    /// as the [`Outcome`] says. The attempt and the start of the wait are atomic under the queue's
    /// lock, so the request misses no opening.
    pub(super) fn submit(
        &self,
        running: &PackedState,
        request: Request,
    ) -> (Outcome, CommitRequest) {
        if let Some(herd) = &self.herd {
            return herd.submit(self, running, request);
        }
        let mut inner = self.inner.lock();
        let index = request.kind as usize;
        let is_blocked =
            inner.queues[index].iter().any(|w| self.blocks_others(&inner.admission, w.request));
        let cause = if is_blocked {
            let is_closed = running.load().closed;
            inner.admission.cause(if is_closed { Refusal::Closed } else { Refusal::Full })
        } else {
            match self.attempt(&mut inner.admission, running, request) {
                Ok(grant) => {
                    // The started handle's reservation ended, so another one may fit.
                    let is_started = request.kind == RequestKind::StartReserved;
                    let commit = is_started.then(|| self.serve(&mut inner, running)).flatten();
                    return (Outcome::Granted(grant), commit);
                }
                Err(cause) => cause,
            }
        };
        self.stats.refused.of(cause).fetch_add(1, Ordering::Relaxed);
        if inner.delegation.as_mut().is_some_and(Delegation::assign) {
            return (Outcome::Granted(Grant::MakeRoom), None);
        }
        let waiter = Arc::new(Waiter::new(request, cause));
        inner.queues[index].push_back(Arc::clone(&waiter));
        self.update_len(&inner);
        let commit = inner.admission.request_commit(cause, running);
        (Outcome::Queued(waiter, cause), commit)
    }

    /// Credits came back, a handle ended, or a transaction opened: grants from the heads of the
    /// queues while they fit.
    pub(super) fn serve(&self, inner: &mut JoinState, running: &PackedState) -> CommitRequest {
        if let Some(herd) = &self.herd {
            herd.wake();
            return None;
        }
        let mut commit = None;
        for queue in 0..inner.queues.len() {
            let mut at = 0;
            while let Some(waiter) = inner.queues[queue].get(at) {
                match self.attempt(&mut inner.admission, running, waiter.request) {
                    Ok(grant) => {
                        waiter.grant(grant);
                        inner.queues[queue].remove(at);
                    }
                    Err(_) if !self.blocks_others(&inner.admission, waiter.request) => at += 1,
                    Err(cause) => {
                        commit = commit.or(inner.admission.request_commit(cause, running));
                        break;
                    }
                }
            }
        }
        self.update_len(inner);
        commit
    }

    /// Whether a queued `request` blocks those behind it.
    pub(super) fn blocks_others(&self, admission: &AdmissionState, request: Request) -> bool {
        request.kind != RequestKind::Join
            || admission.reserved + request.credits <= self.credits_max
    }

    /// Grants the request if it fits now.
    pub(super) fn attempt(
        &self,
        admission: &mut AdmissionState,
        running: &PackedState,
        request: Request,
    ) -> Result<Grant, WaitFor> {
        if admission.aborted {
            return Ok(Grant::Aborted);
        }
        let Request { kind, credits } = request;
        match kind {
            RequestKind::Join => match running.join(credits, self.credits_max) {
                Ok(joined) => Ok(Grant::Joined(joined)),
                Err(_) if !self.blocks_others(admission, request) => Err(WaitFor::ReservedCredits),
                Err(refusal) => Err(admission.cause(refusal)),
            },
            // The size is not checked, because the transaction counts reserved credits already.
            RequestKind::StartReserved => {
                let joined = running
                    .join(0, self.credits_max)
                    .map_err(|refusal| admission.cause(refusal))?;
                admission.reserved -= credits;
                self.stats.note_reserved(admission.reserved);
                Ok(Grant::Joined(joined))
            }
            RequestKind::Reserve => {
                if admission.reserved + credits > self.reserved_max() {
                    return Err(WaitFor::ReservedCredits);
                }
                match running.reserve(credits, self.credits_max) {
                    Ok(now) => self.stats.note_credits(now.credits),
                    // The next transaction counts them when it opens.
                    Err(Refusal::Closed) => {}
                    Err(refusal) => return Err(admission.cause(refusal)),
                }
                admission.reserved += credits;
                self.stats.note_reserved(admission.reserved);
                Ok(Grant::Reserved)
            }
        }
    }

    /// Publishes the number of queued requests.
    pub(super) fn update_len(&self, inner: &JoinState) {
        let len = inner.queues.iter().map(VecDeque::len).sum();
        self.len.store(len, Ordering::Release);
    }

    /// Serves the queue after credits came back or a handle ended.
    pub(super) fn wake(&self, running: &PackedState) -> CommitRequest {
        self.serve(&mut self.inner.lock(), running)
    }

    /// Opens transaction `tid`: the next one, or the same one again if it was empty.
    pub(super) fn open(&self, running: &PackedState, tid: Tid) -> CommitRequest {
        let mut inner = self.inner.lock();
        inner.open(running, tid);
        self.serve(&mut inner, running)
    }

    /// The log has no room for the next transaction. Waiters wait for that from now on.
    pub(super) fn note_shortage(&self) {
        let mut inner = self.inner.lock();
        inner.admission.is_short = true;
        if let Some(herd) = &self.herd {
            herd.note_shortage(&inner.admission);
        }
        for waiter in inner.queues.iter().flatten() {
            waiter.state.lock().cause = WaitFor::LogSpace;
            self.stats.refused.log_space.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends a reservation whose handle will not start. The running transaction gets back
    /// `returned` of its `credits`.
    pub(super) fn unreserve(
        &self,
        running: &PackedState,
        credits: u32,
        returned: u32,
    ) -> CommitRequest {
        let mut inner = self.inner.lock();
        running.unreserve(returned);
        inner.admission.reserved -= credits;
        self.stats.note_reserved(inner.admission.reserved);
        self.serve(&mut inner, running)
    }

    /// Ends every wait, because the journal is aborted.
    pub(super) fn abort(&self) {
        let mut inner = self.inner.lock();
        inner.admission.aborted = true;
        if let Some(herd) = &self.herd {
            return herd.wake();
        }
        for waiter in inner.queues.iter_mut().flat_map(|queue| queue.drain(..)) {
            waiter.grant(Grant::Aborted);
        }
        self.update_len(&inner);
    }
}

impl JoinState {
    /// Opens transaction `tid` without serving the queue.
    pub(super) fn open(&mut self, running: &PackedState, tid: Tid) {
        running.open(tid, self.admission.reserved);
        self.admission.openings += 1;
        self.admission.is_short = false;
        self.delegation = None;
    }
}

impl AdmissionState {
    /// The cause of a wait after `refusal`.
    pub(super) const fn cause(&self, refusal: Refusal) -> WaitFor {
        match (refusal, self.is_short) {
            (Refusal::Full, _) => WaitFor::TransactionFull,
            (Refusal::Closed, false) => WaitFor::TransactionLocked,
            (Refusal::Closed, true) => WaitFor::LogSpace,
        }
    }

    /// The transaction to commit for a request that waits for `cause`. A full transaction makes
    /// room by being committed; after a closed one the next transaction opens anyway.
    pub(super) fn request_commit(
        &mut self,
        cause: WaitFor,
        running: &PackedState,
    ) -> CommitRequest {
        let is_new = self.commit_requested != Some(self.openings);
        (cause == WaitFor::TransactionFull && is_new).then(|| {
            self.commit_requested = Some(self.openings);
            running.load().tid
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
