//! Locking a directory below directories that are locked already.
//!
//! Invariants: **a thread that holds a directory waits for another one only while it has the rename
//! lock.** Without that lock it tries, and if the directory is busy it lets go of everything and
//! comes again with the lock. So at most one thread waits while it holds, and the wait ends,
//! whatever the image says about which directory is above which: a damaged one may have loops, and
//! directories with two names.

use super::Vfs;
use crate::error::Result;
use crate::inode::Inode;
use crate::sync::{MutexGuard, RwLockWriteGuard};

/// Exclusive hold of the content of a directory or file.
pub(super) type ContentLock<'a> = RwLockWriteGuard<'a, ()>;

/// Whether an operation came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It did.
    Yes,
    /// A directory was busy; nothing has changed.
    NotYet,
}

/// The right to lock a second directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn<'a> {
    rename: Option<&'a MutexGuard<'a, ()>>,
}

impl Turn<'_> {
    /// Whether this thread has the rename lock: no other one changes where directories are.
    pub(super) fn is_exclusive(self) -> bool {
        self.rename.is_some()
    }

    /// Locks an inode that this thread has not locked. `None`: it is a directory and busy, and
    /// this thread must not wait.
    pub(super) fn lock<'i>(self, inode: &'i Inode) -> Option<ContentLock<'i>> {
        if self.is_exclusive() || inode.kind() != uext4_ondisk::FileKind::Directory {
            return Some(inode.lock().write());
        }
        inode.lock().try_write()
    }
}

impl Vfs {
    /// Runs `operation` without the rename lock unless `exclusive`, and with it if that met a busy
    /// directory.
    pub(super) fn in_turn(
        &self,
        exclusive: bool,
        operation: impl Fn(Turn<'_>) -> Result<Done>,
    ) -> Result<()> {
        if !exclusive && operation(Turn { rename: None })? == Done::Yes {
            return Ok(());
        }
        let rename = self.rename.lock();
        let done = operation(Turn { rename: Some(&rename) })?;
        debug_assert_eq!(done, Done::Yes, "who has the rename lock waits");
        Ok(())
    }
}
