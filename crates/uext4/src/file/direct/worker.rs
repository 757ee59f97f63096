//! Completions on a thread of their own: `dio_completion=deferred`, a contrast.
//!
//! What: each overwrite that the device has answered is handed to a worker thread, which ends it
//! and wakes the owner of the queue, as the kernel did from 4.19 to 6.18: two switches of threads
//! for each completion.
//! Locking: a leaf.

use super::queue::DirectDone;
use super::requests::end_write;
use crate::error::{Error, Result};
use crate::inode::{Inode, Ticket};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// A completion that is to be ended.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) inode: Arc<Inode>,
    pub(super) ticket: Ticket,
    pub(super) done: DirectDone,
}

/// The thread. Dropping it ends what it was given first.
#[derive(Debug)]
pub(super) struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Given to the thread and not ended.
    open: usize,
    done: Vec<DirectDone>,
    is_over: bool,
}

impl Worker {
    pub(super) fn start() -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(LockRank::Leaf, State::default()),
            work: Condvar::new(),
            ended: Condvar::new(),
        });
        let seen = Arc::clone(&shared);
        let thread = crate::sync::thread::Builder::new()
            .name("uext4-dio".to_owned())
            .spawn(move || seen.run())
            .map_err(|e| Error::io("starting thread uext4-dio", e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn hand_over(&self, job: Job) {
        let mut state = self.shared.state.lock();
        state.jobs.push_back(job);
        state.open += 1;
        drop(state);
        self.shared.work.notify_one();
    }

    /// Waits until at least `at_least` are ended, or all that it was given, and tells of them.
    pub(super) fn take(&self, at_least: usize, done: &mut Vec<DirectDone>) {
        let mut state = self.shared.state.lock();
        while state.done.len() < at_least && state.open > 0 {
            self.shared.ended.wait(&mut state);
        }
        done.append(&mut state.done);
    }
}

impl Shared {
    fn run(&self) {
        while let Some(job) = self.next() {
            end_write(&job.inode, job.ticket);
            let mut state = self.state.lock();
            state.open -= 1;
            state.done.push(job.done);
            drop(state);
            self.ended.notify_one();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_over {
                return None;
            }
            self.work.wait(&mut state);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // One that panicked has nothing to tell.
            let _ = thread.join();
        }
    }
}
