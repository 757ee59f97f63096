//! One sweep for all who sync an inode at the same time.
//!
//! What: who comes while a sweep runs waits for the next one, which one of them makes for all.
//! Invariants: the sweep that serves a caller began after the call did, so it has taken all that
//! was dirty then. A sweep that failed serves nobody but its leader: the others try for themselves,
//! and each meets the error. Who waits for a sweep is woken when that one ends, and by no other;
//! one of those who wait for the next is woken to lead it.
//! Locking: the state comes before `Leaf`, for a wait that begins under it is noted there.

use crate::stats::{WaitFor, Waits};
use crate::sync::{Condvar, LockRank, Mutex};

/// Who sweeps, and who waits for it.
#[derive(Debug)]
pub(crate) struct SingleFlight {
    state: Mutex<State>,
    /// By the low bit of the sweep's number.
    ended: [Condvar; 2],
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Number of the latest sweep.
    started: u64,
    /// Number of the latest sweep that succeeded.
    completed: u64,
}

/// What a caller is to do.
#[derive(Debug)]
pub(crate) enum Turn<'a> {
    /// Nothing: somebody else has swept.
    Served,
    /// Sweep for all who came.
    Leads(Lead<'a>),
}

/// The duty to sweep. Dropped without [`Lead::succeed`], the sweep has failed.
#[derive(Debug)]
pub(crate) struct Lead<'a> {
    flight: &'a SingleFlight,
    number: u64,
    succeeded: bool,
}

impl Default for SingleFlight {
    fn default() -> Self {
        Self {
            state: Mutex::new(LockRank::Table, State::default()),
            ended: [Condvar::new(), Condvar::new()],
        }
    }
}

impl SingleFlight {
    /// Returns when a sweep that began after this call has succeeded, or when the caller is to make
    /// one.
    pub(crate) fn take_turn(&self, waits: &Waits) -> Turn<'_> {
        let mut state = self.state.lock();
        let wanted = state.started + 1;
        let mut wait = None;
        loop {
            if state.completed >= wanted {
                return Turn::Served;
            }
            if !state.running {
                state.running = true;
                state.started += 1;
                return Turn::Leads(Lead { flight: self, number: state.started, succeeded: false });
            }
            wait.get_or_insert_with(|| waits.begin(WaitFor::Sweep));
            self.ended_of(wanted.max(state.started)).wait(&mut state);
        }
    }

    fn ended_of(&self, number: u64) -> &Condvar {
        &self.ended[usize::from(number % 2 == 1)]
    }
}

impl Lead<'_> {
    /// The sweep is over, and everything is on the device and mapped.
    pub(crate) fn succeed(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut state = self.flight.state.lock();
        state.running = false;
        if self.succeeded {
            state.completed = self.number;
        }
        self.flight.ended_of(self.number).notify_all();
        self.flight.ended_of(self.number + 1).notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Each thread raises a mark; a sweep covers the mark as it was when the sweep began. Nobody
    /// may return before a sweep covers theirs. Every third sweep fails.
    #[test]
    fn the_sweep_that_serves_a_caller_began_after_the_call() {
        let (flight, waits) = (SingleFlight::default(), Waits::default());
        let [dirty, clean, sweeps] = [0, 0, 0].map(AtomicU64::new);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let mine = dirty.fetch_add(1, Ordering::SeqCst) + 1;
                        loop {
                            let Turn::Leads(lead) = flight.take_turn(&waits) else { break };
                            let seen = dirty.load(Ordering::SeqCst);
                            std::thread::yield_now();
                            if sweeps.fetch_add(1, Ordering::SeqCst) % 3 != 0 {
                                clean.fetch_max(seen, Ordering::SeqCst);
                                lead.succeed();
                                break;
                            }
                        }
                        assert!(clean.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        assert!(waits.blocked().is_empty());
    }
}
