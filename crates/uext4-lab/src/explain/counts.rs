//! What the kernel and the engine count, by name.
//!
//! What: all numbers that they tell, read before and after a run, so that nobody has to know
//! beforehand which one an option moves. What both count has one name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use uext4::Volume;
use uext4::alloc::{Count, Criterion};
use uext4::stats::Reading;
use uext4::sync::{count_lock_waits, lock_waits};

use crate::disk::{FLUSHES, counted};
use crate::jbd2_info::{self, Jbd2Info, Mean};

/// Extended attribute by which a mount of uext4 tells its statistics (docs/stats.md).
const STATS: &str = "system.uext4.stats";
/// Longest value of an extended attribute.
const STATS_BYTES: usize = 65_536;
/// Lines of jbd2's `info`, without their number, that are means of all transactions since the
/// mount, and how we call what they are means of.
const JBD2_MEANS: &[(&str, &str)] = &[
    (jbd2_info::HANDLES, "handles"),
    ("blocks per transaction", "credits"),
    ("logged blocks per transaction", "log_blocks"),
];
/// jbd2 keeps no sum of the lengths of commits, only this: the newest one is a quarter of it.
const JBD2_COMMIT: &str = "commit_moving_average_us";
/// Lines of jbd2's `info` that are phases.
const JBD2_PHASES: &[&str] = &[
    "waiting for transaction",
    "request delay",
    "running transaction",
    "transaction was being locked",
    "flushing data",
    "logging transaction",
];

/// Phases of a commit of the engine in their order, as its histograms name them.
const PHASES: &[&str] =
    &["batch wait", "lock", "snapshot", "seal", "data flush", "log write", "log flush", "block"];
/// Sleeps of joiners, each of which ends with a grant.
const JOIN_WAITS: &[&str] =
    &["join_wait_locked", "join_wait_full", "join_wait_log_space", "join_wait_reserved"];
/// Fewer durations have no mean that tells anything.
const TIMED_MIN: u64 = 8;

/// Where numbers are read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sources<'a> {
    /// A volume of this process.
    pub(crate) volume: Option<&'a Volume>,
    /// Where a daemon of uext4, or the kernel, has it mounted.
    pub(crate) mount: Option<&'a Path>,
    /// The block device below.
    pub(crate) device: Option<&'a Path>,
}

/// Numbers at a moment, or between two.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Numbers that only grow.
    pub(super) counts: BTreeMap<String, f64>,
    /// Means.
    pub(super) means: BTreeMap<String, f64>,
    /// Phases of a commit in their order: the mean in microseconds.
    pub(super) phases: Vec<(String, f64)>,
    /// Phases of all commits of jbd2 since the mount, in their order, in microseconds.
    jbd2_phases: Vec<(String, f64)>,
    /// Durations.
    pub(super) histograms: BTreeMap<String, Reading>,
    /// Waits for locks of the engine in this process, by the rank of the lock: how many, and
    /// milliseconds.
    pub(super) locks: BTreeMap<String, (f64, f64)>,
}

impl Sources<'_> {
    /// Makes kernel and engine count what they count on demand only.
    pub(super) fn switch_on(&self) {
        count_lock_waits(self.volume.is_some());
        if let Some(name) = self.device_name() {
            // Without root, or with another file system, these figures are missing.
            let _ = fs::write(format!("/sys/fs/ext4/{name}/mb_stats"), "1");
        }
    }

    /// Ends that as far as others could notice it.
    pub(super) fn switch_off(&self) {
        count_lock_waits(false);
    }

    /// The name of the block device.
    pub(super) fn device_name(&self) -> Option<String> {
        Some(self.device?.file_name()?.to_string_lossy().into_owned())
    }

    /// All that is told now.
    pub(super) fn read(&self) -> Counts {
        let mut counts = Counts::default();
        let read = |path: String| fs::read_to_string(path).unwrap_or_default();
        counts.add_system(&read("/proc/stat".into()));
        if let Some(name) = self.device_name() {
            counts.add_device(&self.device.and_then(counted).unwrap_or_default());
            counts.add_journal(&Jbd2Info::of_device(&name).unwrap_or_default());
            counts.add_mb_stats(&read(format!("/proc/fs/ext4/{name}/mb_stats")));
        }
        if let Some(volume) = self.volume {
            counts.add_volume(volume);
            counts.locks = lock_waits()
                .into_iter()
                .map(|of| {
                    let ms = of.total.as_secs_f64() * 1000.0;
                    (of.rank.name().to_lowercase(), (of.waits as f64, ms))
                })
                .collect();
        } else if let Some(stats) = self.mount.and_then(stats_of_mount) {
            counts.add_stats(&stats);
        }
        counts
    }
}

