//! A value that is replaced as a whole, and read without a locked instruction.
//!
//! # What
//! [`Published`] is a cell protected by hazard pointers. A reader stores the address of the value
//! in its thread's slot and checks that the value is still the current one. A writer replaces the
//! value and waits until no slot holds the old address. Fences make the reader's side cost nothing.
//! A thread without a slot, or one that reads within a read, locks and clones an `Arc` instead.
//!
//! # Soundness
//! A reader stores the address, executes a light fence, and uses the value only if the cell still
//! holds that address. A writer stores the new address, executes a heavy fence, and then scans the
//! slots. So either the writer finds the old address and keeps the old value, or the reader finds
//! the new address and tries again (`fence.rs`). An address that was freed and reused for a newer
//! value is no hazard: the slot then protects the newer value.
//!
//! # Locking
//! `kept` is held for an exchange or a clone of the `Arc`; nothing is waited for meanwhile.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::fence::{heavy_fence, light_fence};
use crate::reader_slot;

/// A value that is replaced as a whole. Readers write to no cache line that threads share.
#[derive(Debug)]
pub struct Published<T> {
    /// Address of the value in `kept`.
    current: AtomicPtr<T>,
    kept: Mutex<Arc<T>>,
}

/// Clears the hazard pointer when a read ends, also by a panic.
struct Reading(&'static AtomicPtr<()>);

impl Drop for Reading {
    #[inline]
    fn drop(&mut self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}

impl<T> Published<T> {
    /// A cell with a value.
    pub fn new(value: T) -> Self {
        let value = Arc::new(value);
        Self { current: AtomicPtr::new(Arc::as_ptr(&value).cast_mut()), kept: Mutex::new(value) }
    }

    /// Calls `look` with the current value. The next one may be published meanwhile, and
    /// [`Published::publish`] waits for `look`, so `look` must not wait for anything.
    #[inline]
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let Some(hazard) = reader_slot::hazard_pointer() else { return look(&self.share()) };
        let reading = Reading(hazard);
        let mut at = self.current.load(Ordering::Acquire);
        loop {
            reading.0.store(at.cast(), Ordering::Relaxed);
            light_fence();
            let now = self.current.load(Ordering::Acquire);
            if ptr::eq(now, at) {
                // SAFETY: `now` came from an `Arc` that is kept until a later value is published
                // and no slot holds `now`. This thread's slot does until `reading` is dropped.
                return look(unsafe { &*now });
            }
            at = now;
        }
    }

    /// The current value, shared.
    #[cold]
    fn share(&self) -> Arc<T> {
        Arc::clone(&self.kept.lock())
    }

    /// Replaces the value: later calls of [`Published::with`] see the new one. Waits for readers of
    /// the old value; takes some microseconds.
    pub fn publish(&self, value: T) {
        let value = Arc::new(value);
        let old = {
            let mut kept = self.kept.lock();
            self.current.store(Arc::as_ptr(&value).cast_mut(), Ordering::SeqCst);
            std::mem::replace(&mut *kept, value)
        };
        heavy_fence();
        while reader_slot::is_protected(Arc::as_ptr(&old).cast()) {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use super::*;

    /// Records in memory that outlives it that it has been freed.
    struct Tracked(&'static AtomicBool, u64);

    impl Drop for Tracked {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn tracked(number: u64) -> Tracked {
        Tracked(Box::leak(Box::default()), number)
    }

    /// Readers see values in the order of publication, and never a freed one.
    #[test]
    fn no_reader_sees_a_freed_value() {
        let cell = Published::new(tracked(0));
        let rounds = if cfg!(miri) { 50 } else { 5_000 };
        let newest = AtomicU64::new(0);
        thread::scope(|scope| {
            // One reader: with more threads than processors one would be preempted within a read.
            scope.spawn(|| {
                let mut last = 0;
                while last < rounds {
                    let before = newest.load(Ordering::Acquire);
                    cell.with(|value| {
                        let gone = value.0;
                        assert!(value.1 >= last.max(before));
                        last = value.1;
                        std::hint::spin_loop();
                        assert!(!gone.load(Ordering::SeqCst), "freed under a reader");
                    });
                }
            });
            for number in 1..=rounds {
                cell.publish(tracked(number));
                newest.store(number, Ordering::Release);
            }
        });
    }

    #[test]
    fn a_nested_read_and_a_panic_in_a_read_are_harmless() {
        let (one, two) = (Published::new(1), Published::new(2));
        assert_eq!(one.with(|one| two.with(|two| one + two)), 3);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            one.with(|_| panic!("in a read"));
        }));
        assert!(caught.is_err());
        one.publish(5);
        assert_eq!(one.with(|one| *one), 5);
    }

    #[test]
    fn a_replaced_value_is_freed() {
        let cell = Published::new(tracked(0));
        let gone = cell.with(|value| value.0);
        cell.publish(tracked(1));
        assert!(gone.load(Ordering::SeqCst));
        let gone = cell.with(|value| value.0);
        drop(cell);
        assert!(gone.load(Ordering::SeqCst));
    }
}
