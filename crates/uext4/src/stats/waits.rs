//! Who waits for what, right now.
//!
//! What: a thread that is about to sleep says so and holds a [`Wait`] until it goes on. A reader
//! sees all who sleep, as sysrq-w shows blocked tasks.
//! Locking: leaves. A [`Wait`] begins and ends while its thread holds no other leaf.

use crate::sync::time::Instant;
use crate::sync::{LockRank, Mutex};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SHARDS: u64 = 16;

/// What a thread sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitFor {
    /// The running transaction is closed for its commit.
    TransactionLocked,
    /// The running transaction has no room for the handle.
    TransactionFull,
    /// The log has no room for another transaction.
    LogSpace,
    /// Too many credits are kept back for conversions.
    ReservedCredits,
    /// A transaction to be durable.
    Commit,
    /// A writeback pass over the same inode by another thread, or the leader that makes a group of
    /// syncs durable.
    Writeback,
    /// A flush that somebody else performs.
    Flush,
    /// Dirty data to be written back, so that there is room for more.
    DirtyLimit,
    /// Direct accesses of a file to end, whose blocks go or whose pages come.
    DirectIo,
    /// Calls to return, before the volume is closed.
    Calls,
}

impl WaitFor {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::TransactionLocked,
        Self::TransactionFull,
        Self::LogSpace,
        Self::ReservedCredits,
        Self::Commit,
        Self::Writeback,
        Self::Flush,
        Self::DirtyLimit,
        Self::DirectIo,
        Self::Calls,
    ];

    /// Its name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TransactionLocked => "transaction_locked",
            Self::TransactionFull => "transaction_full",
            Self::LogSpace => "log_space",
            Self::ReservedCredits => "reserved_credits",
            Self::Commit => "commit",
            Self::Writeback => "writeback",
            Self::Flush => "flush",
            Self::DirtyLimit => "dirty_limit",
            Self::DirectIo => "direct_io",
            Self::Calls => "calls",
        }
    }
}

/// A thread that sleeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The kernel's number of the thread.
    pub thread: i32,
    /// Its name.
    pub name: String,
    /// What it waits for.
    pub wait_for: WaitFor,
    /// For how long so far.
    pub waited: Duration,
}

#[derive(Debug)]
struct Entry {
    thread: i32,
    name: String,
    wait_for: WaitFor,
    since: Instant,
}

/// Everybody who sleeps.
#[derive(Debug)]
pub struct Waits {
    next: AtomicU64,
    shards: Vec<Mutex<FxHashMap<u64, Entry>>>,
}

impl Default for Waits {
    fn default() -> Self {
        let shard = |_| Mutex::new(LockRank::Leaf, FxHashMap::default());
        Self { next: AtomicU64::new(0), shards: (0..SHARDS).map(shard).collect() }
    }
}

/// The time during which a thread sleeps.
#[derive(Debug)]
#[must_use]
pub struct Wait<'w> {
    waits: &'w Waits,
    id: u64,
}

impl Waits {
    /// The calling thread is about to sleep.
    pub fn begin(&self, wait_for: WaitFor) -> Wait<'_> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let entry = Entry { thread: thread_id(), name, wait_for, since: Instant::now() };
        self.shard(id).lock().insert(id, entry);
        Wait { waits: self, id }
    }

    /// Who sleeps now, the longest wait first.
    #[must_use]
    pub fn blocked(&self) -> Vec<Blocked> {
        let now = Instant::now();
        let mut blocked = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            blocked.extend(shard.values().map(|entry| Blocked {
                thread: entry.thread,
                name: entry.name.clone(),
                wait_for: entry.wait_for,
                waited: now.saturating_duration_since(entry.since),
            }));
        }
        blocked.sort_by(|a, b| b.waited.cmp(&a.waited).then(a.thread.cmp(&b.thread)));
        blocked
    }

    fn shard(&self, id: u64) -> &Mutex<FxHashMap<u64, Entry>> {
        &self.shards[(id % SHARDS) as usize]
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waits.shard(self.id).lock().remove(&self.id);
    }
}

fn thread_id() -> i32 {
    if cfg!(feature = "simulate") {
        return i32::try_from(crate::sync::thread::slot()).unwrap_or(0);
    }
    thread_local!(static ID: Cell<i32> = const { Cell::new(0) });
    ID.with(|id| {
        if id.get() == 0 {
            id.set(rustix::thread::gettid().as_raw_nonzero().get());
        }
        id.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_sleep_are_seen_until_they_go_on() {
        let waits = Waits::default();
        let first = waits.begin(WaitFor::Commit);
        let second = waits.begin(WaitFor::LogSpace);
        let what: Vec<WaitFor> = waits.blocked().iter().map(|b| b.wait_for).collect();
        assert_eq!(what, vec![WaitFor::Commit, WaitFor::LogSpace]);
        drop(first);
        assert_eq!(waits.blocked().len(), 1);
        drop(second);
        assert!(waits.blocked().is_empty());
    }
}