/// What a mount of uext4 tells of itself; `None` of any other.
pub(super) fn stats_of_mount(dir: &Path) -> Option<Value> {
    let mut value = vec![0; STATS_BYTES];
    let len = rustix::fs::getxattr(dir, STATS, &mut value[..]).ok()?;
    serde_json::from_slice(&value[..len]).ok()
}

impl Counts {
    /// What came after `before`.
    pub(super) fn since(mut self, before: &Self) -> Self {
        for (name, count) in &mut self.counts {
            *count -= before.counts.get(name).copied().unwrap_or(0.0);
        }
        for (name, reading) in &mut self.histograms {
            if let Some(earlier) = before.histograms.get(name) {
                *reading = reading.since(earlier);
            }
        }
        for (name, (waits, ms)) in &mut self.locks {
            let earlier = before.locks.get(name).copied().unwrap_or_default();
            (*waits, *ms) = (*waits - earlier.0, *ms - earlier.1);
            self.counts.insert(format!("lock_waits_{name}"), *waits);
        }
        self.locks.retain(|_, (waits, _)| *waits > 0.0);
        self.add_jbd2_phases(before);
        self.add_means();
        self.histograms.retain(|_, reading| reading.count > 0);
        self
    }

    /// Means of what was counted and timed.
    fn add_means(&mut self) {
        let per_txn = [
            ("handles", "handles_per_txn"),
            ("credits", "blocks_per_txn"),
            ("log_blocks", "log_blocks_per_txn"),
        ];
        let transactions = self.counts.get("transactions").copied().unwrap_or(0.0);
        for (count, mean) in per_txn {
            if let Some(count) = self.counts.get(count).filter(|_| transactions > 0.0) {
                self.means.insert(mean.to_owned(), count / transactions);
            }
        }
        // One, but where joiners are woken to try again.
        let waits = JOIN_WAITS.iter().filter_map(|name| self.histograms.get(*name));
        let waits: u64 = waits.map(|reading| reading.count).sum();
        if let Some(woken) = self.counts.get("joiners_woken").filter(|_| waits >= TIMED_MIN) {
            self.means.insert("wakeups_per_join_wait".to_owned(), woken / waits as f64);
        }
        for (name, reading) in &self.histograms {
            if reading.count >= TIMED_MIN {
                self.means.insert(format!("{name}_mean_us"), reading.mean_ns() as f64 / 1000.0);
            }
            self.counts.insert(format!("{name}_count"), reading.count as f64);
        }
        for phase in PHASES {
            if let Some(reading) =
                self.histograms.get(&format!("commit_{}", phase.replace(' ', "_")))
            {
                let us = reading.sum_ns as f64 / 1000.0 / transactions.max(1.0);
                self.phases.push(((*phase).to_owned(), us));
            }
        }
    }

    fn add_system(&mut self, stat: &str) {
        let number = stat.lines().find_map(|line| line.strip_prefix("ctxt "));
        if let Some(count) = number.and_then(|text| text.trim().parse().ok()) {
            self.counts.insert("context_switches".into(), count);
        }
    }

    fn add_device(&mut self, counted: &[u64]) {
        let names = [
            (0, "device_reads"),
            (4, "device_writes"),
            (6, "device_sectors_written"),
            (FLUSHES, "device_flushes"),
        ];
        for (at, name) in names {
            if let Some(count) = counted.get(at) {
                self.counts.insert(name.into(), *count as f64);
            }
        }
    }

