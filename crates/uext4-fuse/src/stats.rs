//! What the engine tells of itself, as the mount hands it out: the JSON of [`STATS_XATTR`].
//!
//! What: [`Snapshot`] is [`VolumeStats`] with owned names, to be written and read as JSON. The
//! value of an extended attribute is limited, so what is long is cut: the list of blocked threads
//! and that of groups first, the steps of the histograms if that is not enough.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uext4::alloc::{AllocStats, Count, Criterion, GroupStats};
use uext4::stats::{Reading, SampledReading};
use uext4::{Volume, VolumeStats};
use uext4_fuse_server::{Errno, Monitor, Opcode, Transport};

#[cfg(doc)]
use crate::STATS_XATTR;
use crate::failure::Answer;

/// Longest value of an extended attribute, in bytes (`XATTR_SIZE_MAX`, limits.h).
pub const BYTES_MAX: usize = 65_536;

/// What a volume tells of itself at a moment. Times are in nanoseconds, space in blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Since the volume was opened.
    pub open_for_ns: u64,
    /// What `/proc/fs/jbd2/*/info` tells.
    pub jbd2: Jbd2,
    /// Numbers that only grow.
    pub counters: Named<u64>,
    /// Numbers as they are now, and the highest they have been.
    pub levels: Named<u64>,
    /// Why the volume refuses changes that it was not opened to refuse; empty: it does not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub read_only_reason: String,
    /// Requests of the kernel, by kind; all kinds, also those of which there were none.
    #[serde(default)]
    pub requests: Named<u64>,
    /// The way that they take: `io_uring`, or `/dev/fuse` and why not the other.
    #[serde(default)]
    pub transport: String,
    /// The log.
    pub log: Log,
    /// Latencies.
    pub histograms: Named<Latencies>,
    /// What `/proc/fs/ext4/*/mb_stats` tells, and more of the kind.
    pub mb_stats: Named<u64>,
    /// What `mb_groups` tells, of groups that have been needed.
    pub mb_groups: Vec<MbGroup>,
    /// Groups that have been needed and are not in the list.
    pub mb_groups_left_out: usize,
    /// Threads that sleep in the engine, the longest wait first.
    pub blocked: Vec<Blocked>,
    /// Threads that sleep and are not in the list.
    pub blocked_left_out: usize,
}

/// The fields of `/proc/fs/jbd2/*/info`, in its order; averages over transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jbd2 {
    /// Transactions committed.
    pub transactions: u64,
    /// Of these, transactions that somebody asked for.
    pub requested: u64,
    /// Most blocks of a transaction.
    pub blocks_max: u32,
    /// Waiting for transaction.
    pub waiting_ns: u64,
    /// Request delay, over requested transactions.
    pub request_delay_ns: u64,
    /// Running transaction.
    pub running_ns: u64,
    /// Transaction was being locked.
    pub locked_ns: u64,
    /// Flushing data (in ordered mode).
    pub flushing_data_ns: u64,
    /// Logging transaction.
    pub logging_ns: u64,
    /// Moving average of a commit.
    pub average_commit_ns: u64,
    /// Handles per transaction.
    pub handles: u64,
    /// Blocks (credits) per transaction.
    pub blocks: u64,
    /// Logged blocks per transaction.
    pub logged_blocks: u64,
}

/// The log and the running transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// Blocks of the log.
    pub blocks: u32,
    /// Blocks that a crash would need.
    pub used: u32,
    /// Blocks that hold nothing that a crash would need.
    pub free: u32,
    /// Next block to be written, counted from the start of the journal.
    pub head: u32,
    /// First block that a crash would need.
    pub tail: u32,
    /// Oldest transaction that a crash would need; the running one, if none.
    pub tail_tid: u32,
    /// Latest durable transaction.
    pub durable_tid: u32,
    /// The running transaction.
    pub running_tid: u32,
    /// Its open handles.
    pub handles: u32,
    /// Credits taken in it.
    pub credits: u32,
    /// Most credits of a transaction.
    pub credits_max: u32,
}

