//! How long a commit that syncs requested waits for more of them.
//!
//! What: the policy of `min_batch_time` and `max_batch_time`. Threads that sync in a loop split
//! into two halves, one waiting for T and one for T+1, and each commit then serves half of them. A
//! short wait after T, for the threads that T woke, unites them: each commit serves twice as many
//! syncs, and each sync waits for one commit rather than two. End of the wait: as many syncs wait
//! as the last commit woke and found waiting for the next. At the latest the average time of a
//! commit is over, bounded by `min_batch_time` and `max_batch_time`, counted from the transaction's
//! first handle or from the end of the previous commit. Skipped waits: a thread that syncs alone
//! never waits. If the threads that were woken do not come back, the next waits are skipped, more
//! each time. If the syncs need nothing newer than the commit under way (overwrites within one tick
//! of the clock of file times), they do not split; a wait is skipped now and then to detect that.
//! Locking: waits on the journal's state lock, as the committer does between commits.
//! Kernel counterpart: `jbd2_journal_stop`, where each syncing thread sleeps by itself, whether
//! others come or not.

use super::Journal;
use super::stats::nanos;
use crate::sync::atomic::Ordering;
use std::thread::ThreadId;
use std::time::Duration;
use uext4_ondisk::Tid;

/// Most waits that are skipped in a row.
const SKIPS_MAX: u32 = 64;

/// Waits after which one is skipped, to see whether the syncs split without it.
const PROBE_EVERY: u32 = 16;
/// Fewest waits that are skipped if they do not split.
const RESTS_MIN: u32 = 4;

/// The committer's memory from commit to commit.
#[derive(Debug, Default)]
pub(super) struct CommitBatching {
    /// Expects the syncs that the last commit woke, and those that waited for the next one then.
    backoff: WaitBackoff,
    split_probe: SplitProbe,
    /// The thread that requested the last commit.
    requester: Option<ThreadId>,
    /// Time of the end of the last commit, by the journal's clock.
    ended: u64,
}

/// Detects whether syncs split into two halves when no commit waits for them.
#[derive(Debug, Default)]
struct SplitProbe {
    /// Waits since the last probe.
    waits: u32,
    /// The current commit did not wait, so its end shows whether they split.
    is_probing: bool,
    /// Waits still to skip, and how many these were at first.
    rests: u32,
    back_off: u32,
}

/// Decides whether it pays to wait for as many threads as came the last time.
#[derive(Debug, Default)]
struct WaitBackoff {
    /// Number of threads that are likely to come.
    expected: u32,
    /// Waits still to skip, and how many these were the last time.
    skips: u32,
    back_off: u32,
}

impl CommitBatching {
    /// Records the end of a commit that woke `woken` syncs while `waiting` waited for the next.
    pub(super) fn note_end(&mut self, woken: u32, waiting: u32, now: u64) {
        self.backoff.expected = woken.saturating_add(waiting);
        self.split_probe.note_end(woken, waiting);
        self.ended = now;
    }

    /// Whether a commit that `requester` requested waits at all.
    fn is_worth_it(&mut self, requester: Option<ThreadId>, min: Duration) -> bool {
        let another = self.requester.is_some() && self.requester != requester;
        self.requester = requester;
        if self.backoff.expected <= 1 {
            return another && !min.is_zero();
        }
        !min.is_zero() || (self.split_probe.are_likely() && self.backoff.is_worth_it())
    }

    /// Whether no other sync than the caller's is expected, so that a wait is useless.
    pub(super) fn is_alone(&self, min: Duration) -> bool {
        min.is_zero() && self.backoff.expected <= 1
    }
}

impl SplitProbe {
    /// Whether the syncs are likely to split, so that the next commit waits.
    fn are_likely(&mut self) -> bool {
        self.waits += 1;
        self.is_probing = self.rests > 0 || self.waits >= PROBE_EVERY;
        if self.is_probing {
            self.rests = self.rests.saturating_sub(1);
            self.waits = 0;
        }
        !self.is_probing
    }