    fn add_journal(&mut self, info: &Jbd2Info) {
        let counts =
            [("transactions", info.transactions), ("transactions_requested", info.requested)];
        for (name, count) in counts {
            self.counts.extend(count.map(|count| (name.to_owned(), count as f64)));
        }
        // Of a mean and what it is of a sum is made: two sums have a difference.
        let transactions = info.transactions.unwrap_or(0) as f64;
        for (what, name) in JBD2_MEANS {
            let mean = match info.transactions {
                Some(0) => Some(0),
                _ => info.mean(what),
            };
            let sum = mean.map(|mean| mean as f64 * transactions);
            self.counts.extend(sum.map(|sum| ((*name).to_owned(), sum)));
        }
        for Mean { value, unit, what } in &info.means {
            let value = *value as f64;
            if what == jbd2_info::COMMIT {
                self.means.insert(JBD2_COMMIT.to_owned(), value);
            }
            if let Some(phase) = JBD2_PHASES.iter().find(|phase| what.starts_with(**phase)) {
                let us = if unit == "ms" { value * 1000.0 } else { value };
                self.jbd2_phases.push(((*phase).to_owned(), us * transactions));
            }
        }
    }

    /// What each phase of the commits of jbd2 took between two moments, by the commit.
    fn add_jbd2_phases(&mut self, before: &Self) {
        let transactions = self.counts.get("transactions").copied().unwrap_or(0.0);
        for (phase, sum) in std::mem::take(&mut self.jbd2_phases) {
            let earlier = before.jbd2_phases.iter().find(|(name, _)| *name == phase);
            let sum = sum - earlier.map_or(0.0, |(_, sum)| *sum);
            // Means of whole ticks: their sum may seem to have become less.
            self.phases.push((phase, sum.max(0.0) / transactions.max(1.0)));
        }
    }

    /// ext4's `mb_stats`: what is indented belongs to the line above.
    fn add_mb_stats(&mut self, text: &str) {
        let mut above = String::new();
        for line in text.lines().skip(1) {
            let depth = line.len() - line.trim_start().len();
            let Some((name, value)) = line.trim().split_once(':') else { continue };
            let value = value.trim().split('/').next().unwrap_or_default();
            let value = value.parse::<f64>();
            if depth == 1 {
                name.trim_end_matches("_stats").clone_into(&mut above);
            }
            if let Ok(value) = value {
                let is_criterion = depth > 1 && above.starts_with("cr_");
                let name = if is_criterion { format!("{above}_{name}") } else { name.to_owned() };
                self.counts.insert(format!("mb_{name}"), value);
            }
        }
    }

    fn add_volume(&mut self, volume: &Volume) {
        let stats = volume.stats();
        for (name, count) in &stats.counters {
            self.counts.insert((*name).to_owned(), *count as f64);
        }
        for (name, reading) in stats.histograms {
            self.histograms.insert(name.to_owned(), reading.timed);
        }
        let mut add = |name: &str, count: u64| {
            self.counts.insert(format!("mb_{name}"), count as f64);
        };
        let alloc = stats.alloc;
        for criterion in Criterion::ALL {
            let (name, of) = (criterion.name(), alloc.criterion(criterion));
            add(&format!("{name}_hits"), of.hits);
            add(&format!("{name}_groups_considered"), of.groups_considered);
            add(&format!("{name}_useless_loops"), of.useless_loops);
        }
        let searches = alloc.count(Count::Requests) + alloc.count(Count::GoalHits);
        add("reqs", searches);
        let named = [
            ("goal_hits", Count::GoalHits),
            ("len_goal_hits", Count::LengthHits),
            ("extents_scanned", Count::ExtentsScanned),
            ("busy_skips", Count::BusySkips),
            ("contended", Count::Contended),
            ("prefetched", Count::Prefetched),
            ("preallocation_hits", Count::PreallocationHits),
            ("preallocations_filled", Count::PreallocationsFilled),
            ("preallocations_discarded", Count::PreallocationsDiscarded),
            ("blocks_recycled", Count::RecycledBlocks),
            ("buddies_generated", Count::Loaded),
        ];
        named.into_iter().for_each(|(name, count)| add(name, alloc.count(count)));
    }

