//! The journal: transactions that survive a crash as a whole or not at all.
//!
//! What: an operation joins the running transaction through a [`Handle`] and changes metadata
//! blocks in memory. A commit closes the transaction, takes the images of its blocks, opens the
//! next transaction and writes the images to the log, while operations continue. A background
//! thread checkpoints: it writes durable images to their final locations and frees log space.
//! `docs/journal.md` has the whole argument.
//! On disk: jbd2, as Documentation/filesystems/ext4 describes it.
//! Invariants: **a transaction is closed, drained and snapshotted before the next one opens**, so
//! no image holds a change of a later transaction. **A transaction opens only when the largest
//! commit fits into the log.** Joiners never write, flush or checkpoint, except with the ablation
//! option `checkpoint=inline`.
//! Kernel counterpart: `fs/jbd2`.

mod ablation;
mod admission;
mod admission_stats;
mod batching;
mod checkpoint;
mod commit;
mod data;
mod durable;
mod external;
mod fast_commit;
mod flush;
mod handle;
mod in_place;
mod join;
mod locate;
mod log;
mod log_space;
mod packed_state;
mod record;
mod recovery;
mod stats;
mod transaction;

pub use admission::Reserved;
pub use admission_stats::{AdmissionStats, ByCause};
pub use fast_commit::LeftFastCommits;
pub use flush::{FlushEpoch, FlushGate};
pub use handle::{Freed, Handle};
pub use locate::LogLocation;
pub use log_space::LogSpace;
pub use recovery::{LeftLog, Recovered, recover};
pub use stats::{JournalInfo, JournalStats};

use crate::cache::Cache;
use crate::config::MountOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::stats::Waits;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex};
use batching::CommitBatching;
use data::LoggedData;
use durable::SyncWaiters;
use join::JoinQueue;
use log::{LogMap, LogRing};
use packed_state::PackedState;
use record::RecordFormat;
use stats::{Clock, TransactionTimes};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;
use transaction::Transaction;
use uext4_ondisk::journal::superblock::RawJournalSuperblock;
use uext4_ondisk::{BlockNo, GroupNo, Tid};

/// The free-space accounting, which the allocator implements.
pub trait FreeSpaceHooks: Send + Sync + std::fmt::Debug {
    /// Free blocks and inodes according to the journaled bitmaps. Called while a transaction is
    /// closed and no handle is open, so that the superblock logged with the transaction agrees with
    /// them.
    fn journaled_free(&self) -> (u64, u32);

    /// Whether a block bitmap that is about to be logged has no bit that the in-memory bitmap of
    /// its group lacks.
    fn contains(&self, group: GroupNo, logged: &[u8]) -> bool;

    /// Whether reserved and allocated blocks together fit into the free ones. No thread may change
    /// the volume meanwhile.
    fn is_balanced(&self) -> bool;

    /// The transaction that freed these blocks is durable, so they can be reused.
    fn freed(&self, freed: Vec<Freed>);
}

/// File data that was mapped before it is written (`writeback=ordered`).
pub trait OrderedData: Send + Sync + std::fmt::Debug {
    /// Returns when all data that transaction `tid` mapped is on the device. The committer calls it
    /// when no handle of that transaction is open, before it writes the log.
    ///
    /// # Errors
    /// A device failure: the transaction must not become durable.
    fn write(&self, tid: Tid) -> Result<()>;
}

/// A callback that gets the cause when the journal is aborted.
pub struct AbortObserver(Box<dyn Fn(&Error) + Send + Sync>);

impl std::fmt::Debug for AbortObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AbortObserver")
    }
}