    /// Records the end of a commit that woke `woken` syncs while `waiting` waited for the next.
    fn note_end(&mut self, woken: u32, waiting: u32) {
        if !std::mem::take(&mut self.is_probing) {
            return;
        }
        if u64::from(waiting) * 4 >= u64::from(woken) {
            (self.rests, self.back_off) = (0, 0);
        } else if self.rests == 0 {
            self.back_off = (2 * self.back_off).clamp(RESTS_MIN, SKIPS_MAX);
            self.rests = self.back_off;
        }
    }
}

impl WaitBackoff {
    /// Whether to wait for them this time. Counts a skipped wait.
    fn is_worth_it(&mut self) -> bool {
        let is_skipped = self.skips > 0;
        self.skips = self.skips.saturating_sub(1);
        !is_skipped
    }

    /// Records that `came` of the `missing` threads came during a wait.
    fn judge(&mut self, missing: u32, came: u32) {
        if missing == 0 {
            return;
        }
        if came >= missing.div_ceil(2) {
            self.back_off = 0;
        } else {
            self.back_off = (2 * self.back_off).clamp(1, SKIPS_MAX);
            self.skips = self.back_off;
        }
    }
}

impl Journal {
    /// Least time that a commit for syncs waits for more of them, and the longest; zero: it never
    /// waits.
    pub(super) fn batch_times(&self) -> (Duration, Duration) {
        let time = |us: u32| Duration::from_micros(us.into());
        (time(self.config.min_batch_time_us), time(self.config.max_batch_time_us))
    }

    /// Waits until enough syncs wait for the commit of `tid`, which syncs requested.
    pub(super) fn gather(&self, batch: &mut CommitBatching, tid: Tid) {
        let (min, max) = self.batch_times();
        let mut state = self.state.lock();
        if max.is_zero() || !state.is_requested() || !batch.is_worth_it(state.requester, min) {
            return;
        }
        let begun = self.clock.now();
        let started = self.times(tid).started().unwrap_or(begun);
        let after =
            |wait: Duration| started.max(batch.ended).saturating_add(nanos(wait.max(min).min(max)));
        // The wait ends between these times, by the journal's clock.
        let (least, most) = (after(min), after(self.stats.average_commit()));
        let waiting = || self.sync_waiters.waiting(tid);
        let at_first = waiting();
        let expected = batch.backoff.expected;
        if min.is_zero() && u64::from(at_first) * 4 >= u64::from(expected) * 3 {
            // So few syncs are missing that the others need not wait for them.
            return;
        }
        let missing = expected.saturating_sub(at_first);
        loop {
            // The goal is set before the count is read: see `SyncWaiters::arrive`.
            self.sync_waiters.set_goal(expected);
            let is_complete = waiting() >= expected;
            let now = self.clock.now();
            let end = if is_complete { least } else { most };
            let ends = state.shutdown || state.abort_cause.is_some();
            if ends || now >= end || !tid.is_after(state.urgent) {
                break;
            }
            let left = Duration::from_nanos(end - now);
            if self.commit_wake.wait_briefly(&mut state, left) {
                break;
            }
        }
        self.sync_waiters.set_goal(0);
        drop(state);
        let came = waiting().saturating_sub(at_first);
        let waited = self.clock.now().saturating_sub(begun);
        batch.backoff.judge(missing, came);
        if missing > 0 {
            self.stats.batch_waits.fetch_add(1, Ordering::Relaxed);
            self.stats.batches_full.fetch_add(u64::from(came >= missing), Ordering::Relaxed);
            self.stats.batch_wait.add(Duration::from_nanos(waited));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of `count` commits that wait if `waiting` of 16 syncs need the next one.
    fn waits(count: u32, waiting: u32) -> u32 {
        let mut probe = SplitProbe::default();
        (0..count)
            .map(|_| {
                let waits = probe.are_likely();
                probe.note_end(16 - waiting, waiting);
                u32::from(waits)
            })
            .sum()
    }

    #[test]
    fn commits_wait_if_the_syncs_split() {
        assert!(waits(1_000, 8) > 900);
    }

    #[test]
    fn commits_do_not_wait_if_the_syncs_do_not_split() {
        assert!(waits(1_000, 0) < 250);
    }
}
