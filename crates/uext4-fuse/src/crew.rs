//! How many workers stand at the kernel's queue.
//!
//! What: a mount has many workers, since some of them wait: for a commit, for the device. But each
//! one that stands at the queue without need costs: the kernel wakes them in turn, so that requests
//! wander over all threads and processors. How much that costs depends on the machine's load:
//! between nothing and, in one run of deletions with eight workers on two processors, half of the
//! time. So a worker that finds enough others at the queue rests, and is called back when one takes
//! a request and leaves nobody there.
//! Who takes a request and leaves nobody, with nobody to call, is the last one: it must not wait,
//! or no request would be answered until somebody is done, not even one that asks what all wait
//! for.
//! Invariants: while a worker rests, another stands at the queue, or is on its way there. No worker
//! rests with something to do.
//! Locking: a leaf mutex for resting and calling; a request that needs neither touches a counter.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// So many at the queue are enough: one takes a request, and the next finds the other.
const ENOUGH: usize = 2;

/// A worker rests after it has come back to a queue with more than enough this often: a load of
/// several clients changes the number all the time.
const PATIENCE: u32 = 32;

/// A resting worker looks at the queue this often, by which it learns that the mount has ended.
const REST: Duration = Duration::from_millis(100);

thread_local! {
    /// How often this worker found more than enough others, in a row.
    static IDLE_RETURNS: Cell<u32> = const { Cell::new(0) };
}

/// The workers of a mount.
pub(crate) struct Crew {
    at_queue: AtomicUsize,
    rest: Mutex<Rest>,
    called: Condvar,
    /// How long a worker rests when nobody calls.
    nap: Duration,
}

#[derive(Default)]
struct Rest {
    resting: usize,
    /// Resting workers that were called and have not woken up yet.
    calls: usize,
    /// Rests so far.
    count: u64,
}

/// A worker that handles a request. When it is dropped the worker goes back to the queue, perhaps
/// after a rest: the answer must have been sent.
pub(crate) struct Shift<'a> {
    crew: &'a Crew,
    is_last: bool,
    may_rest: bool,
}

impl Crew {
    /// So many workers, all at the queue.
    pub(crate) fn new(workers: usize) -> Self {
        Self::with_nap(workers, REST)
    }

    fn with_nap(workers: usize, nap: Duration) -> Self {
        let at_queue = AtomicUsize::new(workers);
        Self { at_queue, rest: Mutex::default(), called: Condvar::new(), nap }
    }

    /// This worker has taken a request from the queue.
    pub(crate) fn shift(&self) -> Shift<'_> {
        self.take(true)
    }

    /// Likewise, and it may have more of what it took to do after this.
    pub(crate) fn part(&self) -> Shift<'_> {
        self.take(false)
    }

    fn take(&self, may_rest: bool) -> Shift<'_> {
        let leaves_nobody = self.at_queue.fetch_sub(1, Ordering::SeqCst) == 1;
        Shift { crew: self, is_last: leaves_nobody && !self.call(), may_rest }
    }

    /// How often a worker has rested.
    #[cfg(test)]
    pub(crate) fn rests(&self) -> u64 {
        self.rest.lock().count
    }

    /// Calls a worker that rests; false if there is none.
    fn call(&self) -> bool {
        let mut rest = self.rest.lock();
        let is_there = rest.resting > rest.calls;
        if is_there {
            rest.calls += 1;
            self.at_queue.fetch_add(1, Ordering::SeqCst);
            self.called.notify_one();
        }
        is_there
    }

    fn come_back(&self, may_rest: bool) {
        let is_needed = self.at_queue.fetch_add(1, Ordering::SeqCst) < ENOUGH;
        if !may_rest {
            return;
        }
        if is_needed {
            IDLE_RETURNS.set(0);
            return;
        }
        IDLE_RETURNS.set(IDLE_RETURNS.get() + 1);
        if IDLE_RETURNS.get() > PATIENCE {
            IDLE_RETURNS.set(PATIENCE);
            self.rest();
        }
    }

    /// Leaves the queue until somebody calls, or for a while.
    fn rest(&self) {
        let mut rest = self.rest.lock();
        // Under the lock: who leaves the queue empty after this finds us resting.
        if self.at_queue.fetch_sub(1, Ordering::SeqCst) <= ENOUGH {
            self.at_queue.fetch_add(1, Ordering::SeqCst);
            return;
        }
        rest.resting += 1;
        rest.count += 1;
        self.called.wait_for(&mut rest, self.nap);
        rest.resting -= 1;
        if rest.calls > 0 {
            // Counted by the caller. One who is called and times out in the same moment takes the
            // call all the same; if it was for another, that one comes back as by time.
            rest.calls -= 1;
        } else {
            self.at_queue.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Shift<'_> {
    /// Whether this worker left nobody at the queue: it hands its request to somebody else.
    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }
}

impl Drop for Shift<'_> {
    fn drop(&mut self) {
        self.crew.come_back(self.may_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn workers_rest_when_there_are_enough_and_are_called_when_nobody_is_left() {
        let crew = Arc::new(Crew::with_nap(3, Duration::from_secs(3600)));
        let (sender, back) = mpsc::channel();
        let worker = {
            let crew = Arc::clone(&crew);
            thread::spawn(move || {
                for _ in 0..=PATIENCE {
                    drop(crew.shift());
                }
                sender.send(()).expect("the test waits");
            })
        };
        while crew.rest.lock().resting == 0 {
            thread::yield_now();
        }
        assert_eq!(crew.at_queue.load(Ordering::SeqCst), 2);
        // Two requests at once leave nobody: the third worker comes.
        let first = crew.shift();
        let second = crew.shift();
        back.recv().expect("the worker was called");
        assert_eq!(crew.at_queue.load(Ordering::SeqCst), 1);
        drop((first, second));
        worker.join().expect("the worker does not panic");
        assert_eq!(crew.at_queue.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn one_worker_is_the_last_and_is_so_again_after_it() {
        let crew = Crew::new(3);
        let (first, second) = (crew.shift(), crew.shift());
        assert!(!first.is_last() && !second.is_last());
        for _ in 0..3 {
            assert!(crew.shift().is_last());
        }
        drop(first);
        assert!(!crew.shift().is_last());
        drop(second);
    }

    #[test]
    fn nobody_rests_where_two_are_all() {
        let crew = Crew::new(2);
        for _ in 0..1000 {
            drop(crew.shift());
        }
        assert_eq!(crew.at_queue.load(Ordering::SeqCst), 2);
    }
}
