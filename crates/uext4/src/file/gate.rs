//! Calls that are under way in a volume, and closing the volume.
//!
//! What: every call that may change the volume, or make something durable, holds a [`CallGuard`]
//! while it runs. [`CallGate::close`] refuses new calls and returns when the calls under way have
//! ended. By then everything that they have acknowledged is in memory, in a transaction or on the
//! device, where closing finds it. Otherwise: thread A creates a name in the running transaction;
//! thread B empties the log; A returns success for a name that is in no transaction any more. Calls
//! that only read go on after the volume is closed. What they would change besides (times, inodes
//! that they write out to make room) they change under a guard ([`FileContext::try_begin_call`]),
//! or not at all. Direct overwrites on the fast path hold no guard: [`FileContext::stop_calls`]
//! drains them inode by inode.
//! Locking: none. A call adds one to a counter that few threads share; closing waits with no lock
//! held.

use super::FileContext;
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::stats::{WaitFor, Waits};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread;
use uext4_ondisk::FileBlock;

/// Polls of a counter before closing sleeps between them.
const POLLS_BEFORE_SLEEP: u32 = 200;

/// Alone on its cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// The calls that are under way in a volume.
#[derive(Debug)]
pub(super) struct CallGate {
    closed: AtomicBool,
    /// The volume is closed, and everything is durable.
    is_clean: AtomicBool,
    counters: Box<[Counter]>,
}

/// A call that is under way, until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct CallGuard<'a>(&'a Counter);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Default for CallGate {
    fn default() -> Self {
        let counters = (0..thread::slots()).map(|_| Counter::default()).collect();
        Self { closed: AtomicBool::new(false), is_clean: AtomicBool::new(false), counters }
    }
}

impl CallGate {
    fn begin_call(&self) -> Option<CallGuard<'_>> {
        let call = self.count();
        // Either this finds the gate closed, or closing finds the counter raised.
        (!self.is_closed()).then_some(call)
    }

    fn count(&self) -> CallGuard<'_> {
        let counter = &self.counters[thread::slot() % self.counters.len()];
        counter.0.fetch_add(1, Ordering::SeqCst);
        CallGuard(counter)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn close(&self, waits: &Waits) {
        self.closed.store(true, Ordering::SeqCst);
        let mut wait = None;
        let mut polls = 0;
        for counter in &self.counters {
            while counter.0.load(Ordering::SeqCst) != 0 {
                wait.get_or_insert_with(|| waits.begin(WaitFor::Calls));
                polls += 1;
                if polls < POLLS_BEFORE_SLEEP { thread::yield_now() } else { thread::pause() }
            }
        }
    }
}

impl FileContext {
    /// Begins a call that may change the volume. Calls do not nest, because the inner one could be
    /// refused half-way.
    ///
    /// # Errors
    /// `ReadOnly` once the volume is being closed.
    pub(crate) fn begin_call(&self) -> Result<CallGuard<'_>> {
        self.gate.begin_call().ok_or_else(|| {
            Error::new(ErrorKind::ReadOnly, "the volume is closed, or is being closed")
        })
    }

    /// Begins a change that a reader makes beside its reading. `None` once the volume is being
    /// closed: the reader then does without the change. A call that is under way may use this as
    /// well, because it can do without.
    pub(crate) fn try_begin_call(&self) -> Option<CallGuard<'_>> {
        let late = || Fault::LateReader.is_injected().then(|| self.gate.count());
        self.gate.begin_call().or_else(late)
    }

    /// Begins a call that makes something durable. `None` if the volume is closed and everything is
    /// durable.
    ///
    /// # Errors
    /// As [`FileContext::begin_call`], while the volume is being closed or when closing has failed.
    pub(crate) fn begin_sync_call(&self) -> Result<Option<CallGuard<'_>>> {
        match self.begin_call() {
            Err(_) if self.gate.is_clean.load(Ordering::SeqCst) => Ok(None),
            entered => entered.map(Some),
        }
    }

    /// The volume is closed, and everything is durable.
    pub(crate) fn note_clean_end(&self) {
        self.gate.is_clean.store(true, Ordering::SeqCst);
    }

    /// Whether new calls are refused.
    pub(crate) fn is_closing(&self) -> bool {
        self.gate.is_closed()
    }

    /// Refuses calls from now on, and waits for those under way.
    ///
    /// # Errors
    /// Requests of a queue that the device gave up may still be done. No other call is under way
    /// then.
    pub(crate) fn stop_calls(&self) -> Result<()> {
        if Fault::OpenDoor.is_injected() {
            return Ok(());
        }
        let waits = self.journal().waits();
        self.gate.close(waits);
        // A direct access looks whether the volume is closing after its read-side critical section
        // has begun.
        let mut result = Ok(());
        for index in 0..self.table.shard_count() {
            self.table.for_shard(index, |inode| {
                if inode.direct_io().is_some()
                    && let Err(error) = inode.drain_direct_io(FileBlock::END, FileBlock::END)
                {
                    result = Err(error);
                }
            });
        }
        result
    }
}
