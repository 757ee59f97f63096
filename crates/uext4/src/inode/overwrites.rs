//! Direct accesses that need no lock: which of a file's blocks are written, and who is at them.
//!
//! What: [`Overwrites`] of an inode lets a direct read, or an overwrite of what is written, find
//! its blocks in immutable arrays, one for each leaf of the extent tree, and go to the device with
//! no handle, no lock, and no write to anything that threads share. An access *enters* before it
//! looks, and *leaves* when its I/O is done.
//! Invariants: **who removes or unwrites mappings holds an [`Excluded`]** from before its first
//! handle to after its last: it closes the way, retires what was known of the range, and returns
//! when all who had entered have left. So a block is nobody's target any more when it returns to
//! the allocator. What is known says "written here" and may lack anything: who finds nothing goes
//! the way of locks. **Cached pages and this way exclude each other**: whoever puts a page in
//! closes the way first and waits for those inside; only who holds the file exclusively and finds
//! no page opens it again. So no access ever meets a page.
//! How who closes sees who is inside: a thread that does its I/O itself (a [`Visit`]) says so on
//! its *seat*, a word that no other thread writes; a request whose end is somebody else's (an
//! [`Access`]) counts on a stripe. Either then looks at `state`, as who closes looks at seats and
//! stripes after it has closed. On stripes both are sequentially consistent. On seats entering is a
//! plain store, for a locked instruction waits until non-temporal stores before it have drained,
//! and who closes pays for it by a heavy fence: each running thread executes one. So whoever saw
//! the way open is seen; whoever is not seen finds it closed, and leaves at once.
//! Why one look at each is enough, and no two phases as in SRCU: an access leaves the seat or
//! stripe that it entered, so each has to be seen empty once; and as those who come find the way
//! closed, none of them keeps it from that for long.
//! A queue may be given up by the device with requests that the kernel may do at any time, or
//! never. Their files are *lost* to this way: it stays closed, and an exclusion fails, for their
//! blocks must never be another file's. Such requests count as outside from then on, so that nobody
//! waits for them; those of other queues are waited for as ever, by an exclusion and for pages.
//! Locking: `change` is a leaf for those who learn and retire. Waiting is for the device alone: see
//! [`Helper`].

use super::written::{Snapshot, WrittenLeaf};
use crate::error::{Error, ErrorKind, Result};
use crate::plant::{self, Fault};
use crate::stats::{WaitFor, Waits};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{LockRank, Mutex, Published, heavy_fence, reader_slot, thread};
use std::fmt::Debug;
use std::ptr;
use std::sync::{Arc, Weak};
use uext4_ondisk::{BlockNo, FileBlock};

/// In `state`: how many exclude direct accesses.
const EXCLUDERS: u64 = 0xffff;
/// There may be cached pages.
const CACHED: u64 = 1 << 16;
/// And who entered before there were has left.
const SETTLED: u64 = 1 << 17;
/// One exclusion more has begun.
const GENERATION: u64 = 1 << 18;
const CLOSED: u64 = EXCLUDERS | CACHED;
/// Most counters of an inode.
const STRIPES_MAX: usize = 64;
/// Looks at a counter before a waiter sleeps between them, for about a millisecond each time.
const LOOKS: u32 = 200;
/// Looks at a counter before a waiter drives others' requests: some milliseconds. A ring that is
/// taken over from its thread costs tens of them, and its owner is back before that as a rule.
const PATIENCE: u32 = if cfg!(feature = "shuttle") { 40 } else { LOOKS + 3 };

/// Drives requests that are under way, for one who waits for them: the thread that started them may
/// be the very one that waits, or one that does not come back before that.
pub(crate) trait Helper: Send + Sync + Debug {
    /// Whether the calling thread started the last of them: nobody else is about to complete them.
    fn is_own(&self) -> bool;

    /// Completes what is on the device, if nobody else is about to. Waits for the device at most.
    fn help(&self);
}

/// Several for each processor: threads are more than processors, and two that run at the same time
/// should seldom meet on one.
fn stripe_count() -> usize {
    if cfg!(feature = "shuttle") { thread::slots() } else { (4 * thread::slots()).min(STRIPES_MAX) }
}

/// Alone on its cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU32);

