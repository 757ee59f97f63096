//! A start that all threads of a load share.
//!
//! Locking: one lock, held for a few instructions. No thread waits for one that has failed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Holds threads until all are ready.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    arrival: Condvar,
    opening: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Threads that have come here, or never will.
    arrived: u32,
    opened: Option<Instant>,
}

impl Gate {
    /// Waits for the start; returns its time.
    pub(crate) fn wait(&self) -> Instant {
        let mut state = self.lock();
        state.arrived += 1;
        self.arrival.notify_one();
        loop {
            if let Some(opened) = state.opened {
                return opened;
            }
            state = self.opening.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A thread ends: if it has not waited here, nobody shall wait for it.
    pub(crate) fn arrive_late(&self) {
        let mut state = self.lock();
        if state.opened.is_none() {
            state.arrived += 1;
            self.arrival.notify_one();
        }
    }

    /// Lets the threads go when `count` have arrived; returns that time.
    pub(crate) fn open(&self, count: u32) -> Instant {
        let mut state = self.lock();
        while state.arrived < count {
            state = self.arrival.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let now = Instant::now();
        state.opened = Some(now);
        self.opening.notify_all();
        now
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        // What it guards is whole at every moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
