//! Opening a journal: replay after a crash, then the start of a new log.
//!
//! Invariants: the log is flushed before the first image of it is replayed, and replayed images are
//! flushed before the log is declared empty. Transaction ids continue across mounts and never
//! reset. Features of the journal change only while the log is empty. If the log is not empty but
//! the file system's superblock does not say `needs_recovery`, the log is not replayed; it is wiped
//! before that flag is set, or a later crash would replay its old blocks over newer ones.
//! Kernel counterpart: `fs/jbd2/recovery.c`, `fs/jbd2/journal.c`.

use super::batching::CommitBatching;
use super::data::LoggedData;
use super::durable::SyncWaiters;
use super::fast_commit::LeftFastCommits;
use super::in_place::AS_LARGE_AS_LOG;
use super::join::JoinQueue;
use super::locate::LogLocation;
use super::log::{LogMap, LogRing};
use super::packed_state::{CREDITS_MAX, PackedState};
use super::record::RecordFormat;
use super::stats::{Clock, JournalStats};
use super::transaction::Transaction;
use super::{FlushGate, Journal, JournalState};
use crate::cache::Cache;
use crate::config::MountOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::stats::Waits;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Condvar, LockRank, Mutex, stage};
use std::sync::{Arc, OnceLock};
use uext4_device::SharedDevice;
use uext4_ondisk::journal::block::unescape;
use uext4_ondisk::journal::replay::{ReplayError, ReplayLimits, plan};
use uext4_ondisk::journal::superblock::{
    CHECKSUM_CRC32C, JournalCompat, JournalError, JournalIncompat, JournalLayout,
    RawJournalSuperblock,
};
use uext4_ondisk::{CorruptKind, Layout, Place, Tid};

/// A transaction may fill a quarter of the journal, which long was jbd2's limit.
const TRANSACTION_SHARE: u32 = 4;
/// Blocks that a transaction may have even if the cache is smaller.
const CREDITS_IN_MEMORY_MIN: u32 = 1024;
/// Fewest blocks of a log. The format's journals have at least 1024 blocks.
const LOG_BLOCKS_MIN: u32 = 1000;

/// A journal whose log has been replayed.
#[derive(Debug)]
pub struct Recovered {
    /// The blocks of the journal.
    pub location: LogLocation,
    superblock: RawJournalSuperblock,
    /// Id of the next transaction.
    next_tid: Tid,
    last_commit_secs: u64,
    /// Transactions replayed.
    pub transactions: u32,
    /// Blocks written to their final locations.
    pub blocks: usize,
    /// The journal recorded an error.
    pub recorded_error: bool,
    /// Fast commits behind the log, which has been replayed and is not emptied yet: their outcome
    /// is to be logged, and the journal recovered once more.
    pub fast_commits: Option<LeftFastCommits>,
    /// Fast commits that were repeated.
    pub repeated: u32,
    /// The log is not empty and must not be replayed: see [`Journal::wipe_log`].
    pub needs_wipe: bool,
}

/// The treatment of a log that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftLog {
    /// It is replayed and emptied.
    Replay,
    /// It is emptied without a replay, once nothing else prevents the opening of the volume. The
    /// superblock says that everything in it was checkpointed.
    Wipe,
    /// It stays, because nothing may be written.
    Keep,
}