/// A histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// All calls.
    pub calls: u64,
    /// The calls that were timed, to which all that follows refers.
    pub timed: u64,
    /// Sum of the times.
    pub sum_ns: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median, as the end of its step.
    pub p50_ns: u64,
    /// Nine of ten take at most so long.
    pub p90_ns: u64,
    /// 99 of 100 take at most so long.
    pub p99_ns: u64,
    /// 999 of 1000 take at most so long.
    pub p999_ns: u64,
    /// None took longer.
    pub max_ns: u64,
    /// Least value and count of each step that has any, eight steps to a power of two.
    pub steps: Vec<(u64, u64)>,
}

/// A line of `mb_groups`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MbGroup {
    /// Its number.
    pub group: u32,
    /// Free blocks.
    pub free: u32,
    /// Free runs.
    pub frags: u32,
    /// The first free block of the group.
    pub first: u32,
    /// Blocks of the longest free run.
    pub longest: u32,
    /// Free chunks of each power of two, aligned to their size.
    pub chunks: Vec<u32>,
}

/// A thread that sleeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// Its name.
    pub name: String,
    /// The kernel's number of it.
    pub tid: i32,
    /// What it waits for.
    pub wait_for: String,
    /// For how long so far.
    pub waited_ns: u64,
}

impl From<&VolumeStats> for Snapshot {
    fn from(stats: &VolumeStats) -> Self {
        let (info, log) = (&stats.journal, &stats.log);
        let owned = |numbers: &[(&str, u64)]| {
            Named(numbers.iter().map(|&(name, number)| (name.to_owned(), number)).collect())
        };
        let histogram = |(name, reading): &(&str, SampledReading)| {
            ((*name).to_owned(), Latencies::new(reading.calls, &reading.timed))
        };
        Self {
            open_for_ns: nanos(stats.open_for),
            jbd2: Jbd2 {
                transactions: info.transactions,
                requested: info.requested,
                blocks_max: info.blocks_max,
                waiting_ns: nanos(info.waiting_for_transaction),
                request_delay_ns: nanos(info.request_delay),
                running_ns: nanos(info.running),
                locked_ns: nanos(info.locked),
                flushing_data_ns: nanos(info.flushing_data),
                logging_ns: nanos(info.logging),
                average_commit_ns: nanos(info.average_commit),
                handles: info.handles,
                blocks: info.blocks,
                logged_blocks: info.logged_blocks,
            },
            counters: owned(&stats.counters),
            levels: owned(&stats.levels),
            log: Log {
                blocks: log.blocks,
                used: log.blocks.saturating_sub(log.free),
                free: log.free,
                head: log.head,
                tail: log.tail,
                tail_tid: log.tail_tid.get(),
                durable_tid: log.durable_tid.get(),
                running_tid: log.running_tid.get(),
                handles: log.handles,
                credits: log.credits,
                credits_max: log.credits_max,
            },
            read_only_reason: String::new(),
            requests: Named::default(),
            transport: String::new(),
            histograms: Named(stats.histograms.iter().map(histogram).collect()),
            mb_stats: mb_stats(&stats.alloc),
            mb_groups: Vec::new(),
            mb_groups_left_out: 0,
            blocked: stats.blocked.iter().map(Blocked::from).collect(),
            blocked_left_out: 0,
        }
    }
}

