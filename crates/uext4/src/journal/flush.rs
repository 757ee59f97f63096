//! Device flushes, shared by all threads that need one.
//!
//! What: a flush covers every write that completed before it *started*. A caller whose writes
//! completed before the running flush started waits for that flush. The other callers need the next
//! one: the first of them leads it and the others follow, waiting for its end.
//! Invariants: a failed flush is latched, and nothing is durable after it. With `barrier=0` no
//! flush is sent and every write counts as covered.
//! Locking: `state` is a leaf, held for a few instructions. Followers sleep in a wait queue of
//! their own and do not contend for `state`.

use super::sharded_wait_queue::ShardedWaitQueue;
use super::stats::JournalStats;
use crate::error::{Error, Result};
use crate::stats::{WaitFor, Waits};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::time::Instant;
use crate::sync::{Condvar, LockRank, Mutex};
use std::sync::Arc;
use uext4_device::SharedDevice;

/// Performs and counts flushes of one device.
#[derive(Debug)]
pub struct FlushGate {
    device: SharedDevice,
    /// False with `barrier=0`.
    flushes: bool,
    stats: Arc<JournalStats>,
    waits: Arc<Waits>,
    state: Mutex<State>,
    /// Wakes the leader of the next flush.
    next: Condvar,
    /// Number of the latest flush that started.
    started: AtomicU64,
    /// Number of the latest flush that succeeded.
    completed: AtomicU64,
    has_failed: AtomicBool,
    /// Followers of a flush, indexed by the low bit of its number.
    ended: [ShardedWaitQueue; 2],
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// A thread waits to perform the next flush.
    has_leader: bool,
    failed: Option<Error>,
}

/// A moment. Every flush that starts after it covers all writes that completed before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FlushEpoch(u64);

impl FlushGate {
    pub(super) fn new(
        device: SharedDevice,
        flushes: bool,
        stats: Arc<JournalStats>,
        waits: Arc<Waits>,
    ) -> Self {
        Self {
            device,
            flushes,
            stats,
            waits,
            state: Mutex::new(LockRank::Leaf, State::default()),
            next: Condvar::new(),
            started: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            ended: [ShardedWaitQueue::new(), ShardedWaitQueue::new()],
        }
    }

    /// The current moment. To be taken *after* a write has completed.
    #[must_use]
    pub fn epoch(&self) -> FlushEpoch {
        FlushEpoch(self.started.load(Ordering::SeqCst))
    }

    /// Whether a flush that started after `epoch` has succeeded, so that it covers the write.
    #[must_use]
    pub fn has_covered(&self, epoch: FlushEpoch) -> bool {
        !self.flushes || self.completed.load(Ordering::SeqCst) > epoch.0
    }

    /// Returns when a flush that started after this call has succeeded.
    ///
    /// # Errors
    /// The device failed, now or at an earlier flush.
    pub fn flush(&self) -> Result<()> {
        self.cover(self.epoch())
    }

    /// Returns when a flush that started after `epoch` has succeeded, be it one that runs already.
    ///
    /// # Errors
    /// The device failed, now or at an earlier flush.
    pub fn cover(&self, epoch: FlushEpoch) -> Result<()> {
        if self.has_covered(epoch) {
            return Ok(());
        }
        let wanted = match self.choose_role(epoch)? {
            Role::Leader => return self.perform(),
            Role::Follower(wanted) => wanted,
        };
        {
            let _wait = self.waits.begin(WaitFor::Flush);
            self.ended_of(wanted).wait(|| self.has_ended(wanted));
        }
        if self.completed.load(Ordering::SeqCst) >= wanted {
            return Ok(());
        }
        self.check()
    }

    /// Decides whether the caller leads the flush that it needs. A leader waits here for the
    /// running flush.
    fn choose_role(&self, epoch: FlushEpoch) -> Result<Role> {
        {
            let mut state = self.state.lock();
            // The next flush cannot start meanwhile, because its leader needs this lock.
            let started = self.started.load(Ordering::SeqCst);
            if state.running && started > epoch.0 {
                return Ok(Role::Follower(started));
            }
            if state.has_leader && state.failed.is_none() {
                return Ok(Role::Follower(started + 1));
            }
            if !state.running {
                return self.lead(&mut state);
            }
            state.has_leader = true;
        }
        let _wait = self.waits.begin(WaitFor::Flush);
        let mut state = self.state.lock();
        while state.running {
            self.next.wait(&mut state);
        }
        state.has_leader = false;
        self.lead(&mut state)
    }

    fn lead(&self, state: &mut State) -> Result<Role> {
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.running = true;
        self.started.fetch_add(1, Ordering::SeqCst);
        Ok(Role::Leader)
    }

    /// Performs the flush that `lead` counted as started.
    fn perform(&self) -> Result<()> {
        let number = self.started.load(Ordering::SeqCst);
        let begun = Instant::now();
        let flushed = self.device.flush();
        self.stats.flush.add_since(begun);
        let result = flushed.map_err(|e| Error::io("flushing the device", e));
        {
            let mut state = self.state.lock();
            state.running = false;
            match &result {
                Ok(()) => self.completed.store(number, Ordering::SeqCst),
                Err(error) => {
                    state.failed = Some(error.clone());
                    self.has_failed.store(true, Ordering::SeqCst);
                }
            }
        }
        self.next.notify_one();
        self.ended_of(number).wake_all();
        if result.is_err() {
            self.ended_of(number + 1).wake_all();
        }
        result
    }

    fn has_ended(&self, number: u64) -> bool {
        self.completed.load(Ordering::SeqCst) >= number || self.has_failed.load(Ordering::SeqCst)
    }

    /// Whether a flush has failed. The contents of the medium are unknown then.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<()> {
        self.state.lock().failed.clone().map_or(Ok(()), Err)
    }

    fn ended_of(&self, number: u64) -> &ShardedWaitQueue {
        &self.ended[usize::from(number % 2 == 1)]
    }
}

enum Role {
    /// The caller performs the flush, which counts as started.
    Leader,
    /// Another thread performs the flush with this number.
    Follower(u64),
}
