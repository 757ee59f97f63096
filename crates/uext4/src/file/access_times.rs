//! Access times, and the lazy timestamps of direct I/O.
//!
//! What: a read changes the access time in memory, if the mount options want it. A direct access
//! leaves a mark in the inode, which becomes a time when somebody asks for the attributes. A thread
//! that reads for a caller who wants no trace (`O_NOATIME`) has a mark of its own, as the kernel's
//! open file has a flag ([`without_access_times`]).
//! Locking: the attributes' leaf lock.

use std::cell::Cell;

use super::FileContext;
use crate::config::Atime;
use crate::inode::{Inode, TimeField};
use crate::sync::with_mark;
use uext4_ondisk::InodeFlags;

thread_local! {
    static LEAVES_NO_TRACE: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`, whose reads and listings change no access time (`O_NOATIME`).
pub fn without_access_times<T>(work: impl FnOnce() -> T) -> T {
    with_mark(&LEAVES_NO_TRACE, work)
}

/// Whether reads of this thread change no access time.
pub(super) fn leaves_no_trace() -> bool {
    LEAVES_NO_TRACE.get()
}

impl FileContext {
    /// Notes an access, if the mount options want it. The access time changes in memory; it reaches
    /// the device with the next change of the inode, or when the volume is closed.
    pub fn note_access(&self, inode: &Inode, is_directory: bool) {
        if !(is_directory && self.options.nodiratime || leaves_no_trace()) {
            // Without the guard: thread A reads; thread B closes the volume and writes all times
            // out; A changes one, which memory then shows and the image does not have.
            self.set_access_time(inode, || self.try_begin_call());
        }
    }

    /// Sets the access time to now, if the mount options want it and `begin` gives the right to it.
    fn set_access_time<T>(&self, inode: &Inode, begin: impl FnOnce() -> Option<T>) {
        if self.is_read_only() {
            return;
        }
        let mut attributes = inode.attributes();
        if attributes.flags.contains(InodeFlags::NOATIME) {
            return;
        }
        let now = attributes.now(TimeField::Access);
        let stale = match self.options.atime {
            Atime::None => false,
            Atime::Strict => true,
            Atime::Relative => {
                attributes.atime <= attributes.mtime
                    || attributes.atime <= attributes.ctime
                    || now.secs.saturating_sub(attributes.atime.secs) >= 24 * 60 * 60
            }
        };
        if stale
            && attributes.atime != now
            && let Some(_right) = begin()
        {
            attributes.atime = now;
            inode.note_times(&mut attributes);
        }
    }

    /// [`FileContext::fold_direct_times`] for a reader of the attributes. While the volume is being
    /// closed only the closing thread does it. Otherwise: a reader takes the time of a write; the
    /// volume writes the attributes out; the reader puts the time into attributes that are never
    /// written again.
    pub(crate) fn show_direct_times(&self, inode: &Inode) {
        if !inode.has_lazy_direct_times() {
            return;
        }
        let inside = self.try_begin_call();
        if inside.is_some() || self.is_read_only() {
            self.fold_direct_times(inode);
        }
    }

    /// Brings the lazy timestamps of direct accesses into the attributes. The caller is in a call
    /// of the volume, or closes it.
    pub(crate) fn fold_direct_times(&self, inode: &Inode) {
        if inode.fold_direct_times() {
            self.set_access_time(inode, || Some(()));
        }
    }
}
