//! The committer: closes transactions and writes them to the log.
//!
//! What: one thread. Close, wait for open handles, snapshot the blocks, open the next
//! transaction, seal the images, write descriptors and images in one go, flush, write the commit
//! block durably, tell those who wait.
//! Invariants: the flush covers the log images and all file data whose mapping the transaction
//! holds (data is written before its mapping is inserted). The checkpointer sees images only when
//! their transaction is durable. Freed blocks return to the allocator only after that, and after no
//! write of an old image of them can be under way.
//! Kernel counterpart: `fs/jbd2/commit.c`.

use super::log::Tail;
use super::transaction::Contents;
use super::{Journal, SpaceKeeper, State, later, slot};
use crate::cache::Snapshot;
use crate::error::Result;
use crate::plant::{self, Fault};
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;
use uext4_ondisk::{RawSuperblock, Tid};

/// A closed transaction on its way to the log. It holds its buffers (in `contents`) until their
/// images are in [`crate::cache::LoggedImages`]: a block must not leave memory while its newest
/// content is nowhere else.
#[derive(Debug)]
struct Closed {
    tid: Tid,
    images: Vec<Snapshot>,
    contents: Contents,
    /// Where its blocks begin in the log.
    start: u32,
    opened_next: bool,
}

impl Journal {
    /// Body of the committer thread.
    pub(super) fn run_committer(&self) {
        while self.wait_for_commit_work() {
            if let Err(error) = self.commit_running() {
                self.abort(error);
            }
        }
    }

    /// Returns true when the running transaction is to be committed, false at shutdown.
    fn wait_for_commit_work(&self) -> bool {
        let mut deadline = Instant::now() + self.config.commit_interval;
        let mut state = self.state.lock();
        loop {
            if state.abort_cause.is_some() || state.shutdown {
                return false;
            }
            if state.requested.is_after(state.durable) {
                return true;
            }
            let now = Instant::now();
            if now >= deadline {
                let tid = state.durable.next();
                drop(state);
                if !self.transaction(tid).is_empty() {
                    return true;
                }
                deadline = now + self.config.commit_interval;
                state = self.state.lock();
                continue;
            }
            self.committer_wake.wait_for(&mut state, deadline - now);
        }
    }

    /// Commits the running transaction.
    fn commit_running(&self) -> Result<()> {
        let Some(mut closed) = self.close_running() else { return Ok(()) };
        if self.is_aborted() {
            // An operation failed half-way: its transaction must not become durable.
            return Ok(());
        }
        self.seal(&mut closed.images);
        self.write_out(&closed)?;
        self.publish(closed)
    }

    /// Closes the running transaction and takes what it has; `None` if it has nothing.
    fn close_running(&self) -> Option<Closed> {
        let tid = self.word.close().tid;
        {
            let mut state = self.state.lock();
            while self.word.load().handles > 0 {
                self.committer_wake.wait(&mut state);
            }
        }
        let mut contents = self.transaction(tid).take();
        if !contents.buffers.is_empty() {
            self.count_in_superblock(tid, &mut contents);
        }
        let mut images: Vec<Snapshot> =
            contents.buffers.iter().filter_map(|buffer| buffer.snapshot(tid)).collect();
        if plant::is(Fault::MissingBlock) && images.len() > 4 {
            images.remove(1);
        }
        if images.is_empty() && contents.revoked.is_empty() {
            self.reopen_empty(tid, contents);
            return None;
        }
        let blocks = self.format.blocks_needed(images.len(), contents.revoked.len());
        let mut state = self.state.lock();
        let start = state.ring.reserve(&self.map, tid, blocks);
        let opened_next = self.has_room(&state);
        drop(state);
        if opened_next {
            self.open_next(tid.next());
        } else {
            self.queue.note_shortage();
        }
        Some(Closed { tid, images, contents, start, opened_next })
    }

    /// Brings the superblock's free counts up to date, as part of the transaction if they changed.
    /// The kernel does so at unmount only and leaves the difference to e2fsck after a crash.
    fn count_in_superblock(&self, tid: Tid, contents: &mut Contents) {
        let Some(keeper) = self.space_keeper() else { return };
        // In memory since the mount.
        let Ok((buffer, at)) = self.cache.superblock() else { return };
        let (blocks, inodes) = keeper.journaled_free();
        let mut bytes = buffer.write();
        let Some(raw) = RawSuperblock::ref_from_prefix(&bytes[at..]) else { return };
        if raw.free_blocks_count() == blocks && raw.s_free_inodes_count.get() == inodes {
            return;
        }
        if let Some(raw) = RawSuperblock::mut_from_prefix(&mut bytes[at..]) {
            raw.set_free_blocks_count(blocks);
            raw.s_free_inodes_count.set(inodes);
        }
        bytes.unseal(0);
        if bytes.transaction().is_none() {
            bytes.set_transaction(Some(tid));
            contents.buffers.push(Arc::clone(&buffer));
        }
    }