/// By the names of the kernel, as far as it has the figure.
fn mb_stats(stats: &AllocStats) -> Named<u64> {
    let count = |count: Count| stats.count(count);
    let mut all = vec![("reqs".to_owned(), count(Count::Requests) + count(Count::GoalHits))];
    let mut add = |name: &str, value: u64| all.push((name.to_owned(), value));
    add("success", count(Count::Successes) + count(Count::GoalHits));
    for criterion in Criterion::ALL {
        let (name, figures) = (criterion.name(), stats.criterion(criterion));
        add(&format!("{name}_hits"), figures.hits);
        add(&format!("{name}_groups_considered"), figures.groups_considered);
        add(&format!("{name}_useless_loops"), figures.useless_loops);
    }
    add("extents_scanned", count(Count::ExtentsScanned));
    add("goal_hits", count(Count::GoalHits));
    add("len_goal_hits", count(Count::LengthHits));
    add("busy_skips", count(Count::BusySkips));
    add("contended", count(Count::Contended));
    add("prefetched", count(Count::Prefetched));
    add("preallocation_hits", count(Count::PreallocationHits));
    add("preallocations_discarded", count(Count::PreallocationsDiscarded));
    add("buddies_generated", count(Count::Loaded));
    add("groups", stats.groups);
    Named(all)
}

impl MbGroup {
    fn new(stats: &GroupStats) -> Option<Self> {
        let runs = stats.runs?;
        let orders = runs.chunks.iter().rposition(|chunks| *chunks > 0).map_or(0, |last| last + 1);
        Some(Self {
            group: stats.group,
            free: stats.free,
            frags: runs.fragments,
            first: runs.first,
            longest: runs.longest,
            chunks: runs.chunks[..orders].to_vec(),
        })
    }
}

impl From<&uext4::stats::Blocked> for Blocked {
    fn from(blocked: &uext4::stats::Blocked) -> Self {
        Self {
            name: blocked.name.clone(),
            tid: blocked.thread,
            wait_for: blocked.wait_for.name().to_owned(),
            waited_ns: nanos(blocked.waited),
        }
    }
}

impl Latencies {
    /// Of so many calls, with the times of those in `timed`.
    #[must_use]
    pub fn new(calls: u64, timed: &Reading) -> Self {
        Self {
            calls,
            timed: timed.count,
            sum_ns: timed.sum_ns,
            mean_ns: timed.mean_ns(),
            p50_ns: timed.quantile_ns(0.5),
            p90_ns: timed.quantile_ns(0.9),
            p99_ns: timed.quantile_ns(0.99),
            p999_ns: timed.quantile_ns(0.999),
            max_ns: timed.quantile_ns(1.0),
            steps: timed.steps().collect(),
        }
    }

    /// The times, for whoever computes with them.
    #[must_use]
    pub fn reading(&self) -> Reading {
        Reading::from_steps(self.steps.iter().copied(), self.sum_ns)
    }
}

impl Snapshot {
    /// As JSON of at most `bytes_max` bytes: what is too long is cut.
    ///
    /// # Errors
    /// The numbers alone are longer.
    pub fn to_json(mut self, bytes_max: usize) -> serde_json::Result<Vec<u8>> {
        loop {
            let json = serde_json::to_vec(&self)?;
            if json.len() <= bytes_max || !self.shorten() {
                return Ok(json);
            }
        }
    }

    /// Leaves something out; false if there is nothing more to leave out.
    fn shorten(&mut self) -> bool {
        let groups = self.mb_groups.len() / 2;
        if groups >= 8 {
            self.mb_groups_left_out += self.mb_groups.len() - groups;
            self.mb_groups.truncate(groups);
            return true;
        }
        let keep = self.blocked.len() / 2;
        if keep >= 8 {
            self.blocked_left_out += self.blocked.len() - keep;
            self.blocked.truncate(keep);
            return true;
        }
        let steps = |all: &Self| all.histograms.0.iter().map(|h| h.1.steps.len()).sum::<usize>();
        let before = steps(self);
        for (_, latencies) in &mut self.histograms.0 {
            let timed = Reading::from_steps(latencies.steps.drain(..), latencies.sum_ns);
            latencies.steps = timed.powers().into_iter().filter(|step| step.1 > 0).collect();
        }
        steps(self) < before
    }
}

