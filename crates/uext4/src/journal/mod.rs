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
mod checkpoint;
mod commit;
mod counters;
mod flush;
mod handle;
mod join;
mod locate;
mod log;
mod record;
mod recovery;
mod transaction;
mod word;

pub use admission::Reserved;
pub use counters::{AdmissionStats, ByCause};
pub use flush::{FlushEpoch, FlushGate};
pub use handle::{Freed, Handle};
pub use locate::LogLocation;
pub use recovery::{Recovered, recover};

use crate::cache::Cache;
use crate::config::{CheckpointMode, CreditMode, JoinMode};
use crate::error::{Error, ErrorKind, Result};
use crate::stats::{Histogram, Waits};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex};
use join::JoinQueue;
use log::{LogMap, Ring};
use record::RecordFormat;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use transaction::Transaction;
use uext4_ondisk::Tid;
use uext4_ondisk::journal::superblock::RawJournalSuperblock;
use word::TransactionWord;

/// Who keeps count of space.
pub trait SpaceKeeper: Send + Sync + std::fmt::Debug {
    /// Free blocks and inodes as the journaled bitmaps have them. Asked while a transaction is
    /// closed and no handle is open, so that the superblock that is logged with it agrees.
    fn journaled_free(&self) -> (u64, u32);

    /// The blocks that the transaction freed can be used again.
    fn freed(&self, freed: Vec<Freed>);
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
    /// How handles wait to join.
    pub join: JoinMode,
    /// How handles count credits.
    pub credits: CreditMode,
    /// Who frees log space.
    pub checkpoint: CheckpointMode,
}

/// Counters since the mount.
#[derive(Debug, Default)]
pub struct JournalStats {
    /// Transactions committed.
    pub commits: AtomicU64,
    /// Handles started.
    pub handles: AtomicU64,
    /// Blocks logged.
    pub blocks_logged: AtomicU64,
    /// Handles that had to wait to join.
    pub joins_waited: AtomicU64,
    /// Checkpoints made, by whomever: each is one batch of home writes, one flush after them, and
    /// at most one move of the tail.
    pub checkpoints: AtomicU64,
    /// Of these, made by joiners that found no room (`checkpoint=inline`).
    pub checkpoints_forced: AtomicU64,
    /// Blocks that checkpoints wrote home.
    pub checkpoint_blocks: AtomicU64,
    /// Most images that waited in memory to go home.
    pub images_high_water: AtomicU64,
    /// How long checkpoints took.
    pub checkpoint_time: Histogram,
    /// How joining went.
    pub admission: Arc<AdmissionStats>,
}

/// The journal of a mounted volume.
#[derive(Debug)]
pub struct Journal {
    cache: Arc<Cache>,
    config: JournalConfig,
    word: TransactionWord,
    queue: JoinQueue,
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
    committer_wake: Condvar,
    checkpointer_wake: Condvar,
    /// Waiters for a transaction to be durable, by the low bit of its id.
    durable_wake: [Condvar; 2],
    space_keeper: OnceLock<Weak<dyn SpaceKeeper>>,
    abort_observer: OnceLock<AbortObserver>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stats: JournalStats,
    waits: Arc<Waits>,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    /// Latest durable transaction.
    durable: Tid,
    /// Commit up to this one as soon as possible.
    requested: Tid,
    /// How often a transaction was closed, found empty, and opened again.
    empty_closes: u64,
    checkpoint_requested: bool,
    shutdown: bool,
    abort_cause: Option<Error>,
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

    /// Flushes of the device.
    #[must_use]
    pub fn flush_gate(&self) -> &FlushGate {
        &self.flush
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &JournalStats {
        &self.stats
    }

    /// Who waits for the journal, and others of the volume.
    #[must_use]
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Says who keeps count of space, and takes freed blocks back. Once.
    pub fn set_space_keeper<T: SpaceKeeper + 'static>(&self, keeper: &Arc<T>) {
        let weak: Weak<T> = Arc::downgrade(keeper);
        let first = self.space_keeper.set(weak).is_ok();
        assert!(first, "a volume has one space");
    }

    /// Says who is told of an abort: once, by the thread that aborts, which may hold locks and an
    /// open handle. The first observer stays.
    pub fn set_abort_observer(&self, observer: Box<dyn Fn(&Error) + Send + Sync>) {
        let _ = self.abort_observer.set(AbortObserver(observer));
    }

    /// Whether transaction `tid` is durable.
    #[must_use]
    pub fn is_durable(&self, tid: Tid) -> bool {
        !tid.is_after(Tid(self.durable.load(Ordering::Acquire)))
    }

    /// Returns when what transaction `tid` holds now is durable, committing it if it runs.
    ///
    /// # Errors
    /// The journal is aborted before that.
    pub fn wait_durable(&self, tid: Tid) -> Result<()> {
        let mut state = self.state.lock();
        let empty_closes = state.empty_closes;
        loop {
            // A transaction that is closed and found empty runs on under its id: then it held
            // nothing when this call began.
            if !tid.is_after(state.durable) || state.empty_closes != empty_closes {
                return Ok(());
            }
            if let Some(cause) = &state.abort_cause {
                return Err(aborted(cause));
            }
            state.requested = later(state.requested, tid);
            self.committer_wake.notify_one();
            self.durable_wake[slot(tid)].wait(&mut state);
        }
    }

    /// Makes everything durable that has changed so far.
    ///
    /// # Errors
    /// The journal is or gets aborted.
    pub fn commit_all(&self) -> Result<()> {
        self.wait_durable(self.word.load().tid)
    }

    /// The transaction that a handle would join now.
    pub(crate) fn running(&self) -> Tid {
        self.word.load().tid
    }

    /// Asks for a commit of the running transaction without waiting for it.
    pub fn request_commit(&self) {
        self.request_commit_of(self.word.load().tid);
    }

    /// Whether the journal is aborted: no change reaches the device any more.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Ends the journal; the first cause is kept.
    pub fn abort(&self, cause: Error) {
        {
            let mut state = self.state.lock();
            if state.abort_cause.is_some() {
                return;
            }
            state.abort_cause = Some(cause.clone());
            self.aborted.store(true, Ordering::Release);
        }
        self.queue.abort();
        self.committer_wake.notify_all();
        self.checkpointer_wake.notify_all();
        self.durable_wake.iter().for_each(Condvar::notify_all);
        self.record_abort();
        if let Some(AbortObserver(observer)) = self.abort_observer.get() {
            observer(&cause);
        }
    }

    /// The first cause of the abort, as an error of whoever meets it now.
    #[must_use]
    pub fn aborted_error(&self) -> Error {
        match &self.state.lock().abort_cause {
            Some(cause) => aborted(cause),
            None => Error::new(ErrorKind::Aborted, String::new()),
        }
    }

    fn transaction(&self, tid: Tid) -> &Transaction {
        &self.transactions[slot(tid)]
    }
}

fn later(a: Tid, b: Tid) -> Tid {
    if b.is_after(a) { b } else { a }
}

fn slot(tid: Tid) -> usize {
    (tid.get() & 1) as usize
}

fn aborted(cause: &Error) -> Error {
    Error::new(ErrorKind::Aborted, cause.to_string())
}