    fn space_keeper(&self) -> Option<Arc<dyn SpaceKeeper>> {
        self.space_keeper.get().and_then(std::sync::Weak::upgrade)
    }

    /// The transaction had nothing to log; its id stays in use.
    fn reopen_empty(&self, tid: Tid, contents: Contents) {
        for freed in contents.freed {
            self.transaction(tid).add_freed(freed);
        }
        {
            let mut state = self.state.lock();
            state.requested = state.durable;
            state.empty_closes += 1;
        }
        self.open_next(tid);
        self.durable_wake.iter().for_each(crate::sync::Condvar::notify_all);
    }

    pub(super) fn open_next(&self, tid: Tid) {
        self.ask(self.queue.open(&self.word, tid));
    }

    /// Puts checksums into the images. Those of bitmaps stand in the group descriptors, so bitmaps
    /// come first.
    fn seal(&self, images: &mut [Snapshot]) {
        let sealer = self.cache.sealer();
        for image in images.iter() {
            sealer.note_bitmap(image.kind, &image.image);
        }
        for image in images {
            if image.unsealed != 0 && sealer.has_own_checksum(image.kind) {
                let bytes = Arc::make_mut(&mut image.image);
                sealer.seal(image.block, image.kind, bytes, image.unsealed);
            }
        }
    }

    /// Writes the transaction to the log; it is durable when this returns.
    fn write_out(&self, closed: &Closed) -> Result<()> {
        let images = closed.images.iter().map(|s| (s.block, &s.image));
        let none = std::collections::BTreeSet::new();
        let lost = plant::is(Fault::LostRevoke);
        let revoked = if lost { &none } else { &closed.contents.revoked };
        let blocks = self.format.encode(closed.tid, images, revoked);
        let views: Vec<&[u8]> = blocks.iter().map(|block| block.bytes()).collect();
        let at = self.map.write(closed.start, &views)?;
        if !plant::is(Fault::SkippedBarrier) {
            self.flush.flush()?;
        }
        self.map.write_durable(at, &self.format.commit_block(closed.tid))
    }

    /// Tells everybody that the transaction is durable.
    fn publish(&self, closed: Closed) -> Result<()> {
        let Closed { tid, images, mut contents, opened_next, .. } = closed;
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        self.stats.blocks_logged.fetch_add(images.len() as u64, Ordering::Relaxed);
        let checkpoint = {
            let mut state = self.state.lock();
            self.cache.logged().add(tid, images.into_iter().map(|s| (s.block, s.image)));
            let waiting = self.cache.logged().len() as u64;
            self.stats.images_high_water.fetch_max(waiting, Ordering::Relaxed);
            contents.buffers.clear();
            state.durable = tid;
            state.requested = later(state.requested, tid);
            self.durable.store(tid.get(), Ordering::Release);
            self.durable_wake[slot(tid)].notify_all();
            self.is_checkpoint_due(&state)
        };
        self.cache.logged().cancel(contents.revoked.into_iter());
        if let Some(keeper) = self.space_keeper() {
            keeper.freed(contents.freed);
        }
        if checkpoint {
            self.request_checkpoint();
        }
        if opened_next { Ok(()) } else { self.open_with_room(tid.next()) }
    }

    /// Whether the largest commit fits in the log, and its images in memory.
    pub(super) fn has_room(&self, state: &State) -> bool {
        let tiny = plant::is(Fault::TinyLog) || plant::is(Fault::UnsentJoiner);
        if tiny && state.ring.free + 1 < self.map.len() {
            return false;
        }
        let images_limit = 2 * self.config.images_max.max(self.credits_max as usize);
        state.ring.has_room(self.commit_blocks_max) && self.cache.logged().len() <= images_limit
    }

    /// Waits for the checkpointer until there is room.
    pub(super) fn wait_for_room(&self) -> Result<()> {
        let mut state = self.state.lock();
        while !self.has_room(&state) {
            if let Some(cause) = &state.abort_cause {
                return Err(super::aborted(cause));
            }
            state.checkpoint_requested = true;
            self.checkpointer_wake.notify_one();
            self.committer_wake.wait(&mut state);
        }
        Ok(())
    }

    /// The tail is durably past blocks that can be used again.
    pub(super) fn tail_moved(&self, tail: Tail) {
        self.state.lock().ring.release(tail.gained);
        self.committer_wake.notify_all();
    }
}
