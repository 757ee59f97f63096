//! Open files whose writes are durable when they return.
//!
//! # What
//! The kernel tells a writeback error once to each open file, so a durable write must not share one
//! with anybody who could take its error, nor take that of a flush: each that is under way has an
//! open file (`O_DSYNC`) of its own. Those that are free are kept for the next.
//!
//! # Locking
//! `free` is held to take an open file and to put it back, never over I/O.

use std::fs::File;

use parking_lot::Mutex;

use super::opening::reopen;

/// Open files that are kept: more writes than this at a time are rare.
const FREE_MAX: usize = 16;

/// The open files for durable writes of a file.
#[derive(Debug)]
pub(super) struct DurableFiles {
    flags: libc::c_int,
    free: Mutex<Vec<File>>,
}

impl DurableFiles {
    /// Opens the first; `None` where `/proc` is missing. `flags` beside `O_DSYNC`.
    pub(super) fn open(file: &File, flags: libc::c_int) -> Option<DurableFiles> {
        let flags = flags | libc::O_DSYNC;
        let first = reopen(file, true, flags)?;
        Some(DurableFiles { flags, free: Mutex::new(vec![first]) })
    }

    /// Has `write` called with an open file of its own. `None` where no more can be opened.
    pub(super) fn lend<T>(&self, file: &File, write: impl FnOnce(&File) -> T) -> Option<T> {
        let free = self.free.lock().pop();
        let own = free.or_else(|| reopen(file, true, self.flags))?;
        let result = write(&own);
        let mut free = self.free.lock();
        if free.len() < FREE_MAX {
            free.push(own);
        }
        Some(result)
    }
}
