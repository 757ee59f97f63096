//! Statistics of a volume: counters, latencies, log space, and waiting threads.
//!
//! What: [`Volume::stats`] copies the statistics of the layers below. Figures have names, so that a
//! new one needs no change in programs that show them. docs/stats.md explains each.
//! Invariants: it waits for nothing but leaf locks, and no I/O happens under those, so it answers
//! even while all other threads wait.

use super::Volume;
use crate::alloc::AllocStats;
use crate::journal::{Journal, JournalInfo, LogSpace};
use crate::stats::{Blocked, Histogram, Reading, SampledReading};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use uext4_device::{Room, RoomReading};

/// The statistics of a volume at one moment.
#[derive(Clone, Debug)]
pub struct VolumeStats {
    /// Time since the volume was opened.
    pub open_for: Duration,
    /// The figures of `/proc/fs/jbd2/*/info`; zeroes for a read-only volume.
    pub journal: JournalInfo,
    /// The log and the running transaction.
    pub log: LogSpace,
    /// Numbers that only grow while the volume is open.
    pub counters: Vec<(&'static str, u64)>,
    /// Current numbers, and their highest values so far.
    pub levels: Vec<(&'static str, u64)>,
    /// Latencies. If not all calls are timed, the first number is the number of all calls.
    pub histograms: Vec<(&'static str, SampledReading)>,
    /// The block allocator.
    pub alloc: AllocStats,
    /// Threads that sleep in the engine, longest wait first.
    pub blocked: Vec<Blocked>,
}

impl VolumeStats {
    /// The counter or level of that name.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        let mut numbers = self.counters.iter().chain(&self.levels);
        numbers.find(|number| number.0 == name).map(|number| number.1)
    }

    /// The latencies of that name.
    #[must_use]
    pub fn histogram(&self, name: &str) -> Option<&Reading> {
        let found = self.histograms.iter().find(|histogram| histogram.0 == name);
        found.map(|histogram| &histogram.1.timed)
    }
}

impl Volume {
    /// The statistics of the volume. Waits for no other thread.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        let journal = self.space().journal();
        VolumeStats {
            open_for: self.inner.opened.elapsed(),
            journal: journal.info(),
            log: journal.log_space(),
            counters: self.counters(journal),
            levels: self.levels(journal),
            histograms: self.histograms(journal),
            alloc: self.space().alloc_stats(),
            blocked: journal.waits().blocked(),
        }
    }

    fn counters(&self, journal: &Journal) -> Vec<(&'static str, u64)> {
        let stats = journal.stats();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let joins = &stats.admission;
        let (_, metadata_misses) = journal.cache().occupancy();
        let discards = self.space().discards().stats();
        let room = self.room();
        let mut counters = vec![
            ("transactions", load(&stats.commits)),
            ("transactions_requested", load(&stats.requested)),
            ("handles", load(&stats.handles)),
            ("credits", load(&stats.blocks)),
            ("blocks_logged", load(&stats.blocks_logged)),
            ("log_blocks", load(&stats.log_blocks)),
            ("flushes", stats.flush.read().count),
            ("checkpoints", load(&stats.checkpoints)),
            ("checkpoints_forced", load(&stats.checkpoints_forced)),
            ("checkpoint_blocks", load(&stats.checkpoint_blocks)),
            ("joins_waited", load(&stats.joins_waited)),
            ("joins_refused_locked", load(&joins.refused.locked)),
            ("joins_refused_full", load(&joins.refused.full)),
            ("joins_refused_log_space", load(&joins.refused.log_space)),
            ("joins_refused_reserved", load(&joins.refused.reserved)),
            ("joiners_woken", load(&joins.wake_ups)),
            ("syncs_waited", load(&stats.syncs)),
            ("commits_in_place", load(&stats.commits_in_place)),
            ("commits_batched", load(&stats.batch_waits)),
            ("commits_batched_in_full", load(&stats.batches_full)),
            ("metadata_reads", metadata_misses),
            ("invariants_broken", journal.cache().invariants().broken_count()),
            ("discards", discards.requests),
            ("discard_bytes", discards.bytes),
            ("discards_failed", discards.failures),
            ("room_waits", room.waits),
            ("room_failures", room.failures),
        ];
        counters.extend(self.inner.vfs.files.direct.stats.counters());
        counters
    }

    /// The statistics of writes that wait for room on the store of the device.
    fn room(&self) -> RoomReading {
        self.space().journal().cache().device().room().map_or_else(RoomReading::default, Room::read)
    }

    fn levels(&self, journal: &Journal) -> Vec<(&'static str, u64)> {
        let files = &self.inner.vfs.files;
        let (pages, (metadata, _)) = (files.context.table.budget(), journal.cache().occupancy());
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let joins = &journal.stats().admission;
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let credits = |number: &AtomicU32| u64::from(number.load(Ordering::Relaxed));
        vec![
            ("cache_bytes_max", files.context.options.cache_bytes),
            ("page_bytes", u64::from(self.layout().block_size)),
            ("pages", count(pages.pages())),
            ("pages_dirty", count(pages.dirty())),
            ("metadata_blocks", count(metadata)),
            ("group_maps", count(files.context.space.group_maps().0)),
            ("inodes", count(files.context.table.count())),
            ("images_awaiting_checkpoint", count(journal.cache().logged().len())),
            ("images_awaiting_checkpoint_high_water", load(&journal.stats().images_high_water)),
            ("writes_waiting_for_room", self.room().waiting),
            ("read_only", u64::from(self.read_only())),
            ("unsynced", u64::from(files.syncs.is_unsynced())),
            ("credits_high_water", credits(&joins.credits_high_water)),
            ("credits_reserved", credits(&joins.reserved)),
            ("credits_reserved_high_water", credits(&joins.reserved_high_water)),
        ]
    }

    fn histograms(&self, journal: &Journal) -> Vec<(&'static str, SampledReading)> {
        let calls = &self.inner.vfs.calls;
        let stats = journal.stats();
        let mut histograms = vec![
            ("open", calls.open.read()),
            ("read", calls.read.read()),
            ("write", calls.write.read()),
        ];
        let joins = &stats.admission.waited;
        let all: [(&'static str, &Histogram); 17] = [
            ("fsync", &calls.fsync),
            ("join_wait_locked", &joins.locked),
            ("join_wait_full", &joins.full),
            ("join_wait_log_space", &joins.log_space),
            ("join_wait_reserved", &joins.reserved),
            ("sync_wait", &stats.sync_wait),
            ("commit", &stats.commit),
            ("commit_batch_wait", &stats.batch_wait),
            ("commit_lock", &stats.lock),
            ("commit_snapshot", &stats.snapshot),
            ("commit_seal", &stats.seal),
            ("commit_data_flush", &stats.data_flush),
            ("commit_log_write", &stats.log_write),
            ("commit_log_flush", &stats.log_flush),
            ("commit_block", &stats.commit_block),
            ("flush", &stats.flush),
            ("checkpoint", &stats.checkpoint),
        ];
        histograms.extend(all.map(|(name, histogram)| {
            let timed = histogram.read();
            (name, SampledReading { calls: timed.count, timed })
        }));
        histograms
    }
}
