//! Small files on their way from the thread that reads to those that write.

use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use uext4::Ino;
use uext4_archive::TarPath;

use super::maker::Attributes;
use super::places::Dir;

/// Files are handed over together, so that a thread is not woken for each: so many,
const BATCH_FILES: usize = 64;
/// or so many bytes.
const BATCH_BYTES: usize = 512 << 10;
/// Bytes that are waiting or being written, of contents and of all that comes with them. One file
/// may exceed it alone.
const BYTES_MAX: usize = 12 << 20;

/// A file to make.
pub(super) struct Small {
    pub(super) dir: Dir,
    pub(super) name: Vec<u8>,
    /// For messages.
    pub(super) path: TarPath,
    pub(super) data: Vec<u8>,
    pub(super) attributes: Attributes,
}

impl Small {
    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        let xattrs = self.attributes.xattrs.iter();
        let xattrs: usize = xattrs.map(|xattr| xattr.name.len() + xattr.value.len()).sum();
        let names = self.name.len() + self.path.as_bytes().len();
        size_of::<Self>() + names + self.data.len() + xattrs
    }
}

/// The queue: one thread pushes, others work.
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is work, or there will be none any more.
    filled: Condvar,
    /// A batch is done.
    drained: Condvar,
}

#[derive(Default)]
struct State {
    /// What is not handed over yet.
    next: Batch,
    batches: VecDeque<Batch>,
    /// Bytes of batches that are waiting or under way.
    bytes: usize,
    /// Batches under way.
    busy: usize,
    is_closed: bool,
    /// A thread that works has panicked.
    is_broken: bool,
}

/// Files that one thread makes.
#[derive(Default)]
struct Batch {
    files: Vec<Small>,
    bytes: usize,
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

    /// Adds a file; waits while the queue is full. `false`: it is broken, and makes nothing more.
    pub(super) fn push(&self, small: Small) -> bool {
        let mut state = self.state();
        state.next.bytes += small.bytes();
        state.next.files.push(small);
        if state.next.files.len() < BATCH_FILES && state.next.bytes < BATCH_BYTES {
            return !state.is_broken;
        }
        while !state.is_broken && state.bytes > 0 && state.bytes + state.next.bytes > BYTES_MAX {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.hand_over(&mut state);
        !state.is_broken
    }

    fn hand_over(&self, state: &mut State) {
        if !state.next.files.is_empty() {
            let batch = std::mem::take(&mut state.next);
            state.bytes += batch.bytes;
            state.batches.push_back(batch);
            self.filled.notify_one();
        }
    }

    /// Waits until all files are made, or no more will be.
    pub(super) fn wait(&self) {
        let mut state = self.state();
        self.hand_over(&mut state);
        while !state.is_broken && (state.busy > 0 || !state.batches.is_empty()) {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Works until the queue is closed and empty.
    pub(super) fn work(&self, make: impl Fn(Small)) {
        while let Some(batch) = self.take() {
            let _under_way = UnderWay { queue: self, bytes: batch.bytes };
            batch.files.into_iter().for_each(&make);
        }
    }

    fn take(&self) -> Option<Batch> {
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
    pub(super) fn closing(&self) -> Closing<'_> {
        Closing(self)
    }
}

/// A batch under way; it ends also when a thread panics.
struct UnderWay<'a> {
    queue: &'a Queue,
    bytes: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.busy -= 1;
        state.bytes -= self.bytes;
        state.is_broken |= std::thread::panicking();
        self.queue.drained.notify_one();
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

/// Names that the queue has or had, of files and not as an archive spells their paths: hashes of
/// the directory and the name. Two that have one hash cost a wait that was not needed.
#[derive(Default)]
pub(super) struct Queued {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl Queued {
    fn hash(&self, dir: Ino, name: &[u8]) -> u64 {
        self.hasher.hash_one((dir, name))
    }

    pub(super) fn insert(&mut self, dir: Ino, name: &[u8]) {
        self.hashes.insert(self.hash(dir, name));
    }

    pub(super) fn has(&self, dir: Ino, name: &[u8]) -> bool {
        self.hashes.contains(&self.hash(dir, name))
    }

    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn clear(&mut self) {
        self.hashes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that panics does not make the one that reads wait for ever.
    #[test]
    fn a_broken_queue_is_not_waited_for() {
        let queue = Queue::new();
        queue.state().batches.push_back(Batch { files: Vec::new(), bytes: 0 });
        queue.state().batches.push_back(Batch { files: Vec::new(), bytes: 0 });
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
