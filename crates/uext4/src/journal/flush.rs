//! Device flushes, shared by all who need one.
//!
//! What: a flush covers every write that completed before it *started*. A caller whose writes ended
//! before the one that runs waits for that; others need the next, which the first of them will
//! perform while the rest wait for it to end.
//! Invariants: a failed flush is latched; nothing is durable after it. With `barrier=0` no flush is
//! sent, and everything counts as covered.
//! Locking: `state` is a leaf and held for a few instructions. Who waits for the end of a flush
//! sleeps in a crowd of its own and takes no part in the contention for `state`.

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
    /// False: `barrier=0`.
    flushes: bool,
    stats: Arc<JournalStats>,
    waits: Arc<Waits>,
    state: Mutex<State>,
    /// For the one who will perform the next flush.
    next: Condvar,
    /// Number of the latest flush that has started.
    started: AtomicU64,
    /// Number of the latest flush that has succeeded.
    completed: AtomicU64,
    has_failed: AtomicBool,
    /// Who waits for a flush to end, by the low bit of its number.
    ended: [ShardedWaitQueue; 2],
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Somebody waits to perform the next flush.
    has_leader: bool,
    failed: Option<Error>,
}

/// A moment before which all writes are covered by flushes that start later.
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

    /// To be taken *after* a write has completed.
    #[must_use]
    pub fn epoch(&self) -> FlushEpoch {
        FlushEpoch(self.started.load(Ordering::SeqCst))
    }

    /// Whether a flush that started after `epoch` has succeeded.
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

    /// Returns when a flush that started after `epoch` has succeeded; one that runs will do, if it
    /// started after that.
    ///
    /// # Errors
    /// As [`FlushGate::flush`].
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

    /// Finds out who performs the flush that the caller needs. If it is the caller, waits for the
    /// flush that runs.
    fn choose_role(&self, epoch: FlushEpoch) -> Result<Role> {
        {
            let mut state = self.state.lock();
            // Who leads the next flush has not started it: that needs our lock.
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

    /// Performs the flush that has been counted as started.
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

    /// Whether a flush has failed: then it is not known what the device has kept.
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
    /// Somebody else performs this one.
    Follower(u64),
}
