//! Directories that a walk of the tree will list soon.
//!
//! What: where reads take long, each directory that is listed names its subdirectories here, and
//! threads (`volume/walk_ahead.rs`) read them before the walk comes to them. The last that were
//! named are read first, because a walk goes down before it goes on.
//! Locking: the queue is a leaf.

use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use uext4_ondisk::Ino;

/// Most directories that wait; those that were named first are forgotten.
pub(super) const QUEUE_MAX: usize = 1024;

/// The directories that are to be read.
#[derive(Debug)]
pub(crate) struct WalkQueue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    directories: VecDeque<Ino>,
    has_ended: bool,
}

impl WalkQueue {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(LockRank::Leaf, State::default()), wake: Condvar::new() }
    }

    /// Adds the subdirectories of one, in the order of their names.
    pub(super) fn add(&self, directories: &[Ino]) {
        if directories.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        directories.iter().rev().for_each(|ino| state.directories.push_front(*ino));
        state.directories.truncate(QUEUE_MAX);
        drop(state);
        self.wake.notify_all();
    }

    /// The next directory, once there is one; `None` after the end.
    pub(crate) fn next(&self) -> Option<Ino> {
        let mut state = self.state.lock();
        loop {
            if state.has_ended {
                return None;
            }
            if let Some(ino) = state.directories.pop_front() {
                return Some(ino);
            }
            self.wake.wait(&mut state);
        }
    }

    /// Ends the threads that read.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.wake.notify_all();
    }
}
