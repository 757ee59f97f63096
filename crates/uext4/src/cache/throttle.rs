//! Throttling of writers by what writeback cleans.
//!
//! What: writeback reports how many pages it has cleaned. A writer that finds much dirty memory
//! gets a *target*, the number of cleaned pages at which it may continue, and sleeps until that is
//! reached. This paces writers by the device without an estimate of its speed: each page that
//! becomes dirty waits for `weight` pages to be cleaned. The weight grows from 0 at the background
//! limit to 2 at the hard limit; at 1 as many pages become clean as dirty.
//! Invariants: targets rise, and a writer is woken exactly when its target is reached. No writer
//! sleeps while writeback is stalled (a failing device, an aborted journal) or has ended. While a
//! failure stalls it, a writer without room gets that failure, so unwritable data does not fill
//! memory.
//! Locking: one leaf, on which sleepers sleep too.
//! Kernel counterpart: `balance_dirty_pages` in `mm/page-writeback.c`, which estimates the speed.

use crate::error::Error;
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Time after which stalled writeback is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The wait of writers for writeback, and of writeback for work.
#[derive(Debug)]
pub struct Throttle {
    state: Mutex<State>,
    /// Wakes writeback: there is work, or it must end.
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Pages that may become dirty ahead of what is cleaned. Writeback works in batches, and a
    /// writer that waited for each batch would sleep more often than necessary.
    burst: u64,
    /// Pages cleaned since the volume was opened.
    cleaned: u64,
    /// The latest target, without excess.
    target: u64,
    /// Waiting writers by rising target.
    waiters: VecDeque<Arc<Waiter>>,
    /// Writeback is requested and has not started.
    requested: bool,
    /// Writeback cleans nothing, so no writer may wait for it.
    stalled: bool,
    /// The failure that stalls it, if one does.
    failure: Option<Error>,
    ended: bool,
    /// Number of times that all writers were released.
    releases: u64,
}

/// The end of a writer's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paced {
    /// The target is reached, or the time is over.
    Go,
    /// Writeback is stalled, so waiting is useless.
    Stalled,
}

#[derive(Debug)]
struct Waiter {
    target: u64,
    wake: Condvar,
}

impl Throttle {
    /// A throttle that lets `burst_pages` become dirty ahead of what is cleaned.
    #[must_use]
    pub fn new(burst_pages: usize) -> Self {
        let state = State { burst: burst_pages as u64, ..State::default() };
        Self { state: Mutex::new(LockRank::Leaf, state), work: Condvar::new() }
    }

    /// Counts cleaned pages and wakes the writers whose target that reaches.
    pub fn cleaned(&self, pages: usize) {
        let mut state = self.state.lock();
        state.cleaned += pages as u64;
        state.resume();
        while let Some(first) = state.waiters.front()
            && first.target <= state.cleaned
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

    /// Releases all writers, because a whole writeback pass cleaned nothing. No writer waits until
    /// writeback cleans a page again. `failure` is the first that the pass met.
    pub fn stall(&self, failure: Option<Error>) {
        let mut state = self.state.lock();
        (state.stalled, state.failure) = (true, failure);
        state.release_all();
    }

    /// The failure that stalls writeback, if one does.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// Releases all writers, because writeback has nothing left to do.
    pub fn relax(&self) {
        let mut state = self.state.lock();
        state.target = state.cleaned;
        state.resume();
        state.release_all();
    }

    /// Requests writeback and sleeps, at most `limit`, until it has cleaned enough for a writer
    /// that made `pages` pages dirty at `weight` while `excess` pages were above the hard limit.
    pub fn pace(&self, pages: usize, weight: f64, excess: usize, limit: Duration) -> Paced {
        let mut state = self.state.lock();
        if state.stalled {
            return Paced::Stalled;
        }
        let target = state.next_target(pages, weight, excess);
        if !state.requested {
            state.requested = true;
            self.work.notify_all();
        }
        if target <= state.cleaned {
            return Paced::Go;
        }
        let waiter = Arc::new(Waiter { target, wake: Condvar::new() });
        let at = state.waiters.partition_point(|other| other.target <= target);
        state.waiters.insert(at, Arc::clone(&waiter));
        let releases = state.releases;
        while state.cleaned < target && state.releases == releases {
            if waiter.wake.wait_for(&mut state, limit) {
                state.waiters.retain(|other| !Arc::ptr_eq(other, &waiter));
                break;
            }
        }
        if state.stalled { Paced::Stalled } else { Paced::Go }
    }

    /// Sleeps until writeback is requested, at most `limit`. If writeback is stalled, at most until
    /// it should be tried again. False if the volume is being closed.
    pub fn wait_for_work(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.requested && !state.ended {
            let limit = if state.stalled { limit.min(RETRY) } else { limit };
            self.work.wait_for(&mut state, limit);
        }
        state.requested = false;
        !state.ended
    }

    /// Ends writeback and releases all writers.
    pub fn end(&self) {
        let mut state = self.state.lock();
        (state.ended, state.stalled) = (true, true);
        state.release_all();
        self.work.notify_all();
    }

    /// Whether writeback has ended or must end.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended
    }
}

impl State {
    /// The number of cleaned pages at which the writer may continue.
    fn next_target(&mut self, pages: usize, weight: f64, excess: usize) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small and positive
        let charge = (pages as f64 * weight) as u64;
        self.target = self.target.max(self.cleaned.saturating_sub(self.burst)) + charge;
        // The excess delays this writer but is not charged, because all writers wait for it.
        if excess > 0 { self.target.max(self.cleaned + excess as u64) } else { self.target }
    }

    /// Ends a stall: writeback cleans pages, or is not needed.
    fn resume(&mut self) {
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
    fn targets_are_reached_in_order_by_what_is_cleaned() {
        let mut state = State { burst: 1024, ..State::default() };
        assert_eq!(state.next_target(2048, 0.0, 0), 0, "no wait at the background limit");
        assert_eq!(state.next_target(2000, 1.0, 0), 2000);
        assert_eq!(state.next_target(500, 2.0, 0), 3000);
        assert_eq!(state.next_target(0, 2.0, 5000), 5000);
        assert_eq!(state.next_target(0, 2.0, 0), 3000, "excess is not charged");
        // Idle time saves no more than a burst.
        state.cleaned = 1 << 20;
        assert!(state.next_target(1024, 1.0, 0) <= state.cleaned);
        assert!(state.next_target(10, 1.0, 0) > state.cleaned);
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
            let begun = std::time::Instant::now();
            assert!(throttle.wait_for_work(LONG) && begun.elapsed() < LONG);
            throttle.cleaned(599);
            while throttle.state.lock().waiters.len() > 1 {
                std::thread::yield_now();
            }
            throttle.cleaned(1);
            assert!(waits.into_iter().all(|wait| wait.join().unwrap() == Paced::Go));
        });
    }

    #[test]
    fn no_writer_waits_for_stalled_writeback() {
        let throttle = Throttle::new(1024);
        assert_eq!(throttle.pace(4096, 1.0, 0, NONE), Paced::Go, "the time is over");
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
        let full = || Some(Error::new(ErrorKind::NoSpace, "injected"));
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
        assert!(!throttle.wait_for_work(LONG));
    }
}