/// Reads the journal and treats its log as `left` says.
///
/// # Errors
/// A corrupt journal superblock, features that are not understood, a damaged log, a device
/// failure.
pub fn recover(
    device: &SharedDevice,
    layout: &Layout,
    location: LogLocation,
    left: LeftLog,
) -> Result<Recovered> {
    let block_size = layout.block_size as usize;
    // A map over the whole journal, for reading.
    let end = location.blocks().max(1);
    let map = LogMap::new(device, block_size, location.clone(), 0, end);
    let mut bytes = vec![0; block_size];
    map.read_superblock(&mut bytes)?;
    let place = Place::LogBlock(location.superblock);
    let at = |kind: CorruptKind| Error::from(kind.at(place));
    let mut superblock = RawJournalSuperblock::read(&bytes).map_err(at)?;
    let journal =
        JournalLayout::new(&superblock, layout.block_size, location.blocks()).map_err(|error| {
            match error {
                JournalError::Corrupt(kind) => at(kind),
                JournalError::UnsupportedFeatures { names } => {
                    Error::new(ErrorKind::RefusedFeatures, format!("journal uses {names}"))
                }
            }
        })?;
    let mut recovered = Recovered {
        location,
        superblock,
        next_tid: journal.sequence,
        last_commit_secs: 0,
        transactions: 0,
        blocks: 0,
        recorded_error: superblock.s_errno.get() != 0,
        fast_commits: None,
        repeated: 0,
        needs_wipe: false,
    };
    if journal.is_empty() || left == LeftLog::Keep {
        return Ok(recovered);
    }
    let limits = ReplayLimits::new(layout.blocks_count);
    let plan = plan(&journal, limits, |at, bytes| map.read(at, bytes)).map_err(replay_error);
    if left == LeftLog::Wipe {
        // Ids continue after those of the log, or of any log of this length, so that no old block
        // can be taken for a block of the new log.
        let beyond = || Tid(journal.sequence.get().wrapping_add(superblock.s_maxlen.get()));
        (recovered.next_tid, recovered.last_commit_secs) =
            plan.map_or_else(|_| (beyond(), 0), |plan| (plan.next_tid, plan.last_commit_secs));
        recovered.needs_wipe = true;
        return Ok(recovered);
    }
    let plan = plan?;
    if !plan.damaged.is_empty() {
        let context = format!(
            "{} blocks of the journal are damaged and cannot be replayed; run e2fsck",
            plan.damaged.len()
        );
        return Err(Error::new(ErrorKind::NeedsRecovery, context));
    }
    // A process that was killed may have left the log in volatile memory alone. A loss of power in
    // the middle of the replay would then lose what says how it goes on.
    stage("replay: log");
    map.flush()?;
    stage("replay: write");
    for (block, image) in &plan.writes {
        map.read(image.log_block, &mut bytes)?;
        if image.escaped {
            unescape(&mut bytes);
        }
        device
            .write_at(layout.byte_of(*block), &bytes)
            .map_err(|e| Error::io(format!("replaying block {block}"), e))?;
    }
    stage("replay: flush");
    device.flush().map_err(|e| Error::io("flushing the replay", e))?;
    recovered.transactions = plan.transactions;
    recovered.blocks = plan.writes.len();
    recovered.last_commit_secs = plan.last_commit_secs;
    recovered.next_tid = plan.next_tid;
    let (place, size) = (&recovered.location, layout.inode_size);
    recovered.fast_commits =
        LeftFastCommits::read(&map, place, &journal, &superblock, &plan, size)?;
    if recovered.fast_commits.is_some() {
        return Ok(recovered);
    }
    stage("replay: superblock");
    superblock.s_start.set(0);
    superblock.s_sequence.set(plan.next_tid.get());
    map.write_superblock(&mut superblock, true)?;
    stage("");
    recovered.superblock = superblock;
    Ok(recovered)
}

fn replay_error(error: ReplayError<Error>) -> Error {
    match error {
        ReplayError::Read { source, .. } => source,
        ReplayError::Corrupt { log_block, kind } => kind.at(Place::LogBlock(log_block)).into(),
        ReplayError::OutOfRange { log_block, .. } => {
            log_rule(log_block, "holds an image of a block outside the file system")
        }
        ReplayError::TooManyRevokes { .. } => log_rule(0, "revokes more blocks than possible"),
    }
}

fn log_rule(log_block: u32, why: &'static str) -> Error {
    CorruptKind::Rule { what: "journal", why }.at(Place::LogBlock(log_block)).into()
}

/// Aborts the journal if the thread panics that does its work, so that no thread waits for it for
/// ever.
pub(super) struct AbortOnPanic<'a>(pub(super) &'a Journal);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(Error::new(ErrorKind::Internal, "a journal thread panicked"));
            // No freeing thread waits for the batch of a checkpoint that will not end.
            self.0.cache.logged().batch_written();
        }
    }
}

impl Recovered {
    /// Blocks of the ring.
    fn log_blocks(&self) -> u32 {
        self.superblock.s_maxlen.get().saturating_sub(self.superblock.s_first.get())
    }

