//! One writeback pass for all callers that sync an inode at the same time.
//!
//! What: a caller that arrives while a pass runs waits for the next one, which one of the waiters
//! leads for all of them. Threads that sync one file in a loop fall into two halves: one half is in
//! the flush after its pass while the other half's pass runs. So a leader first waits a moment for
//! the callers that the last pass served: together they need half as many passes and flushes. It
//! waits for at most the length of a round. It does not wait if the last pass served one caller and
//! no other was waiting behind it. If callers that it waited for did not come, it skips some of the
//! next waits.
//! Invariants: the pass that serves a caller began after the call did, so it covers everything that
//! was dirty at the call. A pass that failed serves no caller but its leader: the others try again,
//! and each meets the error itself. A caller that waits for a pass is woken by the end of that pass
//! and of no other. One of the callers that wait for the next pass is woken to lead it.
//! Locking: the state ranks before `Leaf`, because a wait that begins under it is recorded there.

use crate::injected_faults::Fault;
use crate::journal::WaitBackoff;
use crate::stats::{WaitFor, Waits};
use crate::sync::time::Instant;
use crate::sync::{Condvar, LockRank, Mutex, MutexGuard};
use std::time::Duration;

/// The passes over one inode, and the callers that wait for them.
#[derive(Debug)]
pub(crate) struct SingleFlight {
    state: Mutex<State>,
    /// By the low bit of the number of the pass.
    ended: [Condvar; 2],
    /// As many callers have come as the leader waits for.
    gathered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// A pass runs, or its leader waits for callers to join it.
    running: bool,
    /// Number of the latest pass.
    started: u64,
    /// Number of the pass that runs; 0 if none does.
    unended: u64,
    /// Number of the latest pass that succeeded.
    completed: u64,
    /// Callers that the running pass serves, its leader included.
    served: u32,
    /// Callers that want the next pass, its leader included.
    waiting: u32,
    /// Callers that the leader waits for; 0 if it does not wait.
    goal: u32,
    backoff: WaitBackoff,
    /// When the latest pass began, and the moving average of the time between two.
    began: Option<Instant>,
    round: Duration,
}

impl State {
    /// Number of the pass that runs, or that its leader is gathering callers for.
    fn awaited(&self) -> u64 {
        let is_gathering = self.unended == 0;
        if is_gathering { self.started + 1 } else { self.started }
    }
}

/// What a caller of [`SingleFlight::join`] is to do.
#[derive(Debug)]
pub(crate) enum Joined<'a> {
    /// Nothing: a pass of another caller has served it.
    Served,
    /// Run a pass for all callers that have joined.
    Leads(Lead<'a>),
}

/// The duty to run a pass. If it is dropped without [`Lead::succeed`], the pass has failed.
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
    /// Returns when a pass that began after this call has succeeded, or when the caller is to lead
    /// one. A leader waits for others for at most `patience_max`.
    pub(crate) fn join(&self, waits: &Waits, patience_max: Duration) -> Joined<'_> {
        let mut state = self.state.lock();
        let wanted = state.started + 1;
        state.waiting += 1;
        if state.waiting == state.goal {
            self.gathered.notify_one();
        }
        let mut wait = None;
        loop {
            if state.completed >= wanted {
                return Joined::Served;
            }
            if !state.running {
                state.running = true;
                self.gather(&mut state, patience_max);
                state.started += 1;
                state.unended = state.started;
                state.served = std::mem::take(&mut state.waiting);
                return Joined::Leads(Lead {
                    flight: self,
                    number: state.started,
                    succeeded: false,
                });
            }
            wait.get_or_insert_with(|| waits.begin(WaitFor::Writeback));
            self.ended_of(wanted.max(state.awaited())).wait(&mut state);
        }
    }

    /// Waits for callers that are likely to come in a moment. The pass has not begun, so it serves
    /// all that come meanwhile.
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

    /// Ends pass `number`: everything is on the device and mapped. Its leader sleeps, and has
    /// nothing more to do.
    pub(crate) fn succeed(&self, number: u64) {
        self.end(number, true);
    }

    /// Ends a pass, once. Thread A ends the pass that thread B leads; thread C begins to gather for
    /// the next one; then B drops its [`Lead`], which must not end the pass of C.
    fn end(&self, number: u64, succeeded: bool) {
        let mut state = self.state.lock();
        let again = Fault::SecondEnd.is_injected() && state.running && state.started == number;
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
    /// The number by which another thread can end the pass: [`SingleFlight::succeed`].
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Ends the pass: everything is on the device and mapped.
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

    /// Each thread raises a mark; a pass covers the mark as it was when the pass began. No thread
    /// may return before a pass covers its mark. Every third pass fails.
    #[test]
    fn the_pass_that_serves_a_caller_began_after_the_call() {
        let (flight, waits) = (SingleFlight::default(), Waits::default());
        let [dirty, clean, passes] = [0, 0, 0].map(AtomicU64::new);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let mine = dirty.fetch_add(1, Ordering::SeqCst) + 1;
                        loop {
                            let Joined::Leads(lead) = flight.join(&waits, PATIENCE) else {
                                break;
                            };
                            let seen = dirty.load(Ordering::SeqCst);
                            std::thread::yield_now();
                            if passes.fetch_add(1, Ordering::SeqCst) % 3 != 0 {
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

    /// A pass is ended by another thread, and a moment later by its leader, while the next leader
    /// gathers already: the second end must not let a third thread lead beside that one.
    #[test]
    fn a_pass_ends_once() {
        let (flight, waits) = (SingleFlight::default(), Waits::default());
        let [running, passes] = [0, 0].map(AtomicU64::new);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let Joined::Leads(lead) = flight.join(&waits, PATIENCE) else {
                            continue;
                        };
                        assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                        passes.fetch_add(1, Ordering::SeqCst);
                        running.fetch_sub(1, Ordering::SeqCst);
                        flight.succeed(lead.number());
                        std::thread::yield_now();
                        drop(lead);
                    }
                });
            }
        });
        assert!(passes.into_inner() > 0);
    }

    /// A pass has failed, and one of its callers gathers for the next: the others wait for that
    /// one. When they waited for the failed one, each later pass woke one of them, and no pass woke
    /// the last.
    #[test]
    fn callers_of_a_failed_pass_wait_for_the_one_that_gathers() {
        let mut state = State { started: 2, completed: 1, running: true, ..State::default() };
        assert_eq!(state.awaited(), 3);
        (state.started, state.unended) = (3, 3);
        assert_eq!(state.awaited(), 3);
    }

    #[test]
    fn a_single_caller_never_waits() {
        let (flight, waits) = (SingleFlight::default(), Waits::default());
        for _ in 0..4 {
            let Joined::Leads(lead) = flight.join(&waits, PATIENCE) else { panic!() };
            lead.succeed();
            assert!(flight.state.lock().backoff.expected() <= 1);
        }
    }
}
