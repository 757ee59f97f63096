//! One sweep for all who sync an inode at the same time.
//!
//! What: who comes while a sweep runs waits for the next one, which one of them makes for all.
//! Threads that sync one file in a loop fall into two halves, one in the flush of its sweep while
//! the other sweeps. So the leader waits a moment for those whom the last sweep served: together
//! they need half as many sweeps and flushes. It waits for no longer than a round takes, and for
//! nobody if the last sweep served one caller and none waited behind it; where those who were
//! waited for did not come, some of the next waits are left out.
//! Invariants: the sweep that serves a caller began after the call did, so it has taken all that
//! was dirty then. A sweep that failed serves nobody but its leader: the others try for themselves,
//! and each meets the error. Who waits for a sweep is woken when that one ends, and by no other;
//! one of those who wait for the next is woken to lead it.
//! Locking: the state comes before `Leaf`, for a wait that begins under it is noted there.

use crate::journal::WaitBackoff;
use crate::plant::{self, Fault};
use crate::stats::{WaitFor, Waits};
use crate::sync::time::Instant;
use crate::sync::{Condvar, LockRank, Mutex, MutexGuard};
use std::time::Duration;

/// Who sweeps, and who waits for it.
#[derive(Debug)]
pub(crate) struct SingleFlight {
    state: Mutex<State>,
    /// By the low bit of the sweep's number.
    ended: [Condvar; 2],
    /// As many have come as the leader waits for.
    gathered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody sweeps, or gathers for the next sweep.
    running: bool,
    /// Number of the latest sweep.
    started: u64,
    /// Number of the sweep that has begun and not ended; 0 if none has.
    unended: u64,
    /// Number of the latest sweep that succeeded.
    completed: u64,
    /// Callers that the running sweep serves, its leader included.
    served: u32,
    /// Callers that want the next sweep, its leader included.
    waiting: u32,
    /// Callers that the leader waits for; 0: it does not wait.
    goal: u32,
    backoff: WaitBackoff,
    /// When the latest sweep began, and the moving average of the time between two.
    began: Option<Instant>,
    round: Duration,
}

impl State {
    /// Number of the sweep that runs, or that its leader gathers for, while one does.
    fn awaited(&self) -> u64 {
        let is_gathering = self.unended == 0;
        if is_gathering { self.started + 1 } else { self.started }
    }
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
            gathered: Condvar::new(),
        }
    }
}

impl SingleFlight {
    /// Returns when a sweep that began after this call has succeeded, or when the caller is to make
    /// one. A leader waits for others for at most `patience_max`.
    pub(crate) fn take_turn(&self, waits: &Waits, patience_max: Duration) -> Turn<'_> {
        let mut state = self.state.lock();
        let wanted = state.started + 1;
        state.waiting += 1;
        if state.waiting == state.goal {
            self.gathered.notify_one();
        }
        let mut wait = None;
        loop {
            if state.completed >= wanted {
                return Turn::Served;
            }
            if !state.running {
                state.running = true;
                self.gather(&mut state, patience_max);
                state.started += 1;
                state.unended = state.started;
                state.served = std::mem::take(&mut state.waiting);
                return Turn::Leads(Lead { flight: self, number: state.started, succeeded: false });
            }
            wait.get_or_insert_with(|| waits.begin(WaitFor::Sweep));
            self.ended_of(wanted.max(state.awaited())).wait(&mut state);
        }
    }

    /// Waits for those who are likely to come in a moment. The sweep has not begun: it serves all
    /// who come meanwhile.
    fn gather(&self, state: &mut MutexGuard<'_, State>, patience_max: Duration) {
        let limit = state.round.min(patience_max);
        let (at_first, expected) = (state.waiting, state.backoff.expected());
        if at_first < expected && !limit.is_zero() && state.backoff.is_worth_it() {
            let deadline = Instant::now() + limit;
            state.goal = expected;
            while state.waiting < expected {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() || self.gathered.wait_briefly(state, left) {
                    break;
                }
            }
            state.goal = 0;
            let came = state.waiting - at_first;
            state.backoff.judge(expected - at_first, came);
        }
        let now = Instant::now();
        if let Some(began) = state.began.replace(now) {
            state.round = (3 * state.round + (now - began)) / 4;
        }
    }

    /// Sweep `number` is over, and everything is on the device and mapped. Its leader sleeps and
    /// need do nothing more.
    pub(crate) fn succeed(&self, number: u64) {
        self.end(number, true);
    }

    /// Ends a sweep, once: a leader whose sweep somebody else has ended may come when the next one
    /// gathers.
    fn end(&self, number: u64, succeeded: bool) {
        let mut state = self.state.lock();
        let again = plant::is(Fault::SecondEnd) && state.running && state.started == number;
        if state.unended != number && !again {
            return;
        }
        state.unended = 0;
        state.running = false;
        let expected = state.served + state.waiting;
        state.backoff.expect(expected);
        if succeeded {
            state.completed = number;
        }
        self.ended_of(number).notify_all();
        self.ended_of(number + 1).notify_one();
    }

    fn ended_of(&self, number: u64) -> &Condvar {
        &self.ended[usize::from(number % 2 == 1)]
    }
}

impl Lead<'_> {
    /// The number by which somebody else can end the sweep: [`SingleFlight::succeed`].
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The sweep is over, and everything is on the device and mapped.
    pub(crate) fn succeed(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.flight.end(self.number, self.succeeded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const PATIENCE: Duration = Duration::from_millis(5);

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
                            let Turn::Leads(lead) = flight.take_turn(&waits, PATIENCE) else {
                                break;
                            };
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

    /// A sweep is ended by somebody else, and by its leader a moment later, while the next leader
    /// gathers already: that one must not lose its turn to a third.
    #[test]
    fn a_sweep_ends_once() {
        let (flight, waits) = (SingleFlight::default(), Waits::default());
        let [sweeping, sweeps] = [0, 0].map(AtomicU64::new);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let Turn::Leads(lead) = flight.take_turn(&waits, PATIENCE) else {
                            continue;
                        };
                        assert_eq!(sweeping.fetch_add(1, Ordering::SeqCst), 0);
                        sweeps.fetch_add(1, Ordering::SeqCst);
                        sweeping.fetch_sub(1, Ordering::SeqCst);
                        flight.succeed(lead.number());
                        std::thread::yield_now();
                        drop(lead);
                    }
                });
            }
        });
        assert!(sweeps.into_inner() > 0);
    }

    /// A sweep has failed, and a caller that it was for gathers for the next: the others wait for
    /// that one. When they waited for the failed one, each later sweep woke one of them, and none
    /// the last.
    #[test]
    fn callers_of_a_failed_sweep_wait_for_the_one_that_gathers() {
        let mut state = State { started: 2, completed: 1, running: true, ..State::default() };
        assert_eq!(state.awaited(), 3);
        (state.started, state.unended) = (3, 3);
        assert_eq!(state.awaited(), 3);
    }

    #[test]
    fn who_is_alone_never_waits() {
        let (flight, waits) = (SingleFlight::default(), Waits::default());
        for _ in 0..4 {
            let Turn::Leads(lead) = flight.take_turn(&waits, PATIENCE) else { panic!() };
            lead.succeed();
            assert!(flight.state.lock().backoff.expected() <= 1);
        }
    }
}