/// State of an inode's direct accesses. Read by each of them, written by few.
#[derive(Debug)]
pub(crate) struct Overwrites {
    state: AtomicU64,
    /// Bytes that the file has at least; 0 while nothing is known.
    size: AtomicU64,
    snapshot: Published<Snapshot>,
    /// How many are inside that have no seat.
    stripes: Box<[Stripe]>,
    /// When the last overwrite completed that the inode's times do not know, in nanoseconds of the
    /// clock that they are taken from; 0: they know all.
    written_ns: AtomicU64,
    /// Data was written that no flush is known to cover.
    unflushed: AtomicBool,
    /// Data was read that the access time does not know.
    accessed: AtomicBool,
    /// Accesses that met cached pages since these were last used.
    misses: AtomicU32,
    /// Held by who changes `snapshot`.
    change: Mutex<()>,
    helpers: Mutex<Vec<Weak<dyn Helper>>>,
    /// No flag of the inode asks more of a write than its bytes.
    overwritable: bool,
    /// Direct writes may go to unwritten blocks in place.
    in_place: AtomicBool,
    /// Requests of a queue that was given up may still be done.
    lost: AtomicBool,
}

/// A direct access of the calling thread. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Visit<'a> {
    _inside: Inside<'a>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "they are held, and dropped")]
enum Inside<'a> {
    Slot(reader_slot::ReaderSlot),
    /// The thread has no seat, or sits elsewhere.
    Stripe(Access<'a>),
}

/// A direct access that is under way, and may become a ticket. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    /// `None`: it became a ticket.
    of: Option<&'a Overwrites>,
    stripe: u32,
}

/// An access whose end is somebody else's to tell: [`Overwrites::leave`].
#[derive(Debug)]
pub(crate) struct Ticket(u32);

/// The stripe of a request that was given up: it counts nowhere.
const NOWHERE: u32 = u32::MAX;

impl Access<'_> {
    pub(crate) fn into_ticket(mut self) -> Ticket {
        self.of = None;
        Ticket(self.stripe)
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.of {
            of.leave(Ticket(self.stripe));
        }
    }
}

/// The right to remove or unwrite mappings of an inode: no direct access is under way, and none
/// begins. See [`super::Inode::exclude_direct`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Excluded<'a> {
    of: Option<&'a Overwrites>,
}

impl<'a> Excluded<'a> {
    /// # Errors
    /// Requests of a queue that was given up may still be done.
    pub(super) fn new(
        of: Option<&'a Overwrites>,
        first: FileBlock,
        end: FileBlock,
        waits: &Waits,
    ) -> Result<Self> {
        let Some(of) = of else { return Ok(Self { of: None }) };
        of.close(first, end);
        let excluded = Self { of: Some(of) };
        if of.wait_until_empty(waits) {
            return Ok(excluded);
        }
        let why = "requests of a queue that was given up may still be under way";
        Err(Error::new(ErrorKind::Io, why))
    }
}

impl Drop for Excluded<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.of {
            of.state.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Tells whether mappings may have been removed since, or pages put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

impl Overwrites {
    /// Nothing is known, and there may be cached pages.
    pub(super) fn new(overwritable: bool) -> Self {
        Self {
            state: AtomicU64::new(CACHED),
            size: AtomicU64::new(0),
            snapshot: Published::new(Snapshot::default()),
            stripes: (0..stripe_count()).map(|_| Stripe::default()).collect(),
            written_ns: AtomicU64::new(0),
            unflushed: AtomicBool::new(false),
            accessed: AtomicBool::new(false),
            misses: AtomicU32::new(0),
            change: Mutex::new(LockRank::Leaf, ()),
            helpers: Mutex::new(LockRank::Leaf, Vec::new()),
            overwritable,
            in_place: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        }
    }

    /// Whether a write inside the file changes nothing but bytes and times.
    #[inline]
    pub(crate) fn is_overwritable(&self) -> bool {
        self.overwritable
    }

    /// Begins an access that ends on this thread; `None` where the way is closed.
    #[inline]
    pub(crate) fn visit(&self) -> Option<Visit<'_>> {
        // Who is turned away here sits nowhere, and keeps nobody waiting.
        if self.state.load(Ordering::Relaxed) & CLOSED != 0 {
            return None;
        }
        let Some(seat) = reader_slot::occupy(self.place()) else {
            return Some(Visit { _inside: Inside::Stripe(self.enter()?) });
        };
        let is_open = self.state.load(Ordering::SeqCst) & CLOSED == 0;
        is_open.then_some(Visit { _inside: Inside::Slot(seat) })
    }

    /// What seats say: no two have it while an access borrows them.
    #[inline]
    fn place(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Begins an access; `None` where the way is closed.
    pub(crate) fn enter(&self) -> Option<Access<'_>> {
        if self.state.load(Ordering::Relaxed) & CLOSED != 0 {
            return None;
        }
        let stripe = thread::slot() & (self.stripes.len() - 1);
        self.stripes[stripe].0.fetch_add(1, Ordering::SeqCst);
        #[allow(clippy::cast_possible_truncation)] // there are 64 at most
        let access = Access { of: Some(self), stripe: stripe as u32 };
        (self.state.load(Ordering::SeqCst) & CLOSED == 0).then_some(access)
    }