/// The journal of a mounted volume.
#[derive(Debug)]
pub struct Journal {
    cache: Arc<Cache>,
    /// Of these, `journal_async_commit` is ignored if the tags of the journal have no checksums.
    config: MountOptions,
    /// Number of images awaiting checkpoint above which a checkpoint starts, in blocks.
    images_max: usize,
    running_state: PackedState,
    queue: JoinQueue,
    /// File data that a replay of the log may write.
    data: LoggedData,
    /// The running and the committing transaction, indexed by the low bit of their id.
    transactions: [Mutex<Transaction>; 2],
    credits_max: u32,
    commit_blocks_max: u32,
    map: LogMap,
    format: RecordFormat,
    /// The journal superblock as it is on the device. Locked while it is written.
    superblock: Mutex<RawJournalSuperblock>,
    /// Serialises checkpoints.
    checkpoint_lock: Mutex<()>,
    flush: FlushGate,
    state: Mutex<JournalState>,
    /// Copy of `state.durable` for readers without the lock.
    durable: AtomicU32,
    aborted: AtomicBool,
    /// The right to commit. Held by the committer, or by a lone sync.
    committing: Mutex<CommitBatching>,
    /// Wakes the committer: there is something to commit.
    committer_wake: Condvar,
    /// Wakes the committing thread: handles have ended, room was made, or enough syncs wait.
    commit_wake: Condvar,
    checkpointer_wake: Condvar,
    sync_waiters: SyncWaiters,
    /// Times of the running and the committing transaction, indexed by the low bit of their id.
    times: [TransactionTimes; 2],
    clock: Clock,
    free_space_hooks: OnceLock<Weak<dyn FreeSpaceHooks>>,
    ordered_data: OnceLock<Weak<dyn OrderedData>>,
    abort_observer: OnceLock<AbortObserver>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stats: Arc<JournalStats>,
    waits: Arc<Waits>,
}

#[derive(Debug)]
struct JournalState {
    ring: LogRing,
    /// Latest durable transaction.
    durable: Tid,
    /// Latest transaction whose commit is requested.
    requested: Tid,
    /// The thread that requested it.
    requester: Option<ThreadId>,
    /// Latest transaction to commit without a wait for more syncs.
    urgent: Tid,
    checkpoint_requested: bool,
    shutdown: bool,
    abort_cause: Option<Error>,
}

impl JournalState {
    /// Whether a requested commit is not done yet.
    fn is_requested(&self) -> bool {
        self.requested.is_after(self.durable)
    }
}

impl Journal {
    /// Runs `operation` in a handle of `credits`. If the operation fails after its first change,
    /// the journal is aborted.
    ///
    /// # Errors
    /// Those of [`Journal::start`] and of `operation`.
    pub fn run<T>(
        &self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'_>) -> Result<T>,
    ) -> Result<T> {
        self.run_in(self.start(credits)?, operation)
    }

    fn run_in<T>(
        &self,
        mut handle: Handle<'_>,
        operation: impl FnOnce(&mut Handle<'_>) -> Result<T>,
    ) -> Result<T> {
        let result = operation(&mut handle);
        if let Err(error) = &result
            && handle.changed
        {
            self.abort(error.clone());
        }
        result
    }

    /// Most credits that one handle can take.
    #[must_use]
    pub fn credits_max(&self) -> u32 {
        self.credits_max
    }

    /// The cache whose blocks this journal changes.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The blocks of the `len` from `start` that hold file data of which the log, or the running
    /// transaction, has an image; ascending. The operation that frees them must revoke them
    /// ([`Handle::forget`]). No replay writes the other blocks.
    #[must_use]
    pub fn logged_data(&self, start: BlockNo, len: u32) -> Vec<BlockNo> {
        self.data.within(start, len)
    }

    /// The shared flushes of the device.
    #[must_use]
    pub fn flush_gate(&self) -> &FlushGate {
        &self.flush
    }

    /// Counters and latencies.
    #[must_use]
    pub fn stats(&self) -> &JournalStats {
        &self.stats
    }

    /// The figures that `/proc/fs/jbd2/*/info` has for a journal of the kernel.
    #[must_use]
    pub fn info(&self) -> JournalInfo {
        self.stats.info(self.credits_max)
    }

    /// The threads that sleep now, and what they wait for.
    #[must_use]
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Registers the free-space accounting. To be called once.
    pub fn set_free_space_hooks<T: FreeSpaceHooks + 'static>(&self, keeper: &Arc<T>) {
        let weak: Weak<T> = Arc::downgrade(keeper);
        let first = self.free_space_hooks.set(weak).is_ok();
        assert!(first, "a volume has one allocator");
    }

