//! What joiners ask for, and what ends their wait.

use crate::journal::packed_state::RunningState;
use crate::stats::WaitFor;
use crate::sync::{Condvar, LockRank, Mutex};
use std::sync::Arc;
use uext4_ondisk::Tid;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::journal) struct Request {
    pub(in crate::journal) want: Want,
    /// Credits.
    pub(in crate::journal) need: u32,
}

/// The kinds of requests, in the order in which their lines are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::journal) enum Want {
    /// A handle whose credits are reserved.
    StartReserved,
    /// Credits for a handle that starts later.
    Reserve,
    /// A handle.
    Join,
}

pub(super) const LINES: [Want; 3] = [Want::StartReserved, Want::Reserve, Want::Join];

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::journal) enum Grant {
    /// The handle has joined this transaction.
    Joined(RunningState),
    /// The credits are reserved.
    Reserved,
    /// No transaction is open for want of room in the log: the caller is to make room.
    MakeRoom,
    /// The journal is aborted.
    Aborted,
}

/// What [`JoinQueue::enter`] comes to.
#[derive(Debug)]
pub(in crate::journal) enum Entered {
    /// At once, or in mode `herd` after sleeping.
    Granted(Grant),
    /// The caller stands in line: [`Waiter::wait`].
    InLine(Arc<Waiter>, WaitFor),
    /// The caller is to enter again.
    Again,
}

/// A transaction that somebody in line does not fit into: the caller asks for its commit. Told
/// once for each opening.
pub(in crate::journal) type Ask = Option<Tid>;

#[derive(Debug)]
pub(in crate::journal) struct Waiter {
    pub(super) request: Request,
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

    /// Sleeps until there is a grant; with it the last cause of the sleep.
    pub(in crate::journal) fn wait(&self) -> (Grant, WaitFor) {
        let mut state = self.state.lock();
        loop {
            if let Some(grant) = state.granted {
                return (grant, state.cause);
            }
            self.wake.wait(&mut state);
        }
    }

    pub(super) fn grant(&self, grant: Grant) {
        self.state.lock().granted = Some(grant);
        self.wake.notify_one();
    }
}
