//! What the kernel and the engine count during a run.
//!
//! What: flushes and transactions are read before and after; figures are formed of what came
//! between.

use std::fs;
use std::path::Path;

use uext4::Volume;
use uext4::alloc::Count;
use uext4::stats::Reading;

use crate::disk::{FLUSHES, counted};
use crate::jbd2_info::{self, Jbd2Info};

/// Why threads waited in the engine, as `uext4 stats` names it: how often joins of a transaction
/// were refused, by cause; joiners woken; checkpoints that joiners had to make.
pub(crate) const CAUSES: [&str; 6] = [
    "joins_refused_locked",
    "joins_refused_full",
    "joins_refused_log_space",
    "joins_refused_reserved",
    "joiners_woken",
    "checkpoints_forced",
];

/// What had been counted at a moment; what cannot be had is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    /// Flushes that a block device has finished.
    pub(crate) flushes: Option<u64>,
    /// Switches of context of the whole system.
    pub(crate) context_switches: Option<u64>,
    /// Transactions that were committed.
    pub(crate) transactions: Option<u64>,
    /// Handles of those transactions.
    pub(crate) handles: Option<u64>,
    /// Time of a commit as jbd2 averages it, in microseconds.
    pub(crate) commit_average_us: Option<f64>,
    /// Time of all commits, in microseconds.
    pub(crate) commit_us: Option<f64>,
    /// Time that threads waited for space in the log, in microseconds.
    pub(crate) log_space_wait_us: Option<f64>,
    /// Locks of the allocator that were held when somebody wanted them.
    pub(crate) contended: Option<u64>,
    /// Each of [`CAUSES`].
    pub(crate) causes: [Option<u64>; CAUSES.len()],
    /// Most credits that were reserved at a time since the volume was opened.
    pub(crate) reserved_high_water: Option<u64>,
}

impl Counters {
    /// What the kernel counts, with `device` under the file system if that is a block device.
    pub(crate) fn of_kernel(device: Option<&Path>) -> Self {
        let read = |path: String| fs::read_to_string(path).ok();
        let name = device.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let info = name.and_then(|name| Jbd2Info::of_device(&name)).unwrap_or_default();
        Self {
            flushes: device.and_then(counted).and_then(|all| all.get(FLUSHES).copied()),
            context_switches: read("/proc/stat".to_owned()).and_then(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix("ctxt "))?;
                line.trim().parse().ok()
            }),
            ..Self::of_journal(&info)
        }
    }

    /// Counts of jbd2; handles are known only as a rounded mean.
    fn of_journal(info: &Jbd2Info) -> Self {
        Self {
            transactions: info.transactions,
            handles: info.handles(),
            commit_average_us: info.mean(jbd2_info::COMMIT).map(|us| us as f64),
            ..Self::default()
        }
    }

    /// Adds what a volume of this process counts.
    pub(crate) fn with_volume(self, volume: &Volume) -> Self {
        let stats = volume.stats();
        let us = |reading: &Reading| reading.sum_ns as f64 / 1000.0;
        // By cause, in as many histograms as there are places to wait.
        let waits: Vec<f64> = stats
            .histograms
            .iter()
            .filter(|(name, _)| name.contains("log_space"))
            .map(|(_, reading)| us(&reading.timed))
            .collect();
        Self {
            transactions: stats.number("transactions"),
            handles: stats.number("handles"),
            commit_us: stats.histogram("commit").map(us),
            log_space_wait_us: (!waits.is_empty()).then(|| waits.iter().sum()),
            contended: Some(volume.space().alloc_stats().count(Count::Contended)),
            causes: CAUSES.map(|name| stats.number(name)),
            reserved_high_water: stats.number("credits_reserved_high_water"),
            ..self
        }
    }

    /// What came after `before`; the average of jbd2 is that of the later moment.
    pub(crate) fn since(self, before: Self) -> Self {
        let between = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let time = |now: Option<f64>, then: Option<f64>| Some(now? - then?);
        Self {
            flushes: between(self.flushes, before.flushes),
            context_switches: between(self.context_switches, before.context_switches),
            transactions: between(self.transactions, before.transactions),
            handles: between(self.handles, before.handles),
            commit_average_us: self.commit_average_us,
            commit_us: time(self.commit_us, before.commit_us),
            log_space_wait_us: time(self.log_space_wait_us, before.log_space_wait_us),
            contended: between(self.contended, before.contended),
            causes: std::array::from_fn(|n| between(self.causes[n], before.causes[n])),
            reserved_high_water: self.reserved_high_water,
        }
    }

    /// Time of a commit: the mean where all are known, else jbd2's moving average at the end.
    pub(crate) fn commit_mean_us(&self) -> Option<f64> {
        let transactions = self.transactions.filter(|&count| count > 0);
        match (self.commit_us, transactions) {
            (Some(us), Some(count)) if us > 0.0 => Some(us / count as f64),
            _ => self.commit_average_us,
        }
    }

    /// Handles of a transaction in the mean.
    pub(crate) fn handles_per_txn(&self) -> Option<f64> {
        let transactions = self.transactions.filter(|&count| count > 0)?;
        Some(self.handles? as f64 / transactions as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jbd2_info::tests::INFO;

    #[test]
    fn jbd2_counts_by_handles_and_transactions() {
        let info = Counters::of_journal(&Jbd2Info::parse(INFO));
        assert_eq!((info.transactions, info.handles), (Some(24), Some(24 * 73)));
        assert_eq!((info.handles_per_txn(), info.commit_mean_us()), (Some(73.0), Some(13521.0)));
        let fresh = Jbd2Info::parse("0 transactions (0 requested), each up to 8192 blocks\n");
        assert_eq!(info.since(Counters::of_journal(&fresh)).handles_per_txn(), Some(73.0));
    }

    #[test]
    fn differences_need_both_ends() {
        let now = Counters { flushes: Some(9), handles: Some(5), ..Counters::default() };
        let then = Counters { flushes: Some(4), ..Counters::default() };
        let between = now.since(then);
        assert_eq!((between.flushes, between.handles), (Some(5), None));
    }
}
