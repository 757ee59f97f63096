//! How fast pages may become dirty.
//!
//! What: writeback tells how many pages it has cleaned; a writer that finds much dirty memory takes
//! a ticket, the number of cleaned pages at which it may go on, and sleeps until that is reached.
//! So writers are paced by what the device does, without an estimate of its speed: each page that
//! is made dirty waits for `weight` pages to be cleaned, and the weight grows from 0 at the
//! background threshold to 2 at the hard limit. Where it is 1, as many pages become clean as dirty.
//! Invariants: tickets are given out in rising order, and exactly those that are reached are woken.
//! Nobody sleeps while writeback is stalled (a device that fails, an aborted journal) or has ended.
//! While it is stalled by a failure, that failure is what a writer is told for which there is no
//! room: data that cannot be written does not fill memory.
//! Locking: one leaf, on which also sleepers sleep.

use crate::error::Error;
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How soon writeback is tried again where it could clean nothing.
const RETRY: Duration = Duration::from_secs(1);

/// Where writers wait for writeback, and writeback for writers.
#[derive(Debug)]
pub struct Throttle {
    state: Mutex<State>,
    /// Writeback is wanted, or shall end.
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Pages that may be made dirty ahead of what is cleaned: writeback works in batches, and a
    /// writer that waited for each of them would sleep more than it need.
    burst: u64,
    /// Pages cleaned since the volume was opened.
    cleaned: u64,
    /// The latest ticket.
    due: u64,
    /// Who waits, by rising ticket.
    waiters: VecDeque<Arc<Waiter>>,
    /// Writeback was asked for and has not been begun.
    requested: bool,
    /// Writeback brings nothing: nobody may wait for it.
    stalled: bool,
    /// Why, if a failure is the reason.
    failure: Option<Error>,
    ended: bool,
    /// How often everybody was woken.
    releases: u64,
}

/// How a writer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paced {
    /// It has waited for what it must, or long enough.
    Go,
    /// Waiting brings nothing.
    Stalled,
}

#[derive(Debug)]
struct Waiter {
    due: u64,
    wake: Condvar,
}

/// What ends the sleep of the writeback thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Too much is dirty.
    Requested,
    /// The time is over.
    Period,
    /// The volume is being closed.
    End,
}

impl Throttle {
    /// A throttle that lets `burst_pages` pass ahead of what is cleaned.
    #[must_use]
    pub fn new(burst_pages: usize) -> Self {
        let state = State { burst: burst_pages as u64, ..State::default() };
        Self { state: Mutex::new(LockRank::Leaf, state), work: Condvar::new() }
    }

    /// Pages were cleaned: who waited for that goes on.
    pub fn cleaned(&self, pages: usize) {
        let mut state = self.state.lock();
        state.cleaned += pages as u64;
        state.go_on();
        while let Some(first) = state.waiters.front()
            && first.due <= state.cleaned
        {
            first.wake.notify_one();
            state.waiters.pop_front();
        }
    }

    /// Pages cleaned since the volume was opened.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.state.lock().cleaned
    }

    /// Writeback went over all there is and cleaned nothing: everybody goes on, until it does.
    /// `failure`: the first that it met.
    pub fn stall(&self, failure: Option<Error>) {
        let mut state = self.state.lock();
        (state.stalled, state.failure) = (true, failure);
        state.release_all();
    }

    /// What keeps writeback from cleaning anything, if a failure does.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// There is nothing left that writeback should do: everybody goes on.
    pub fn relax(&self) {
        let mut state = self.state.lock();
        state.due = state.cleaned;
        state.go_on();
        state.release_all();
    }

    /// Asks for writeback, and sleeps until it has cleaned enough for a writer that has made
    /// `pages` pages dirty at `weight` while `excess` pages were too many; at most `limit`.
    pub fn pace(&self, pages: usize, weight: f64, excess: usize, limit: Duration) -> Paced {
        let mut state = self.state.lock();
        if state.stalled {
            return Paced::Stalled;
        }
        let due = state.ticket(pages, weight, excess);
        if !state.requested {
            state.requested = true;
            self.work.notify_all();
        }
        if due <= state.cleaned {
            return Paced::Go;
        }
        let waiter = Arc::new(Waiter { due, wake: Condvar::new() });
        let at = state.waiters.partition_point(|other| other.due <= due);
        state.waiters.insert(at, Arc::clone(&waiter));
        let releases = state.releases;
        while state.cleaned < due && state.releases == releases {
            if waiter.wake.wait_for(&mut state, limit) {
                state.waiters.retain(|other| !Arc::ptr_eq(other, &waiter));
                break;
            }
        }
        if state.stalled { Paced::Stalled } else { Paced::Go }
    }

    /// Sleeps until writeback is asked for, at most `limit`; where writeback brought nothing, at
    /// most until it should be tried again.
    pub fn wait_for_work(&self, limit: Duration) -> Work {
        let mut state = self.state.lock();
        if !state.requested && !state.ended {
            let limit = if state.stalled { limit.min(RETRY) } else { limit };
            self.work.wait_for(&mut state, limit);
        }
        if state.ended {
            return Work::End;
        }
        if std::mem::take(&mut state.requested) { Work::Requested } else { Work::Period }
    }

    /// There is no writeback any more.
    pub fn end(&self) {
        let mut state = self.state.lock();
        (state.ended, state.stalled) = (true, true);
        state.release_all();
        self.work.notify_all();
    }

    /// Whether writeback has ended or is to.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended
    }
}

