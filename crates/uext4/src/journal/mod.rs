//! The journal: transactions that survive a crash whole or not at all.
//!
//! What: operations join the running transaction through a [`Handle`] and change metadata blocks
//! in memory. A commit closes the transaction, takes the images of its blocks, opens the next one,
//! and writes the images to the log; operations go on meanwhile. A checkpointer in the
//! background writes durable images home and frees log space. `docs/journal.md` tells the whole.
//! On disk: jbd2, as Documentation/filesystems/ext4 describes it.
//! Invariants: **a transaction is closed, drained, snapshotted, and only then is the next one
//! opened**, so no image holds a change of a later transaction. **A transaction opens only when the
//! largest commit fits in the log.** Joiners never write, flush or checkpoint (but for a contrast
//! option).
//! Kernel counterpart: `fs/jbd2`.

mod admission;
mod batching;
mod checkpoint;
mod commit;
mod counters;
mod data;
mod durable;
mod flush;
mod handle;
mod join;
mod locate;
mod log;
mod log_space;
mod packed_state;
mod record;
mod recovery;
mod sharded_wait_queue;
mod stats;
mod transaction;

pub use admission::Reserved;
pub(crate) use batching::WaitBackoff;
pub use counters::{AdmissionStats, ByCause};
pub use flush::{FlushEpoch, FlushGate};
pub use handle::{Freed, Handle};
pub use locate::LogLocation;
pub use log_space::LogSpace;
pub use recovery::{LeftLog, Recovered, recover};
pub use stats::{JournalInfo, JournalStats};

use crate::cache::Cache;
use crate::config::{CheckpointMode, CreditMode, JoinMode};
use crate::error::{Error, ErrorKind, Result};
use crate::stats::Waits;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex};
use batching::CommitBatching;
use data::LoggedData;
use durable::SyncWaiters;
use join::JoinQueue;
use log::{LogMap, Ring};
use packed_state::PackedState;
use record::RecordFormat;
use stats::{Clock, TransactionTimes};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::Duration;
use transaction::Transaction;
use uext4_ondisk::journal::superblock::RawJournalSuperblock;
use uext4_ondisk::{BlockNo, Tid};

/// Who keeps count of space.
pub trait FreeSpaceHooks: Send + Sync + std::fmt::Debug {
    /// Free blocks and inodes as the journaled bitmaps have them. Asked while a transaction is
    /// closed and no handle is open, so that the superblock that is logged with it agrees.
    fn journaled_free(&self) -> (u64, u32);

    /// The blocks that the transaction freed can be used again.
    fn freed(&self, freed: Vec<Freed>);
}

/// Who keeps data that was mapped before it was written (`writeback=ordered`).
pub trait OrderedData: Send + Sync + std::fmt::Debug {
    /// Returns when all data that transaction `tid` mapped is on the device. Called by the
    /// committer when no handle of that transaction is open, before it writes the log.
    ///
    /// # Errors
    /// A device failure: the transaction must not become durable.
    fn write(&self, tid: Tid) -> Result<()>;
}

/// Who is told the cause when the journal is aborted.
pub struct AbortObserver(Box<dyn Fn(&Error) + Send + Sync>);

impl std::fmt::Debug for AbortObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AbortObserver")
    }
}

/// Policies of the journal.
#[derive(Clone, Copy, Debug)]
pub struct JournalConfig {
    /// A transaction with changes is committed after this time.
    pub commit_interval: Duration,
    /// Images waiting to go home, in blocks, above which a checkpoint starts.
    pub images_max: usize,
    /// A commit that syncs ask for waits at least so long for others to join.
    pub min_batch_time: Duration,
    /// And at most so long; zero: it never waits.
    pub max_batch_time: Duration,
    /// Flush the device where the format needs it.
    pub barrier: bool,
    /// Write the commit block together with the rest of the transaction. Needs a journal with
    /// checksums in its tags; without them it changes nothing.
    pub async_commit: bool,
    /// How handles wait to join.
    pub join: JoinMode,
    /// How handles count credits.
    pub credits: CreditMode,
    /// Who frees log space.
    pub checkpoint: CheckpointMode,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            commit_interval: Duration::from_secs(5),
            images_max: 4096,
            min_batch_time: Duration::ZERO,
            max_batch_time: Duration::from_millis(15),
            barrier: true,
            async_commit: false,
            join: JoinMode::Fifo,
            credits: CreditMode::Exact,
            checkpoint: CheckpointMode::Background,
        }
    }
}

