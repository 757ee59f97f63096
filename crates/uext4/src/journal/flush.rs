//! Device flushes, shared by all who need one.
//!
//! What: a flush covers every write that completed before it *started*. A caller that arrives while
//! one runs waits for the next, which one caller performs for all.
//! Invariants: a failed flush is latched; nothing is durable after it.

use crate::error::{Error, Result};
use crate::sync::{Condvar, LockRank, Mutex};
use uext4_device::SharedDevice;

/// Performs and counts flushes of one device.
#[derive(Debug)]
pub struct FlushGate {
    device: SharedDevice,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    started: u64,
    completed: u64,
    failed: Option<Error>,
}

/// A moment before which all writes are covered by flushes that start later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FlushEpoch(u64);

impl FlushGate {
    pub(super) fn new(device: SharedDevice) -> Self {
        Self { device, state: Mutex::new(LockRank::Leaf, State::default()), done: Condvar::new() }
    }

    /// To be taken *after* a write has completed.
    #[must_use]
    pub fn epoch(&self) -> FlushEpoch {
        FlushEpoch(self.state.lock().started)
    }

    /// Whether a flush that started after `epoch` has succeeded.
    #[must_use]
    pub fn has_covered(&self, epoch: FlushEpoch) -> bool {
        self.state.lock().completed > epoch.0
    }

    /// Returns when a flush that started after this call has succeeded.
    ///
    /// # Errors
    /// The device failed, now or at an earlier flush.
    pub fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        let wanted = state.started + 1;
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.completed >= wanted {
                return Ok(());
            }
            if state.running {
                self.done.wait(&mut state);
                continue;
            }
            state.running = true;
            state.started += 1;
            let number = state.started;
            drop(state);
            let flushed = self.device.flush();
            state = self.state.lock();
            state.running = false;
            match flushed {
                Ok(()) => state.completed = number,
                Err(e) => state.failed = Some(Error::io("flushing the device", e)),
            }
            self.done.notify_all();
        }
    }
}
