//! Reading bitmaps ahead of a search that scans the groups one by one.
//!
//! What: several threads read the bitmaps of the next groups into the cache, so that a search on a
//! volume just mounted does not wait for one read after the other. The map of a group is still
//! built when the group is needed.
//! Locking: the locks of the groups are tried, and released before anything is read.

use super::Space;
use super::counters::Count;
use crate::cache::BlockKind;
use uext4_ondisk::{BlockNo, GroupFlags, GroupNo};

/// Groups that are read ahead at a time.
pub(super) const GROUPS: u32 = 32;

/// Threads that read.
const THREADS: usize = 4;

impl Space {
    /// Reads those bitmaps of `count` groups from `first` on that are not in memory. A failure is
    /// reported when the group is needed.
    pub(super) fn prefetch(&self, first: u32, count: u32) {
        let groups = (0..count).map(|step| GroupNo((first + step) % self.layout.group_count));
        let wanted: Vec<_> = groups.filter_map(|g| Some((self.missing_bitmap(g)?, g))).collect();
        // The search itself reads the first one.
        let Some((_, ahead)) = wanted.split_first().filter(|(_, ahead)| !ahead.is_empty()) else {
            return;
        };
        self.shared.counters.add(Count::Prefetched, ahead.len() as u64);
        if self.cache.is_far() {
            let kind = |&(block, group)| (block, BlockKind::BlockBitmap(group));
            return self.cache.read_ahead(ahead.iter().map(kind));
        }
        let read = |groups: &[(BlockNo, GroupNo)]| {
            for &(block, group) in groups {
                let _ = self.cache.read(block, BlockKind::BlockBitmap(group));
            }
        };
        // The schedule explorer and the simulation have no scoped threads.
        if cfg!(any(feature = "shuttle", feature = "simulate")) {
            return read(ahead);
        }
        std::thread::scope(|scope| {
            for part in ahead.chunks(ahead.len().div_ceil(THREADS)) {
                let thread = std::thread::Builder::new().name("uext4-prefetch".to_owned());
                // Without threads each bitmap is read when it is needed.
                let _ = thread.spawn_scoped(scope, || read(part));
            }
        });
    }

    /// The block of a group's bitmap, if the group has no map in memory and its bitmap was ever
    /// written.
    fn missing_bitmap(&self, number: GroupNo) -> Option<BlockNo> {
        let state = self.groups[number.get() as usize].try_lock()?;
        let is_written = !state.desc.flags().contains(GroupFlags::BLOCK_UNINIT);
        (state.map.is_none() && is_written).then(|| state.desc.block_bitmap())
    }
}
