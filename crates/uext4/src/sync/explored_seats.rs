//! Seats, fences and published values under the schedule explorer and in a simulation, as
//! `uext4_device` has them.
//!
//! What: their memory is sequentially consistent, and a light fence orders nothing. So here what a
//! thread says on its seat is seen at once or, by chance, by nobody before a heavy fence or the end
//! of the access: the longest that a processor may take.
//! Invariants: all threads of a schedule are one thread of the system, and those of a simulation
//! run one at a time in a process of their own: there is one list of seats.

use super::imp::Mutex;
use crate::plant::{self, Fault};
use std::sync::Arc;

/// What stands around a thread.
#[cfg(feature = "shuttle")]
mod around {
    use super::Told;
    use shuttle::rand::Rng;
    use shuttle::sync::atomic::{AtomicBool, Ordering};
    pub(super) use shuttle::thread::ThreadId;
    use std::cell::RefCell;

    thread_local! {
        static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
    }

    /// A place where the explorer may switch threads.
    pub(super) fn switch() {
        AtomicBool::new(false).load(Ordering::SeqCst);
    }

    pub(super) fn chance(percent: u32) -> bool {
        shuttle::rand::thread_rng().gen_ratio(percent, 100)
    }

    pub(super) fn me() -> ThreadId {
        shuttle::thread::current().id()
    }

    pub(super) fn with_told<T>(work: impl FnOnce(&mut Vec<Told>) -> T) -> T {
        TOLD.with_borrow_mut(work)
    }
}

#[cfg(feature = "simulate")]
mod around {
    use super::{Mutex, Told};
    pub(super) use uext4_schedule::{chance, point as switch};

    static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

    pub(super) type ThreadId = usize;

    pub(super) fn me() -> ThreadId {
        uext4_schedule::thread::number()
    }

    pub(super) fn with_told<T>(work: impl FnOnce(&mut Vec<Told>) -> T) -> T {
        work(&mut TOLD.lock())
    }
}

use around::{ThreadId, chance, me, switch, with_told};

#[derive(Debug)]
struct Told {
    thread: ThreadId,
    place: usize,
    is_seen: bool,
}

/// The calling thread is at a place.
#[derive(Debug)]
pub(crate) struct Seat {
    thread: ThreadId,
}

pub(crate) fn sit(place: usize) -> Option<Seat> {
    switch();
    let (is_seen, has_none) = (chance(50), chance(10));
    let thread = me();
    with_told(|told| {
        if has_none || told.iter().any(|one| one.thread == thread) {
            return None;
        }
        told.push(Told { thread, place, is_seen });
        Some(Seat { thread })
    })
}

impl Drop for Seat {
    fn drop(&mut self) {
        switch();
        with_told(|told| told.retain(|one| one.thread != self.thread));
    }
}

pub(crate) fn is_anybody_at(place: usize) -> bool {
    switch();
    with_told(|told| told.iter().any(|one| one.place == place && one.is_seen))
}

pub(crate) fn heavy_fence() {
    switch();
    if !plant::is(Fault::MissingFence) {
        with_told(|told| told.iter_mut().for_each(|one| one.is_seen = true));
    }
    switch();
}

/// A value that is replaced as a whole. Its lock has no rank: the real one has no lock.
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
