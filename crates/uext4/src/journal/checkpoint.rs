//! The checkpointer: writes durable images home and frees log space.
//!
//! What: one thread. Takes the latest durable image of every block in the log, writes them in
//! device order with neighbours merged, flushes, then moves the log's tail in the journal
//! superblock.
//! Invariants: images are flushed before the tail moves, and the tail is durable before a block
//! of the log is used again. A joining thread never does any of this.
//! Kernel counterpart: `fs/jbd2/checkpoint.c`, which has no thread of its own.

use super::log::Tail;
use super::{Journal, JournalStats};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::BlockNo;

/// Most blocks in one home write.
const RUN_BLOCKS_MAX: usize = 256;

impl Journal {
    /// Body of the checkpointer thread.
    pub(super) fn run_checkpointer(&self) {
        loop {
            {
                let mut state = self.state.lock();
                loop {
                    if state.shutdown || state.abort_cause.is_some() {
                        return;
                    }
                    if std::mem::take(&mut state.checkpoint_requested) {
                        break;
                    }
                    self.checkpointer_wake.wait(&mut state);
                }
            }
            if let Err(error) = self.checkpoint() {
                self.abort(error);
            }
        }
    }

    pub(super) fn request_checkpoint(&self) {
        self.state.lock().checkpoint_requested = true;
        self.checkpointer_wake.notify_one();
    }

    /// Writes home what is durable now and moves the tail.
    ///
    /// # Errors
    /// The device failed; the images and the tail stay as they are.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpoint_lock.lock();
        let logged = self.cache.logged();
        let batch = logged.begin_batch();
        let images = batch.iter().map(|home| (home.block, &home.image));
        let written = write_home(&self.cache, images).and_then(|()| self.flush.flush());
        let tail = {
            let mut state = self.state.lock();
            let oldest = logged.end_batch(&batch, written.is_ok());
            written?;
            let durable = state.durable;
            state.ring.advance(oldest, durable, durable.next())
        };
        count(&self.stats);
        if tail.gained > 0 {
            self.write_tail(tail)?;
            self.tail_moved(tail);
        }
        // Somebody may wait for the images to be gone rather than for the log.
        drop(self.state.lock());
        self.committer_wake.notify_all();
        Ok(())
    }

    /// Records the tail in the journal superblock, durably.
    pub(super) fn write_tail(&self, tail: Tail) -> Result<()> {
        let mut superblock = self.superblock.lock();
        superblock.s_sequence.set(tail.tid.get());
        superblock.s_start.set(tail.start);
        self.write_superblock(&mut superblock)
    }
}

fn count(stats: &JournalStats) {
    stats.checkpoints.fetch_add(1, Ordering::Relaxed);
}

/// Writes images to their places, neighbours in one write. `images` ascend by block.
pub(super) fn write_home<'a>(
    cache: &Cache,
    images: impl Iterator<Item = (BlockNo, &'a Arc<[u8]>)>,
) -> Result<()> {
    let mut start = BlockNo(0);
    let mut run: Vec<&[u8]> = Vec::with_capacity(RUN_BLOCKS_MAX);
    let write = |start: BlockNo, run: &[&[u8]]| {
        let offset = start.get() * cache.block_size() as u64;
        cache
            .device()
            .write_vectored_at(offset, run)
            .map_err(|e| Error::io(format!("writing metadata block {start}"), e))
    };
    for (block, image) in images {
        let follows = !run.is_empty() && block == start.plus(run.len() as u64);
        if !follows || run.len() == RUN_BLOCKS_MAX {
            if !run.is_empty() {
                write(start, &run)?;
            }
            run.clear();
            start = block;
        }
        run.push(image);
    }
    if run.is_empty() { Ok(()) } else { write(start, &run) }
}
