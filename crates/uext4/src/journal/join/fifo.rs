//! Ordered admission: requests queue by kind, and are granted from the heads.

use super::request::SERVING_ORDER;
use super::{CommitRequest, Grant, Inner, JoinQueue, Outcome, Request, RequestKind, WaitPolicy};
use super::{PackedState, Waiter};
use crate::journal::packed_state::Refusal;
use crate::stats::WaitFor;
use crate::sync::atomic::Ordering;
use std::sync::Arc;

/// The production policy of [`JoinQueue`].
#[derive(Debug)]
pub(in crate::journal) struct Fifo;

impl WaitPolicy for Fifo {
    fn submit(
        &self,
        queue: &JoinQueue,
        running: &PackedState,
        request: Request,
    ) -> (Outcome, CommitRequest) {
        let mut inner = queue.inner.lock();
        let index = request.kind as usize;
        let is_blocked =
            inner.queues[index].iter().any(|w| queue.blocks_others(&inner.admission, w.request));
        let cause = if is_blocked {
            let is_closed = running.load().closed;
            inner.admission.cause(if is_closed { Refusal::Closed } else { Refusal::Full })
        } else {
            match queue.attempt(&mut inner.admission, running, request) {
                Ok(grant) => {
                    // The started handle's reservation ended, so another one may fit.
                    let is_started = request.kind == RequestKind::StartReserved;
                    let commit = if is_started { serve(queue, &mut inner, running) } else { None };
                    return (Outcome::Granted(grant), commit);
                }
                Err(cause) => cause,
            }
        };
        queue.stats.refused.of(cause).fetch_add(1, Ordering::Relaxed);
        if inner.delegation.as_mut().is_some_and(|delegation| delegation.assign()) {
            return (Outcome::Granted(Grant::MakeRoom), None);
        }
        let waiter = Arc::new(Waiter::new(request, cause));
        inner.queues[index].push_back(Arc::clone(&waiter));
        queue.update_len(&inner);
        let commit = inner.admission.request_commit(cause, running);
        (Outcome::Queued(waiter, cause), commit)
    }

    fn wake(&self, queue: &JoinQueue, inner: &mut Inner, running: &PackedState) -> CommitRequest {
        serve(queue, inner, running)
    }

    fn note_shortage(&self, queue: &JoinQueue, inner: &mut Inner) {
        for waiter in inner.queues.iter().flatten() {
            waiter.state.lock().cause = WaitFor::LogSpace;
            queue.stats.refused.log_space.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn abort(&self, inner: &mut Inner) {
        for waiter in inner.queues.iter_mut().flat_map(|queue| queue.drain(..)) {
            waiter.grant(Grant::Aborted);
        }
    }
}

/// Grants from the heads of the queues while they fit.
fn serve(queue: &JoinQueue, inner: &mut Inner, running: &PackedState) -> CommitRequest {
    let mut commit = None;
    for kind in SERVING_ORDER {
        let mut at = 0;
        while let Some(waiter) = inner.queues[kind as usize].get(at) {
            match queue.attempt(&mut inner.admission, running, waiter.request) {
                Ok(grant) => {
                    waiter.grant(grant);
                    inner.queues[kind as usize].remove(at);
                }
                Err(_) if !queue.blocks_others(&inner.admission, waiter.request) => at += 1,
                Err(cause) => {
                    commit = commit.or(inner.admission.request_commit(cause, running));
                    break;
                }
            }
        }
    }
    queue.update_len(inner);
    commit
}
