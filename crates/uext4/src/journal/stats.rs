//! Counters and latencies of the journal.
//!
//! What: the counters of a mount, the fields of `/proc/fs/jbd2/*/info` with their meaning there,
//! and a histogram for each phase of a commit. The committer updates them once a transaction; a
//! handle updates one counter.
//! Invariants: the engine depends on none of these values, except that the length of a commit's
//! wait depends on [`JournalStats::average_commit`].

use super::admission_stats::AdmissionStats;
use crate::stats::Histogram;
use crate::sync::time::Instant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters and latencies since the mount.
#[derive(Debug, Default)]
pub struct JournalStats {
    /// Transactions committed.
    pub commits: AtomicU64,
    /// Of these, transactions that a thread requested, rather than the timer.
    pub requested: AtomicU64,
    /// Handles that have joined a transaction.
    pub handles: AtomicU64,
    /// Credits that the transactions had when they closed, in blocks.
    pub blocks: AtomicU64,
    /// Images logged, in blocks.
    pub blocks_logged: AtomicU64,
    /// Images, descriptors and revoke blocks logged, in blocks.
    pub log_blocks: AtomicU64,
    /// Handles that had to wait to join.
    pub joins_waited: AtomicU64,
    /// Checkpoints: each is one batch of writes, one flush after them, and at most one move of the
    /// tail.
    pub checkpoints: AtomicU64,
    /// Of these, checkpoints by joiners that found no room (`checkpoint=inline`).
    pub checkpoints_forced: AtomicU64,
    /// Blocks that checkpoints wrote to their final locations.
    pub checkpoint_blocks: AtomicU64,
    /// Most images that ever awaited checkpoint in memory.
    pub images_high_water: AtomicU64,
    /// Counters of admission.
    pub admission: Arc<AdmissionStats>,
    /// Syncs that waited for a commit.
    pub syncs: AtomicU64,
    /// Commits that a lone sync made in its own thread.
    pub commits_in_place: AtomicU64,
    /// Commits that waited for more syncs.
    pub batch_waits: AtomicU64,
    /// Of these, commits that got all the syncs they waited for.
    pub batches_full: AtomicU64,
    /// The longest wait to join, summed over transactions, in nanoseconds.
    pub waiting_ns: AtomicU64,
    /// From the first request to the close, summed over requested transactions, in nanoseconds.
    pub request_delay_ns: AtomicU64,
    /// From the first handle to the close, summed, in nanoseconds.
    pub running_ns: AtomicU64,
    /// Moving average of the time from the opening of the next transaction to the end of the
    /// commit, in nanoseconds: three quarters old, one quarter new.
    pub average_commit_ns: AtomicU64,
    /// Commit: from the close to the end of the last handle.
    pub lock: Histogram,
    /// Commit: from the end of the last handle to the opening of the next transaction.
    pub snapshot: Histogram,
    /// Commit: checksums of the images.
    pub seal: Histogram,
    /// Commit: writing of file data that the transaction makes reachable (`writeback=ordered`).
    pub data_flush: Histogram,
    /// Commit: encoding and writing of descriptors and images.
    pub log_write: Histogram,
    /// Commit: the flush before the commit block, or after it with `journal_async_commit`.
    pub log_flush: Histogram,
    /// Commit: writing of the commit block.
    pub commit_block: Histogram,
    /// Commit: from the close to the waking of the waiters.
    pub commit: Histogram,
    /// Time that a commit waited for more syncs.
    pub batch_wait: Histogram,
    /// Time of a flush of the device, or of the journal's own.
    pub flush: Histogram,
    /// Time that a sync waited for its transaction.
    pub sync_wait: Histogram,
    /// Time of a checkpoint.
    pub checkpoint: Histogram,
}

/// The fields of `/proc/fs/jbd2/*/info`, in its order. Times are averages over transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalInfo {
    /// Transactions committed.
    pub transactions: u64,
    /// Of these, transactions that a thread requested.
    pub requested: u64,
    /// Most blocks of a transaction.
    pub blocks_max: u32,
    /// The longest wait of a handle to join.
    pub waiting_for_transaction: Duration,
    /// From the first request to the close, over requested transactions.
    pub request_delay: Duration,
    /// From the first handle to the close.
    pub running: Duration,
    /// From the close to the opening of the next transaction.
    pub locked: Duration,
    /// Writing of file data, in ordered mode.
    pub flushing_data: Duration,
    /// Sealing, writing and flushing of the log.
    pub logging: Duration,
    /// Moving average of a commit.
    pub average_commit: Duration,
    /// Handles per transaction.
    pub handles: u64,
    /// Blocks (credits) per transaction.
    pub blocks: u64,
    /// Blocks written to the log per transaction, without the commit block.
    pub logged_blocks: u64,
}

impl JournalStats {
    /// Moving average of a commit's time, without the wait for more syncs.
    #[must_use]
    pub fn average_commit(&self) -> Duration {
        Duration::from_nanos(self.average_commit_ns.load(Ordering::Relaxed))
    }

    /// Adds a commit to the moving average. `took` counts from the opening of the next transaction,
    /// as jbd2's average does. Only the committing thread calls this.
    pub(super) fn note_commit(&self, took: Duration) {
        let new = nanos(took).max(1);
        let old = self.average_commit_ns.load(Ordering::Relaxed);
        let average = if old == 0 { new } else { (new + 3 * old) / 4 };
        self.average_commit_ns.store(average, Ordering::Relaxed);
    }