    /// The JSON of a mount.
    fn add_stats(&mut self, stats: &Value) {
        let numbers = |of: &str| stats[of].as_object().cloned().unwrap_or_default().into_iter();
        let counters = numbers("counters");
        let mb = numbers("mb_stats").map(|(name, count)| (format!("mb_{name}"), count));
        let requests = numbers("requests").map(|(name, count)| (format!("fuse_{name}"), count));
        for (name, count) in counters.chain(mb).chain(requests) {
            self.counts.extend(count.as_f64().map(|count| (name, count)));
        }
        for (name, histogram) in numbers("histograms") {
            let step = |step: &Value| Some((step[0].as_u64()?, step[1].as_u64()?));
            let steps = histogram["steps"].as_array().cloned().unwrap_or_default();
            let sum = histogram["sum_ns"].as_u64().unwrap_or(0);
            let reading = Reading::from_steps(steps.iter().filter_map(step), sum);
            self.histograms.insert(name, reading);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jbd2_info::tests::INFO;
    use serde_json::json;

    /// Fault model: what was before the run is taken for the run, or the last commits for all.
    #[test]
    fn what_jbd2_tells_is_of_the_time_between() {
        let read = |info: &str| {
            let mut counts = Counts::default();
            counts.add_journal(&Jbd2Info::parse(info));
            counts
        };
        let fresh = read("0 transactions (0 requested), each up to 8192 blocks\n");
        let since_mount = read(INFO).since(&fresh);
        assert_eq!(since_mount.counts["transactions"], 24.0);
        assert_eq!(since_mount.counts["transactions_requested"], 23.0);
        assert_eq!(since_mount.means["handles_per_txn"], 73.0);
        assert_eq!(since_mount.means[JBD2_COMMIT], 13521.0);
        assert_eq!(since_mount.phases[2], ("running transaction".into(), 84_000.0));
        assert_eq!(since_mount.phases.len(), 6);
        let later = INFO
            .replace("24 transactions (23", "32 transactions (31")
            .replace("84ms running", "65ms running")
            .replace("73 handles", "56 handles");
        let between = read(&later).since(&read(INFO));
        assert_eq!(between.counts["transactions"], 8.0);
        // 32 * 65 - 24 * 84 of 8, and so on.
        assert_eq!(between.phases[2], ("running transaction".into(), 8_000.0));
        assert_eq!(between.means["handles_per_txn"], 5.0);
        assert_eq!(between.means["blocks_per_txn"], 6.0);
        assert_eq!(between.phases[5], ("logging transaction".into(), 9_000.0));
        assert!(!between.means.contains_key("commit_mean_us"));
        assert!(read("") == Counts::default());
    }

    #[test]
    fn what_mb_stats_tells_is_understood() {
        let mut counts = Counts::default();
        let text = "mballoc:\n\treqs: 11\n\tcr_goal_fast_stats:\n\t\thits: 3\n\
                    \textents_scanned: 12\n\t\tgoal_hits: 8\n\tbuddies_generated: 16/32\n";
        counts.add_mb_stats(text);
        let names: Vec<(&str, f64)> = counts.counts.iter().map(|(n, c)| (n.as_str(), *c)).collect();
        let expected = [
            ("mb_buddies_generated", 16.0),
            ("mb_cr_goal_fast_hits", 3.0),
            ("mb_extents_scanned", 12.0),
            ("mb_goal_hits", 8.0),
            ("mb_reqs", 11.0),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn what_a_mount_tells_is_understood_and_differences_are_formed() {
        let stats = |commits: u64| {
            let lock = json!({"sum_ns": commits * 1024, "steps": [[1024, commits]]});
            json!({"counters": {"transactions": commits, "handles": 40,
                    "joiners_woken": commits * 3},
                "histograms": {"commit_lock": lock, "join_wait_full": lock}})
        };
        let (mut before, mut after) = (Counts::default(), Counts::default());
        before.add_stats(&stats(2));
        after.add_stats(&stats(16));
        let between = after.since(&before);
        assert_eq!((between.counts["transactions"], between.counts["handles"]), (14.0, 0.0));
        assert_eq!(between.means["commit_lock_mean_us"], 1.024);
        assert_eq!(between.means["wakeups_per_join_wait"], 3.0);
        assert_eq!(between.phases, [("lock".to_owned(), 1.024)]);
    }
}
