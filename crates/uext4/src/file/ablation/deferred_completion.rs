//! Completions on a thread of their own: `dio_completion=deferred`.
//!
//! What: each overwrite that the device has completed is handed to a worker thread, which ends it
//! and wakes the owner of the queue, as the kernel did from 4.19 to 6.18. This costs two thread
//! switches for each completion.
//! Locking: a leaf lock.

use crate::error::{Error, Result};
use crate::file::direct::{DirectDone, end_write};
use crate::inode::{Inode, ReadToken};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// An overwrite that the worker is to end.
#[derive(Debug)]
pub(in crate::file) struct Completion {
    pub(in crate::file) inode: Arc<Inode>,
    pub(in crate::file) token: ReadToken,
    pub(in crate::file) done: DirectDone,
}

/// The worker thread of a queue. Dropping this first ends all that it was given.
#[derive(Debug)]
pub(in crate::file) struct CompletionWorker {
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
    completions: VecDeque<Completion>,
    /// Number of completions that the worker was given and has not ended.
    open: usize,
    done: Vec<DirectDone>,
    is_over: bool,
}

impl CompletionWorker {
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

    pub(in crate::file) fn hand_over(&self, completion: Completion) {
        let mut state = self.shared.state.lock();
        state.completions.push_back(completion);
        state.open += 1;
        drop(state);
        self.shared.work.notify_one();
    }

    /// Waits until at least `at_least` have ended, or all that the worker was given, and appends
    /// them to `done`.
    pub(in crate::file) fn take(&self, at_least: usize, done: &mut Vec<DirectDone>) {
        let mut state = self.shared.state.lock();
        while state.done.len() < at_least && state.open > 0 {
            self.shared.ended.wait(&mut state);
        }
        done.append(&mut state.done);
    }
}

impl Shared {
    fn run(&self) {
        while let Some(completion) = self.next() {
            end_write(&completion.inode, completion.token);
            let mut state = self.state.lock();
            state.open -= 1;
            state.done.push(completion.done);
            drop(state);
            self.ended.notify_one();
        }
    }

    fn next(&self) -> Option<Completion> {
        let mut state = self.state.lock();
        loop {
            if let Some(completion) = state.completions.pop_front() {
                return Some(completion);
            }
            if state.is_over {
                return None;
            }
            self.work.wait(&mut state);
        }
    }
}

impl Drop for CompletionWorker {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has nothing to report.
            let _ = thread.join();
        }
    }
}
