//! Where threads tell what they are at.
//!
//! # What
//! Each thread has a *seat* of its own: a cache line that it alone writes, and that anybody reads.
//! [`sit`] says "I am at this place", and dropping the [`Seat`] says "no more"; [`is_anybody_at`]
//! looks whether anyone is. Neither `sit` nor its end is a locked instruction or touches a line
//! that another thread writes.
//!
//! # Invariants
//! - A number belongs to one live thread. It is handed on under a lock, so who gets it sees what
//!   the one before wrote to anything that goes by the number.
//! - Who says by a word that a place is closed, calls [`heavy_fence`](crate::heavy_fence), and then
//!   finds nobody there, may rely on it: whoever sits down after that sees the word. The proof is
//!   in `fence.rs`; a thread sits down, then looks whether the place is closed, and gets up if it
//!   is.
//! - What a thread did at a place is visible to who finds its seat empty (release, acquire).
//!
//! # Not covered
//! Threads beyond [`SEATS`], threads that end, and who sits already has none: [`sit`] says so, and
//! the caller needs another way.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::fence::{light_fence, prepare};

/// Most threads that have a number at a time.
pub const SEATS: usize = 256;
const WORDS: usize = SEATS / 64;

/// Alone on its cache lines: processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    /// 0: nowhere.
    place: AtomicUsize,
    /// What of a [`Published`](crate::Published) is being read. Null: nothing.
    reads: AtomicPtr<()>,
}

static LINES: [Line; SEATS] =
    [const { Line { place: AtomicUsize::new(0), reads: AtomicPtr::new(ptr::null_mut()) } }; SEATS];
/// Numbers in use, a bit each.
static TAKEN: Mutex<[u64; WORDS]> = Mutex::new([0; WORDS]);
/// No number from here on was ever in use.
static EVER_TAKEN: AtomicUsize = AtomicUsize::new(0);

/// This thread has not asked.
const UNKNOWN: usize = usize::MAX;
/// Of a thread that ends.
const LAST: usize = usize::MAX - 1;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
    static END: End = const { End };
}

/// Dropped with the thread.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let number = NUMBER.replace(LAST);
        // A guard that was leaked keeps the seat.
        if let Some(line) = LINES.get(number)
            && line.place.load(Ordering::Relaxed) == 0
            && line.reads.load(Ordering::Relaxed).is_null()
        {
            TAKEN.lock()[number / 64] &= !(1 << (number % 64));
        }
    }
}

/// The number of the calling thread. One below [`SEATS`] is as low as can be, and no other live
/// thread's. Higher ones are of threads that came when those were taken, and of threads that end;
/// several may have one.
#[inline]
#[must_use]
pub fn number() -> usize {
    let number = NUMBER.get();
    if number == UNKNOWN { take_number() } else { number }
}

#[cold]
fn take_number() -> usize {
    static STRANGERS: AtomicUsize = AtomicUsize::new(SEATS);
    prepare();
    NUMBER.set(LAST);
    if END.try_with(|_| ()).is_err() {
        return LAST;
    }
    let mut taken = TAKEN.lock();
    let free = (0..SEATS).find(|number| taken[number / 64] & 1 << (number % 64) == 0);
    if let Some(number) = free {
        taken[number / 64] |= 1 << (number % 64);
        EVER_TAKEN.fetch_max(number + 1, Ordering::SeqCst);
    }
    let number = free.unwrap_or_else(|| STRANGERS.fetch_add(1, Ordering::Relaxed));
    NUMBER.set(number);
    number
}

/// The calling thread is at a place. It stays on its thread.
#[derive(Debug)]
pub struct Seat {
    line: &'static Line,
    _not_send: PhantomData<*const ()>,
}

/// Says that the calling thread is at `place`, which is not 0. Whether the place is open is to be
/// asked after that.
#[inline]
#[must_use]
pub fn sit(place: usize) -> Option<Seat> {
    debug_assert_ne!(place, 0);
    let line = LINES.get(number())?;
    if line.place.load(Ordering::Relaxed) != 0 {
        return None;
    }
    line.place.store(place, Ordering::Relaxed);
    light_fence();
    Some(Seat { line, _not_send: PhantomData })
}

impl Drop for Seat {
    #[inline]
    fn drop(&mut self) {
        self.line.place.store(0, Ordering::Release);
    }
}

/// Whether a thread is at that place. To be asked after a `heavy_fence`.
#[must_use]
pub fn is_anybody_at(place: usize) -> bool {
    lines().iter().any(|line| line.place.load(Ordering::Acquire) == place)
}

/// The line of the calling thread on which it says what it reads, if it reads nothing yet.
#[inline]
pub(crate) fn reading() -> Option<&'static AtomicPtr<()>> {
    let reads = &LINES.get(number())?.reads;
    reads.load(Ordering::Relaxed).is_null().then_some(reads)
}

/// Whether a thread reads that. To be asked after a `heavy_fence`.
pub(crate) fn is_read(what: *const ()) -> bool {
    lines().iter().any(|line| ptr::eq(line.reads.load(Ordering::Acquire), what))
}

/// Those that anybody ever had. A number is taken before its line is written, so after a heavy
/// fence none is missed.
fn lines() -> &'static [Line] {
    &LINES[..EVER_TAKEN.load(Ordering::SeqCst)]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::heavy_fence;

    /// Tests of other modules have threads with numbers meanwhile.
    #[test]
    fn numbers_are_of_one_thread_and_come_back() {
        for _ in 0..SEATS {
            let all = Barrier::new(4);
            let numbers: Vec<_> = thread::scope(|scope| {
                let take = || {
                    let number = number();
                    all.wait();
                    assert!(number < SEATS);
                    number
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 4);
        }
    }

    #[test]
    fn a_seat_is_seen_until_its_end_and_there_is_one() {
        let place = (&raw const LINES).addr();
        let seat = sit(place).unwrap();
        assert!(sit(place).is_none() && is_anybody_at(place) && !is_anybody_at(place + 1));
        drop(seat);
        assert!(!is_anybody_at(place) && sit(place).is_some());
    }

    /// Who closes and then finds nobody, and who sits and finds it open, never both. What the
    /// thread wrote before makes it long until its seat is seen: on x86-64 an ordinary fence in
    /// place of the heavy one fails here.
    #[test]
    fn closing_and_sitting_do_not_miss_each_other() {
        let closed = AtomicUsize::new(0);
        let inside = AtomicUsize::new(0);
        let place = (&raw const closed).addr();
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
                    let Some(_seat) = sit(place) else { continue };
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
                while is_anybody_at(place) {
                    thread::yield_now();
                }
                missed += (0..20).filter(|_| inside.load(Ordering::Relaxed) != 0).count();
                closed.store(0, Ordering::SeqCst);
                for _ in 0..round % 50 {
                    std::hint::spin_loop();
                }
            }
            over.store(1, Ordering::Relaxed);
            assert_eq!(missed, 0, "somebody was inside");
        });
    }
}
