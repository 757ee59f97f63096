//! `journal_join=herd`: a thundering herd instead of a queue.
//!
//! What: all joiners that do not fit sleep on one condition. Each opening of a transaction and each
//! handle that returns credits wakes all of them, and each repeats its whole attempt, as in jbd2.

use crate::journal::admission_stats::AdmissionStats;
use crate::journal::join::{
    AdmissionState, CommitRequest, Grant, JoinQueue, Outcome, Request, RequestKind,
};
use crate::journal::packed_state::PackedState;
use crate::stats::{Wait, WaitFor, Waits};
use crate::sync::Condvar;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::time::Instant;
use std::sync::Arc;

/// The joiners that sleep.
#[derive(Debug)]
pub(in crate::journal) struct Herd {
    /// A request may fit now.
    opportunity: Condvar,
    /// The latest opening that had to wait for room in the log. Changes under the queue's lock.
    short_opening: AtomicU64,
    waits: Arc<Waits>,
}

/// One sleep of a joiner, for the statistics: it may span several wake-ups.
struct Sleep<'q> {
    cause: WaitFor,
    began: Instant,
    stats: &'q AdmissionStats,
    _wait: Wait<'q>,
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.stats.waited.of(self.cause).add_since(self.began);
    }
}

impl Herd {
    pub(in crate::journal) fn new(waits: Arc<Waits>) -> Self {
        Self { opportunity: Condvar::new(), short_opening: AtomicU64::new(0), waits }
    }

    /// [`JoinQueue::submit`], which returns when the request is granted or has to be repeated.
    pub(in crate::journal) fn submit(
        &self,
        queue: &JoinQueue,
        running: &PackedState,
        request: Request,
    ) -> (Outcome, CommitRequest) {
        let mut inner = queue.inner.lock();
        let mut sleep: Option<Sleep<'_>> = None;
        loop {
            let cause = match queue.attempt(&mut inner.admission, running, request) {
                Ok(grant) => {
                    if request.kind == RequestKind::StartReserved {
                        self.opportunity.notify_all();
                    }
                    return (Outcome::Granted(grant), None);
                }
                Err(cause) => cause,
            };
            let commit = inner.admission.request_commit(cause, running);
            if commit.is_some() {
                return (Outcome::Retry, commit);
            }
            queue.stats.refused.of(cause).fetch_add(1, Ordering::Relaxed);
            if inner.delegation.is_some() {
                return (Outcome::Granted(Grant::MakeRoom), None);
            }
            if sleep.as_ref().is_none_or(|sleep| sleep.cause != cause) {
                drop(sleep.take());
                let _wait = self.waits.begin(cause);
                sleep = Some(Sleep { cause, began: Instant::now(), stats: &queue.stats, _wait });
            }
            let slept_at = inner.admission.openings;
            queue.len.fetch_add(1, Ordering::AcqRel);
            self.opportunity.wait(&mut inner);
            queue.len.fetch_sub(1, Ordering::AcqRel);
            queue.stats.wake_ups.fetch_add(1, Ordering::Relaxed);
            let short = self.short_opening.load(Ordering::Relaxed);
            if (slept_at + 1..=inner.admission.openings).contains(&short)
                && let Some(mut sleep) = sleep.take()
            {
                sleep.cause = WaitFor::LogSpace;
            }
        }
    }

    /// Requests may fit now, or the journal is aborted.
    pub(in crate::journal) fn wake(&self) {
        self.opportunity.notify_all();
    }

    /// The log has no room for the next transaction.
    pub(in crate::journal) fn note_shortage(&self, admission: &AdmissionState) {
        self.short_opening.store(admission.openings + 1, Ordering::Relaxed);
    }
}
