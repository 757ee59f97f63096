//! Reader slots, fences and published values under the schedule explorer and in a simulation, with
//! the interface of `uext4_device`.
//!
//! What: memory is sequentially consistent there and a light fence orders nothing, so the delays of
//! a real processor are modelled. A thread's mark on its slot is visible at once or, by chance,
//! only after a heavy fence or not before the section ends, which is the longest a processor may
//! take.
//! Invariants: one list of marks suffices, because the explorer runs all threads of a schedule on
//! one system thread, and a simulation runs one thread at a time in a process of its own.

use super::imp::Mutex;
use crate::injected_faults::Fault;
use std::sync::Arc;

#[cfg(feature = "shuttle")]
mod host {
    use super::Mark;
    use shuttle::rand::Rng;
    use shuttle::sync::atomic::{AtomicBool, Ordering};
    pub(super) use shuttle::thread::ThreadId;
    use std::cell::RefCell;

    thread_local! {
        static MARKS: RefCell<Vec<Mark>> = const { RefCell::new(Vec::new()) };
    }

    /// A point where the explorer may switch threads.
    pub(super) fn switch() {
        AtomicBool::new(false).load(Ordering::SeqCst);
    }

    pub(super) fn chance(percent: u32) -> bool {
        shuttle::rand::thread_rng().gen_ratio(percent, 100)
    }

    pub(super) fn me() -> ThreadId {
        shuttle::thread::current().id()
    }

    pub(super) fn with_marks<T>(work: impl FnOnce(&mut Vec<Mark>) -> T) -> T {
        MARKS.with_borrow_mut(work)
    }
}

#[cfg(feature = "simulate")]
mod host {
    use super::{Mark, Mutex};
    pub(super) use uext4_schedule::{chance, point as switch};

    static MARKS: Mutex<Vec<Mark>> = Mutex::new(Vec::new());

    pub(super) type ThreadId = usize;

    pub(super) fn me() -> ThreadId {
        uext4_schedule::thread::number()
    }

    pub(super) fn with_marks<T>(work: impl FnOnce(&mut Vec<Mark>) -> T) -> T {
        work(&mut MARKS.lock())
    }
}

use host::{ThreadId, chance, me, switch, with_marks};

#[derive(Debug)]
struct Mark {
    thread: ThreadId,
    domain: usize,
    is_visible: bool,
}

/// The calling thread's slot while it holds a domain.
#[derive(Debug)]
pub(crate) struct ReaderSlot {
    thread: ThreadId,
}

pub(crate) fn occupy(domain: usize) -> Option<ReaderSlot> {
    switch();
    let (is_visible, has_none) = (chance(50), chance(10));
    let thread = me();
    with_marks(|marks| {
        if has_none || marks.iter().any(|one| one.thread == thread) {
            return None;
        }
        marks.push(Mark { thread, domain, is_visible });
        Some(ReaderSlot { thread })
    })
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        switch();
        with_marks(|marks| marks.retain(|one| one.thread != self.thread));
    }
}

pub(crate) fn has_readers(domain: usize) -> bool {
    switch();
    with_marks(|marks| marks.iter().any(|one| one.domain == domain && one.is_visible))
}

pub(crate) fn heavy_fence() {
    switch();
    if !Fault::MissingFence.is_injected() {
        with_marks(|marks| marks.iter_mut().for_each(|one| one.is_visible = true));
    }
    switch();
}

/// A value that is replaced as a whole. Its lock has no rank, because the real cell has no lock.
#[derive(Debug)]
pub(crate) struct Published<T> {
    value: Mutex<Arc<T>>,
}

impl<T> Published<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(Arc::new(value)) }
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let value = Arc::clone(&self.value.lock());
        look(&value)
    }

    pub(crate) fn publish(&self, value: T) {
        *self.value.lock() = Arc::new(value);
    }
}
