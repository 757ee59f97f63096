//! Directories that a walk of the tree will list soon, and files that it will read.
//!
//! What: where reads take long, each directory that is listed names its subdirectories here, and
//! threads (`volume/walk_ahead.rs`) read them before the walk comes to them. The last that were
//! named are read first, because a walk goes down before it goes on. Files come before them, those
//! that [`ListedFiles`] expects to be read.
//! Locking: the queue is a leaf.

use super::listed_files::ListedFiles;
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use uext4_ondisk::Ino;

/// Most directories that wait, and most files; those that were named first are forgotten.
pub(super) const QUEUE_MAX: usize = 1024;

/// The directories and files that are to be read.
#[derive(Debug)]
pub(crate) struct WalkQueue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    directories: VecDeque<Ino>,
    files: VecDeque<Ino>,
    listed: ListedFiles,
    has_ended: bool,
}

impl WalkQueue {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(LockRank::Leaf, State::default()), wake: Condvar::new() }
    }

    /// Adds the subdirectories of a directory that is listed, from its start or from where the last
    /// call ended, and says which files it has; all in the order of the listing.
    pub(super) fn add(&self, dir: Ino, from_start: bool, directories: &[Ino], files: &[Ino]) {
        let mut state = self.state.lock();
        directories.iter().rev().for_each(|ino| state.directories.push_front(*ino));
        state.directories.truncate(QUEUE_MAX);
        let files = state.listed.listed(dir, from_start, files);
        if state.add_files(&files) || !directories.is_empty() {
            drop(state);
            self.wake.notify_all();
        }
    }

    /// Says that a file is read from its start.
    pub(super) fn reads(&self, file: Ino) {
        let mut state = self.state.lock();
        // Its reader has come to it before the threads.
        state.files.retain(|queued| *queued != file);
        let files = state.listed.read(file);
        if state.add_files(&files) {
            drop(state);
            self.wake.notify_all();
        }
    }

    /// The next file or directory, once there is one; `None` after the end.
    pub(crate) fn next(&self) -> Option<Ino> {
        let mut state = self.state.lock();
        loop {
            if state.has_ended {
                return None;
            }
            let next = state.files.pop_front().or_else(|| state.directories.pop_front());
            if next.is_some() {
                return next;
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

impl State {
    /// Whether there are any.
    fn add_files(&mut self, files: &[Ino]) -> bool {
        self.files.extend(files);
        let over = self.files.len().saturating_sub(QUEUE_MAX);
        self.files.drain(..over);
        !files.is_empty()
    }
}
