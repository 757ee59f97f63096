//! Checkpoints: durable images go home, log space comes free.
//!
//! What: one thread, from a quarter of the log on. In batches, oldest transactions first: the
//! latest durable image of every block that they logged, in device order, neighbours in one write,
//! all writes of a batch in one call; one flush; then the log's tail moves in the journal
//! superblock. It rests when an eighth of the log is in use.
//! Invariants: images are flushed before the tail moves, and the tail is durable before a block
//! of the log is used again. A joining thread never does any of this, but in the contrast
//! `checkpoint=inline`: there joiners that find no room do it, one at a time, a transaction at a
//! time, and open the next transaction themselves.
//! Locking: the checkpoint lock is held over a batch; joiners may hold all up to `Handle` then.
//! Kernel counterpart: `fs/jbd2/checkpoint.c`, which has no thread of its own.

use super::join::{Grant, Request};
use super::log::Tail;
use super::recovery::AbortOnPanic;
use super::{Journal, State};
use crate::cache::{Cache, CheckpointImage};
use crate::config::CheckpointMode;
use crate::error::{Error, Result};
use crate::stats::WaitFor;
use crate::sync::atomic::Ordering;
use crate::sync::stage;
use crate::sync::time::Instant;
use uext4_device::WriteRun;
use uext4_ondisk::Tid;

/// Most blocks in one home write.
const RUN_BLOCKS_MAX: usize = 256;
/// Blocks that one batch writes home, about: whole transactions. Large enough to sort and merge,
/// small enough that the tail moves often.
const BATCH_BLOCKS: usize = 4096;
/// Blocks that a joiner writes at a time, as jbd2.
const JOINER_BLOCKS: usize = 64;

/// Who makes a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The checkpointer, or whoever closes the volume.
    Engine,
    /// A joiner that found no room.
    Joiner,
}

impl Journal {
    /// Body of the checkpointer thread.
    pub(super) fn run_checkpointer(&self) {
        while self.wait_for_checkpoint_work() {
            match self.checkpoint_to_low_water() {
                // Others have to go on before there is something to write home.
                Ok(0) => crate::sync::thread::pause(),
                Ok(_) => {}
                Err(error) => self.abort(error),
            }
        }
    }

