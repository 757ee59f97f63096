//! Waits for a transaction to be durable.
//!
//! What: a sync requests the commit of a transaction and sleeps until that is durable. Only the
//! first sync to request it takes the journal's lock. The others find the request made, increment a
//! count, and sleep under a lock of their own, from which they wake without the journal's.
//! Invariants: a waiter counts itself before it requests. `requested` is reset before
//! `empty_closes` changes, so a thread that misses one sees the other. The event that ends a wait
//! is stored before the waiters are woken, and a waiter reads it under the lock under which it
//! falls asleep.
//! Locking: the lock of the waiters is a leaf, held only to read the event and to fall asleep.

use super::{Journal, JournalState, aborted, later, slot};
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::stats::WaitFor;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::time::Instant;
use crate::sync::{Condvar, LockRank, Mutex};
use std::time::Duration;
use uext4_ondisk::Tid;

/// The waiting syncs, indexed by the low bit of the transaction they wait for.
#[derive(Debug)]
pub(super) struct SyncWaiters {
    sleep: Mutex<()>,
    wake: [Condvar; 2],
    waiting: [AtomicU32; 2],
    /// Number of waiting syncs that wakes the committer; 0: none does.
    goal: AtomicU32,
    /// Copy of `JournalState::requested`.
    requested: AtomicU32,
    /// Number of times that a transaction was closed, found empty and opened again.
    empty_closes: AtomicU64,
}

impl SyncWaiters {
    pub(super) fn new(durable: Tid) -> Self {
        Self {
            sleep: Mutex::new(LockRank::Leaf, ()),
            wake: [Condvar::new(), Condvar::new()],
            waiting: [AtomicU32::new(0), AtomicU32::new(0)],
            goal: AtomicU32::new(0),
            requested: AtomicU32::new(durable.get()),
            empty_closes: AtomicU64::new(0),
        }
    }

    /// Number of syncs that wait for transaction `tid`.
    pub(super) fn waiting(&self, tid: Tid) -> u32 {
        self.waiting[slot(tid)].load(Ordering::SeqCst)
    }

    /// Wakes the waiters of transaction `tid`, which is durable or was found empty. Returns their
    /// number.
    pub(super) fn wake(&self, tid: Tid) -> u32 {
        let woken = self.waiting[slot(tid)].swap(0, Ordering::SeqCst);
        drop(self.sleep.lock());
        self.wake[slot(tid)].notify_all();
        woken
    }

    /// Wakes all waiters.
    pub(super) fn wake_all(&self) {
        drop(self.sleep.lock());
        self.wake.iter().for_each(Condvar::notify_all);
    }

    /// Makes the sync that completes `goal` waiters wake the committer. The committer calls this
    /// under the journal's lock and reads the count afterwards.
    pub(super) fn set_goal(&self, goal: u32) {
        self.goal.store(goal, Ordering::SeqCst);
    }

    /// Adds `count` waiters. True if these complete the goal of the committer.
    fn arrive(&self, tid: Tid, count: u32) -> bool {
        let waiting = self.waiting[slot(tid)].fetch_add(count, Ordering::SeqCst) + count;
        let goal = self.goal.load(Ordering::SeqCst);
        goal != 0 && waiting >= goal && self.goal.swap(0, Ordering::SeqCst) != 0
    }
}

impl Journal {
    /// Whether transaction `tid` is durable.
    #[must_use]
    pub fn is_durable(&self, tid: Tid) -> bool {
        !tid.is_after(Tid(self.durable.load(Ordering::SeqCst)))
    }

    /// Returns when the current contents of transaction `tid` are durable. Commits it if it runs.
    ///
    /// # Errors
    /// The journal is aborted before that.
    pub fn wait_durable(&self, tid: Tid) -> Result<()> {
        self.wait_durable_for(tid, 1)
    }

