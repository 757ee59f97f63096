//! fsync(2), fdatasync(2) and sync(2).
//!
//! Invariants: a sync returns when all that was written before it is durable: data by a flush that
//! started after the last write completed, metadata by its transaction. It sends no flush of its
//! own only when such a flush is known to have succeeded.

use super::Files;
use crate::error::Result;
use crate::inode::InodeRef;
use uext4_ondisk::{FileKind, InodeFlags};

impl Files {
    /// Makes an inode durable: data and, unless `data_only`, every attribute.
    ///
    /// # Errors
    /// A failure of its writeback, a failed flush, an aborted journal.
    pub fn sync(&self, inode: &InodeRef, data_only: bool) -> Result<()> {
        if self.opened_read_only {
            return Ok(());
        }
        if inode.kind() == FileKind::Regular {
            self.sweep_shared(inode)?;
        }
        // What a flush must cover for this call: what others write from now on is theirs to wait
        // for.
        let written = inode.written();
        if !data_only {
            self.write_times(inode)?;
        }
        let journal = self.space.journal();
        if let Some(tid) = inode.sync_tid(data_only) {
            journal.wait_durable(tid)?;
        }
        // The commit's flush most often covers the data, too.
        match written {
            Some(epoch) if !journal.flush_gate().has_covered(epoch) => journal.flush_gate().flush(),
            _ => Ok(()),
        }
    }

    /// What a change of a file with the SYNC flag does at its end. The caller holds no lock.
    pub(crate) fn honour_sync_flag(&self, inode: &InodeRef) -> Result<()> {
        let is_sync = inode.attributes().flags.contains(InodeFlags::SYNC);
        if is_sync { self.sync(inode, false) } else { Ok(()) }
    }

    /// What a change of entries of directories does at its end, for those that have the SYNC or
    /// DIRSYNC flag. The caller holds no lock.
    pub(crate) fn honour_dirsync_flags(&self, dirs: &[&InodeRef]) -> Result<()> {
        for dir in dirs {
            let flags = dir.attributes().flags;
            if flags.intersects(InodeFlags::SYNC | InodeFlags::DIRSYNC)
                && let Some(tid) = dir.sync_tid(false)
            {
                self.space.journal().wait_durable(tid)?;
            }
        }
        Ok(())
    }

    /// Brings times that changed in memory into a transaction.
    pub(super) fn write_times(&self, inode: &InodeRef) -> Result<()> {
        if !inode.attributes().times_dirty {
            return Ok(());
        }
        let _pin = inode.table_block()?;
        self.space.journal().run(1, |handle| inode.update(handle, |_| ()))
    }

    /// Writes back every inode that is dirty now.
    ///
    /// # Errors
    /// The first failure; the others are written back all the same.
    pub fn write_back_all(&self) -> Result<()> {
        let mut result = Ok(());
        self.for_dirty(|inode| {
            let one = || {
                if inode.kind() == FileKind::Regular {
                    self.sweep(inode)?;
                }
                self.write_times(inode)
            };
            // The first failure is the caller's.
            match one() {
                Err(error) if result.is_ok() => result = Err(error),
                one => self.watch_dropped(one),
            }
        });
        result
    }

    /// Visits every inode that is dirty now, and returns when whoever else does so is done, too.
    /// The caller holds no sweep lock and no handle.
    pub(super) fn for_dirty(&self, mut visit: impl FnMut(&InodeRef)) {
        let drain = self.table.budget().dirty_inodes().drain();
        for &ino in drain.inodes() {
            // One that has left memory was clean.
            let Some(inode) = self.table.find(ino) else { continue };
            inode.dirty.take();
            visit(&inode);
            if inode.is_dirty() {
                inode.dirty.set();
            }
        }
    }

    /// Makes everything on the volume durable.
    ///
    /// # Errors
    /// As [`Files::write_back_all`]; a failed flush; an aborted journal.
    pub fn sync_all(&self) -> Result<()> {
        if self.opened_read_only {
            return Ok(());
        }
        let written = self.write_back_all();
        let committed = self.space.journal().commit_all();
        let flushed = self.space.journal().flush_gate().flush();
        written.and(committed).and(flushed)
    }

    /// Writes back inodes that have been dirty for longer than the mount options allow, brings
    /// changed times into a transaction, and deletes what was unlinked while this looked at it.
    pub fn write_back_expired(&self) {
        let now = self.clock_ms();
        self.for_dirty(|inode| {
            let (dirty, since) = {
                let pages = inode.pages();
                (pages.map.dirty() > 0, pages.dirty_since_ms)
            };
            let expired = now.saturating_sub(since) >= self.options.dirty_expire_ms;
            // Failures are recorded: of a sweep with the inode, of a handle with the journal.
            if expired && (dirty || inode.has_late_size()) {
                self.watch_dropped(self.sweep(inode));
            }
            if !dirty || expired {
                self.watch_dropped(self.write_times(inode));
            }
        });
        self.watch_dropped(self.delete_unlinked());
    }
}
