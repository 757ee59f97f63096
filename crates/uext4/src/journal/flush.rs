//! Device flushes, shared by all threads that need one.
//!
//! What: a flush covers every write that completed before it *started*. A caller whose writes
//! completed before the running flush started waits for that flush. The other callers need the next
//! one, which one of them performs.
//! Invariants: a failed flush is latched, and nothing is durable after it; so is one of the log, if
//! that is on another device. With `barrier=0` no flush is sent and every write counts as covered.
//! A caller is woken by the end of the flush that it needs, or to perform it.
//! Locking: `state` is a leaf, held for a few instructions.

use super::stats::JournalStats;
use crate::error::{Error, Result};
use crate::stats::{WaitFor, Waits};
use crate::sync::atomic::{AtomicU64, Ordering};
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
    /// Number of the latest flush that started.
    started: AtomicU64,
    /// Number of the latest flush that succeeded.
    completed: AtomicU64,
    /// Wakes the callers that need a flush, indexed by the low bit of its number.
    ended: [Condvar; 2],
}

#[derive(Debug, Default)]
struct State {
    running: bool,
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
            started: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            ended: [Condvar::new(), Condvar::new()],
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

    /// Returns when a flush that started after `epoch` has succeeded, be it one that runs already.
    ///
    /// # Errors
    /// The device failed, now or at an earlier flush.
    pub fn cover(&self, epoch: FlushEpoch) -> Result<()> {
        if self.has_covered(epoch) {
            return Ok(());
        }
        let mut wait = None;
        let mut state = self.state.lock();
        let number = loop {
            if self.has_covered(epoch) {
                return Ok(());
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            // None starts meanwhile, because that needs the lock.
            let started = self.started.load(Ordering::SeqCst);
            if !state.running {
                state.running = true;
                self.started.store(started + 1, Ordering::SeqCst);
                break started + 1;
            }
            if wait.is_none() {
                drop(state);
                wait = Some(self.waits.begin(WaitFor::Flush));
                state = self.state.lock();
                continue;
            }
            let needed = if started > epoch.0 { started } else { started + 1 };
            self.ended_of(needed).wait(&mut state);
        };
        drop(state);
        let begun = Instant::now();
        let flushed = self.device.flush();
        self.stats.flush.add_since(begun);
        let result = flushed.map_err(|e| Error::io("flushing the device", e));
        let mut state = self.state.lock();
        state.running = false;
        match &result {
            Ok(()) => {
                self.completed.store(number, Ordering::SeqCst);
                // One caller performs the next flush.
                self.ended_of(number + 1).notify_one();
            }
            Err(error) => {
                state.failed = Some(error.clone());
                self.ended_of(number + 1).notify_all();
            }
        }
        self.ended_of(number).notify_all();
        result
    }

    /// Notes that the flush of another device has failed, whose writes belong with those of this.
    pub(super) fn latch(&self, error: &Error) {
        self.state.lock().failed.get_or_insert_with(|| error.clone());
        // None of the callers that wait now performs the next flush.
        self.ended.iter().for_each(Condvar::notify_all);
    }

    /// Whether a flush has failed. The contents of the medium are unknown then.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().failed.is_some()
    }

    fn ended_of(&self, number: u64) -> &Condvar {
        &self.ended[usize::from(number % 2 == 1)]
    }
}
