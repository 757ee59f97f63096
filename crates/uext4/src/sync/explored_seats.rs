//! Seats, fences and published values under the schedule explorer, as `uext4_device` has them.
//!
//! What: the explorer's memory is sequentially consistent, and a light fence orders nothing. So
//! here what a thread says on its seat is seen at once or, by chance, by nobody before a heavy
//! fence or the end of the access: the longest that a processor may take.
//! Invariants: all threads of a schedule are one thread of the system, and have one list of seats.

use super::{LockRank, Mutex};
use crate::plant::{self, Fault};
use shuttle::rand::Rng;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread::{ThreadId, current};
use std::cell::RefCell;
use std::sync::Arc;

#[derive(Debug)]
struct Told {
    thread: ThreadId,
    place: usize,
    is_seen: bool,
}

thread_local! {
    static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
}

/// A place where the explorer may switch threads.
fn switch() {
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// The calling thread is at a place.
#[derive(Debug)]
pub(crate) struct Seat {
    thread: ThreadId,
}

pub(crate) fn sit(place: usize) -> Option<Seat> {
    switch();
    let mut random = shuttle::rand::thread_rng();
    let (is_seen, has_none) = (random.gen_bool(0.5), random.gen_bool(0.1));
    let thread = current().id();
    TOLD.with_borrow_mut(|told| {
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
        TOLD.with_borrow_mut(|told| told.retain(|one| one.thread != self.thread));
    }
}

pub(crate) fn is_anybody_at(place: usize) -> bool {
    switch();
    TOLD.with_borrow(|told| told.iter().any(|one| one.place == place && one.is_seen))
}

pub(crate) fn heavy_fence() {
    switch();
    if !plant::is(Fault::MissingFence) {
        TOLD.with_borrow_mut(|told| told.iter_mut().for_each(|one| one.is_seen = true));
    }
    switch();
}

/// A value that is replaced as a whole.
#[derive(Debug)]
pub(crate) struct Published<T> {
    value: Mutex<Arc<T>>,
}

impl<T> Published<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(LockRank::Leaf, Arc::new(value)) }
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let value = Arc::clone(&self.value.lock());
        look(&value)
    }

    pub(crate) fn publish(&self, value: T) {
        *self.value.lock() = Arc::new(value);
    }
}