    /// Records the close, at `closed`, of a transaction that has something to log. Resets its
    /// times.
    pub(super) fn note_close(&self, times: &TransactionTimes, closed: u64, credits: u32) {
        let add = |counter: &AtomicU64, value: u64| counter.fetch_add(value, Ordering::Relaxed);
        let take = |time: &AtomicU64| time.swap(0, Ordering::Relaxed);
        let since = |at: u64| if at == 0 { 0 } else { closed.saturating_sub(at) };
        add(&self.blocks, u64::from(credits));
        add(&self.running_ns, since(take(&times.started)));
        add(&self.waiting_ns, take(&times.longest_wait_ns));
        let requested = take(&times.requested);
        add(&self.requested, u64::from(requested != 0));
        add(&self.request_delay_ns, since(requested));
    }

    /// The averages. `blocks_max` is the size of the largest transaction.
    #[must_use]
    pub fn info(&self, blocks_max: u32) -> JournalInfo {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let transactions = load(&self.commits);
        let requested = load(&self.requested);
        let each = |sum: u64| sum.checked_div(transactions).unwrap_or(0);
        let time = |sum_ns: u64| Duration::from_nanos(each(sum_ns));
        let sum = |histogram: &Histogram| histogram.read().sum_ns;
        let logging = [&self.seal, &self.log_write, &self.log_flush, &self.commit_block];
        let delay = load(&self.request_delay_ns).checked_div(requested).unwrap_or(0);
        JournalInfo {
            transactions,
            requested,
            blocks_max,
            waiting_for_transaction: time(load(&self.waiting_ns)),
            request_delay: Duration::from_nanos(delay),
            running: time(load(&self.running_ns)),
            locked: time(sum(&self.lock) + sum(&self.snapshot)),
            flushing_data: time(sum(&self.data_flush)),
            logging: time(logging.into_iter().map(sum).sum()),
            average_commit: self.average_commit(),
            handles: each(load(&self.handles)),
            blocks: each(load(&self.blocks)),
            logged_blocks: each(load(&self.log_blocks)),
        }
    }
}

/// Times of events of one transaction while it runs, in nanoseconds since the journal opened. 0:
/// not yet.
#[derive(Debug, Default)]
pub(super) struct TransactionTimes {
    started: AtomicU64,
    requested: AtomicU64,
    longest_wait_ns: AtomicU64,
}

impl TransactionTimes {
    /// Records that a handle joins.
    pub(super) fn note_start(&self, clock: &Clock) {
        // Read first, because handles on many cores would bounce the cache line.
        if self.started.load(Ordering::Relaxed) == 0 {
            let _ =
                self.started.compare_exchange(0, clock.now(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Time when the first handle joined, in nanoseconds of the clock. `None` if none did.
    pub(super) fn started(&self) -> Option<u64> {
        Some(self.started.load(Ordering::Relaxed)).filter(|&at| at != 0)
    }

    /// Records the first request for the commit.
    pub(super) fn note_request(&self, clock: &Clock) {
        if self.requested.load(Ordering::Relaxed) == 0 {
            self.requested.store(clock.now(), Ordering::Relaxed);
        }
    }

    /// Records how long a handle waited to join.
    pub(super) fn note_wait(&self, waited: Duration) {
        self.longest_wait_ns.fetch_max(nanos(waited), Ordering::Relaxed);
    }

    /// Forgets the request, because the transaction was found empty and opens again.
    pub(super) fn forget_request(&self) {
        self.requested.store(0, Ordering::Relaxed);
    }
}

/// Nanoseconds since the journal opened, never 0. Under the schedule explorer time stands still, so
/// that a schedule does not depend on it.
#[derive(Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(&self) -> u64 {
        if cfg!(feature = "shuttle") { 1 } else { nanos(self.0.elapsed()).max(1) }
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn the_averages_are_those_of_jbd2() {
        let stats = JournalStats::default();
        assert_eq!(stats.info(256), JournalInfo { blocks_max: 256, ..JournalInfo::default() });
        stats.note_commit(Duration::from_micros(400));
        assert_eq!(stats.average_commit(), Duration::from_micros(400));
        stats.note_commit(Duration::from_micros(800));
        assert_eq!(stats.average_commit(), Duration::from_micros(500));
        stats.commits.store(4, Ordering::Relaxed);
        stats.requested.store(2, Ordering::Relaxed);
        stats.handles.store(20, Ordering::Relaxed);
        stats.request_delay_ns.store(8_000, Ordering::Relaxed);
        stats.lock.add(Duration::from_micros(6));
        stats.snapshot.add(Duration::from_micros(2));
        let info = stats.info(256);
        assert_eq!((info.handles, info.locked), (5, Duration::from_micros(2)));
        assert_eq!(info.request_delay, Duration::from_micros(4));
    }

    #[test]
    fn times_start_again_with_each_transaction() {
        let (times, stats) = (TransactionTimes::default(), JournalStats::default());
        let clock = Clock::new();
        let counted = || {
            [&stats.running_ns, &stats.waiting_ns, &stats.requested]
                .map(|counter| counter.load(Ordering::Relaxed))
        };
        times.note_request(&clock);
        stats.note_close(&times, clock.now(), 0);
        assert_eq!(counted(), [0, 0, 1]);
        let delay = stats.request_delay_ns.load(Ordering::Relaxed);
        times.note_start(&clock);
        times.note_wait(Duration::from_nanos(7));
        let started = times.started().unwrap();
        stats.note_close(&times, started + 90, 0);
        assert_eq!(counted(), [90, 7, 1]);
        stats.note_close(&times, started, 0);
        assert_eq!(counted(), [90, 7, 1]);
        assert_eq!(stats.request_delay_ns.load(Ordering::Relaxed), delay);
    }
}
