//! How long calls on files take.
//!
//! What: a histogram for each kind of call. A read from memory takes less time than two looks at
//! the clock and an addition to words that all processors share, so frequent calls are counted
//! always, on words of the thread's own share, and timed now and then.
//! Invariants: which calls are timed depends on nothing but chance, so that the timed ones are a
//! fair sample. What takes long in a call, a join, a commit, a flush, has a histogram of its own
//! that misses nothing.

use super::histogram::{Histogram, Reading};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use uext4_device::seat;

/// One of so many frequent calls is timed, in the mean.
pub const SAMPLE: u32 = 16;

const SHARDS: usize = 32;

/// A number that any number of threads add to, without meeting on one cache line. For most of them
/// adding is no locked instruction.
#[derive(Debug, Default)]
pub struct Counter {
    shards: [Share; SHARDS],
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Share {
    /// Written by the one live thread that has the share's number ([`seat::number`]).
    own: AtomicU64,
    /// Of threads with higher numbers, and without any.
    others: AtomicU64,
}

impl Counter {
    /// Adds.
    pub fn add(&self, count: u64) {
        let number = seat::number();
        let share = &self.shards[number % SHARDS];
        if number < SHARDS {
            let before = share.own.load(Ordering::Relaxed);
            share.own.store(before.wrapping_add(count), Ordering::Relaxed);
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

/// Calls of one kind: all counted, one in [`SAMPLE`] timed.
#[derive(Debug, Default)]
pub struct Sampled {
    calls: Counter,
    timed: Histogram,
}

impl Sampled {
    /// Makes a call.
    pub fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        self.calls.add(1);
        if !is_turn() {
            return call();
        }
        let start = Instant::now();
        let result = call();
        self.timed.add_since(start);
        result
    }

    /// A call that began at `start` ends.
    pub fn add_since(&self, start: Instant) {
        self.calls.add(1);
        if is_turn() {
            self.timed.add_since(start);
        }
    }

    /// What it holds now.
    #[must_use]
    pub fn read(&self) -> SampledReading {
        SampledReading { timed: self.timed.read(), calls: self.calls.get() }
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

/// Whether the calling thread times this call: after gaps of 1 to 31 calls, at random, so that it
/// keeps no step with a program that repeats itself.
fn is_turn() -> bool {
    thread_local! {
        static LEFT: Cell<u32> = const { Cell::new(0) };
        static SEED: Cell<u32> = const { Cell::new(0) };
    }
    LEFT.with(|left| {
        if left.get() > 1 {
            left.set(left.get() - 1);
            return false;
        }
        let is_first = left.get() == 0;
        left.set(SEED.with(|seed| {
            if is_first {
                static THREADS: AtomicUsize = AtomicUsize::new(1);
                let thread = THREADS.fetch_add(1, Ordering::Relaxed) as u32;
                seed.set(thread.wrapping_mul(0x9e37_79b9));
            }
            // The multiplier and increment of Numerical Recipes; its high bits are good.
            seed.set(seed.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            let random = u64::from(seed.get());
            1 + ((random * u64::from(2 * SAMPLE - 1)) >> 32) as u32
        }));
        !is_first
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_are_counted_and_some_are_timed() {
        let sampled = Sampled::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..40_000).for_each(|_| sampled.time(|| ())));
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
            first.time(|| ());
            second.time(|| ());
        }
        let (first, second) = (first.read().timed.count, second.read().timed.count);
        assert!(first.abs_diff(second) < first / 8, "{first} {second}");
    }
}
