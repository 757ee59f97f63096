//! Set-id bits, which a change of content by an ordinary user takes away.
//!
//! What: a mark of the calling thread, as the kernel's credentials are one. Threads keep set-id
//! bits, as a process with `CAP_FSETID` does, unless they work for somebody without it
//! ([`clearing_set_id`]). Looked at by the writes and fallocate of an
//! [`OpenFile`](super::OpenFile); a queue of direct requests and a lease are their owner's.
//! Invariants: the bits are gone before the first byte changes, and there is a handle only where
//! one is set. A mode that is set during a write comes before or after it; who needs more keeps
//! both apart, as the kernel does for a mount.
//! Kernel counterpart: `file_remove_privs` in `fs/inode.c`.

use super::Vfs;
use crate::error::Result;
use crate::inode::InodeRef;
use std::cell::Cell;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Keeps,
    Clears,
    HasCleared,
}

thread_local! {
    static MARK: Cell<Mark> = const { Cell::new(Mark::Keeps) };
}

/// Does `work` on behalf of a user who may not keep set-id bits on what he writes to
/// (`CAP_FSETID`). Returns besides whether any were taken away.
pub fn clearing_set_id<T>(work: impl FnOnce() -> T) -> (T, bool) {
    struct Before(Mark);
    impl Drop for Before {
        fn drop(&mut self) {
            MARK.set(self.0);
        }
    }
    let _before = Before(MARK.replace(Mark::Clears));
    let result = work();
    (result, MARK.get() == Mark::HasCleared)
}

impl Vfs {
    /// To be called before the content of `inode` changes. The caller holds no lock, and is not
    /// inside another call of the volume.
    ///
    /// # Errors
    /// As [`Files::check_changeable`](crate::file::Files::check_changeable); a device failure.
    #[inline]
    pub(super) fn before_change(&self, inode: &InodeRef) -> Result<()> {
        if MARK.get() == Mark::Keeps || inode.attributes().set_id_bits() == 0 {
            return Ok(());
        }
        self.files.watch(self.clear_set_id(inode))
    }

    #[cold]
    fn clear_set_id(&self, inode: &InodeRef) -> Result<()> {
        let _inside = self.files.enter()?;
        self.files.check_changeable(inode)?;
        let _exclusive = inode.lock().write();
        let _pin = inode.table_block()?;
        self.files.space().journal().run(1, |handle| {
            inode.update(handle, |attributes| {
                attributes.clear_set_id();
                attributes.touch();
            })
        })?;
        MARK.set(Mark::HasCleared);
        Ok(())
    }
}
