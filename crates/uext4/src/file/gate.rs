//! Calls inside a volume, and its end.
//!
//! What: every call that may change the volume, or make something durable, holds an [`Inside`]
//! while it runs. [`CallGate::close`] refuses calls that come, and returns when those inside have
//! left: what a call has acknowledged by then is in memory, a transaction or on the device, and the
//! end of the volume finds it there. Example of what would happen else: thread A has created a name
//! in the running transaction, thread B empties the log, and A returns success for a name that is
//! in no transaction any more.
//! Calls that only read go on when the volume has ended. What they would change besides (times,
//! inodes that they write out to make room) they change inside ([`Files::enter_if_open`]), or not
//! at all. Direct overwrites on the fast path do not come here: [`Files::stop_calls`] excludes them
//! inode by inode.
//! Locking: none; a call adds one to a counter that few threads share, and the end waits with no
//! lock held.

use super::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::plant::{self, Fault};
use crate::stats::{WaitFor, Waits};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread;
use uext4_ondisk::FileBlock;

/// Looks at a counter before the end sleeps between them.
const LOOKS: u32 = 200;

/// Alone on its cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// Calls inside a volume.
#[derive(Debug)]
pub(super) struct CallGate {
    closed: AtomicBool,
    /// The volume has ended, and everything is durable.
    is_clean: AtomicBool,
    counters: Box<[Counter]>,
}

/// A call that is inside. Dropping it leaves.
#[derive(Debug)]
#[must_use]
pub(crate) struct Inside<'a>(&'a Counter);

impl Drop for Inside<'_> {
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
    fn enter(&self) -> Option<Inside<'_>> {
        let inside = self.count();
        // Either this finds the gate closed, or the end finds the counter raised.
        (!self.is_closed()).then_some(inside)
    }

    fn count(&self) -> Inside<'_> {
        let counter = &self.counters[thread::slot() % self.counters.len()];
        counter.0.fetch_add(1, Ordering::SeqCst);
        Inside(counter)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn close(&self, waits: &Waits) {
        self.closed.store(true, Ordering::SeqCst);
        let mut wait = None;
        let mut looks = 0;
        for counter in &self.counters {
            while counter.0.load(Ordering::SeqCst) != 0 {
                wait.get_or_insert_with(|| waits.begin(WaitFor::Calls));
                looks += 1;
                if looks < LOOKS { thread::yield_now() } else { thread::pause() }
            }
        }
    }
}

impl Files {
    /// Begins a call that may change the volume. Calls do not begin inside each other: the inner
    /// one would be refused half-way.
    ///
    /// # Errors
    /// `ReadOnly` once the volume is being closed.
    pub(crate) fn enter(&self) -> Result<Inside<'_>> {
        self.gate.enter().ok_or_else(|| {
            Error::new(ErrorKind::ReadOnly, "the volume is closed, or is being closed")
        })
    }

    /// Begins what a reader changes beside its reading; `None`, and nothing is to be changed, once
    /// the volume is being closed. Calls that are inside may do so, too: they can do without.
    pub(crate) fn enter_if_open(&self) -> Option<Inside<'_>> {
        let late = || plant::is(Fault::LateReader).then(|| self.gate.count());
        self.gate.enter().or_else(late)
    }

    /// Begins a call that makes something durable; `None` when everything is, since the volume has
    /// ended.
    ///
    /// # Errors
    /// As [`Files::enter`] while the volume is being closed, or when that has failed.
    pub(crate) fn enter_to_sync(&self) -> Result<Option<Inside<'_>>> {
        match self.enter() {
            Err(_) if self.gate.is_clean.load(Ordering::SeqCst) => Ok(None),
            entered => entered.map(Some),
        }
    }

    /// The volume has ended, and everything is durable.
    pub(crate) fn note_clean_end(&self) {
        self.gate.is_clean.store(true, Ordering::SeqCst);
    }

    /// Whether calls are refused.
    pub(crate) fn is_closing(&self) -> bool {
        self.gate.is_closed()
    }

    /// Refuses calls from now on, and waits for those inside.
    ///
    /// # Errors
    /// Requests of a queue that was given up may still be done. Nobody else is inside then.
    pub(crate) fn stop_calls(&self) -> Result<()> {
        if plant::is(Fault::OpenDoor) {
            return Ok(());
        }
        let waits = self.space.journal().waits();
        self.gate.close(waits);
        // A direct access looks whether the volume is closing after it has entered its epoch.
        let mut result = Ok(());
        for index in 0..self.table.shard_count() {
            self.table.for_shard(index, |inode| {
                if inode.overwrites().is_some()
                    && let Err(error) = inode.exclude_direct(FileBlock::END, FileBlock::END)
                {
                    result = Err(error);
                }
            });
        }
        result
    }
}
