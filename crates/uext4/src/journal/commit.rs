//! The commit: closes a transaction and writes it to the log.
//!
//! What: one thread commits at a time, usually the committer; a lone sync commits for itself.
//! Steps: maybe wait for more syncs (`batching.rs`), close, wait for open handles, snapshot the
//! blocks, open the next transaction, seal the images, write descriptors and images in one call,
//! flush, write the commit block durably, wake the waiters. With `journal_async_commit` the commit
//! block is written with the rest and one flush follows. With `barrier=0` nothing is flushed.
//! Without a log the images go to their final locations instead (`in_place.rs`).
//! Invariants: the flush covers the log images and all file data that the transaction maps, because
//! data is written before its mapping is inserted. The checkpointer sees images only when their
//! transaction is durable. Freed blocks return to the allocator only after that, and when no write
//! of an old image of them can be under way.
//! Kernel counterpart: `fs/jbd2/commit.c`.

use super::batching::CommitBatching;
use super::log::LogTail;
use super::recovery::AbortOnPanic;
use super::transaction::Transaction;
use super::{FreeSpaceHooks, Journal, JournalState, later};
use crate::cache::{BlockKind, Snapshot};
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::stats::Histogram;
use crate::sync::atomic::Ordering;
use crate::sync::stage;
use crate::sync::time::Instant;
use std::sync::Arc;
use std::time::Duration;
use uext4_ondisk::{RawSuperblock, Tid};

/// A closed transaction on its way to the log. It holds its buffers (in `contents`) until their
/// images are in [`crate::cache::LoggedImages`], because a block must not leave memory while its
/// newest content is nowhere else.
#[derive(Debug)]
struct Closed {
    tid: Tid,
    images: Vec<Snapshot>,
    contents: Transaction,
    /// Its first block in the log, and the number of its blocks.
    start: u32,
    blocks: u32,
    opened_next: bool,
    /// Times of its close, and of the opening of the next transaction.
    closed_at: Instant,
    snapshotted_at: Instant,
}

/// The reason for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A thread requested it.
    Request,
    /// The commit interval is over.
    Timer,
}

/// A stopwatch for consecutive phases.
struct Phases(Instant);

impl Phases {
    /// Adds the time since the last phase ended to a histogram.
    fn end(&mut self, histogram: &Histogram) {
        let now = Instant::now();
        histogram.add(now - self.0);
        self.0 = now;
    }
}

impl Journal {
    /// Body of the committer thread.
    pub(super) fn run_committer(&self) {
        while let Some(cause) = self.wait_for_commit_work() {
            self.commit_for(cause);
        }
    }

    /// Commits the running transaction, unless a sync has done so meanwhile.
    pub(super) fn commit_for(&self, cause: Cause) {
        let mut batch = self.committing.lock();
        // With `checkpoint=inline` a sync may have left the next transaction to joiners, who open
        // it when there is room. To commit the durable one again would open that again.
        if self.running_state.load().closed {
            drop(batch);
            crate::sync::thread::pause();
            return;
        }
        if cause == Cause::Request {
            if !self.state.lock().is_requested() {
                return;
            }
            self.gather(&mut batch, self.running_state.load().tid);
        }
        self.commit(&mut batch);
    }

    /// Commits transaction `tid`, which the caller needs, in the caller's thread, which saves two
    /// wake-ups. False if the committer must do it, because it is at work, or because other threads
    /// sync too and a commit may have to wait for them. The caller may hold the locks that it may
    /// hold while it waits for a commit.
    pub(super) fn commit_in_place(&self, tid: Tid) -> bool {
        let Some(mut batch) = self.committing.try_lock() else { return false };
        let running = self.running_state.load();
        // With `checkpoint=inline` the lock is free while `tid` is closed and durable and joiners
        // make room for the next transaction. To commit it again would open it again.
        let is_running = running.tid == tid && !running.closed;
        let may = batch.is_alone(self.batch_times().0) && is_running;
        if !may || self.is_aborted() {
            return false;
        }
        let _guard = AbortOnPanic(self);
        self.note_request(&mut self.state.lock(), tid);
        self.stats.commits_in_place.fetch_add(1, Ordering::Relaxed);
        self.commit(&mut batch);
        true
    }

