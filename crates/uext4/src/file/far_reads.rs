//! Read-ahead of sequential readers where reads take long.
//!
//! What: a reader that goes through a file in order has a window read at a time, which doubles from
//! [`WINDOW_MIN`] to [`WINDOW_MAX`] bytes, so that the time of a round trip is spent once a window.
//! One reader of a file reads ahead; the others, such as the kernel's read-ahead requests that
//! follow it, wait and find their pages.
//! Locking: the set of files is a leaf. A waiter holds the file, shared, as the reader does that it
//! waits for.

use crate::sync::{Condvar, LockRank, Mutex};
use rustc_hash::FxHashSet;
use uext4_ondisk::Ino;

/// First window, in bytes.
pub(super) const WINDOW_MIN: u32 = 1 << 20;
/// Largest window, in bytes.
pub(super) const WINDOW_MAX: u32 = 8 << 20;
/// How far behind where the last one ended a read may begin and still be in order, in bytes:
/// requests of one reader overtake each other.
pub(super) const SLACK: u64 = 512 << 10;

/// Files that are being read ahead.
#[derive(Debug)]
pub(super) struct FarReads {
    files: Mutex<FxHashSet<Ino>>,
    ended: Condvar,
}

/// The right to read a file ahead.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    reads: &'a FarReads,
    ino: Ino,
}

impl FarReads {
    pub(super) fn new() -> Self {
        Self { files: Mutex::new(LockRank::Leaf, FxHashSet::default()), ended: Condvar::new() }
    }

    /// The turn to read a file ahead, or `None` after another reader's has ended: its pages may be
    /// what the caller needs.
    pub(super) fn turn(&self, ino: Ino) -> Option<Turn<'_>> {
        let mut files = self.files.lock();
        if files.insert(ino) {
            return Some(Turn { reads: self, ino });
        }
        while files.contains(&ino) {
            self.ended.wait(&mut files);
        }
        None
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.reads.files.lock().remove(&self.ino);
        self.reads.ended.notify_all();
    }
}