/// The journal of a mounted volume.
#[derive(Debug)]
pub struct Journal {
    cache: Arc<Cache>,
    config: JournalConfig,
    running_state: PackedState,
    queue: JoinQueue,
    /// File data that the log may bring back.
    data: LoggedData,
    /// Running and committing transaction, by the low bit of their id.
    transactions: [Transaction; 2],
    credits_max: u32,
    commit_blocks_max: u32,
    map: LogMap,
    format: RecordFormat,
    /// As it stands on the device; held while it is written.
    superblock: Mutex<RawJournalSuperblock>,
    /// One checkpoint at a time.
    checkpoint_lock: Mutex<()>,
    flush: FlushGate,
    state: Mutex<State>,
    /// Copy of `state.durable` for those who only look.
    durable: AtomicU32,
    aborted: AtomicBool,
    /// Of whoever commits: the committer, or a sync that is alone.
    committing: Mutex<CommitBatching>,
    /// There is something to commit.
    committer_wake: Condvar,
    /// Handles have ended, room was made, syncs have gathered: for whoever commits.
    commit_wake: Condvar,
    checkpointer_wake: Condvar,
    sync_waiters: SyncWaiters,
    /// Of the running and the committing transaction, by the low bit of their id.
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
struct State {
    ring: Ring,
    /// Latest durable transaction.
    durable: Tid,
    /// Commit up to this one as soon as possible.
    requested: Tid,
    /// Who asked for that.
    requester: Option<ThreadId>,
    /// Commit up to this one without waiting for more syncs.
    urgent: Tid,
    checkpoint_requested: bool,
    shutdown: bool,
    abort_cause: Option<Error>,
}

impl State {
    /// Somebody waits for a commit.
    fn is_requested(&self) -> bool {
        self.requested.is_after(self.durable)
    }
}

impl Journal {
    /// Runs `operation` in a handle of `credits`. An operation that fails after its first change
    /// aborts the journal.
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
            && handle.has_changed()
        {
            self.abort(error.clone());
        }
        result
    }

    /// Most blocks that one handle can ask for.
    #[must_use]
    pub fn credits_max(&self) -> u32 {
        self.credits_max
    }

    /// The cache whose blocks this journal changes.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Those of `len` blocks from `start` that hold file data of which the log has an image, be it
    /// of the running transaction, ascending: what frees them must revoke them
    /// ([`Handle::forget`]). All others are at home, and no replay touches them.
    #[must_use]
    pub fn logged_data(&self, start: BlockNo, len: u32) -> Vec<BlockNo> {
        self.data.within(start, len)
    }

    /// Flushes of the device.
    #[must_use]
    pub fn flush_gate(&self) -> &FlushGate {
        &self.flush
    }

    /// Counters and latencies.
    #[must_use]
    pub fn stats(&self) -> &JournalStats {
        &self.stats
    }

    /// What `/proc/fs/jbd2/*/info` tells of a journal of the kernel.
    #[must_use]
    pub fn info(&self) -> JournalInfo {
        self.stats.info(self.credits_max)
    }

    /// Who waits for what, now.
    #[must_use]
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Says who keeps count of space, and takes freed blocks back. Once.
    pub fn set_free_space_hooks<T: FreeSpaceHooks + 'static>(&self, keeper: &Arc<T>) {
        let weak: Weak<T> = Arc::downgrade(keeper);
        let first = self.free_space_hooks.set(weak).is_ok();
        assert!(first, "a volume has one space");
    }

    /// Says who keeps ordered data. Once.
    pub fn set_ordered_data<T: OrderedData + 'static>(&self, keeper: &Arc<T>) {
        let weak: Weak<T> = Arc::downgrade(keeper);
        let first = self.ordered_data.set(weak).is_ok();
        assert!(first, "a volume keeps its ordered data in one place");
    }

    /// Says who is told of an abort: once, by the thread that aborts, which may hold locks and an
    /// open handle. The first observer stays.
    pub fn set_abort_observer(&self, observer: Box<dyn Fn(&Error) + Send + Sync>) {
        let _ = self.abort_observer.set(AbortObserver(observer));
    }

    /// The transaction that a handle would join now.
    pub(crate) fn running(&self) -> Tid {
        self.running_state.load().tid
    }

    /// Whether the journal is aborted: no change reaches the device any more.
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
        durable.next() != running || !self.transaction(running).is_empty()
    }

    /// Ends the journal; the first cause is kept.
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

    /// What all of them wait for has changed.
    fn wake_threads(&self) {
        self.committer_wake.notify_all();
        self.commit_wake.notify_all();
        self.checkpointer_wake.notify_all();
    }

    fn transaction(&self, tid: Tid) -> &Transaction {
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
