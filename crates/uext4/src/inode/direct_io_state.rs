//! Direct I/O without locks: which blocks of a file are known to be written, and which accesses are
//! under way.
//!
//! What: with the [`DirectIoState`] of an inode a direct read, or an overwrite of written blocks,
//! finds its blocks in immutable arrays, one for each leaf of the extent tree. It then goes to the
//! device with no handle and no lock, and without a write to memory that threads share. It does so
//! inside a **read-side critical section**, which begins before the look-up and ends when the I/O
//! is done. A thread that does its I/O itself holds a [`ReadGuard`]. A request whose end may come
//! on another thread begins with a [`CountedReadGuard`] and keeps a [`ReadToken`].
//! Invariants: **a caller that removes mappings, or makes blocks unwritten, holds an
//! [`ExclusiveGuard`]** from before its first handle to after its last. Taking one disables the
//! fast path, forgets what is known of the range, and waits for a grace period: until every section
//! that had begun has ended. Therefore no access has a block as its target any more when that block
//! returns to the allocator. Knowledge may be incomplete: it never calls a block written that is
//! not, and an access that finds nothing takes the slow path. **Cached pages and the fast path
//! exclude each other**: before a page is put in, the fast path is disabled and the sections that
//! have begun are waited for. Only a caller that holds the file exclusively, and finds no page,
//! enables the path again. So no access on the fast path ever meets a page.
//!
//! How the waiter sees the readers: a [`ReadGuard`] stores this inode's address in the *reader
//! slot* of its thread, a word that no other thread writes; a [`CountedReadGuard`] adds one to a
//! sharded reader count. Each reader then looks at `state`, and the waiter, after it has changed
//! `state`, looks at the slots and the counts. For counts both sides are sequentially consistent.
//! For slots the reader's side is a plain store, because a locked instruction would wait until the
//! non-temporal stores before it have drained. The waiter pays for that with a heavy fence, which
//! makes every running thread execute one. Either way a reader that saw the path enabled is seen by
//! the waiter; any other reader finds the path disabled and leaves at once.
//!
//! Why one look at each slot and count is enough, where SRCU needs two phases: a section ends at
//! the slot or count where it began, so each has to be seen empty only once. New readers find the
//! path disabled, so none of them keeps a count above zero for long.
//!
//! The device may give up a queue while the kernel still holds requests of it, which may be done at
//! any time or never. Their files are *lost* to the fast path: it stays disabled, and an exclusion
//! fails, because their blocks must never become another file's. The sections of such requests end
//! when the queue is given up, so that no thread waits for them. Sections of other queues are
//! waited for as usual, by exclusions and before pages are put in.
//! Locking: `change` is a leaf lock for changes of the knowledge. A grace period waits for the
//! device only: see [`Helper`].
//! Kernel counterpart: `kernel/rcu/srcutree.c`; `srcu_down_read` and `srcu_up_read` for sections
//! that end on another thread.

