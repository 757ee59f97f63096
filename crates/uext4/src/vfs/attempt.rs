//! Locking a directory below directories that are locked already.
//!
//! Invariants: **a thread that holds a directory waits for another one only while it has the rename
//! lock.** Without that lock it only tries. If the directory is busy, it releases everything and
//! makes a second attempt with the lock. So at most one thread waits for a directory while it holds
//! one, and its wait ends, whatever the image says about which directory is above which: a damaged
//! image may have loops, and directories with two names.

use super::Vfs;
use crate::error::Result;
use crate::inode::Inode;
use crate::sync::{MutexGuard, RwLockWriteGuard};

/// An exclusive lock of the content of a directory or file.
pub(super) type ContentLock<'a> = RwLockWriteGuard<'a, ()>;

/// The end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The operation is complete.
    Yes,
    /// A directory was busy; nothing has changed.
    NotYet,
}

/// One attempt at an operation that locks a second directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    /// With the rename lock no other thread moves a directory.
    rename: Option<&'a MutexGuard<'a, ()>>,
}

impl Attempt<'_> {
    /// Locks an inode that this thread has not locked. `None` if it is a directory and busy, and
    /// this thread must not wait.
    pub(super) fn lock<'i>(self, inode: &'i Inode) -> Option<ContentLock<'i>> {
        if self.rename.is_some() || inode.kind() != uext4_ondisk::FileKind::Directory {
            return Some(inode.lock().write());
        }
        inode.lock().try_write()
    }
}

impl Vfs {
    /// Attempts an operation without the rename lock, unless `exclusive`, and then with the lock if
    /// it met a busy directory.
    pub(super) fn attempt(
        &self,
        exclusive: bool,
        operation: impl Fn(Attempt<'_>) -> Result<Done>,
    ) -> Result<()> {
        if !exclusive && operation(Attempt { rename: None })? == Done::Yes {
            return Ok(());
        }
        let rename = self.rename.lock();
        let done = operation(Attempt { rename: Some(&rename) })?;
        debug_assert_eq!(done, Done::Yes, "an attempt with the rename lock waits");
        Ok(())
    }
}