    /// The journal with a new log that has not begun. The device has not changed;
    /// [`Journal::begin`] must follow.
    ///
    /// # Errors
    /// A journal that is too small.
    pub fn prepare(
        self,
        cache: &Arc<Cache>,
        options: &MountOptions,
        images_max: usize,
    ) -> Result<Arc<Journal>> {
        let Self { location, mut superblock, next_tid, last_commit_secs, .. } = self;
        let layout = cache.layout();
        let (first, end) = (superblock.s_first.get(), superblock.s_maxlen.get());
        if end.saturating_sub(first) < LOG_BLOCKS_MIN {
            let context = format!("a journal of {end} blocks, at least {LOG_BLOCKS_MIN} needed");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        // Only the checksums of the tags tell a torn transaction from a whole one.
        let mut config = options.clone();
        config.journal_async_commit &= layout.has_metadata_csum();
        set_features(&mut superblock, layout, config.journal_async_commit);
        superblock.s_start.set(first);
        superblock.s_sequence.set(next_tid.get());
        superblock.s_errno.set(0);
        let block_size = layout.block_size as usize;
        let map = LogMap::new(cache.device(), block_size, location, first, end);
        let format = RecordFormat::new(superblock.format(), last_commit_secs);
        Ok(Journal::assemble(cache, config, images_max, map, format, superblock, next_tid))
    }
}

/// The features that uext4 writes. The log is empty.
fn set_features(superblock: &mut RawJournalSuperblock, layout: &Layout, async_commit: bool) {
    let mut incompat = JournalIncompat::REVOKE;
    incompat.set(JournalIncompat::BIT64, layout.has_64bit());
    incompat.set(JournalIncompat::CSUM_V3, layout.has_metadata_csum());
    incompat.set(JournalIncompat::ASYNC_COMMIT, async_commit);
    // A version 1 superblock has no features; version 2 differs by them alone.
    superblock.h_blocktype.set(uext4_ondisk::journal::block::BlockType::SuperblockV2.raw());
    superblock.s_feature_incompat.set(incompat.bits());
    let compat = superblock.compat() - JournalCompat::CHECKSUM;
    superblock.s_feature_compat.set(compat.bits());
    superblock.s_checksum_type = if layout.has_metadata_csum() { CHECKSUM_CRC32C } else { 0 };
}

impl Journal {
    /// A journal for a read-only volume, which starts no handle. Its credits are those that it
    /// would have with the log, if there is one.
    #[must_use]
    pub fn read_only(cache: &Arc<Cache>, log: Option<&Recovered>, images_max: usize) -> Arc<Self> {
        let block_size = cache.block_size();
        let nowhere = LogLocation::default();
        let blocks = log.map_or(AS_LARGE_AS_LOG, Recovered::log_blocks);
        let map = LogMap::new(cache.device(), block_size, nowhere, 0, blocks);
        let superblock = RawJournalSuperblock::zeroed();
        let format = RecordFormat::new(superblock.format(), 0);
        let config = MountOptions::default();
        let journal = Self::assemble(cache, config, images_max, map, format, superblock, Tid(1));
        journal.aborted.store(true, Ordering::SeqCst);
        journal.state.lock().abort_cause = Some(Error::new(ErrorKind::ReadOnly, String::new()));
        journal
    }

    pub(super) fn assemble(
        cache: &Arc<Cache>,
        config: MountOptions,
        images_max: usize,
        map: LogMap,
        format: RecordFormat,
        superblock: RawJournalSuperblock,
        tid: Tid,
    ) -> Arc<Self> {
        // A transaction is in memory as a whole.
        let in_memory = u32::try_from(images_max).unwrap_or(u32::MAX);
        let credits_max = (map.len() / TRANSACTION_SHARE)
            .min(CREDITS_MAX / 2)
            .min(in_memory.max(CREDITS_IN_MEMORY_MIN));
        // Every credit may become an image or a revoke record. The superblock takes no credit.
        let most = credits_max as usize + 1;
        let durable = Tid(tid.get().wrapping_sub(1));
        let state = JournalState {
            ring: LogRing::empty(&map),
            durable,
            requested: durable,
            requester: None,
            urgent: durable,
            checkpoint_requested: false,
            shutdown: false,
            abort_cause: None,
        };
        let (stats, waits): (Arc<JournalStats>, Arc<Waits>) = Default::default();
        let admission = Arc::clone(&stats.admission);
        let journal = Arc::new(Self {
            cache: Arc::clone(cache),
            images_max,
            running_state: PackedState::new(tid),
            queue: JoinQueue::new(config.journal_join, &waits, credits_max, admission),
            data: LoggedData::default(),
            transactions: [(), ()]
                .map(|()| Mutex::new(LockRank::Transaction, Transaction::default())),
            credits_max,
            commit_blocks_max: if superblock.s_maxlen.get() == 0 {
                0
            } else {
                format.blocks_needed(most, most)
            },
            flush: FlushGate::new(
                cache.device().clone(),
                config.barrier,
                Arc::clone(&stats),
                Arc::clone(&waits),
            ),
            config,
            map,
            format,
            superblock: Mutex::new(LockRank::Journal, superblock),
            state: Mutex::new(LockRank::Journal, state),
            durable: AtomicU32::new(durable.get()),
            checkpoint_lock: Mutex::new(LockRank::Table, ()),
            aborted: AtomicBool::new(false),
            committing: Mutex::new(LockRank::Commit, CommitBatching::default()),
            committer_wake: Condvar::new(),
            commit_wake: Condvar::new(),
            checkpointer_wake: Condvar::new(),
            sync_waiters: SyncWaiters::new(durable),
            times: Default::default(),
            clock: Clock::new(),
            free_space_hooks: OnceLock::new(),
            ordered_data: OnceLock::new(),
            abort_observer: OnceLock::new(),
            threads: Mutex::new(LockRank::Leaf, Vec::new()),
            stats,
            waits,
        });
        let weak = Arc::downgrade(&journal);
        cache.invariants().set_reaction(Box::new(move |error| {
            if let Some(journal) = weak.upgrade() {
                journal.abort(error);
            }
        }));
        journal
    }

