//! The contrast `journal_join=herd`: everybody sleeps on one condition and tries again.

use super::{Ask, Entered, Grant, JoinQueue, Request, Want};
use crate::journal::counters::AdmissionStats;
use crate::journal::packed_state::PackedState;
use crate::stats::{Wait, WaitFor};
use crate::sync::atomic::Ordering;
use crate::sync::time::Instant;

/// A joiner of mode `herd` that sleeps.
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

impl JoinQueue {
    pub(super) fn run_with_herd(&self, running: &PackedState, request: Request) -> (Entered, Ask) {
        let mut inner = self.inner.lock();
        let mut sleep: Option<Sleep<'_>> = None;
        loop {
            let cause = match self.attempt(&mut inner.gate, running, request) {
                Ok(grant) => {
                    if request.want == Want::StartReserved {
                        self.opportunity.notify_all();
                    }
                    return (Entered::Granted(grant), None);
                }
                Err(cause) => cause,
            };
            let ask = inner.gate.ask(cause, running);
            if ask.is_some() {
                return (Entered::Again, ask);
            }
            self.stats.refused.of(cause).fetch_add(1, Ordering::Relaxed);
            if inner.gate.is_left_to_joiners() {
                return (Entered::Granted(Grant::MakeRoom), None);
            }
            if sleep.as_ref().is_none_or(|sleep| sleep.cause != cause) {
                drop(sleep.take());
                let _wait = self.waits.begin(cause);
                sleep = Some(Sleep { cause, began: Instant::now(), stats: &self.stats, _wait });
            }
            let opening = inner.gate.openings;
            self.len.fetch_add(1, Ordering::AcqRel);
            self.opportunity.wait(&mut inner);
            self.len.fetch_sub(1, Ordering::AcqRel);
            self.stats.wake_ups.fetch_add(1, Ordering::Relaxed);
            if inner.gate.was_short > opening
                && let Some(mut sleep) = sleep.take()
            {
                sleep.cause = WaitFor::LogSpace;
            }
        }
    }
}
