//! How long calls on files take.
//!
//! What: a histogram for each kind of call. A read from memory takes less time than two looks at
//! the clock and an addition to words that all processors share, so frequent calls are counted
//! always and timed now and then, both on words of the thread's own share.
//! Invariants: which calls are timed depends on nothing but chance, so that the timed ones are a
//! fair sample. What takes long in a call, a join, a commit, a flush, has a histogram of its own
//! that misses nothing.

use super::histogram::{Histogram, Reading, add_alone};
use crate::sync::time::Instant;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use uext4_device::reader_slot;

/// One of so many frequent calls is timed, in the mean.
pub const SAMPLE: u32 = 16;

const SHARDS: usize = 32;

/// A number that any number of threads add to, without meeting on one cache line. For most of them
/// adding is no locked instruction.
#[derive(Debug, Default)]
pub struct Counter {
    shards: [Share; SHARDS],
}

/// Alone on its cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Share {
    /// Written by the one live thread that has the share's number ([`reader_slot::thread_number`]).
    own: AtomicU64,
    /// Of threads with higher numbers, and without any.
    others: AtomicU64,
}

impl Counter {
    /// Adds.
    #[inline]
    pub fn add(&self, count: u64) {
        let number = reader_slot::thread_number();
        let share = &self.shards[number % SHARDS];
        if number < SHARDS {
            add_alone(&share.own, count);
        } else {
            share.others.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The sum of all that was added.
    #[must_use]
    pub fn get(&self) -> u64 {
        let words = self.shards.iter().flat_map(|share| [&share.own, &share.others]);
        words.map(|word| word.load(Ordering::Relaxed)).sum()
    }
}

/// A histogram likewise.
#[derive(Debug, Default)]
struct Shares {
    /// Each made for, and written by, the one live thread that has its number.
    own: [OnceLock<Histogram>; SHARDS],
    others: Histogram,
}

impl Shares {
    fn add(&self, duration: Duration) {
        match self.own.get(reader_slot::thread_number()) {
            Some(own) => own.get_or_init(Histogram::default).add_alone(duration),
            None => self.others.add(duration),
        }
    }

    fn read(&self) -> Reading {
        let mut sum = self.others.read();
        self.own.iter().filter_map(OnceLock::get).for_each(|own| sum.merge(&own.read()));
        sum
    }
}

/// Calls of one kind: all counted, one in [`SAMPLE`] timed.
#[derive(Debug, Default)]
pub struct Sampled {
    calls: Counter,
    timed: Shares,
}

impl Sampled {
    /// A call begins; it ends when this is dropped.
    #[inline]
    pub fn begin(&self) -> Call<'_> {
        self.calls.add(1);
        Call { of: self, start: is_turn().then(Instant::now) }
    }

    /// A call that began at `start` ends.
    pub fn add_since(&self, start: Instant) {
        self.calls.add(1);
        if is_turn() {
            self.timed.add(start.elapsed());
        }
    }

    /// What it holds now.
    #[must_use]
    pub fn read(&self) -> SampledReading {
        SampledReading { timed: self.timed.read(), calls: self.calls.get() }
    }
}

/// A call that is under way.
#[derive(Debug)]
#[must_use]
pub struct Call<'a> {
    of: &'a Sampled,
    /// If it is timed.
    start: Option<Instant>,
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(start) = self.start {
            self.of.timed.add(start.elapsed());
        }
    }
}

/// What a [`Sampled`] held at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledReading {
    /// All calls.
    pub calls: u64,
    /// The timed ones.
    pub timed: Reading,
}

impl SampledReading {
    /// What a histogram of all calls holds.
    #[must_use]
    pub fn of_all(histogram: &Histogram) -> Self {
        let timed = histogram.read();
        Self { calls: timed.count, timed }
    }
}

/// The calls on files of a volume.
#[derive(Debug, Default)]
pub struct Calls {
    /// Opening; with creation, where that is one call.
    pub open: Sampled,
    /// Reading.
    pub read: Sampled,
    /// Writing and appending.
    pub write: Sampled,
    /// fsync and fdatasync, from call to return. All are timed.
    pub fsync: Histogram,
}

thread_local! {
    /// Calls until one is timed, with that.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static SEED: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread times this call: after gaps of 1 to 31 calls, at random, so that it
/// keeps no step with a program that repeats itself.
#[inline]
fn is_turn() -> bool {
    let left = LEFT.get();
    if left > 1 {
        LEFT.set(left - 1);
        return false;
    }
    draw_gap();
    left == 1
}

#[cold]
fn draw_gap() {
    if SEED.get() == 0 {
        static THREADS: AtomicUsize = AtomicUsize::new(1);
        let thread = THREADS.fetch_add(1, Ordering::Relaxed) as u32;
        SEED.set(thread.wrapping_mul(0x9e37_79b9));
    }
    // The multiplier and increment of Numerical Recipes; its high bits are good.
    let seed = SEED.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    SEED.set(seed);
    LEFT.set(1 + ((u64::from(seed) * u64::from(2 * SAMPLE - 1)) >> 32) as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_are_counted_and_some_are_timed() {
        let sampled = Sampled::default();
        // More threads than there are shares, all at a time.
        let all = std::sync::Barrier::new(40);
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    all.wait();
                    (0..4_000).for_each(|_| drop(sampled.begin()));
                    all.wait();
                });
            }
        });
        let read = sampled.read();
        assert_eq!(read.calls, 160_000);
        let want = 160_000 / u64::from(SAMPLE);
        assert!(read.timed.count.abs_diff(want) < want / 10, "{}", read.timed.count);
    }

    /// Would fail if every second call were timed at even distances: a program that reads and
    /// writes in turns would then show one of the two only.
    #[test]
    fn a_program_that_repeats_itself_is_sampled_fairly() {
        let (first, second) = (Sampled::default(), Sampled::default());
        for _ in 0..50_000 {
            drop(first.begin());
            drop(second.begin());
        }
        let (first, second) = (first.read().timed.count, second.read().timed.count);
        assert!(first.abs_diff(second) < first / 8, "{first} {second}");
    }
}