    /// Registers the owner of ordered data. To be called once.
    pub fn set_ordered_data<T: OrderedData + 'static>(&self, keeper: &Arc<T>) {
        let weak: Weak<T> = Arc::downgrade(keeper);
        let first = self.ordered_data.set(weak).is_ok();
        assert!(first, "a volume has one owner of ordered data");
    }

    /// Registers a callback for an abort. The aborting thread calls it, once, and may hold locks
    /// and an open handle. Only the first observer is kept.
    pub fn set_abort_observer(&self, observer: Box<dyn Fn(&Error) + Send + Sync>) {
        let _ = self.abort_observer.set(AbortObserver(observer));
    }

    /// The transaction that a handle would join now.
    pub(crate) fn running(&self) -> Tid {
        self.running_state.load().tid
    }

    /// Whether the journal is aborted, so that no change reaches the device any more.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// Whether a transaction holds changes that are not durable: the running one, one that is being
    /// committed, or one whose commit has failed.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        let running = self.running();
        let durable = Tid(self.durable.load(Ordering::SeqCst));
        durable.next() != running || !self.transaction(running).lock().is_empty()
    }

    /// Aborts the journal. The first cause is kept.
    pub fn abort(&self, cause: Error) {
        {
            let mut state = self.state.lock();
            if state.abort_cause.is_some() {
                return;
            }
            state.abort_cause = Some(cause.clone());
            self.aborted.store(true, Ordering::SeqCst);
        }
        self.queue.abort();
        self.wake_threads();
        self.sync_waiters.wake_all();
        self.record_abort();
        if let Some(AbortObserver(observer)) = self.abort_observer.get() {
            observer(&cause);
        }
    }

    /// Goes on if the invariant `what` holds. Otherwise the journal is aborted, before a bad state
    /// can become durable. What an abort left half done breaks nothing. The caller holds no lock of
    /// rank `Journal` or higher.
    ///
    /// # Errors
    /// The invariant is broken.
    pub(crate) fn check(&self, holds: bool, what: &'static str) -> Result<()> {
        if holds { Ok(()) } else { Err(self.broken(what)) }
    }

    #[cold]
    pub(crate) fn broken(&self, what: &'static str) -> Error {
        if self.is_aborted() {
            return self.aborted_error();
        }
        self.cache.invariants().broken(what)
    }

    /// Fails if the journal is aborted.
    fn check_not_aborted(&self) -> Result<()> {
        if self.is_aborted() { Err(self.aborted_error()) } else { Ok(()) }
    }

    /// Wakes the journal's threads to look at the state again.
    fn wake_threads(&self) {
        self.committer_wake.notify_all();
        self.commit_wake.notify_all();
        self.checkpointer_wake.notify_all();
    }

    /// Whether a block of a run was freed in a transaction that is not durable. Only with clusters
    /// can a file get such a block: one of a cluster that it has kept.
    pub fn is_revoked(&self, start: BlockNo, len: u32) -> bool {
        let run = start..start.plus(u64::from(len));
        self.transactions.iter().any(|one| one.lock().revoked.range(run.clone()).next().is_some())
    }

    fn transaction(&self, tid: Tid) -> &Mutex<Transaction> {
        &self.transactions[slot(tid)]
    }

    fn times(&self, tid: Tid) -> &TransactionTimes {
        &self.times[slot(tid)]
    }
}

/// The later of two transactions.
pub(crate) fn later(a: Tid, b: Tid) -> Tid {
    if b.is_after(a) { b } else { a }
}

fn slot(tid: Tid) -> usize {
    (tid.get() & 1) as usize
}

fn aborted(cause: &Error) -> Error {
    Error::new(ErrorKind::Aborted, cause.to_string())
}
