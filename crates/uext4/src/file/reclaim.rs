//! Keeping memory within its budget.
//!
//! What: readers and writers that find the page cache over its budget evict clean pages; writers
//! that find too many dirty ones write back.

use super::Files;
use crate::inode::InodeRef;
use std::sync::atomic::Ordering;

impl Files {
    /// Evicts clean pages when there are more than the budget allows, and some more, so that the
    /// next page does not bring the next round. Takes no lock that a caller may hold below it.
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
            self.table.for_shard(index, |inode| {
                let surplus = budget.surplus();
                if surplus > 0
                    && let Some(mut pages) = inode.try_pages()
                {
                    pages.map.evict(surplus.max(64));
                }
            });
        }
        self.reclaiming.store(false, Ordering::Release);
    }

    /// Writes back when dirty pages fill too much of the cache: the caller's own inode first.
    pub(super) fn balance_dirty(&self, inode: &InodeRef) {
        let budget = self.table.budget();
        if !budget.is_too_dirty() {
            return;
        }
        // Failures are recorded with each inode, for those who sync it.
        let _ = self.sweep(inode);
        if budget.is_too_dirty() {
            self.sweep_everything();
        }
    }

    /// Writes back every file, as far as it goes.
    pub(super) fn sweep_everything(&self) {
        self.for_dirty(|inode| {
            if inode.pages().map.dirty() > 0 {
                let _ = self.sweep(inode);
            }
        });
    }
}
