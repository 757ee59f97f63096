//! Keeping memory within its budget.
//!
//! What: readers and writers that find the page cache over its budget evict clean pages. Writers
//! that find much dirty memory ask the flusher for writeback and are paced by its progress; they
//! write back nothing themselves. At the hard limit no more pages become dirty: a writer waits, and
//! is refused if writeback fails. A caller that adds an inode to a table full of dirty inodes
//! writes those back.

use super::FileContext;
use super::write::WRITE_CHUNK_BYTES;
use crate::cache::Paced;
use crate::error::Result;
use crate::inode::InodeRef;
use crate::stats::WaitFor;
use crate::sync::state::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait of a writer below the hard limit.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Keeps memory within its budget.
#[derive(Debug)]
pub(super) struct Reclaim {
    context: Arc<FileContext>,
    /// Shard of the inode table where eviction continues.
    hand: AtomicUsize,
    /// A thread is evicting pages; one is enough.
    is_evicting: AtomicBool,
}

impl Reclaim {
    pub(super) fn new(context: &Arc<FileContext>) -> Self {
        let (hand, is_evicting) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { context: Arc::clone(context), hand, is_evicting }
    }

    /// Evicts clean pages when there are more than the budget allows, and some more, so that the
    /// next page does not start the next round. Only tries locks. Leaves files alone that are being
    /// written to, because a writer relies on the pages that it has loaded.
    pub(super) fn evict(&self) {
        let budget = self.context.table.budget();
        if budget.excess() == 0 || self.is_evicting.swap(true, Ordering::Acquire) {
            return;
        }
        let shards = self.context.table.shard_count();
        // Two rounds, because the first clears the marks of use.
        let mut looks = 2 * shards;
        while budget.surplus() > 0 && looks > 0 {
            looks -= 1;
            let index = self.hand.fetch_add(1, Ordering::Relaxed) % shards;
            self.context.table.look_at_shard(index, |inode| {
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
        self.is_evicting.store(false, Ordering::Release);
    }

    /// Waits, before a writer of `inode` makes more pages dirty, until they are below the hard
    /// limit. Therefore dirty pages never exceed that limit by more than one chunk for each writer,
    /// however long the device accepts nothing. The locks are those of [`Reclaim::pace_writer`].
    ///
    /// # Errors
    /// The failure that keeps the flusher from making room.
    pub(super) fn wait_below_limit(&self, inode: &InodeRef) -> Result<()> {
        let budget = self.context.table.budget();
        let is_below = budget.unclean() <= budget.hard_limit();
        if is_below || inode.is_dax() || self.context.is_journaled(inode) {
            return Ok(());
        }
        self.pace_writer(0)
    }

    /// Paces a writer that has written `bytes`. Below the background limit it goes on at once;
    /// above it waits longer the more is dirty; at the hard limit it waits until there is room. The
    /// caller holds no writeback lock and no handle. It may hold a file lock, because the flusher
    /// takes none.
    ///
    /// # Errors
    /// The failure that keeps the flusher from making room: the caller should write no more.
    pub(super) fn pace_writer(&self, bytes: usize) -> Result<()> {
        let budget = self.context.table.budget();
        if budget.unclean() <= budget.background_limit() {
            return Ok(());
        }
        let mut pages = bytes.div_ceil(self.context.block_size() as usize);
        let _wait = self.context.journal().waits().begin(WaitFor::DirtyLimit);
        loop {
            let excess = budget.unclean().saturating_sub(budget.hard_limit());
            let paced = budget.throttle().pace(pages, budget.weight(), excess, PAUSE_MAX);
            if budget.unclean() <= budget.hard_limit() {
                return Ok(());
            }
            if paced == Paced::Stalled {
                self.context.check_writable()?;
                return budget.throttle().failure().map_or(Ok(()), Err);
            }
            // The excess is under writeback by threads that sync.
            pages = 0;
            crate::sync::thread::pause();
        }
    }

    /// Keeps one large write from filling the cache with its own pages. The caller holds the file
    /// and has written `bytes` since the last call.
    ///
    /// # Errors
    /// As [`Reclaim::pace_writer`].
    pub(super) fn limit_own_pages(&self, inode: &InodeRef, bytes: usize) -> Result<()> {
        let paced = self.pace_writer(bytes);
        self.evict();
        // The excess that is left is this file's pages, which no other thread evicts while it is
        // being written to.
        let excess = self.context.table.budget().excess();
        if excess > 0 {
            let mut pages = inode.pages();
            // Twice, because the first pass clears the marks of use.
            pages.map.evict(excess);
            pages.map.evict(excess);
        }
        paced
    }

    /// Paces a writer after it has written `written` bytes, and keeps the cache within its budget.
    pub(super) fn after_write(&self, written: usize) {
        // A failure is ignored: this write is complete, and the next one will be refused.
        let _ = self.pace_writer(written.min(WRITE_CHUNK_BYTES as usize));
        self.evict();
    }
}
