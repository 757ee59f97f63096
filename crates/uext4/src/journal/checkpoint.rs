//! Checkpoints: durable images are written to their final locations, and log space becomes free.
//!
//! What: one thread works from a quarter of the log on, in batches, oldest transactions first. A
//! batch is the latest durable image of every block that these transactions logged: written in
//! device order, neighbours in one write, all writes in one call. One flush follows, then the tail
//! of the log moves in the journal superblock. The thread rests when an eighth of the log is in
//! use.
//! Invariants: images are flushed before the tail moves, and the tail is durable before a block of
//! the log is reused.
//! Ablation: with `checkpoint=inline` joiners do this instead, see `ablation/inline_checkpoint.rs`.
//! Locking: the checkpoint lock is held for a batch.
//! Kernel counterpart: `fs/jbd2/checkpoint.c`, which has no thread of its own.

use super::log::LogTail;
use super::{Journal, JournalState};
use crate::cache::{Cache, CheckpointImage};
use crate::config::CheckpointMode;
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;
use crate::sync::stage;
use crate::sync::time::Instant;
use std::sync::Arc;
use uext4_device::WriteRun;
use uext4_ondisk::BlockNo;

/// Most blocks in one write of neighbouring blocks.
const RUN_BLOCKS_MAX: usize = 256;

/// Blocks of a batch, about, because a batch is whole transactions. Large enough to sort and merge,
/// small enough that the tail moves often.
const BATCH_BLOCKS: usize = 4096;

impl Journal {
    /// Body of the checkpointer thread.
    pub(super) fn run_checkpointer(&self) {
        while self.wait_for_checkpoint_work() {
            match self.checkpoint_to_low_water() {
                // Other threads must go on before there is an image to write.
                Ok(0) => crate::sync::thread::pause(),
                Ok(_) => {}
                Err(error) => self.abort(error),
            }
        }
    }

    /// Waits for a request. False at shutdown.
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

    /// Whether enough of the log, or of the memory for images, is in use for the checkpointer to
    /// start.
    pub(super) fn is_checkpoint_due(&self, state: &JournalState) -> bool {
        self.config.checkpoint == CheckpointMode::Background
            && (self.log_blocks_used(state) > self.map.len() / 4
                || self.cache.logged().len() > self.images_max)
    }

    fn is_at_low_water(&self, state: &JournalState) -> bool {
        self.log_blocks_used(state) <= self.map.len() / 8
            && self.cache.logged().len() <= self.images_max / 2
    }

    fn log_blocks_used(&self, state: &JournalState) -> u32 {
        self.map.len() - state.ring.free
    }

    /// Checkpoints until little of the log is in use. Returns the number of blocks written.
    fn checkpoint_to_low_water(&self) -> Result<usize> {
        let mut written = 0;
        loop {
            let blocks = self.checkpoint()?;
            written += blocks;
            let state = self.state.lock();
            let is_over = state.shutdown || state.abort_cause.is_some();
            if blocks == 0 || is_over || self.is_at_low_water(&state) {
                return Ok(written);
            }
        }
    }

    /// Checkpoints all that is durable now and flushes the device.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn checkpoint_all(&self) -> Result<()> {
        while self.checkpoint()? > 0 {}
        self.flush.cover(self.flush.epoch())
    }

    /// Makes one checkpoint: writes a batch and moves the tail. Returns the number of blocks
    /// written; 0 if no image waits.
    ///
    /// # Errors
    /// The device failed. The images and the tail stay as they are.
    fn checkpoint(&self) -> Result<usize> {
        let _one = self.checkpoint_lock.lock();
        let done = self.checkpoint_locked(BATCH_BLOCKS, usize::MAX);
        stage("");
        done
    }

    /// Makes one checkpoint. The caller holds the checkpoint lock.
    pub(super) fn checkpoint_locked(
        &self,
        batch_blocks: usize,
        write_blocks: usize,
    ) -> Result<usize> {
        let began = Instant::now();
        let logged = self.cache.logged();
        let batch = logged.begin_batch(batch_blocks);
        stage("checkpoint: write");
        let mut parts = batch.chunks(write_blocks);
        let written = parts.try_for_each(|part| {
            write_in_place(&self.cache, part, |checkpoint: &CheckpointImage| {
                (checkpoint.block, &checkpoint.image)
            })
        });
        logged.batch_written();
        stage("checkpoint: flush");
        let flushed = written.and_then(|()| match batch.is_empty() {
            true => Ok(()),
            false => self.flush.cover(self.flush.epoch()),
        });
        let (tail, holds) = {
            let mut state = self.state.lock();
            let oldest = logged.end_batch(&batch, flushed.is_ok());
            flushed?;
            let durable = state.durable;
            let tail = state.ring.advance(oldest, durable, durable.next());
            (tail, state.ring.holds(&self.map, tail))
        };
        self.check(holds, "the log is in use from its tail to its head")?;
        stage("checkpoint: tail");
        if tail.gained > 0 {
            // The ring has lost these blocks, so no other thread may checkpoint.
            self.write_tail(tail).inspect_err(|error| self.abort(error.clone()))?;
            self.tail_moved(tail);
        }
        if !batch.is_empty() || tail.gained > 0 {
            let stats = &self.stats;
            stats.checkpoints.fetch_add(1, Ordering::Relaxed);
            stats.checkpoint_blocks.fetch_add(batch.len() as u64, Ordering::Relaxed);
            stats.checkpoint.add_since(began);
        }
        // The committer may wait for the number of images to fall, not only for log space.
        drop(self.state.lock());
        self.commit_wake.notify_all();
        Ok(batch.len())
    }

    /// Records the tail in the journal superblock, durably.
    fn write_tail(&self, tail: LogTail) -> Result<()> {
        let mut superblock = self.superblock.lock();
        superblock.s_sequence.set(tail.tid.get());
        superblock.s_start.set(tail.start);
        self.map.write_superblock(&mut superblock, self.config.barrier)
    }
}

/// Writes images, which ascend by block, to their final locations in one call, neighbours in one
/// write.
pub(super) fn write_in_place<T>(
    cache: &Cache,
    images: &[T],
    place: impl Fn(&T) -> (BlockNo, &Arc<[u8]>),
) -> Result<()> {
    let (blocks, views): (Vec<BlockNo>, Vec<&[u8]>) =
        images.iter().map(place).map(|(block, image)| (block, &**image)).unzip();
    let mut runs = Vec::new();
    let mut from = 0;
    for to in 1..=blocks.len() {
        let follows = blocks.get(to).is_some_and(|next| *next == blocks[to - 1].plus(1));
        if !follows || to - from == RUN_BLOCKS_MAX {
            let offset = blocks[from].get() * cache.block_size() as u64;
            runs.push(WriteRun { offset, bufs: &views[from..to] });
            from = to;
        }
    }
    cache.device().write_many(&runs).map_err(|e| {
        let first = blocks.first().map_or(0, |block| block.get());
        Error::io(format!("writing {} metadata blocks from {first} on", images.len()), e)
    })
}
