//! Per-thread reader slots: read-side critical sections without a locked instruction.
//!
//! # What
//! Each thread has a *slot* of its own, a pair of cache lines that this thread alone writes and any
//! thread reads. [`occupy`] stores in it the *domain* that the thread reads (an address that names
//! what it reads, as an `srcu_struct` does in the kernel), and dropping the [`ReaderSlot`] clears
//! it. [`has_readers`] scans all slots for a domain. Neither `occupy` nor the drop executes a
//! locked instruction or touches a line that another thread writes.
//!
//! # Invariants
//! - A thread number belongs to one live thread. Numbers are handed on under a lock, so a thread
//!   sees what the previous owner of its number wrote to anything indexed by that number.
//! - A writer closes a domain by storing a flag, calls [`heavy_fence`](crate::heavy_fence), and
//!   waits until [`has_readers`] returns false. A reader occupies its slot, then reads the flag,
//!   and leaves if the domain is closed. Then no reader is inside: each later one sees the flag.
//!   `fence.rs` has the proof.
//! - What a thread did in a domain is visible to a thread that finds its slot empty (release,
//!   acquire).
//!
//! # Not covered
//! Threads beyond [`SLOTS`], threads that are ending, and threads whose slot is occupied already
//! get `None` from [`occupy`]. The caller then needs another way, such as a shared count.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::fence::{light_fence, prepare};

/// Most threads that have a slot at the same time.
pub const SLOTS: usize = 256;
const WORDS: usize = SLOTS / 64;

/// Aligned to two cache lines, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    /// The domain that the thread reads; 0: none.
    domain: AtomicUsize,
    /// The hazard pointer: the value of a [`Published`](crate::Published) that the thread reads, or
    /// null.
    hazard: AtomicPtr<()>,
}

static SLOT_TABLE: [Slot; SLOTS] =
    [const { Slot { domain: AtomicUsize::new(0), hazard: AtomicPtr::new(ptr::null_mut()) } };
        SLOTS];
/// Thread numbers in use, one bit each.
static TAKEN: Mutex<[u64; WORDS]> = Mutex::new([0; WORDS]);
/// Upper bound of the numbers that were ever in use.
static EVER_TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The thread has not asked for a number yet.
const UNKNOWN: usize = usize::MAX;
/// The number of a thread that is ending.
const LAST: usize = usize::MAX - 1;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    static END: End = const { End };
}

/// Dropped when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let number = NUMBER.replace(LAST);
        // A leaked guard keeps the slot.
        if let Some(slot) = SLOT_TABLE.get(number)
            && slot.domain.load(Ordering::Relaxed) == 0
            && slot.hazard.load(Ordering::Relaxed).is_null()
        {
            TAKEN.lock()[number / 64] &= !(1 << (number % 64));
        }
    }
}

/// The number of the calling thread. A number below [`SLOTS`] is the lowest free one and belongs to
/// no other live thread. A higher number means that all of those were taken, or that the thread is
/// ending; several threads may share it.
#[inline]
#[must_use]
pub fn thread_number() -> usize {
    let number = NUMBER.get();
    if number == UNKNOWN { assign_number() } else { number }
}

#[cold]
fn assign_number() -> usize {
    static OVERFLOW: AtomicUsize = AtomicUsize::new(SLOTS);
    prepare();
    NUMBER.set(LAST);
    if END.try_with(|_| ()).is_err() {
        return LAST;
    }
    let mut taken = TAKEN.lock();
    let free = (0..SLOTS).find(|number| taken[number / 64] & 1 << (number % 64) == 0);
    if let Some(number) = free {
        taken[number / 64] |= 1 << (number % 64);
        EVER_TAKEN.fetch_max(number + 1, Ordering::SeqCst);
    }
    let number = free.unwrap_or_else(|| OVERFLOW.fetch_add(1, Ordering::Relaxed));
    NUMBER.set(number);
    number
}

/// The calling thread's slot while it holds a domain. It is not `Send`.
#[derive(Debug)]
pub struct ReaderSlot {
    slot: &'static Slot,
    _not_send: PhantomData<*const ()>,
}