    /// Commits the running transaction. A failure aborts the journal.
    fn commit(&self, batch: &mut CommitBatching) {
        let committed = match self.close_running() {
            Ok(Some(mut closed)) => {
                self.write_out(&mut closed).and_then(|()| self.publish(closed, batch))
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = committed {
            self.abort(error);
        }
        stage("");
    }

    /// Waits until the running transaction must be committed. `None` at shutdown.
    fn wait_for_commit_work(&self) -> Option<Cause> {
        let interval = Duration::from_millis(self.config.commit_interval_ms);
        let mut deadline = Instant::now() + interval;
        let mut state = self.state.lock();
        loop {
            if state.abort_cause.is_some() || state.shutdown {
                return None;
            }
            if state.is_requested() {
                return Some(Cause::Request);
            }
            let now = Instant::now();
            if now >= deadline {
                let tid = state.durable.next();
                drop(state);
                if !self.transaction(tid).lock().is_empty() {
                    return Some(Cause::Timer);
                }
                deadline = now + interval;
                state = self.state.lock();
                continue;
            }
            self.committer_wake.wait_for(&mut state, deadline - now);
        }
    }

    /// Closes the running transaction and takes its contents. `None` if it is empty.
    fn close_running(&self) -> Result<Option<Closed>> {
        stage("locked");
        let closed_at = Instant::now();
        let mut phases = Phases(closed_at);
        let closed_ns = self.clock.now();
        let tid = self.running_state.close().tid;
        {
            let mut state = self.state.lock();
            while self.running_state.load().handles > 0 {
                self.commit_wake.wait(&mut state);
            }
        }
        phases.end(&self.stats.lock);
        let mut contents = std::mem::take(&mut *self.transaction(tid).lock());
        let used = contents.buffers.len() + contents.revoked.len();
        let granted = self.running_state.load().credits as usize;
        self.check(used <= granted, "a transaction has credits for its blocks")?;
        // Without a log a crash leaves the counts to e2fsck, and a close writes them.
        if !contents.buffers.is_empty() && self.has_log() {
            self.count_in_superblock(tid, &mut contents);
        }
        let mut images: Vec<Snapshot> =
            contents.buffers.iter().filter_map(|buffer| buffer.snapshot(tid)).collect();
        if Fault::MissingBlock.is_injected() && images.len() > 4 {
            images.remove(1);
        }
        if images.is_empty() && contents.revoked.is_empty() {
            self.reopen_empty(tid, contents);
            return Ok(None);
        }
        self.stats.note_close(self.times(tid), closed_ns, self.running_state.load().credits);
        let blocks = match self.has_log() {
            true => self.format.blocks_needed(images.len(), contents.revoked.len()),
            false => 0,
        };
        let mut state = self.state.lock();
        let follows = state.durable.next() == tid;
        let start = match self.has_log() {
            true => state.ring.reserve(&self.map, tid, blocks).filter(|_| follows),
            false => Some(0).filter(|_| follows),
        };
        let opened_next = self.has_room(&state);
        drop(state);
        let what = "a transaction follows the one before it in the log, and has room";
        let start = start.ok_or_else(|| self.broken(what))?;
        if opened_next {
            self.open_next(tid.next());
        } else {
            self.queue.note_shortage();
        }
        phases.end(&self.stats.snapshot);
        let snapshotted_at = phases.0;
        Ok(Some(Closed {
            tid,
            images,
            contents,
            start,
            blocks,
            opened_next,
            closed_at,
            snapshotted_at,
        }))
    }

    /// Checks that the bitmaps to be logged have no bit that the allocator does not know of. Only
    /// for test harnesses, because it costs a twelfth of a small commit; the allocator looks at the
    /// bits themselves when it allocates and marks used.
    fn check_bitmaps(&self, images: &[Snapshot]) -> Result<()> {
        let hooks = self.free_space_hooks().filter(|_| cfg!(feature = "strict-invariants"));
        let Some(space) = hooks else { return Ok(()) };
        images.iter().try_for_each(|snapshot| {
            let BlockKind::BlockBitmap(group) = snapshot.kind else { return Ok(()) };
            let holds = space.contains(group, &snapshot.image);
            self.check(holds, "the in-memory bitmap contains the journaled one")
        })
    }

    /// Updates the free counts of the superblock, as part of the transaction if they changed. The
    /// kernel does so only at unmount and leaves the difference to e2fsck after a crash.
    fn count_in_superblock(&self, tid: Tid, contents: &mut Transaction) {
        let Some(allocator) = self.free_space_hooks() else { return };
        // The block is in memory since the mount.
        let Ok((buffer, at)) = self.cache.superblock() else { return };
        let (blocks, inodes) = allocator.journaled_free();
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
        if bytes.transaction.is_none() {
            bytes.transaction = Some(tid);
            contents.buffers.push(Arc::clone(&buffer));
        }
    }

    pub(super) fn free_space_hooks(&self) -> Option<Arc<dyn FreeSpaceHooks>> {
        self.free_space_hooks.get().and_then(std::sync::Weak::upgrade)
    }

    /// Opens a transaction again that had nothing to log. Its id stays in use.
    fn reopen_empty(&self, tid: Tid, contents: Transaction) {
        self.transaction(tid).lock().freed.extend(contents.freed);
        self.times(tid).forget_request();
        // Before the transaction opens again, because a later change needs a request of its own.
        self.forget_requests();
        self.open_next(tid);
        self.sync_waiters.wake(tid);
        if !self.queue.is_empty() {
            // A queued request still does not fit and requests a commit again. Reserved credits are
            // in the way, so the threads that reserved them must get time to go on.
            crate::sync::thread::pause();
        }
    }

    pub(super) fn open_next(&self, tid: Tid) {
        self.request_commit_of(self.queue.open(&self.running_state, tid));
    }

    /// Computes the checksums of the images. Those of bitmaps are in the group descriptors, so
    /// bitmaps come first.
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

    /// Writes the transaction to the log. It is durable when this returns.
    fn write_out(&self, closed: &mut Closed) -> Result<()> {
        // The transaction may hold half an operation.
        self.check_not_aborted()?;
        let mut phases = Phases(Instant::now());
        if let Some(data) = self.ordered_data.get().and_then(std::sync::Weak::upgrade) {
            stage("ordered data");
            data.write(closed.tid)?;
            phases.end(&self.stats.data_flush);
        }
        self.check_bitmaps(&closed.images)?;
        self.seal(&mut closed.images);
        phases.end(&self.stats.seal);
        if !self.has_log() {
            // What was found broken meanwhile may be in this transaction.
            self.check_not_aborted()?;
            let written = self.write_without_log(&mut closed.images);
            phases.end(&self.stats.log_write);
            return written;
        }
        stage("log write");
        let none = std::collections::BTreeSet::new();
        let lost = Fault::LostRevoke.is_injected();
        let revoked = if lost { &none } else { &closed.contents.revoked };
        let blocks = self.format.encode(closed.tid, &closed.images, revoked);
        let fills = lost || blocks.len() + 1 == closed.blocks as usize;
        self.check(fills, "a transaction fills the blocks of the log that it has")?;
        self.stats.log_blocks.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        let commit = self.format.commit_block(closed.tid);
        let through = self.config.barrier && self.map.writes_through();
        let mut views: Vec<&[u8]> = blocks.iter().map(|block| &**block).collect();
        if self.config.journal_async_commit {
            // Checksums tell a replay whether the whole transaction arrived. The flush comes before
            // any thread is told that the transaction is durable.
            views.push(&commit);
        }
        let at = self.map.write(closed.start, &views, through)?;
        phases.end(&self.stats.log_write);
        stage("log flush");
        self.flush_before_commit_block()?;
        phases.end(&self.stats.log_flush);
        if self.config.journal_async_commit {
            return Ok(());
        }
        // What was found broken meanwhile may be in this transaction.
        self.check_not_aborted()?;
        stage("commit block");
        self.map.write_block(at, &commit, self.config.barrier)?;
        phases.end(&self.stats.commit_block);
        Ok(())
    }

    /// Makes the transaction in the log and the file data that it maps durable. These may be on two
    /// devices, and neither flush says anything of the other.
    fn flush_before_commit_block(&self) -> Result<()> {
        if Fault::SkippedBarrier.is_injected() && !self.config.journal_async_commit {
            return Ok(());
        }
        self.flush_log_device()?;
        if self.map.is_apart() && Fault::SkippedDataFlush.is_injected() {
            return Ok(());
        }
        self.flush.cover(self.flush.epoch())
    }

    /// Flushes the log's device, if that is not the file system's.
    fn flush_log_device(&self) -> Result<()> {
        if !self.map.is_apart() || !self.config.barrier {
            return Ok(());
        }
        let begun = Instant::now();
        let flushed = self.map.flush();
        self.stats.flush.add_since(begun);
        flushed.inspect_err(|error| self.flush.latch(error))
    }

    /// Publishes that the transaction is durable.
    fn publish(&self, closed: Closed, batch: &mut CommitBatching) -> Result<()> {
        let Closed { tid, images, mut contents, opened_next, closed_at, snapshotted_at, .. } =
            closed;
        stage("publish");
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        self.stats.blocks_logged.fetch_add(images.len() as u64, Ordering::Relaxed);
        // Before the number advances, because the checkpointer moves the tail past durable
        // transactions without images in `logged`.
        if self.has_log() {
            self.cache.logged().add(tid, images.into_iter().map(|s| (s.block, s.image)));
        }
        let images_now = self.cache.logged().len() as u64;
        self.stats.images_high_water.fetch_max(images_now, Ordering::Relaxed);
        let checkpoint = {
            let mut state = self.state.lock();
            state.durable = tid;
            state.requested = later(state.requested, tid);
            self.is_checkpoint_due(&state)
        };
        self.durable.store(tid.get(), Ordering::SeqCst);
        let waiting = self.sync_waiters.waiting(tid.next());
        let woken = self.sync_waiters.wake(tid);
        batch.note_end(woken, waiting, self.clock.now());
        self.stats.syncs.fetch_add(u64::from(woken), Ordering::Relaxed);
        self.stats.commit.add_since(closed_at);
        self.stats.note_commit(snapshotted_at.elapsed());
        contents.buffers.clear();
        self.cache.logged().cancel(contents.revoked.into_iter());
        if let Some(allocator) = self.free_space_hooks() {
            allocator.freed(contents.freed);
        }
        if checkpoint {
            self.state.lock().checkpoint_requested = true;
            self.checkpointer_wake.notify_one();
        }
        if !opened_next && !self.delegates_opening(tid.next()) {
            self.wait_for_room()?;
            self.open_next(tid.next());
        }
        Ok(())
    }

    /// Whether the largest commit fits into the log, and its images into memory.
    pub(super) fn has_room(&self, state: &JournalState) -> bool {
        let tiny = Fault::TinyLog.is_injected() || Fault::UnsentJoiner.is_injected();
        if tiny && state.ring.free + 1 < self.map.len() {
            return false;
        }
        let images_limit = 2 * self.images_max.max(self.credits_max as usize);
        state.ring.free >= self.commit_blocks_max && self.cache.logged().len() <= images_limit
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
            self.commit_wake.wait(&mut state);
        }
        Ok(())
    }

    /// Frees the log blocks before a tail that is durable now.
    pub(super) fn tail_moved(&self, mut tail: LogTail) {
        tail.gained += u32::from(Fault::ExtraLogBlock.is_injected());
        self.data.tail_moved(tail.tid);
        self.state.lock().ring.free += tail.gained;
        self.commit_wake.notify_all();
    }
}
