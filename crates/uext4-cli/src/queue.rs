//! Files on their way from the thread that finds them to those that write.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How much is on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Files are handed over together, so that a thread is not woken for each: so many,
    pub(crate) batch_files: usize,
    /// or so many bytes.
    pub(crate) batch_bytes: usize,
    /// Bytes that are waiting or being written, of contents and of all that comes with them. One
    /// file may exceed it alone.
    pub(crate) bytes: usize,
}

/// The queue: one thread pushes, others work.
pub(crate) struct Queue<T> {
    limits: Limits,
    state: Mutex<State<T>>,
    /// There is work, or there will be none any more.
    filled: Condvar,
    /// A batch is done.
    drained: Condvar,
}

struct State<T> {
    /// What is not handed over yet.
    next: Batch<T>,
    batches: VecDeque<Batch<T>>,
    /// Bytes of batches that are waiting or under way.
    bytes: usize,
    /// Batches under way.
    busy: usize,
    is_closed: bool,
    /// A thread that works has panicked.
    is_broken: bool,
}

/// Files that one thread makes.
struct Batch<T> {
    files: Vec<T>,
    bytes: usize,
}

impl<T> Batch<T> {
    const EMPTY: Self = Self { files: Vec::new(), bytes: 0 };
}

impl<T> Queue<T> {
    /// An empty one.
    pub(crate) fn new(limits: Limits) -> Self {
        let state = Mutex::new(State {
            next: Batch::EMPTY,
            batches: VecDeque::new(),
            bytes: 0,
            busy: 0,
            is_closed: false,
            is_broken: false,
        });
        Self { limits, state, filled: Condvar::new(), drained: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // The state is whole between any two statements that hold it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file that takes so many bytes; waits while the queue is full. `false`: it is broken,
    /// and makes nothing more.
    pub(crate) fn push(&self, file: T, bytes: usize) -> bool {
        let (mut state, limits) = (self.state(), self.limits);
        state.next.bytes += bytes;
        state.next.files.push(file);
        let next = &state.next;
        if next.files.len() < limits.batch_files && next.bytes < limits.batch_bytes {
            return !state.is_broken;
        }
        while !state.is_broken && state.bytes > 0 && state.bytes + state.next.bytes > limits.bytes {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.hand_over(&mut state);
        !state.is_broken
    }

    fn hand_over(&self, state: &mut State<T>) {
        if !state.next.files.is_empty() {
            let batch = std::mem::replace(&mut state.next, Batch::EMPTY);
            state.bytes += batch.bytes;
            state.batches.push_back(batch);
            self.filled.notify_one();
        }
    }

    /// Waits until all files are made, or no more will be.
    pub(crate) fn wait(&self) {
        let mut state = self.state();
        self.hand_over(&mut state);
        while !state.is_broken && (state.busy > 0 || !state.batches.is_empty()) {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Works until the queue is closed and empty.
    pub(crate) fn work(&self, mut make: impl FnMut(T)) {
        while let Some(batch) = self.take() {
            let _under_way = UnderWay { queue: self, bytes: batch.bytes };
            batch.files.into_iter().for_each(&mut make);
        }
    }

    fn take(&self) -> Option<Batch<T>> {
        let mut state = self.state();
        loop {
            if let Some(batch) = state.batches.pop_front() {
                state.busy += 1;
                return Some(batch);
            }
            if state.is_closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the queue when it is dropped.
    pub(crate) fn closing(&self) -> Closing<'_, T> {
        Closing(self)
    }
}

/// A batch under way; it ends also when a thread panics.
struct UnderWay<'a, T> {
    queue: &'a Queue<T>,
    bytes: usize,
}

impl<T> Drop for UnderWay<'_, T> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.busy -= 1;
        state.bytes -= self.bytes;
        state.is_broken |= std::thread::panicking();
        self.queue.drained.notify_one();
    }
}

/// See [`Queue::closing`].
pub(crate) struct Closing<'a, T>(&'a Queue<T>);

impl<T> Drop for Closing<'_, T> {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that panics does not make the one that reads wait for ever.
    #[test]
    fn a_broken_queue_is_not_waited_for() {
        let queue = Queue::<()>::new(Limits { batch_files: 1, batch_bytes: 1, bytes: 1 });
        queue.state().batches.push_back(Batch::EMPTY);
        queue.state().batches.push_back(Batch::EMPTY);
        let died = std::thread::scope(|scope| {
            let dies = || {
                let _batch = queue.take();
                let _under_way = UnderWay { queue: &queue, bytes: 0 };
                panic!("injected");
            };
            scope.spawn(dies).join().is_err()
        });
        assert!(died && queue.state().is_broken);
        queue.wait();
    }
}
