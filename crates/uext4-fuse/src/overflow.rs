//! Threads for the requests that come while all workers but one wait.
//!
//! What: the last worker at the kernel's queue hands its request over to a thread from here and
//! goes back, so that somebody always stands at the queue. Programs that all wait for one commit
//! thereby join that commit, however many they are, and a question of what they wait for is
//! answered. A thread is started when none is idle, and ends when it has had nothing to do for a
//! while.
//! Locking: one leaf mutex.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The work of one request; it answers.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A thread without work ends after this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Most threads. Each stands for a thread of a program that waits for us; with more, requests wait
/// for one to be done.
const THREADS_MAX: usize = 4096;

/// The threads and what they have to do.
#[derive(Default)]
pub(crate) struct Overflow(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    all_gone: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    ending: bool,
}

impl Overflow {
    /// Has `job` done, now or as soon as a thread is free.
    pub(crate) fn give(&self, job: Job) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(job);
        // Threads that were called and have not woken yet are idle still, and their jobs are still
        // in the queue.
        if state.idle >= state.jobs.len() {
            self.0.work.notify_one();
            return;
        }
        if state.threads >= THREADS_MAX {
            return;
        }
        state.threads += 1;
        let shared = Arc::clone(&self.0);
        let started =
            thread::Builder::new().name("fuse-more".to_owned()).spawn(move || Thread(shared).run());
        if started.is_err() {
            state.threads -= 1;
            // No memory for another thread. One that is there will come for the job; where there
            // is none, the worker has to do it after all.
            if state.threads == 0
                && let Some(job) = state.jobs.pop_back()
            {
                drop(state);
                job();
            }
        }
    }

    /// Returns when everything is done and all threads are gone.
    pub(crate) fn finish(&self) {
        let mut state = self.0.state.lock();
        state.ending = true;
        self.0.work.notify_all();
        while state.threads > 0 {
            self.0.all_gone.wait(&mut state);
        }
    }
}

/// Counts itself out, also when a job panics.
struct Thread(Arc<Shared>);

impl Thread {
    fn run(self) {
        let mut state = self.0.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.0.state.lock();
                continue;
            }
            if state.ending {
                return;
            }
            state.idle += 1;
            let timed_out = self.0.work.wait_for(&mut state, PATIENCE).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                return;
            }
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            self.0.all_gone.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    /// Would hang if a job waited for a thread that waits for that job.
    #[test]
    fn as_many_jobs_as_come_wait_for_each_other() {
        let overflow = Overflow::default();
        for round in 0..3 {
            let barrier = Arc::new(std::sync::Barrier::new(20));
            let (sender, done) = mpsc::channel();
            for _ in 0..20 {
                let (barrier, sender) = (Arc::clone(&barrier), sender.clone());
                overflow.give(Box::new(move || {
                    barrier.wait();
                    sender.send(()).expect("the test waits");
                }));
            }
            for _ in 0..20 {
                done.recv_timeout(Duration::from_secs(20)).expect("every job runs");
            }
            // Later rounds use the threads of the first, give or take those not idle again yet.
            assert!(overflow.0.state.lock().threads <= 20 * (round + 1));
        }
        overflow.finish();
        assert_eq!(overflow.0.state.lock().threads, 0);
    }

    #[test]
    fn the_end_waits_for_what_was_given_and_a_panic_takes_its_thread_along() {
        let overflow = Overflow::default();
        let done = Arc::new(AtomicUsize::new(0));
        overflow.give(Box::new(|| std::panic::resume_unwind(Box::new("injected"))));
        for _ in 0..8 {
            let done = Arc::clone(&done);
            overflow.give(Box::new(move || {
                thread::sleep(Duration::from_millis(20));
                done.fetch_add(1, Ordering::Relaxed);
            }));
        }
        overflow.finish();
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }
}
