//! Requests to the join queue, and the grants that end a wait.

use crate::journal::packed_state::RunningState;
use crate::stats::WaitFor;
use crate::sync::{Condvar, LockRank, Mutex};
use std::sync::Arc;
use uext4_ondisk::Tid;

/// A request for credits of the running transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::journal) struct Request {
    pub(in crate::journal) kind: RequestKind,
    pub(in crate::journal) credits: u32,
}

/// The kinds of requests. Each has a queue of its own; the queues are served in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::journal) enum RequestKind {
    /// Start a handle whose credits are reserved.
    StartReserved,
    /// Reserve credits for a handle that starts later.
    Reserve,
    /// Start a handle.
    Join,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::journal) enum Grant {
    /// The handle has joined this transaction.
    Joined(RunningState),
    /// The credits are reserved.
    Reserved,
    /// `checkpoint=inline`: the log has no room for the next transaction, and the caller must make
    /// some.
    MakeRoom,
    /// The journal is aborted.
    Aborted,
}

/// The result of [`JoinQueue::submit`](super::JoinQueue::submit).
#[derive(Debug)]
pub(in crate::journal) enum Outcome {
    Granted(Grant),
    /// The request is queued, and the caller sleeps in [`Waiter::wait`].
    Queued(Arc<Waiter>, WaitFor),
    /// `journal_join=herd`: the caller submits the request again.
    Retry,
}

/// A transaction that a queued request does not fit into. The caller requests its commit. Each
/// opening of a transaction yields at most one.
pub(in crate::journal) type CommitRequest = Option<Tid>;

/// A queued request and the thread that sleeps for it.
#[derive(Debug)]
pub(in crate::journal) struct Waiter {
    pub(in crate::journal) request: Request,
    pub(super) state: Mutex<WaiterState>,
    wake: Condvar,
}

#[derive(Debug)]
pub(super) struct WaiterState {
    pub(super) granted: Option<Grant>,
    pub(super) cause: WaitFor,
}

impl Waiter {
    pub(super) fn new(request: Request, cause: WaitFor) -> Self {
        let state = WaiterState { granted: None, cause };
        Self { request, state: Mutex::new(LockRank::Leaf, state), wake: Condvar::new() }
    }

    /// Sleeps until the request is granted. Returns the grant and the latest cause of the sleep.
    pub(in crate::journal) fn wait(&self) -> (Grant, WaitFor) {
        let mut state = self.state.lock();
        loop {
            if let Some(grant) = state.granted {
                return (grant, state.cause);
            }
            self.wake.wait(&mut state);
        }
    }

    pub(in crate::journal) fn grant(&self, grant: Grant) {
        self.state.lock().granted = Some(grant);
        self.wake.notify_one();
    }
}