    /// Ends an access.
    #[inline]
    pub(crate) fn leave(&self, ticket: Ticket) {
        if ticket.0 != NOWHERE {
            self.stripes[ticket.0 as usize].0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Bytes that the file has at least. To be asked inside.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    /// The block on the device of block `at`, if that is known to be written, and how many blocks
    /// follow each other from there. To be asked inside.
    #[inline]
    pub(crate) fn find(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        self.snapshot.with(|snapshot| snapshot.find(at))
    }

    /// Likewise, of blocks that were unwritten when they were learnt and may be written by now. To
    /// be asked inside: their place is theirs until the access leaves.
    pub(crate) fn find_unwritten(&self, at: FileBlock) -> Option<(BlockNo, u32)> {
        self.snapshot.with(|snapshot| snapshot.find_unwritten(at))
    }

    /// Whether direct writes may go to unwritten blocks in place. From then on nobody puts zeroes
    /// into unwritten blocks of this inode but who excludes them.
    pub(crate) fn allows_in_place(&self) -> bool {
        self.in_place.load(Ordering::SeqCst)
    }

    /// Allows that, for as long as the inode is in memory. The caller holds the sweep lock.
    pub(crate) fn allow_in_place(&self) {
        self.in_place.store(true, Ordering::SeqCst);
    }

    /// To be taken before the tree is read, for [`Overwrites::learn`].
    pub(crate) fn version(&self) -> Version {
        Version(self.state.load(Ordering::SeqCst) / GENERATION)
    }

    /// Makes a leaf and the size known, unless mappings have been removed since `version`.
    pub(crate) fn learn(&self, version: Version, leaf: Option<WrittenLeaf>, size: u64) {
        let _change = self.change.lock();
        // An exclusion that begins after this look retires what it needs to under the same lock.
        let state = self.state.load(Ordering::SeqCst);
        if state & EXCLUDERS != 0 || Version(state / GENERATION) != version {
            return;
        }
        if let Some(leaf) = leaf {
            let snapshot = self.snapshot.with(|snapshot| snapshot.with(leaf));
            self.snapshot.publish(snapshot);
        }
        // Files shrink under an exclusion only.
        if self.size.load(Ordering::SeqCst) < size {
            self.size.store(size, Ordering::SeqCst);
        }
    }

    /// Closes the way and forgets what is known of `first .. end`.
    fn close(&self, first: FileBlock, end: FileBlock) {
        self.state.fetch_add(GENERATION + 1, Ordering::SeqCst);
        let _change = self.change.lock();
        self.size.store(0, Ordering::SeqCst);
        if let Some(snapshot) = self.snapshot.with(|snapshot| snapshot.without(first, end)) {
            self.snapshot.publish(snapshot);
        }
    }

    /// Closes the way before a page is put in, or read for that. The caller holds the file, shared
    /// at least, until the page is in.
    pub(super) fn note_cached(&self, waits: &Waits) {
        if self.state.load(Ordering::SeqCst) & SETTLED == 0 {
            self.state.fetch_or(CACHED, Ordering::SeqCst);
            // What was written in place and is not converted yet has to be written again.
            self.state.fetch_add(GENERATION, Ordering::SeqCst);
            self.wait_until_empty(waits);
            self.state.fetch_or(SETTLED, Ordering::SeqCst);
        }
        if self.misses.load(Ordering::Relaxed) != 0 {
            self.misses.store(0, Ordering::Relaxed);
        }
    }

    /// A queue was given up with a request of this file on the device: nobody waits for its end.
    pub(crate) fn lose(&self, ticket: &mut Ticket) {
        if !self.lost.swap(true, Ordering::SeqCst) {
            // An exclusion that nobody ends.
            self.close(FileBlock(0), FileBlock::END);
        }
        // Whoever sees it gone from its stripe sees that the file is lost.
        self.leave(std::mem::replace(ticket, Ticket(NOWHERE)));
    }

    /// Whether requests of a queue that was given up may still be done.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Whether the way is closed for cached pages.
    pub(crate) fn is_cached(&self) -> bool {
        self.state.load(Ordering::SeqCst) & CACHED != 0
    }

    /// Counts an access that found the way closed for pages; returns how many there were since a
    /// page was last put in.
    pub(crate) fn miss(&self) -> u32 {
        self.misses.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// There are no pages. The caller holds the file exclusively.
    pub(crate) fn note_uncached(&self) {
        self.state.fetch_and(!(CACHED | SETTLED), Ordering::SeqCst);
        self.misses.store(0, Ordering::Relaxed);
    }

    /// Returns when each seat has been seen elsewhere, and each stripe empty. The way is closed.
    /// False: requests that were given up may still be done.
    fn wait_until_empty(&self, waits: &Waits) -> bool {
        if plant::is(Fault::LateEpoch) || plant::is(Fault::HastyDelete) {
            return true;
        }
        heavy_fence();
        let mut wait = None;
        let mut looks = 0;
        while reader_slot::has_readers(self.place()) {
            wait.get_or_insert_with(|| waits.begin(WaitFor::DirectIo));
            looks += 1;
            if looks < LOOKS { thread::yield_now() } else { thread::pause() }
        }
        looks = 0;
        let mut patience = None;
        for stripe in &self.stripes {
            while stripe.0.load(Ordering::SeqCst) != 0 {
                wait.get_or_insert_with(|| waits.begin(WaitFor::DirectIo));
                // Whose requests they are comes back as a rule, and a ring does not like strangers.
                let patience = *patience.get_or_insert_with(|| self.patience());
                if looks >= patience {
                    self.help();
                }
                looks += 1;
                if looks < LOOKS { thread::yield_now() } else { thread::pause() }
            }
        }
        !self.is_lost()
    }

    fn help(&self) {
        self.helpers().for_each(|helper| helper.help());
    }

    /// Looks before the caller helps.
    fn patience(&self) -> u32 {
        if self.helpers().any(|helper| helper.is_own()) { 0 } else { PATIENCE }
    }

    /// Not to be asked for anything under the lock: helping takes others.
    fn helpers(&self) -> impl Iterator<Item = Arc<dyn Helper>> {
        let helpers = self.helpers.lock().clone();
        helpers.into_iter().filter_map(|helper| helper.upgrade())
    }

    /// Whoever waits for accesses drives this one's.
    pub(crate) fn add_helper(&self, helper: Weak<dyn Helper>) {
        let mut helpers = self.helpers.lock();
        helpers.retain(|helper| helper.strong_count() > 0);
        helpers.push(helper);
    }

    /// It drives none of them any more.
    pub(crate) fn remove_helper(&self, helper: &Arc<dyn Helper>) {
        self.helpers.lock().retain(|other| !ptr::addr_eq(other.as_ptr(), Arc::as_ptr(helper)));
    }

    /// An overwrite is done, at `now` in nanoseconds. True if the inode's times have become late by
    /// that. At most one write to shared memory in a tick of that clock.
    pub(super) fn note_write(&self, now_ns: u64) -> bool {
        if !self.unflushed.load(Ordering::SeqCst) && !plant::is(Fault::ForgottenOverwrites) {
            self.unflushed.store(true, Ordering::SeqCst);
        }
        self.written_ns.load(Ordering::SeqCst) != now_ns
            && self.written_ns.swap(now_ns, Ordering::SeqCst) == 0
    }

    /// A read is done. True if the access time has become late by that.
    pub(super) fn note_read(&self) -> bool {
        !self.accessed.load(Ordering::Relaxed) && !self.accessed.swap(true, Ordering::SeqCst)
    }

    /// Whether times are late.
    pub(super) fn is_late(&self) -> bool {
        self.written_ns.load(Ordering::SeqCst) != 0 || self.accessed.load(Ordering::SeqCst)
    }

    /// When the last overwrite was that the inode's times do not know, in nanoseconds; they do now.
    pub(super) fn take_written(&self) -> Option<u64> {
        if self.written_ns.load(Ordering::SeqCst) == 0 {
            return None;
        }
        Some(self.written_ns.swap(0, Ordering::SeqCst)).filter(|&ns| ns != 0)
    }

    /// Whether there was a read that the access time does not know; it does now.
    pub(super) fn take_accessed(&self) -> bool {
        self.accessed.load(Ordering::SeqCst) && self.accessed.swap(false, Ordering::SeqCst)
    }

    /// Whether data was written since this was last asked. A flush that begins now covers it.
    /// `stored`: by processors, into mapped memory.
    pub(super) fn take_unflushed(&self, stored: bool) -> bool {
        let was =
            self.unflushed.load(Ordering::SeqCst) && self.unflushed.swap(false, Ordering::SeqCst);
        if was && stored {
            // Who found it set a moment ago may have looked before its stores were seen. Any other
            // device has answered before anybody looks.
            heavy_fence();
        }
        was
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
#[path = "overwrites_tests.rs"]
mod tests;
