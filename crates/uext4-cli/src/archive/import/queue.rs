//! Small files on their way from the thread that reads to those that write.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use uext4_archive::TarPath;

use super::maker::Attributes;
use super::places::Dir;

/// Files are handed over together, so that a thread is not woken for each: so many,
const BATCH_FILES: usize = 64;
/// or so many bytes.
const BATCH_BYTES: usize = 512 << 10;
/// Batches that may wait. With those under way this bounds what the queue takes of memory.
const BATCHES_MAX: usize = 8;

/// A file to make.
pub(super) struct Small {
    pub(super) dir: Dir,
    pub(super) name: Vec<u8>,
    /// For messages.
    pub(super) path: TarPath,
    pub(super) data: Vec<u8>,
    pub(super) attributes: Attributes,
}

/// The queue: one thread pushes, others work.
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is work, or there will be none any more.
    filled: Condvar,
    /// A batch was taken or is done.
    drained: Condvar,
}

#[derive(Default)]
struct State {
    /// What is not handed over yet.
    next: Vec<Small>,
    bytes: usize,
    batches: VecDeque<Vec<Small>>,
    /// Batches under way.
    busy: usize,
    is_closed: bool,
}

impl Queue {
    pub(super) fn new() -> Self {
        let state = Mutex::new(State::default());
        Self { state, filled: Condvar::new(), drained: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that hold it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file; waits while the queue is full.
    pub(super) fn push(&self, small: Small) {
        let mut state = self.state();
        state.bytes += small.data.len();
        state.next.push(small);
        if state.next.len() < BATCH_FILES && state.bytes < BATCH_BYTES {
            return;
        }
        while state.batches.len() >= BATCHES_MAX {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.hand_over(&mut state);
    }

    fn hand_over(&self, state: &mut State) {
        if !state.next.is_empty() {
            let batch = std::mem::take(&mut state.next);
            state.batches.push_back(batch);
            state.bytes = 0;
            self.filled.notify_one();
        }
    }

    /// Waits until all files are made.
    pub(super) fn wait(&self) {
        let mut state = self.state();
        self.hand_over(&mut state);
        while state.busy > 0 || !state.batches.is_empty() {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Works until the queue is closed and empty.
    pub(super) fn work(&self, make: impl Fn(Small)) {
        while let Some(batch) = self.take() {
            let _under_way = UnderWay(self);
            batch.into_iter().for_each(&make);
        }
    }

    fn take(&self) -> Option<Vec<Small>> {
        let mut state = self.state();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                state.busy += 1;
                self.drained.notify_one();
                return Some(batch);
            }
            if state.is_closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the queue when it is dropped.
    pub(super) fn closing(&self) -> Closing<'_> {
        Closing(self)
    }
}

/// A batch under way; it ends also when a thread panics.
struct UnderWay<'a>(&'a Queue);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.state().busy -= 1;
        self.0.drained.notify_one();
    }
}

/// See [`Queue::closing`].
pub(super) struct Closing<'a>(&'a Queue);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.filled.notify_all();
    }
}
