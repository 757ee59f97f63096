//! Blocked threads.
//!
//! What: a thread that is about to sleep registers what it waits for and holds a [`Wait`] until it
//! continues. A reader sees all sleeping threads, as sysrq-w shows blocked tasks.
//! Locking: leaves. A [`Wait`] begins and ends while its thread holds no other leaf.

use crate::sync::time::Instant;
use crate::sync::{LockRank, Mutex};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SHARDS: u64 = 16;

/// The reason for which a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitFor {
    /// The running transaction is closed for its commit.
    TransactionLocked,
    /// The running transaction has no room for the handle.
    TransactionFull,
    /// The log has no room for another transaction.
    LogSpace,
    /// Too many credits are reserved.
    ReservedCredits,
    /// A transaction is not durable yet.
    Commit,
    /// Another thread writes back the same inode, or makes a group of syncs durable.
    Writeback,
    /// Another thread performs the flush.
    Flush,
    /// Too much data is dirty.
    DirtyLimit,
    /// Direct I/O of a file must end before its blocks are removed or its pages are cached.
    DirectIo,
    /// Calls must return before the volume is closed.
    Calls,
}

impl WaitFor {
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

/// A sleeping thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The kernel's id of the thread.
    pub thread: i32,
    /// Its name.
    pub name: String,
    /// The reason.
    pub wait_for: WaitFor,
    /// Time since it began to wait.
    pub waited: Duration,
}

/// All sleeping threads.
#[derive(Debug)]
pub struct Waits {
    next: AtomicU64,
    /// When each began to wait is kept beside it.
    shards: Vec<Mutex<FxHashMap<u64, (Instant, Blocked)>>>,
}

impl Default for Waits {
    fn default() -> Self {
        let shard = |_| Mutex::new(LockRank::Leaf, FxHashMap::default());
        Self { next: AtomicU64::new(0), shards: (0..SHARDS).map(shard).collect() }
    }
}

/// A wait of the calling thread, which ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Wait<'w> {
    waits: &'w Waits,
    id: u64,
}

impl Waits {
    /// Registers that the calling thread is about to sleep.
    pub fn begin(&self, wait_for: WaitFor) -> Wait<'_> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let (thread, waited) = (thread_id(), Duration::ZERO);
        let blocked = Blocked { thread, name, wait_for, waited };
        self.shard(id).lock().insert(id, (Instant::now(), blocked));
        Wait { waits: self, id }
    }

    /// The threads that sleep now, the longest wait first.
    #[must_use]
    pub fn blocked(&self) -> Vec<Blocked> {
        let now = Instant::now();
        let mut blocked = Vec::new();
        for shard in &self.shards {
            blocked.extend(shard.lock().values().map(|(since, thread)| Blocked {
                waited: now.saturating_duration_since(*since),
                ..thread.clone()
            }));
        }
        blocked.sort_by(|a, b| b.waited.cmp(&a.waited).then(a.thread.cmp(&b.thread)));
        blocked
    }

    fn shard(&self, id: u64) -> &Mutex<FxHashMap<u64, (Instant, Blocked)>> {
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
    fn a_waiting_thread_is_listed_until_its_wait_ends() {
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