use super::written::{WrittenLeaf, WrittenSnapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::stats::{WaitFor, Waits};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{LockRank, Mutex, Published, heavy_fence, reader_slot, thread};
use std::fmt::Debug;
use std::ptr;
use std::sync::{Arc, Weak};
use uext4_ondisk::{BlockNo, FileBlock};

/// Part of `state`: the number of exclusive guards.
const EXCLUSIVE: u64 = 0xffff;
/// Bit of `state`: there may be cached pages.
const CACHED: u64 = 1 << 16;
/// Bit of `state`: and the grace period of `CACHED` is over.
const SETTLED: u64 = 1 << 17;
/// Lowest bit of the number of exclusions that have begun.
const GENERATION: u64 = 1 << 18;
/// Any of these disables the fast path.
const DISABLED: u64 = EXCLUSIVE | CACHED;
/// Most reader counts of an inode.
const SHARDS_MAX: usize = 64;
/// Polls of a count before a waiter sleeps between them, for about a millisecond each time.
const POLLS_BEFORE_SLEEP: u32 = 200;
/// Polls of a count before a waiter completes the requests of another thread: some milliseconds. To
/// take a ring over from its thread costs tens of milliseconds, and as a rule the owner is back
/// before that.
const POLLS_BEFORE_HELP: u32 = if cfg!(feature = "shuttle") { 40 } else { POLLS_BEFORE_SLEEP + 3 };

/// Completes requests that are under way, for a thread that waits for them. The thread that started
/// them may be the waiter itself, or one that does not come back before the wait has ended.
pub(crate) trait Helper: Send + Sync + Debug {
    /// Whether the calling thread started the last of them, so that no other is about to complete
    /// them.
    fn is_own(&self) -> bool;

    /// Completes what is on the device, unless another thread is doing so. Waits for nothing but
    /// the device.
    fn help(&self);
}

/// Number of reader counts: several for each processor, so that of the many threads two that run at
/// the same time seldom share one.
fn shard_count() -> usize {
    if cfg!(feature = "shuttle") { thread::slots() } else { (4 * thread::slots()).min(SHARDS_MAX) }
}

/// One shard of the reader count, alone on its cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ReaderCount(AtomicU32);

/// State of an inode's direct I/O. Every access reads it; few write it.
#[derive(Debug)]
pub(crate) struct DirectIoState {
    state: AtomicU64,
    /// A lower bound of the file's size in bytes; 0 while nothing is known.
    size: AtomicU64,
    snapshot: Published<WrittenSnapshot>,
    /// Read-side critical sections without a reader slot.
    reader_counts: Box<[ReaderCount]>,
    /// Lazy timestamp: when the last overwrite completed that the attributes do not show yet, in
    /// nanoseconds of the clock that they are taken from; 0 if they show all.
    written_ns: AtomicU64,
    /// Data was written that no flush is known to cover.
    unflushed: AtomicBool,
    /// Data was read since the access time was last brought up to date.
    accessed: AtomicBool,
    /// Direct accesses that met cached pages since those were last used.
    misses: AtomicU32,
    /// Held by a thread that changes `snapshot`.
    change: Mutex<()>,
    helpers: Mutex<Vec<Weak<dyn Helper>>>,
    /// No flag of the inode makes a write change more than bytes and times. Becomes false under an
    /// [`ExclusiveGuard`] only.
    overwritable: AtomicBool,
    /// Direct writes may go to unwritten blocks in place.
    in_place: AtomicBool,
    /// Requests of a queue that the device gave up may still be done.
    lost: AtomicBool,
}

/// A read-side critical section of the calling thread, which ends when this is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "it is held, and dropped")]
pub(crate) enum ReadGuard<'a> {
    Slot(reader_slot::ReaderSlot),
    /// The thread has no reader slot, or uses it already.
    Counted(CountedReadGuard<'a>),
}

/// A read-side critical section that may be handed to another thread as a [`ReadToken`]. It ends
/// when this is dropped.
#[derive(Debug)]
pub(crate) struct CountedReadGuard<'a> {
    /// `None` once it has become a token.
    of: Option<&'a DirectIoState>,
    shard: u32,
}

/// A read-side critical section that any thread may end, with [`DirectIoState::read_unlock`].
#[derive(Debug)]
pub(crate) struct ReadToken(u32);

/// The shard of a token whose section has ended already.
const ENDED: u32 = u32::MAX;

impl CountedReadGuard<'_> {
    pub(crate) fn into_token(mut self) -> ReadToken {
        self.of = None;
        ReadToken(self.shard)
    }
}

impl Drop for CountedReadGuard<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.of {
            of.read_unlock(ReadToken(self.shard));
        }
    }
}

/// The right to remove mappings of an inode or to make blocks unwritten: no direct access is under
/// way, and none begins before this is dropped. See [`super::Inode::drain_direct_io`].
#[derive(Debug)]
#[must_use]
pub(crate) struct ExclusiveGuard<'a> {
    of: Option<&'a DirectIoState>,
}