impl State {
    /// The number of cleaned pages at which the writer may go on.
    fn ticket(&mut self, pages: usize, weight: f64, excess: usize) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small and positive
        let charge = (pages as f64 * weight) as u64;
        self.due = self.due.max(self.cleaned.saturating_sub(self.burst)) + charge;
        // What is too much is so for all who wait: it is charged to nobody.
        if excess > 0 { self.due.max(self.cleaned + excess as u64) } else { self.due }
    }

    /// Writeback brings something, or is not needed.
    fn go_on(&mut self) {
        (self.stalled, self.failure) = (self.ended, None);
    }

    fn release_all(&mut self) {
        self.releases += 1;
        for waiter in self.waiters.drain(..) {
            waiter.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const LONG: Duration = Duration::from_secs(60);
    const NONE: Duration = Duration::from_millis(1);

    #[test]
    fn tickets_are_reached_in_order_by_what_is_cleaned() {
        let mut state = State { burst: 1024, ..State::default() };
        assert_eq!(state.ticket(2048, 0.0, 0), 0, "nothing is asked at the threshold");
        assert_eq!(state.ticket(2000, 1.0, 0), 2000);
        assert_eq!(state.ticket(500, 2.0, 0), 3000);
        assert_eq!(state.ticket(0, 2.0, 5000), 5000);
        assert_eq!(state.ticket(0, 2.0, 0), 3000, "excess is charged to nobody");
        // Idle time saves no more than a burst.
        state.cleaned = 1 << 20;
        assert!(state.ticket(1024, 1.0, 0) <= state.cleaned);
        assert!(state.ticket(10, 1.0, 0) > state.cleaned);
    }

    #[test]
    fn writers_wait_for_what_is_cleaned_and_no_longer() {
        let throttle = Throttle::new(1024);
        std::thread::scope(|scope| {
            let throttle = &throttle;
            let waits = [100, 200, 300]
                .map(|pages| scope.spawn(move || throttle.pace(pages, 1.0, 0, LONG)));
            while throttle.state.lock().waiters.len() < 3 {
                std::thread::yield_now();
            }
            assert_eq!(throttle.wait_for_work(LONG), Work::Requested);
            throttle.cleaned(599);
            while throttle.state.lock().waiters.len() > 1 {
                std::thread::yield_now();
            }
            throttle.cleaned(1);
            assert!(waits.into_iter().all(|wait| wait.join().unwrap() == Paced::Go));
        });
    }

    #[test]
    fn nobody_waits_for_writeback_that_brings_nothing() {
        let throttle = Throttle::new(1024);
        assert_eq!(throttle.pace(4096, 1.0, 0, NONE), Paced::Go, "the time runs out");
        let stall = |throttle: &Throttle| throttle.stall(None);
        for release in [&stall as &(dyn Fn(&Throttle) + Sync), &Throttle::relax] {
            throttle.cleaned(1);
            std::thread::scope(|scope| {
                let wait = scope.spawn(|| throttle.pace(4096, 1.0, 0, LONG));
                while throttle.state.lock().waiters.is_empty() && !wait.is_finished() {
                    std::thread::yield_now();
                }
                release(&throttle);
                wait.join().unwrap();
            });
        }
        let full = || Some(Error::new(ErrorKind::NoSpace, "planted"));
        for end_of_stall in [&Throttle::relax as &dyn Fn(&Throttle), &|of| of.cleaned(1)] {
            throttle.stall(full());
            assert_eq!(throttle.pace(4096, 1.0, 0, LONG), Paced::Stalled);
            assert_eq!(*throttle.failure().unwrap().kind(), ErrorKind::NoSpace);
            end_of_stall(&throttle);
            assert!(throttle.failure().is_none());
            assert_eq!(throttle.pace(4096, 1.0, 0, NONE), Paced::Go);
        }
        throttle.end();
        throttle.cleaned(1);
        assert_eq!(throttle.pace(4096, 1.0, 0, LONG), Paced::Stalled);
        assert_eq!(throttle.wait_for_work(LONG), Work::End);
    }
}
