//! How long a commit that syncs ask for waits until more of them have joined.
//!
//! What: the policy of `min_batch_time` and `max_batch_time`. Threads that sync in a loop fall into
//! two halves, one waiting for T and one for T+1, and each commit then carries half of them. A
//! short wait after T, for those whom T has woken, brings them together again: twice as many syncs
//! per commit, and each waits for one commit rather than for two. The wait ends as soon as as many
//! syncs wait as the last commit woke and found waiting for the next; at the latest after the
//! average time of a commit, within `min_batch_time` and `max_batch_time`. It counts from the
//! transaction's first handle, or from the end of the commit before, which is when it could have
//! begun. A thread that is alone in syncing never waits. Where those who were woken do not come
//! back, the wait was for nothing; the next ones are then left out, more of them each time. And
//! where syncs need nothing newer than what is on its way (overwrites in one tick of the clock that
//! file times have) no halves form: a wait is left out now and then to see that.
//! Locking: waits on the journal's state lock, as the committer does between commits.
//! Kernel counterpart: `jbd2_journal_stop`, where each syncing thread sleeps for itself, whether
//! others come or not.

use super::Journal;
use super::stats::nanos;
use crate::sync::atomic::Ordering;
use std::thread::ThreadId;
use std::time::Duration;
use uext4_ondisk::Tid;

/// Most waits that are left out in a row.
const SKIPS_MAX: u32 = 64;

/// A wait is left out after so many, to see whether halves form without it.
const LOOK_EVERY: u32 = 16;
/// Least number of waits that are left out where none formed.
const RESTS_MIN: u32 = 4;

/// What the committer remembers from commit to commit.
#[derive(Debug, Default)]
pub(super) struct CommitBatching {
    /// Expects those whom the last commit woke, and those who waited for the next one then.
    backoff: WaitBackoff,
    split_probe: SplitProbe,
    /// Who asked for the last commit.
    requester: Option<ThreadId>,
    /// When the last commit ended, by the journal's clock.
    ended: u64,
}

/// Whether syncs fall into halves when no commit waits for them.
#[derive(Debug, Default)]
struct SplitProbe {
    /// Waits since the last look.
    waits: u32,
    /// Whether the commit that is made now did not wait, so that its end tells.
    looks: bool,
    /// Waits to leave out yet, and how many that were at first.
    rests: u32,
    back_off: u32,
}

/// Whether it pays to wait for those who came the last time.
#[derive(Debug, Default)]
pub(crate) struct WaitBackoff {
    expected: u32,
    /// Waits to leave out, and how many that were the last time.
    skips: u32,
    back_off: u32,
}

/// When a wait ends, by the journal's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadlines {
    /// Not before this.
    least: u64,
    /// At the latest.
    most: u64,
}

impl CommitBatching {
    /// A commit has ended that woke `woken` syncs while `waiting` waited for the next.
    pub(super) fn note_end(&mut self, woken: u32, waiting: u32, now: u64) {
        self.backoff.expect(woken.saturating_add(waiting));
        self.split_probe.note_end(woken, waiting);
        self.ended = now;
    }

    /// Whether a commit that `requester` asks for is to wait at all.
    fn is_worth_it(&mut self, requester: Option<ThreadId>, min: Duration) -> bool {
        let another = self.requester.is_some() && self.requester != requester;
        self.requester = requester;
        if self.backoff.expected() <= 1 {
            return another && !min.is_zero();
        }
        !min.is_zero() || (self.split_probe.are_likely() && self.backoff.is_worth_it())
    }

    /// Whether no sync but the caller's is to be expected, so that there is nothing to wait for.
    pub(super) fn is_alone(&self, min: Duration) -> bool {
        min.is_zero() && self.backoff.expected() <= 1
    }

    fn deadlines(
        &self,
        started: u64,
        average: Duration,
        min: Duration,
        max: Duration,
    ) -> Deadlines {
        let start = started.max(self.ended);
        let least = start.saturating_add(nanos(min.min(max)));
        Deadlines { least, most: start.saturating_add(nanos(average.max(min).min(max))) }
    }
}

impl SplitProbe {
    /// Whether the next commit is to wait.
    fn are_likely(&mut self) -> bool {
        self.waits += 1;
        self.looks = self.rests > 0 || self.waits >= LOOK_EVERY;
        if self.looks {
            self.rests = self.rests.saturating_sub(1);
            self.waits = 0;
        }
        !self.looks
    }

    /// A commit has ended that woke `woken` syncs while `waiting` waited for the next.
    fn note_end(&mut self, woken: u32, waiting: u32) {
        if !std::mem::take(&mut self.looks) {
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
    /// So many are likely to come again.
    pub(crate) fn expect(&mut self, count: u32) {
        self.expected = count;
    }

    /// How many are likely to come.
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// Whether to wait for them this time.
    pub(crate) fn is_worth_it(&mut self) -> bool {
        let is_left_out = self.skips > 0;
        self.skips = self.skips.saturating_sub(1);
        !is_left_out
    }

    /// Of `missing` that the wait was for `came` came.
    pub(crate) fn judge(&mut self, missing: u32, came: u32) {
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
    /// Waits until the commit of `tid`, which syncs have asked for, is worth its cost.
    pub(super) fn gather(&self, batch: &mut CommitBatching, tid: Tid) {
        let (min, max) = (self.config.min_batch_time, self.config.max_batch_time);
        let mut state = self.state.lock();
        let asked = state.requested.is_after(state.durable);
        if max.is_zero() || !asked || !batch.is_worth_it(state.requester, min) {
            return;
        }
        let begun = self.clock.now();
        let started = self.times(tid).started().unwrap_or(begun);
        let until = batch.deadlines(started, self.stats.average_commit(), min, max);
        let waiting = || self.sync_waiters.waiting(tid);
        let at_first = waiting();
        let expected = batch.backoff.expected();
        if min.is_zero() && u64::from(at_first) * 4 >= u64::from(expected) * 3 {
            // Those who are still missing are not worth the time of those who are here.
            return;
        }
        let missing = expected.saturating_sub(at_first);
        loop {
            // The goal first, then the count: see `SyncWaiters::arrive`.
            self.sync_waiters.set_goal(batch.backoff.expected());
            let is_complete = waiting() >= batch.backoff.expected();
            let now = self.clock.now();
            let end = if is_complete { until.least } else { until.most };
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

    /// Commits that wait, of `count`, when `waiting` of 16 syncs need the next one.
    fn waits(count: u32, waiting: u32) -> u32 {
        let mut halves = SplitProbe::default();
        (0..count)
            .map(|_| {
                let waits = halves.are_likely();
                halves.note_end(16 - waiting, waiting);
                u32::from(waits)
            })
            .sum()
    }

    #[test]
    fn commits_wait_where_halves_form() {
        assert!(waits(1_000, 8) > 900);
    }

    #[test]
    fn commits_do_not_wait_where_none_form() {
        assert!(waits(1_000, 0) < 250);
    }
}
