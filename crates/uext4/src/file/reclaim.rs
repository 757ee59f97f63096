//! Keeping memory within its budget.
//!
//! What: readers and writers that find the page cache over its budget evict clean pages. Writers
//! that find much dirty memory ask the flusher for writeback and are slowed down by what it does;
//! they write back nothing themselves. At the hard limit nothing more becomes dirty: a writer
//! waits, and is refused where writeback fails. A caller with inodes for a table that is full of
//! inodes with something to write writes that.

use super::Files;
use crate::cache::Paced;
use crate::error::Result;
use crate::inode::InodeRef;
use crate::stats::WaitFor;
use crate::sync::state::Ordering;
use std::time::Duration;

/// Longest wait of a writer below the hard limit.
const PAUSE_MAX: Duration = Duration::from_millis(200);

impl Files {
    /// Evicts clean pages when there are more than the budget allows, and some more, so that the
    /// next page does not bring the next round. Takes no lock that a caller may hold below it, and
    /// no page of a file that is being written to: a writer relies on the pages that it has loaded.
    pub(super) fn reclaim(&self) {
        let budget = self.table.budget();
        if budget.excess() == 0 || self.reclaiming.swap(true, Ordering::Acquire) {
            return;
        }
        let shards = self.table.shard_count();
        // Two rounds: the first takes the marks of use away.
        let mut looks = 2 * shards;
        while budget.surplus() > 0 && looks > 0 {
            looks -= 1;
            let index = self.reclaim_hand.fetch_add(1, Ordering::Relaxed) % shards;
            self.table.look_at_shard(index, |inode| {
                let surplus = budget.surplus();
                if surplus > 0
                    && let Some(_no_writer) = inode.lock().try_read()
                    && let Some(mut pages) = inode.try_pages()
                {
                    pages.map.evict(surplus.max(64));
                }
                surplus > 0
            });
        }
        self.reclaiming.store(false, Ordering::Release);
    }

    /// Waits while more is dirty than the hard limit, before a writer of `inode` adds to it. So
    /// dirty pages are never more than that limit and one chunk for each writer, however long the
    /// device takes nothing. Locks as for [`Files::pace_writer`].
    ///
    /// # Errors
    /// What keeps the flusher from making room.
    pub(super) fn wait_below_limit(&self, inode: &InodeRef) -> Result<()> {
        let budget = self.table.budget();
        let is_below = budget.unclean() <= budget.hard_limit();
        if is_below || inode.is_dax() || self.is_journaled(inode) {
            return Ok(());
        }
        self.pace_writer(0)
    }

    /// Paces a writer that has written `bytes`: below the background limit it goes on at once, from
    /// there on it waits the longer the more is dirty, and at the hard limit until there is room.
    /// The caller holds no sweep lock and no handle; a file lock it may hold, for the flusher takes
    /// none.
    ///
    /// # Errors
    /// What keeps the flusher from making room: the caller should write no more.
    pub(super) fn pace_writer(&self, bytes: usize) -> Result<()> {
        let budget = self.table.budget();
        if budget.unclean() <= budget.background_limit() {
            return Ok(());
        }
        let mut pages = bytes.div_ceil(self.block_size() as usize);
        let _wait = self.space.journal().waits().begin(WaitFor::DirtyLimit);
        loop {
            let excess = budget.unclean().saturating_sub(budget.hard_limit());
            let paced = budget.throttle().pace(pages, budget.weight(), excess, PAUSE_MAX);
            if budget.unclean() <= budget.hard_limit() {
                return Ok(());
            }
            if paced == Paced::Stalled {
                self.check_writable()?;
                return budget.throttle().failure().map_or(Ok(()), Err);
            }
            // What is too much is under writeback by others who sync.
            pages = 0;
            crate::sync::thread::pause();
        }
    }

    /// Keeps one large write from filling the cache with its own pages. The caller holds the file;
    /// `bytes` were written since the last time.
    ///
    /// # Errors
    /// As [`Files::pace_writer`].
    pub(super) fn limit_own_pages(&self, inode: &InodeRef, bytes: usize) -> Result<()> {
        let paced = self.pace_writer(bytes);
        self.reclaim();
        // What is left is our own, which nobody else evicts while we write.
        let excess = self.table.budget().excess();
        if excess > 0 {
            let mut pages = inode.pages();
            // The first pass takes the marks of use away.
            pages.map.evict(excess);
            pages.map.evict(excess);
        }
        paced
    }

    /// Writes what keeps unused inodes in a table that is over its limit: times, and data. To be
    /// called before an operation takes locks.
    pub fn trim_inodes(&self) {
        for index in self.table.take_overfull() {
            let mut unused = Vec::new();
            self.table.for_shard(index, |inode| {
                if inode.is_only_ours() && inode.is_dirty() {
                    unused.push(inode);
                }
            });
            if self.is_read_only() {
                continue;
            }
            // A look-up does this, too, and may come beside the end of the volume: a handle that
            // joined behind the last commit would be lost.
            if let Some(_inside) = self.enter_if_open() {
                // Failures are recorded: of a sweep with the inode, of a handle with the journal.
                self.watch_dropped(self.write_back_group(&unused));
            }
        }
    }

    /// Writes back every file, as far as it goes.
    pub(super) fn sweep_everything(&self) {
        self.watch_dropped(self.write_back_all());
    }
}
