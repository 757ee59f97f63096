//! A value that is replaced as a whole, and read without a locked instruction.
//!
//! # What
//! [`Published`]: a reader says on its thread's seat which value it reads, and looks again whether
//! that is still the newest; who replaces a value waits until nobody says that he reads the old one
//! (hazard pointers, with fences of which the reader's costs nothing). A thread without a seat, or
//! one that reads within a read, takes a lock and a share of the value.
//!
//! # Soundness
//! A reader uses a value after it has stored its address, then a light fence, then seen it current.
//! Who replaces it stores the new address, then a heavy fence, then looks at all seats. So either
//! the old address is seen there, and the old value kept until it is not, or the reader sees the
//! new one and looks again (`fence.rs`). An address that was freed and given to a newer
//! value is that value's: the reader's word protects it as well.
//!
//! # Locking
//! `kept` is held for an exchange, and for a copy of the pointer; nobody waits with it.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::fence::{heavy_fence, light_fence};
use crate::seat;

/// A value that is replaced as a whole. Readers write to nothing that threads share.
#[derive(Debug)]
pub struct Published<T> {
    /// That of `kept`.
    current: AtomicPtr<T>,
    kept: Mutex<Arc<T>>,
}

/// A reader ends, also by a panic.
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

    /// Looks at the value as it is now; it may be replaced at once. Who replaces it waits for
    /// `look`, which therefore waits for nothing.
    #[inline]
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let Some(word) = seat::reading() else { return look(&self.share()) };
        let reading = Reading(word);
        let mut at = self.current.load(Ordering::Acquire);
        loop {
            reading.0.store(at.cast(), Ordering::Relaxed);
            light_fence();
            let now = self.current.load(Ordering::Acquire);
            if ptr::eq(now, at) {
                // SAFETY: `now` came from an `Arc` that is kept until a later value is published
                // and no seat says `now`, which this thread's does until `reading` is dropped.
                return look(unsafe { &*now });
            }
            at = now;
        }
    }

    /// The value as it is now.
    #[cold]
    fn share(&self) -> Arc<T> {
        Arc::clone(&self.kept.lock())
    }

    /// Whoever looks from now on sees this. Waits for those who look at the value before, and takes
    /// some microseconds.
    pub fn publish(&self, value: T) {
        let value = Arc::new(value);
        let old = {
            let mut kept = self.kept.lock();
            self.current.store(Arc::as_ptr(&value).cast_mut(), Ordering::SeqCst);
            std::mem::replace(&mut *kept, value)
        };
        heavy_fence();
        while seat::is_read(Arc::as_ptr(&old).cast()) {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use super::*;

    /// Tells that it has been freed, in memory that outlives it.
    struct Told(&'static AtomicBool, u64);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn told(number: u64) -> Told {
        Told(Box::leak(Box::default()), number)
    }

    /// Readers see values in the order in which they came, and none that is gone.
    #[test]
    fn nobody_reads_what_is_gone() {
        let cell = Published::new(told(0));
        let rounds = if cfg!(miri) { 50 } else { 5_000 };
        let newest = AtomicU64::new(0);
        thread::scope(|scope| {
            // One: more than processors would be stopped in a read.
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
                cell.publish(told(number));
                newest.store(number, Ordering::Release);
            }
        });
    }

    #[test]
    fn a_read_in_a_read_and_a_panic_do_no_harm() {
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
    fn values_are_freed_as_they_are_replaced() {
        let cell = Published::new(told(0));
        let gone = cell.with(|value| value.0);
        cell.publish(told(1));
        assert!(gone.load(Ordering::SeqCst));
        let gone = cell.with(|value| value.0);
        drop(cell);
        assert!(gone.load(Ordering::SeqCst));
    }
}