    /// [`Journal::wait_durable`] on behalf of `count` syncs.
    pub(crate) fn wait_durable_for(&self, tid: Tid, count: u32) -> Result<()> {
        if self.is_durable(tid) {
            return Ok(());
        }
        let begun = Instant::now();
        let syncs = &self.sync_waiters;
        // A transaction that is closed and found empty opens again under its id. It held nothing
        // when this call began.
        let empty_closes = syncs.empty_closes.load(Ordering::SeqCst);
        let was_empty = || syncs.empty_closes.load(Ordering::SeqCst) != empty_closes;
        let completes_batch = syncs.arrive(tid, count);
        {
            let _wait = self.waits.begin(WaitFor::Commit);
            if tid.is_after(Tid(syncs.requested.load(Ordering::SeqCst))) {
                if !self.commit_in_place(tid) {
                    self.request(tid, Urgency::Batched);
                }
            } else if completes_batch {
                drop(self.state.lock());
                self.commit_wake.notify_one();
            }
            let mut sleep = syncs.sleep.lock();
            while !(self.is_durable(tid) || was_empty() || self.is_aborted()) {
                syncs.wake[slot(tid)].wait(&mut sleep);
            }
        }
        self.stats.sync_wait.add_since(begun);
        // After a failed commit the committer may close the next transaction and find it empty.
        // That says nothing about this one.
        let is_failed = self.is_aborted() && !Fault::TrustedEmptyClose.is_injected();
        if self.is_durable(tid) || (was_empty() && !is_failed) {
            return Ok(());
        }
        Err(self.aborted_error())
    }

    /// Drops all requests for a commit.
    pub(super) fn forget_requests(&self) {
        let mut state = self.state.lock();
        state.requested = state.durable;
        self.sync_waiters.requested.store(state.requested.get(), Ordering::SeqCst);
        self.sync_waiters.empty_closes.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes all changes so far durable.
    ///
    /// # Errors
    /// The journal is or gets aborted.
    pub fn commit_all(&self) -> Result<()> {
        self.wait_durable(self.running_state.load().tid)
    }

    /// Requests an immediate commit of the running transaction, without waiting for it.
    pub fn request_commit(&self) {
        self.request(self.running_state.load().tid, Urgency::AtOnce);
    }

    /// Whether a commit and the data of overwritten blocks are best on their way at the same time.
    pub(crate) fn commits_beside_data(&self) -> bool {
        self.has_log() && !self.map.is_apart() && self.map.writes_through()
    }

    /// The average time of a commit.
    pub(crate) fn average_commit(&self) -> Duration {
        self.stats.average_commit()
    }

    /// Requests the commit of transaction `tid`, without waiting for it or for more syncs.
    pub(crate) fn begin_commit(&self, tid: Tid) {
        if !self.is_durable(tid) {
            self.request(tid, Urgency::AtOnce);
        }
    }

    pub(super) fn request(&self, tid: Tid, urgency: Urgency) {
        {
            let mut state = self.state.lock();
            if urgency == Urgency::AtOnce {
                state.urgent = later(state.urgent, tid);
            }
            self.note_request(&mut state, tid);
        }
        self.committer_wake.notify_one();
        if urgency == Urgency::AtOnce {
            self.commit_wake.notify_one();
        }
    }

    /// Records that the commit of `tid` is requested.
    pub(super) fn note_request(&self, state: &mut JournalState, tid: Tid) {
        if tid.is_after(state.requested) {
            state.requested = tid;
            state.requester = Some(std::thread::current().id());
            self.times(tid).note_request(&self.clock);
        }
        self.sync_waiters.requested.store(state.requested.get(), Ordering::SeqCst);
    }

    /// The first cause of the abort, as an error for the current caller.
    #[must_use]
    pub fn aborted_error(&self) -> Error {
        let state = self.state.lock();
        state.abort_cause.as_ref().map_or_else(|| ErrorKind::Aborted.into(), aborted)
    }
}

/// Whether a commit may wait for syncs of others to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// It may.
    Batched,
    /// A thread cannot go on before the commit.
    AtOnce,
}
