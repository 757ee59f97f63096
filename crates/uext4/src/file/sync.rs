//! fsync(2), fdatasync(2) and sync(2).
//!
//! Invariants: a sync returns when everything that was written before it is durable: data by a
//! flush that started after the last write completed, metadata by its transaction. It sends a flush
//! of its own unless such a flush is known to have succeeded.

use super::FileContext;
use super::delete::Deletion;
use super::expiry::Expiry;
use super::group_writeback::{GroupWriteback, Persistence};
use crate::error::Result;
use crate::inode::InodeRef;
use crate::journal::later;
use std::sync::Arc;
use uext4_ondisk::{FileKind, InodeFlags};

/// Number of inodes that background writeback takes off the list at a time.
const DRAIN_INODES: usize = 1024;

/// Brings what is in memory to the device.
#[derive(Debug)]
pub(crate) struct Syncs {
    pub(super) context: Arc<FileContext>,
    deletion: Arc<Deletion>,
    /// Writeback passes that syncs share.
    pub(super) group_writeback: GroupWriteback,
    /// When it is brought there without being asked for.
    pub(crate) expiry: Expiry,
}

impl Syncs {
    pub(super) fn new(context: &Arc<FileContext>, deletion: &Arc<Deletion>) -> Self {
        let (context, deletion) = (Arc::clone(context), Arc::clone(deletion));
        let group_writeback = GroupWriteback::new(context.journal().commits_beside_data());
        let expiry = Expiry::new(context.options.dirty_expire_ms);
        Self { context, deletion, group_writeback, expiry }
    }

    /// Makes an inode durable: data and, unless `data_only`, every attribute.
    ///
    /// # Errors
    /// A failure of its writeback, a failed flush, an aborted journal.
    pub(crate) fn sync(&self, inode: &InodeRef, data_only: bool) -> Result<()> {
        if self.context.opened_read_only {
            return Ok(());
        }
        if inode.kind() == FileKind::Regular
            && self.write_back_shared(inode, data_only)? == Persistence::Durable
        {
            return Ok(());
        }
        self.make_durable(std::iter::once((inode, data_only)))
    }

    /// Makes durable what was written back and what is in transactions, with one wait for all of
    /// these syncs. Each is an inode, and whether only its data matters.
    pub(super) fn make_durable<'a>(
        &self,
        syncs: impl Iterator<Item = (&'a InodeRef, bool)>,
    ) -> Result<()> {
        let (mut newest, mut written, mut count) = (None, None, 0);
        for (inode, data_only) in syncs {
            // The epoch that a flush must cover for this call. Syncs of data that is written from
            // now on wait for themselves.
            written = written.max(inode.written());
            if !data_only {
                self.write_times(inode)?;
            }
            newest = match (newest, inode.sync_tid(data_only)) {
                (Some(newest), Some(tid)) => Some(later(newest, tid)),
                (newest, tid) => newest.or(tid),
            };
            count += 1;
        }
        let journal = self.context.journal();
        if let Some(tid) = newest {
            journal.wait_durable_for(tid, count)?;
        }
        // In most cases the flush of the commit covers the data, too.
        written.map_or(Ok(()), |epoch| journal.flush_gate().cover(epoch))
    }

    /// Begins the commit that these syncs need before their data is written, where both take round
    /// trips: the data of blocks that are mapped already need not be on the device before the
    /// commit, which brings only times. Other data has to be, and then nothing is done here. What
    /// fails here fails again in [`Syncs::make_durable`].
    pub(super) fn begin_commit<'a>(
        &self,
        syncs: impl Iterator<Item = (&'a InodeRef, bool)> + Clone,
    ) {
        let journal = self.context.journal();
        if !journal.commits_beside_data() || !syncs.clone().all(|(inode, _)| is_overwritten(inode))
        {
            return;
        }
        let tids = syncs.filter(|(_, data_only)| !data_only).filter_map(|(inode, _)| {
            self.write_times(inode).ok()?;
            inode.sync_tid(false)
        });
        if let Some(tid) = tids.reduce(later) {
            journal.begin_commit(tid);
        }
    }

    /// Makes a change of a file durable if the file has the SYNC flag. Called at the end of the
    /// change, with no lock held.
    pub(crate) fn honour_sync_flag(&self, inode: &InodeRef) -> Result<()> {
        let is_sync = inode.attributes().flags.contains(InodeFlags::SYNC);
        if is_sync { self.sync(inode, false) } else { Ok(()) }
    }

    /// Makes a change of directory entries durable for directories with the SYNC or DIRSYNC flag.
    /// Called at the end of the change, with no lock held.
    pub(crate) fn honour_dirsync_flags(&self, dirs: &[&InodeRef]) -> Result<()> {
        for dir in dirs {
            let flags = dir.attributes().flags;
            if flags.intersects(InodeFlags::SYNC | InodeFlags::DIRSYNC)
                && let Some(tid) = dir.sync_tid(false)
            {
                self.context.journal().wait_durable(tid)?;
            }
        }
        Ok(())
    }

    /// Brings lazy timestamps into a transaction.
    pub(super) fn write_times(&self, inode: &InodeRef) -> Result<()> {
        self.context.fold_direct_times(inode);
        if !inode.attributes().times_dirty {
            return Ok(());
        }
        let _pin = inode.table_block()?;
        self.context.journal().run(1, |handle| inode.update(handle, |_| ()))
    }