/// Stores `domain`, which is not 0, in the slot of the calling thread. The caller checks afterwards
/// whether the domain is open. `None` if the thread has no slot or its slot is occupied.
#[inline]
#[must_use]
pub fn occupy(domain: usize) -> Option<ReaderSlot> {
    debug_assert_ne!(domain, 0);
    let slot = SLOT_TABLE.get(thread_number())?;
    if slot.domain.load(Ordering::Relaxed) != 0 {
        return None;
    }
    slot.domain.store(domain, Ordering::Relaxed);
    light_fence();
    Some(ReaderSlot { slot, _not_send: PhantomData })
}

impl Drop for ReaderSlot {
    #[inline]
    fn drop(&mut self) {
        self.slot.domain.store(0, Ordering::Release);
    }
}

/// Whether the slot of any thread holds `domain`. Call it after a `heavy_fence`.
#[must_use]
pub fn has_readers(domain: usize) -> bool {
    slots().iter().any(|slot| slot.domain.load(Ordering::Acquire) == domain)
}

/// The hazard pointer of the calling thread, unless it is in use.
#[inline]
pub(crate) fn hazard_pointer() -> Option<&'static AtomicPtr<()>> {
    let hazard = &SLOT_TABLE.get(thread_number())?.hazard;
    hazard.load(Ordering::Relaxed).is_null().then_some(hazard)
}

/// Whether the hazard pointer of any thread protects `what`. Call it after a `heavy_fence`.
pub(crate) fn is_protected(what: *const ()) -> bool {
    slots().iter().any(|slot| ptr::eq(slot.hazard.load(Ordering::Acquire), what))
}

/// All slots that were ever in use. A thread takes its number before it writes its slot, so after a
/// heavy fence none is missing.
fn slots() -> &'static [Slot] {
    &SLOT_TABLE[..EVER_TAKEN.load(Ordering::SeqCst)]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::heavy_fence;

    /// Threads of other tests take numbers at the same time.
    #[test]
    fn a_number_belongs_to_one_live_thread_and_is_used_again() {
        for _ in 0..SLOTS {
            let all = Barrier::new(4);
            let numbers: Vec<_> = thread::scope(|scope| {
                let take = || {
                    let number = thread_number();
                    all.wait();
                    assert!(number < SLOTS);
                    number
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 4);
        }
    }

    #[test]
    fn an_occupied_slot_is_visible_until_it_is_dropped_and_is_the_only_one() {
        let domain = (&raw const SLOT_TABLE).addr();
        let slot = occupy(domain).unwrap();
        assert!(occupy(domain).is_none() && has_readers(domain) && !has_readers(domain + 1));
        drop(slot);
        assert!(!has_readers(domain) && occupy(domain).is_some());
    }

    /// A writer that closes the domain and finds no reader, and a reader that occupies its slot and
    /// finds the domain open, exclude each other. Stores of the reader to a large array delay the
    /// moment when its slot becomes visible, so on x86-64 this test fails with an ordinary fence in
    /// place of the heavy one.
    #[test]
    fn a_closing_writer_and_an_entering_reader_do_not_miss_each_other() {
        let closed = AtomicUsize::new(0);
        let inside = AtomicUsize::new(0);
        let domain = (&raw const closed).addr();
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let over = AtomicUsize::new(0);
        let far: Vec<AtomicUsize> = (0..1 << 20).map(|_| AtomicUsize::new(0)).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 1_usize;
                while over.load(Ordering::Relaxed) == 0 {
                    for _ in 0..32 {
                        at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
                        far[(at >> 40) % far.len()].store(at, Ordering::Relaxed);
                    }
                    let Some(_slot) = occupy(domain) else { continue };
                    if closed.load(Ordering::Acquire) == 0 {
                        inside.store(1, Ordering::Relaxed);
                        std::hint::spin_loop();
                        inside.store(0, Ordering::Relaxed);
                    }
                }
            });
            let mut missed = 0;
            for round in 0..rounds {
                closed.store(1, Ordering::SeqCst);
                heavy_fence();
                while has_readers(domain) {
                    thread::yield_now();
                }
                missed += (0..20).filter(|_| inside.load(Ordering::Relaxed) != 0).count();
                closed.store(0, Ordering::SeqCst);
                for _ in 0..round % 50 {
                    std::hint::spin_loop();
                }
            }
            over.store(1, Ordering::Relaxed);
            assert_eq!(missed, 0, "a reader was inside");
        });
    }
}