    /// Returns true when a checkpoint is asked for, false at shutdown.
    fn wait_for_checkpoint_work(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.shutdown || state.abort_cause.is_some() {
                return false;
            }
            if std::mem::take(&mut state.checkpoint_requested) {
                return true;
            }
            self.checkpointer_wake.wait(&mut state);
        }
    }

    pub(super) fn request_checkpoint(&self) {
        self.state.lock().checkpoint_requested = true;
        self.checkpointer_wake.notify_one();
    }

    /// Whether so much of the log, or of the memory for images, is in use that the checkpointer
    /// starts.
    pub(super) fn is_checkpoint_due(&self, state: &State) -> bool {
        self.config.checkpoint == CheckpointMode::Background
            && (self.log_blocks_used(state) > self.map.len() / 4
                || self.cache.logged().len() > self.config.images_max)
    }

    fn is_at_low_water(&self, state: &State) -> bool {
        self.log_blocks_used(state) <= self.map.len() / 8
            && self.cache.logged().len() <= self.config.images_max / 2
    }

    fn log_blocks_used(&self, state: &State) -> u32 {
        self.map.len() - state.ring.free
    }

    /// Returns the blocks written home.
    fn checkpoint_to_low_water(&self) -> Result<usize> {
        let mut written = 0;
        loop {
            let blocks = self.checkpoint(By::Engine)?;
            written += blocks;
            let state = self.state.lock();
            let is_over = state.shutdown || state.abort_cause.is_some();
            if blocks == 0 || is_over || self.is_at_low_water(&state) {
                return Ok(written);
            }
        }
    }

    /// Writes home all that is durable now; everything written before is durable then.
    ///
    /// # Errors
    /// As [`Journal::checkpoint`].
    pub(super) fn checkpoint_all(&self) -> Result<()> {
        while self.checkpoint(By::Engine)? > 0 {}
        self.flush.flush()
    }

    /// Makes one checkpoint: a batch goes home and the tail moves. Returns the blocks written home;
    /// 0 when nothing waits.
    ///
    /// # Errors
    /// The device failed; the images and the tail stay as they are.
    fn checkpoint(&self, by: By) -> Result<usize> {
        let _one = self.checkpoint_lock.lock();
        let done = self.checkpoint_locked(by);
        stage("");
        done
    }

    /// As [`Journal::checkpoint`], under the checkpoint lock.
    fn checkpoint_locked(&self, by: By) -> Result<usize> {
        let began = Instant::now();
        let logged = self.cache.logged();
        let batch = logged.begin_batch(if by == By::Joiner { 1 } else { BATCH_BLOCKS });
        let at_a_time = if by == By::Joiner { JOINER_BLOCKS } else { batch.len().max(1) };
        stage("checkpoint: home");
        let written =
            batch.chunks(at_a_time).try_for_each(|part| write_in_place(&self.cache, part));
        logged.batch_written();
        stage("checkpoint: flush");
        let flushed = written.and_then(|()| match batch.is_empty() {
            true => Ok(()),
            false => self.flush.flush(),
        });
        let tail = {
            let mut state = self.state.lock();
            let oldest = logged.end_batch(&batch, flushed.is_ok());
            flushed?;
            let durable = state.durable;
            state.ring.advance(oldest, durable, durable.next())
        };
        stage("checkpoint: tail");
        if tail.gained > 0 {
            self.write_tail(tail)?;
            self.tail_moved(tail);
        }
        if !batch.is_empty() || tail.gained > 0 {
            let stats = &self.stats;
            stats.checkpoints.fetch_add(1, Ordering::Relaxed);
            stats.checkpoints_forced.fetch_add(u64::from(by == By::Joiner), Ordering::Relaxed);
            stats.checkpoint_blocks.fetch_add(batch.len() as u64, Ordering::Relaxed);
            stats.checkpoint.add_since(began);
        }
        // Somebody may wait for the images to be gone rather than for the log.
        drop(self.state.lock());
        self.commit_wake.notify_all();
        Ok(batch.len())
    }

    /// Opens `tid`, for whose commit the log had no room when the one before it was closed: when
    /// the checkpointer has made room, or by leaving that to joiners.
    ///
    /// # Errors
    /// The journal is aborted before that.
    pub(super) fn open_with_room(&self, tid: Tid) -> Result<()> {
        match self.config.checkpoint {
            CheckpointMode::Background => self.wait_for_room()?,
            CheckpointMode::Inline => {
                if !self.has_room(&self.state.lock()) {
                    self.queue.leave_to_joiners(tid);
                    return Ok(());
                }
            }
        }
        self.open_next(tid);
        Ok(())
    }

    /// A joiner makes room in the log, one transaction at a time, and opens the next one when it
    /// fits. Returns what `request` got of it, if it was this joiner that opened it.
    ///
    /// # Errors
    /// The journal is or gets aborted.
    pub(super) fn make_room(&self, request: Request) -> Result<Option<Grant>> {
        let _guard = AbortOnPanic(self);
        let _wait = self.waits.begin(WaitFor::LogSpace);
        let began = Instant::now();
        let made = loop {
            let one = self.checkpoint_lock.lock();
            if self.is_aborted() {
                break Err(self.aborted_error());
            }
            if !self.queue.is_short() {
                break Ok(None);
            }
            if self.has_room(&self.state.lock()) {
                let (granted, ask) = self.queue.open_with_room(&self.running_state, request);
                self.ask(ask);
                break Ok(granted);
            }
            let round = self.checkpoint_locked(By::Joiner);
            drop(one);
            match round {
                // Others have to go on before there is something to write home.
                Ok(0) => crate::sync::thread::pause(),
                Ok(_) => {}
                Err(error) => {
                    self.abort(error.clone());
                    break Err(error);
                }
            }
        };
        self.stats.admission.waited.log_space.add_since(began);
        made
    }

    /// Records the tail in the journal superblock, durably.
    fn write_tail(&self, tail: Tail) -> Result<()> {
        let mut superblock = self.superblock.lock();
        superblock.s_sequence.set(tail.tid.get());
        superblock.s_start.set(tail.start);
        self.write_superblock(&mut superblock)
    }
}

/// Writes images to their places in one call, neighbours in one write. They ascend by block.
fn write_in_place(cache: &Cache, images: &[CheckpointImage]) -> Result<()> {
    let views: Vec<&[u8]> = images.iter().map(|home| &*home.image).collect();
    let mut runs = Vec::new();
    let mut from = 0;
    for to in 1..=images.len() {
        let follows = images.get(to).is_some_and(|home| home.block == images[to - 1].block.plus(1));
        if !follows || to - from == RUN_BLOCKS_MAX {
            let offset = images[from].block.get() * cache.block_size() as u64;
            runs.push(WriteRun { offset, bufs: &views[from..to] });
            from = to;
        }
    }
    cache.device().write_many(&runs).map_err(|e| {
        let first = images.first().map_or(0, |home| home.block.get());
        Error::io(format!("writing {} metadata blocks from {first} on", images.len()), e)
    })
}