/// Most groups of a snapshot: summing one up takes some microseconds.
const GROUPS_MAX: usize = 256;

/// The value of the attribute: of the volume, and how many nodes the kernel knows.
pub(crate) fn encode(
    volume: &Volume,
    nodes: u64,
    session: Option<&dyn Monitor>,
) -> Answer<Vec<u8>> {
    let mut snapshot = Snapshot::from(&volume.stats());
    snapshot.levels.0.push(("fuse_nodes".to_owned(), nodes));
    snapshot.read_only_reason = volume.read_only_reason().unwrap_or_default();
    if let Some(session) = session {
        snapshot.levels.0.push(("fuse_threads".to_owned(), session.threads() as u64));
        let count = |opcode: &Opcode| (opcode.name(), session.counts().of(*opcode));
        snapshot.requests = Named(Opcode::ALL.iter().map(count).collect());
        snapshot.transport = match session.transport() {
            Transport::IoUring => "io_uring".to_owned(),
            Transport::Device(why) => format!("/dev/fuse ({why})"),
        };
    }
    let groups = volume.space().group_stats();
    snapshot.mb_groups = groups.filter_map(|g| MbGroup::new(&g)).take(GROUPS_MAX).collect();
    let loaded =
        usize::try_from(volume.space().alloc_stats().count(Count::Loaded)).unwrap_or(usize::MAX);
    snapshot.mb_groups_left_out = loaded.saturating_sub(snapshot.mb_groups.len());
    snapshot.to_json(BYTES_MAX).map_err(|_| Errno::IO.into())
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Values by name, in the order in which they were given: an object in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T>(pub Vec<(String, T)>);

impl<T> Named<T> {
    /// The value of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|named| named.0 == name).map(|named| &named.1)
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder(PhantomData))
    }
}

struct InOrder<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
    type Value = Named<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(entry) = map.next_entry()? {
            values.push(entry);
        }
        Ok(Named(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(threads: i32) -> Snapshot {
        let one = |tid| Blocked {
            name: format!("fuse-more-{tid}"),
            tid,
            wait_for: "commit".to_owned(),
            waited_ns: 1_000_000_000,
        };
        let wide = Reading::from_steps((0..44 * 8).map(|n| (2_u64.pow(n / 8), 123_456_789)), 1);
        let histogram = |n| (format!("histogram {n}"), Latencies::new(1 << 60, &wide));
        Snapshot {
            blocked: (0..threads).map(one).collect(),
            histograms: Named((0..30).map(histogram).collect()),
            ..Snapshot::default()
        }
    }

    #[test]
    fn json_keeps_order_and_comes_back() {
        let mut snapshot = crowd(3);
        snapshot.counters = Named(vec![("z".to_owned(), 1), ("a".to_owned(), u64::MAX)]);
        let json = snapshot.clone().to_json(BYTES_MAX).unwrap();
        let back: Snapshot = serde_json::from_slice(&json).unwrap();
        assert_eq!(back.counters, snapshot.counters);
        assert_eq!(back, snapshot);
        assert_eq!(back.histograms.0[0].1.reading().to_text(), wide_text());
    }

    fn wide_text() -> String {
        crowd(0).histograms.0[0].1.reading().to_text()
    }

    #[test]
    fn a_crowd_is_cut_and_counted() {
        let json = crowd(5000).to_json(BYTES_MAX).unwrap();
        assert!(json.len() <= BYTES_MAX, "{}", json.len());
        let back: Snapshot = serde_json::from_slice(&json).unwrap();
        assert_eq!(back.blocked.len() + back.blocked_left_out, 5000);
        assert_eq!(back.blocked[0].tid, 0, "the longest waits stay");
        let json = crowd(5000).to_json(35_000).unwrap();
        let back: Snapshot = serde_json::from_slice(&json).unwrap();
        assert!(back.blocked.len() >= 8 && back.histograms.0[0].1.calls == 1 << 60);
    }
}
