//! Who waits to join a transaction.
//!
//! What: a queue of joiners with a known need. Handles that end and transactions that open grant
//! from its head, as long as the head fits: a waiter is woken exactly when it has joined, or when
//! the journal is aborted.
//! Order: those who wait join in the order in which they came, and a small need behind a large one
//! waits for it. Who does not wait yet may overtake them: the fast path takes what fits without a
//! look at the queue, also between the opening of a transaction and its first grant. Overtaking
//! ends when the transaction is full or closed; while the queue is not empty, a commit is asked
//! for, and each transaction that opens grants from the head.
//! Locking: the queue's lock is a leaf; each waiter sleeps on a lock of its own.

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use uext4_ondisk::Tid;

#[derive(Debug)]
pub(super) struct JoinQueue {
    waiters: Mutex<VecDeque<Arc<Waiter>>>,
    /// Length of `waiters`, so that a leaving handle need not take the lock to see it empty.
    len: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct Waiter {
    need: u32,
    granted: Mutex<Option<Grant>>,
    wake: Condvar,
}

/// What ends a wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Grant {
    /// The waiter has joined this transaction.
    Joined(Tid),
    /// The journal is aborted.
    Aborted,
}

impl Waiter {
    pub(super) fn wait(&self) -> Grant {
        let mut granted = self.granted.lock();
        loop {
            if let Some(grant) = *granted {
                return grant;
            }
            self.wake.wait(&mut granted);
        }
    }

    fn grant(&self, grant: Grant) {
        *self.granted.lock() = Some(grant);
        self.wake.notify_one();
    }
}

impl JoinQueue {
    pub(super) fn new() -> Self {
        Self { waiters: Mutex::new(LockRank::Journal, VecDeque::new()), len: AtomicUsize::new(0) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Joins through `try_join` if nobody is before us, else waits in line. `try_join` runs under
    /// the queue's lock, so a transaction that opens meanwhile cannot be missed.
    pub(super) fn join_or_enqueue(
        &self,
        need: u32,
        try_join: impl FnOnce() -> Option<Grant>,
    ) -> Result<Grant, Arc<Waiter>> {
        let mut waiters = self.waiters.lock();
        if waiters.is_empty()
            && let Some(grant) = try_join()
        {
            return Ok(grant);
        }
        let waiter = Arc::new(Waiter {
            need,
            granted: Mutex::new(LockRank::Leaf, None),
            wake: Condvar::new(),
        });
        waiters.push_back(Arc::clone(&waiter));
        self.len.store(waiters.len(), Ordering::Release);
        Err(waiter)
    }

    /// Grants from the head while `try_join(need)` succeeds.
    pub(super) fn grant_while(&self, mut try_join: impl FnMut(u32) -> Option<Grant>) {
        let mut waiters = self.waiters.lock();
        while let Some(head) = waiters.front() {
            let Some(grant) = try_join(head.need) else { break };
            head.grant(grant);
            waiters.pop_front();
        }
        self.len.store(waiters.len(), Ordering::Release);
    }

    /// Opens the next transaction through `open`, under the queue's lock, then grants as
    /// [`JoinQueue::grant_while`].
    pub(super) fn open_and_grant(
        &self,
        open: impl FnOnce(),
        try_join: impl FnMut(u32) -> Option<Grant>,
    ) {
        {
            let _waiters = self.waiters.lock();
            open();
        }
        self.grant_while(try_join);
    }

    /// Ends every wait: the journal is aborted.
    pub(super) fn abort(&self) {
        let mut waiters = self.waiters.lock();
        for waiter in waiters.drain(..) {
            waiter.grant(Grant::Aborted);
        }
        self.len.store(0, Ordering::Release);
    }
}