    /// Writes back every inode that is dirty now. Returns when other threads that write inodes back
    /// have finished, too. The caller holds no writeback lock and no handle.
    ///
    /// # Errors
    /// The first failure; the other inodes are written back all the same.
    pub(crate) fn write_back_all(&self) -> Result<()> {
        self.write_back_drained(&self.context.table.budget().dirty_inodes().drain(), |_| true)
    }

    /// Makes everything on the volume durable.
    ///
    /// # Errors
    /// Those of [`Syncs::write_back_all`]; a failed flush; an aborted journal.
    pub(crate) fn sync_all(&self) -> Result<()> {
        if self.context.opened_read_only {
            return Ok(());
        }
        let written = self.write_back_all();
        let journal = self.context.journal();
        let committed = journal.commit_all();
        let flushed = journal.flush_gate().cover(journal.flush_gate().epoch());
        written.and(committed).and(flushed)
    }

    /// Whether there are changes that are not durable: data or times in memory, or a transaction.
    /// Also true after a failed flush, when it is not known.
    #[must_use]
    pub(crate) fn is_unsynced(&self) -> bool {
        if self.context.opened_read_only {
            return false;
        }
        let budget = self.context.table.budget();
        let journal = self.context.journal();
        let in_memory = budget.dirty() > 0 || !budget.dirty_inodes().is_empty();
        in_memory || journal.has_changes() || journal.flush_gate().has_failed()
    }

    /// Writes back inodes that have been dirty for longer than they may be, brings lazy
    /// timestamps into a transaction (`with_times`), and deletes inodes that were unlinked while
    /// this held a reference to them.
    pub(crate) fn write_back_expired(&self, with_times: bool) {
        let now = self.context.clock_ms();
        let drain = self.context.table.budget().dirty_inodes().drain();
        let written = self.write_back_drained(&drain, |inode| {
            let mut pages = inode.pages();
            if pages.map.dirty() == 0 {
                return with_times;
            }
            let is_old = now.saturating_sub(pages.dirty_since_ms) >= self.expiry.age_ms();
            if is_old {
                // What gets dirty during the pass is not older than that.
                pages.dirty_since_ms = now;
            }
            is_old
        });
        drop(drain);
        // Failures are recorded: of writeback with the inode, of a handle with the journal.
        self.context.watch_dropped(written);
        self.context.watch_dropped(self.deletion.delete_unlinked());
    }

    /// Writes back, the oldest inodes first, until less is dirty than the background limit. Writers
    /// that wait go on as pages are cleaned. If no page can be cleaned, the writers are released
    /// with the reason.
    pub(crate) fn write_back_background(&self) {
        let budget = self.context.table.budget();
        let throttle = budget.throttle();
        while budget.is_dirty() && !throttle.has_ended() {
            let before = throttle.progress();
            let mut result = Ok(());
            // At least once, to wait for inodes that another thread has taken off the list.
            let mut left = budget.dirty_inodes().len().max(1);
            while left > 0 && budget.is_dirty() && !throttle.has_ended() {
                let drain = budget.dirty_inodes().drain_oldest(DRAIN_INODES);
                left = left.saturating_sub(drain.inodes().len().max(1));
                self.keep_first(&mut result, self.write_back_drained(&drain, |_| true));
            }
            let failure = result.as_ref().err().cloned();
            self.context.watch_dropped(result);
            if throttle.progress() == before {
                throttle.stall(failure);
                return;
            }
        }
        // Excess that other threads write back is waited for elsewhere.
        if budget.unclean() <= budget.hard_limit() {
            throttle.relax();
        }
    }

    /// Frees space for a caller that finds none: deletes unlinked files, which hold blocks, and
    /// writes back every file, because the reservations of dirty pages are worst cases.
    pub(super) fn reclaim_space(&self) {
        self.context.watch_dropped(self.deletion.delete_unlinked());
        self.context.watch_dropped(self.write_back_all());
    }

    /// Frees space for a caller that has found none. False if there is nothing left to try.
    /// `has_reclaimed` is false at its first call; `releases` is `Space::releases` from before it
    /// looked for space.
    ///
    /// # Errors
    /// Those of a commit.
    pub(super) fn make_room(&self, has_reclaimed: &mut bool, releases: u64) -> Result<bool> {
        let space = &self.context.space;
        // Preallocations may hold blocks. Reservations are worst cases, which writeback replaces by
        // what is needed. Freed blocks come back with a commit.
        if space.discard_preallocations() {
            return Ok(true);
        }
        if !std::mem::replace(has_reclaimed, true) {
            self.reclaim_space();
            return Ok(true);
        }
        space.reclaim_blocks(releases)
    }
}

/// Whether the dirty pages of a file go to blocks that are mapped and written, and its size is in
/// the inode table.
fn is_overwritten(inode: &InodeRef) -> bool {
    let has_size = {
        let attributes = inode.attributes();
        attributes.disk_size >= attributes.size
    };
    let pages = inode.pages();
    has_size && pages.reserved == 0 && pages.converting == 0
}