impl<'a> ExclusiveGuard<'a> {
    /// # Errors
    /// Requests of a queue that the device gave up may still be done.
    pub(super) fn new(
        of: Option<&'a DirectIoState>,
        first: FileBlock,
        end: FileBlock,
        waits: &Waits,
    ) -> Result<Self> {
        let Some(of) = of else { return Ok(Self { of: None }) };
        of.disable(first, end);
        let drained = Self { of: Some(of) };
        if of.wait_for_readers(waits) {
            return Ok(drained);
        }
        let why = "requests of a queue that was given up may still be under way";
        Err(Error::new(ErrorKind::Io, why))
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.of {
            of.state.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A moment. A later one differs from it if mappings may have been removed in between, or pages put
/// in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

impl DirectIoState {
    /// The state of an inode of which nothing is known, and which may have cached pages.
    pub(super) fn new(overwritable: bool) -> Self {
        Self {
            state: AtomicU64::new(CACHED),
            size: AtomicU64::new(0),
            snapshot: Published::new(WrittenSnapshot::default()),
            reader_counts: (0..shard_count()).map(|_| ReaderCount::default()).collect(),
            written_ns: AtomicU64::new(0),
            unflushed: AtomicBool::new(false),
            accessed: AtomicBool::new(false),
            misses: AtomicU32::new(0),
            change: Mutex::new(LockRank::Leaf, ()),
            helpers: Mutex::new(LockRank::Leaf, Vec::new()),
            overwritable: AtomicBool::new(overwritable),
            in_place: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        }
    }

    /// Whether a write inside the file changes nothing but bytes and times. For a caller in a
    /// read-side critical section.
    #[inline]
    pub(crate) fn is_overwritable(&self) -> bool {
        self.overwritable.load(Ordering::Acquire)
    }

    /// Sets whether a write inside the file changes nothing but bytes and times. The caller holds
    /// an [`ExclusiveGuard`].
    pub(super) fn set_overwritable(&self, is_overwritable: bool) {
        self.overwritable.store(is_overwritable, Ordering::Release);
    }

    /// Begins a read-side critical section that ends on this thread. `None` while the fast path is
    /// disabled.
    #[inline]
    pub(crate) fn read_lock(&self) -> Option<ReadGuard<'_>> {
        // A reader that is turned away here has no slot yet and delays no grace period.
        if self.state.load(Ordering::Relaxed) & DISABLED != 0 {
            return None;
        }
        let Some(slot) = reader_slot::occupy(self.address()) else {
            return self.read_lock_counted().map(ReadGuard::Counted);
        };
        let is_enabled = self.state.load(Ordering::SeqCst) & DISABLED == 0;
        is_enabled.then_some(ReadGuard::Slot(slot))
    }

    /// The value of a reader slot. It is unique, because a section borrows its inode.
    #[inline]
    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Begins a read-side critical section that may end on another thread. `None` while the fast
    /// path is disabled.
    pub(crate) fn read_lock_counted(&self) -> Option<CountedReadGuard<'_>> {
        if self.state.load(Ordering::Relaxed) & DISABLED != 0 {
            return None;
        }
        let shard = thread::slot() & (self.reader_counts.len() - 1);
        self.reader_counts[shard].0.fetch_add(1, Ordering::SeqCst);
        #[allow(clippy::cast_possible_truncation)] // there are 64 at most
        let guard = CountedReadGuard { of: Some(self), shard: shard as u32 };
        (self.state.load(Ordering::SeqCst) & DISABLED == 0).then_some(guard)
    }

    /// Ends a read-side critical section.
    #[inline]
    pub(crate) fn read_unlock(&self, token: ReadToken) {
        if token.0 != ENDED {
            self.reader_counts[token.0 as usize].0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A lower bound of the file's size in bytes, for a caller in a read-side critical section.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    /// The device block of file block `at`, if that is known to be written, and the number of
    /// blocks that follow each other from there. For a caller in a read-side critical section.
    #[inline]
    pub(crate) fn find(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        self.snapshot.with(|snapshot| snapshot.find(at))
    }

    /// The device block of file block `at`, if that was unwritten when it was learnt, and the
    /// number of such blocks that follow each other from there. They may have become written since.
    /// For a caller in a read-side critical section: until its end the blocks keep their places.
    pub(crate) fn find_unwritten(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        self.snapshot.with(|snapshot| snapshot.find_unwritten(at))
    }

    /// Whether direct writes may go to unwritten blocks in place. If so, zeroes are put into
    /// unwritten blocks of this inode under an [`ExclusiveGuard`] only.
    pub(crate) fn allows_in_place(&self) -> bool {
        self.in_place.load(Ordering::SeqCst)
    }

    /// Allows writes in place for as long as the inode is in memory. The caller holds the writeback
    /// lock.
    pub(crate) fn allow_in_place(&self) {
        self.in_place.store(true, Ordering::SeqCst);
    }

    /// The present moment. A caller of [`DirectIoState::learn`] takes it before it reads the tree.
    pub(crate) fn version(&self) -> Version {
        Version(self.state.load(Ordering::SeqCst) / GENERATION)
    }

    /// Makes a leaf and the size known, unless mappings may have been removed since `version`.
    pub(crate) fn learn(&self, version: Version, leaf: Option<WrittenLeaf>, size: u64) {
        let _change = self.change.lock();
        // An exclusion that begins after this look forgets its range under the same lock.
        let state = self.state.load(Ordering::SeqCst);
        if state & EXCLUSIVE != 0 || Version(state / GENERATION) != version {
            return;
        }
        if let Some(leaf) = leaf {
            let snapshot = self.snapshot.with(|snapshot| snapshot.with(leaf));
            self.snapshot.publish(snapshot);
        }
        // A file shrinks only under an exclusion.
        if self.size.load(Ordering::SeqCst) < size {
            self.size.store(size, Ordering::SeqCst);
        }
    }

    /// Disables the fast path and forgets what is known of `first .. end`.
    fn disable(&self, first: FileBlock, end: FileBlock) {
        self.state.fetch_add(GENERATION + 1, Ordering::SeqCst);
        let _change = self.change.lock();
        self.size.store(0, Ordering::SeqCst);
        if let Some(snapshot) = self.snapshot.with(|snapshot| snapshot.without(first, end)) {
            self.snapshot.publish(snapshot);
        }
    }

    /// Disables the fast path before a page is put in, or read for that, and waits for a grace
    /// period. The caller holds the file, shared at least, until the page is in.
    pub(super) fn disable_for_pages(&self, waits: &Waits) {
        if self.state.load(Ordering::SeqCst) & SETTLED == 0 {
            self.state.fetch_or(CACHED, Ordering::SeqCst);
            // Data that was written in place and is not converted yet has to be written again.
            self.state.fetch_add(GENERATION, Ordering::SeqCst);
            self.wait_for_readers(waits);
            self.state.fetch_or(SETTLED, Ordering::SeqCst);
        }
        if self.misses.load(Ordering::Relaxed) != 0 {
            self.misses.store(0, Ordering::Relaxed);
        }
    }

    /// The device has given up a queue with a request for this file. Ends the section of the
    /// request, so that no thread waits for it.
    pub(crate) fn lose(&self, token: &mut ReadToken) {
        if !self.lost.swap(true, Ordering::SeqCst) {
            // An exclusion that never ends.
            self.disable(FileBlock(0), FileBlock::END);
        }
        // A thread that sees the count without this section also sees that the file is lost.
        self.read_unlock(std::mem::replace(token, ReadToken(ENDED)));
    }

    /// Whether requests of a queue that the device gave up may still be done.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Whether the fast path is disabled because there may be cached pages.
    pub(crate) fn is_cached(&self) -> bool {
        self.state.load(Ordering::SeqCst) & CACHED != 0
    }

    /// Counts a direct access that met cached pages; returns the number of them since a page was
    /// last put in.
    pub(crate) fn miss(&self) -> u32 {
        self.misses.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Enables the fast path: there are no pages. The caller holds the file exclusively.
    pub(crate) fn enable_without_pages(&self) {
        self.state.fetch_and(!(CACHED | SETTLED), Ordering::SeqCst);
        self.misses.store(0, Ordering::Relaxed);
    }

    /// Waits for a grace period: until no reader slot holds this inode and each count has been seen
    /// at zero. The fast path is disabled. False if requests that the device gave up may still be
    /// done.
    fn wait_for_readers(&self, waits: &Waits) -> bool {
        if Fault::LateEpoch.is_injected() || Fault::HastyDelete.is_injected() {
            return true;
        }
        heavy_fence();
        let mut wait = None;
        let mut polls = 0;
        while reader_slot::has_readers(self.address()) {
            wait.get_or_insert_with(|| waits.begin(WaitFor::DirectIo));
            polls += 1;
            if polls < POLLS_BEFORE_SLEEP { thread::yield_now() } else { thread::pause() }
        }
        polls = 0;
        let mut polls_before_help = None;
        for count in &self.reader_counts {
            while count.0.load(Ordering::SeqCst) != 0 {
                wait.get_or_insert_with(|| waits.begin(WaitFor::DirectIo));
                // As a rule the owner of the requests comes back, and taking over its ring is slow.
                let before_help =
                    *polls_before_help.get_or_insert_with(|| self.polls_before_help());
                if polls >= before_help {
                    self.helpers().for_each(|helper| helper.help());
                }
                polls += 1;
                if polls < POLLS_BEFORE_SLEEP { thread::yield_now() } else { thread::pause() }
            }
        }
        !self.is_lost()
    }

    /// Polls before the caller completes requests itself.
    fn polls_before_help(&self) -> u32 {
        if self.helpers().any(|helper| helper.is_own()) { 0 } else { POLLS_BEFORE_HELP }
    }

    /// The helpers, copied out of their lock, because helping takes other locks.
    fn helpers(&self) -> impl Iterator<Item = Arc<dyn Helper>> {
        let helpers = self.helpers.lock().clone();
        helpers.into_iter().filter_map(|helper| helper.upgrade())
    }

    /// Registers a helper: a thread that waits for accesses calls it.
    pub(crate) fn add_helper(&self, helper: Weak<dyn Helper>) {
        let mut helpers = self.helpers.lock();
        helpers.retain(|helper| helper.strong_count() > 0);
        helpers.push(helper);
    }

    /// Unregisters a helper.
    pub(crate) fn remove_helper(&self, helper: &Arc<dyn Helper>) {
        self.helpers.lock().retain(|other| !ptr::addr_eq(other.as_ptr(), Arc::as_ptr(helper)));
    }

    /// Notes an overwrite that completed at `now_ns`. True if that has made the timestamps lazy.
    /// Writes to shared memory at most once in a tick of the clock.
    pub(super) fn note_write(&self, now_ns: u64) -> bool {
        if !self.unflushed.load(Ordering::SeqCst) && !Fault::ForgottenOverwrites.is_injected() {
            self.unflushed.store(true, Ordering::SeqCst);
        }
        self.written_ns.load(Ordering::SeqCst) != now_ns
            && self.written_ns.swap(now_ns, Ordering::SeqCst) == 0
    }

    /// Notes a read. True if that has made the access time lazy.
    pub(super) fn note_read(&self) -> bool {
        !self.accessed.load(Ordering::Relaxed) && !self.accessed.swap(true, Ordering::SeqCst)
    }

    /// Whether there are timestamps that the attributes do not show yet.
    pub(super) fn has_lazy_times(&self) -> bool {
        self.written_ns.load(Ordering::SeqCst) != 0 || self.accessed.load(Ordering::SeqCst)
    }

    /// Takes the time of the last overwrite that the attributes do not show yet, in nanoseconds.
    /// The caller brings it into the attributes.
    pub(super) fn take_written(&self) -> Option<u64> {
        if self.written_ns.load(Ordering::SeqCst) == 0 {
            return None;
        }
        Some(self.written_ns.swap(0, Ordering::SeqCst)).filter(|&ns| ns != 0)
    }

    /// Takes the mark of a read that the access time does not show yet.
    pub(super) fn take_accessed(&self) -> bool {
        self.accessed.load(Ordering::SeqCst) && self.accessed.swap(false, Ordering::SeqCst)
    }

    /// Whether data was written since the last call. A flush that begins now covers it. `stored`:
    /// the data was stored by processors into mapped memory.
    pub(super) fn take_unflushed(&self, stored: bool) -> bool {
        let was =
            self.unflushed.load(Ordering::SeqCst) && self.unflushed.swap(false, Ordering::SeqCst);
        if was && stored {
            // A writer that found the mark set a moment ago may have done so before its stores were
            // visible. Any other device has answered before a writer looks at the mark.
            heavy_fence();
        }
        was
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
