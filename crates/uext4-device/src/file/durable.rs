//! Open files whose writes are durable when they return.
//!
//! # What
//! The kernel reports a writeback error once to each open file. So a durable write must not share
//! an open file with a call that could get its error, and must not get the error of a flush. Each
//! durable write in progress has an open file (`O_DSYNC`) of its own. Free ones are kept for later
//! writes.
//!
//! # Locking
//! `free` is held to take and to return an open file, never over I/O.

use std::fs::File;

use parking_lot::Mutex;

use super::opening::reopen;

/// Most free open files that are kept. More concurrent writes are rare.
const FREE_MAX: usize = 16;

/// The open files for durable writes of a file.
#[derive(Debug)]
pub(super) struct DurableFiles {
    flags: libc::c_int,
    free: Mutex<Vec<File>>,
}

impl DurableFiles {
    /// Opens the first one with `flags` and `O_DSYNC`. `None` without `/proc`.
    pub(super) fn open(file: &File, flags: libc::c_int) -> Option<DurableFiles> {
        let flags = flags | libc::O_DSYNC;
        let first = reopen(file, true, flags)?;
        Some(DurableFiles { flags, free: Mutex::new(vec![first]) })
    }

    /// An open file for one durable write. `None` if no more can be opened.
    pub(super) fn take(&self, file: &File) -> Option<File> {
        let free = self.free.lock().pop();
        free.or_else(|| reopen(file, true, self.flags))
    }

    /// Keeps an open file for later writes.
    pub(super) fn put(&self, own: File) {
        let mut free = self.free.lock();
        if free.len() < FREE_MAX {
            free.push(own);
        }
    }
}