    /// Declares a log empty, durably, that must not be replayed. To be called before the file
    /// system's superblock says `needs_recovery`.
    ///
    /// # Errors
    /// A device failure.
    pub fn wipe_log(&self) -> Result<()> {
        let mut superblock = *self.superblock.lock();
        superblock.s_start.set(0);
        self.map.write_superblock(&mut superblock, true)
    }

    /// Begins the log and starts the threads. The volume may change only after this has returned.
    /// The file system's superblock must say `needs_recovery` before the call.
    ///
    /// # Errors
    /// A device failure, or threads that cannot start.
    pub fn begin(self: &Arc<Self>) -> Result<()> {
        if !self.has_log() {
            return self.spawn("uext4-commit", Self::run_committer);
        }
        self.map.write_superblock(&mut self.superblock.lock(), self.config.barrier)?;
        self.spawn("uext4-commit", Self::run_committer)?;
        self.spawn("uext4-ckpt", Self::run_checkpointer)
            .inspect_err(|error| self.stop_threads(error.clone()))
    }

    fn spawn(self: &Arc<Self>, name: &str, body: fn(&Self)) -> Result<()> {
        let journal = Arc::clone(self);
        let thread = crate::sync::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _guard = AbortOnPanic(&journal);
                body(&journal);
            })
            .map_err(|e| Error::io(format!("starting thread {name}"), e))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Commits and checkpoints everything, ends the threads and leaves an empty log.
    ///
    /// # Errors
    /// The journal was or gets aborted. The log then stays as it is, for a replay.
    pub fn close(&self) -> Result<()> {
        // A failure aborts the journal, so that no thread waits for room that is never made.
        let emptied = self.empty_log().inspect_err(|error| self.abort(error.clone()));
        self.join_threads()?;
        self.stop_threads(Error::new(ErrorKind::ReadOnly, "the volume is closed"));
        emptied
    }

    /// Ends the threads as a crash would: changes that are not durable are lost, and the log stays.
    pub fn stop_threads(&self, cause: Error) {
        {
            let mut state = self.state.lock();
            state.abort_cause.get_or_insert(cause);
            self.aborted.store(true, Ordering::SeqCst);
        }
        self.queue.abort();
        self.sync_waiters.wake_all();
        // A thread that panicked has aborted the journal.
        let _ = self.join_threads();
    }

    fn join_threads(&self) -> Result<()> {
        self.state.lock().shutdown = true;
        self.wake_threads();
        let threads = std::mem::take(&mut *self.threads.lock());
        let mut joined = Ok(());
        for thread in threads {
            if thread.join().is_err() {
                joined = Err(Error::new(ErrorKind::Internal, "a journal thread panicked"));
            }
        }
        joined
    }

    fn empty_log(&self) -> Result<()> {
        self.check_not_aborted()?;
        self.commit_all()?;
        let balanced = self.free_space_hooks().is_none_or(|space| space.is_balanced());
        self.check(balanced, "reserved and allocated blocks fit into the free ones")?;
        if !self.has_log() {
            return self.flush.cover(self.flush.epoch());
        }
        self.checkpoint_all()?;
        // What follows a close flushes the file system's device, with barrier=0 too. A log on
        // another is then empty for certain, but not before all that was in it is in place.
        let is_apart = self.map.is_apart();
        if is_apart && !self.config.barrier {
            let flushed = self.cache.device().flush();
            flushed.map_err(|e| Error::io("flushing the device", e))?;
        }
        let next = self.state.lock().durable.next();
        let mut superblock = self.superblock.lock();
        superblock.s_start.set(0);
        superblock.s_sequence.set(next.get());
        self.map.write_superblock(&mut superblock, self.config.barrier || is_apart)
    }

    /// Records the abort in the journal superblock: best effort, because the device may be the
    /// cause.
    pub(super) fn record_abort(&self) {
        if !self.has_log() {
            return;
        }
        let mut superblock = self.superblock.lock();
        superblock.s_errno.set(libc::EIO.unsigned_abs().wrapping_neg());
        let _ = self.map.write_superblock(&mut superblock, self.config.barrier);
    }
}
