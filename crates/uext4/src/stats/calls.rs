//! Latencies of calls on files.
//!
//! What: a histogram for each kind of call. A read from memory takes less time than two readings of
//! the clock and an addition to words that all processors share. So frequent calls are always
//! counted but only sometimes timed, both in per-thread shards.
//! Invariants: chance alone decides which calls are timed, so the timed ones are a fair sample. The
//! long phases of a call (a join, a commit, a flush) have histograms of their own without sampling.

use super::histogram::{Histogram, Reading, add_unshared};
use crate::sync::time::Instant;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use uext4_device::reader_slot;

/// On average, one in this many frequent calls is timed.
pub const SAMPLE: u32 = 16;

const SHARDS: usize = 32;

/// A counter sharded by thread, so that threads do not share a cache line. For most threads an
/// addition is no locked instruction.
#[derive(Debug, Default)]
pub struct Counter {
    shards: [CounterShard; SHARDS],
}

/// Aligned to two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterShard {
    /// Written by the one live thread with this shard's number ([`reader_slot::thread_number`]).
    own: AtomicU64,
    /// Shared by threads with higher numbers.
    others: AtomicU64,
}

impl Counter {
    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        let number = reader_slot::thread_number();
        let shard = &self.shards[number % SHARDS];
        if number < SHARDS {
            add_unshared(&shard.own, count);
        } else {
            shard.others.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The sum of all additions.
    #[must_use]
    pub fn get(&self) -> u64 {
        let words = self.shards.iter().flat_map(|shard| [&shard.own, &shard.others]);
        words.map(|word| word.load(Ordering::Relaxed)).sum()
    }
}

/// A histogram sharded by thread.
#[derive(Debug, Default)]
struct ShardedHistogram {
    /// Each created and written by the one live thread with its number.
    own: [OnceLock<Histogram>; SHARDS],
    others: Histogram,
}

impl ShardedHistogram {
    fn add(&self, duration: Duration) {
        match self.own.get(reader_slot::thread_number()) {
            Some(own) => own.get_or_init(Histogram::default).add_unshared(duration),
            None => self.others.add(duration),
        }
    }

    fn read(&self) -> Reading {
        let mut sum = self.others.read();
        self.own.iter().filter_map(OnceLock::get).for_each(|own| sum.merge(&own.read()));
        sum
    }
}

/// Calls of one kind: all of them counted, one in [`SAMPLE`] timed.
#[derive(Debug, Default)]
pub struct Sampled {
    calls: Counter,
    timed: ShardedHistogram,
}

impl Sampled {
    /// Begins a call, which ends when the result is dropped.
    #[inline]
    pub fn begin(&self) -> Call<'_> {
        self.calls.add(1);
        Call { of: self, start: is_sampled().then(Instant::now) }
    }

    /// Counts a call that began at `start` and ends now.
    pub fn add_since(&self, start: Instant) {
        self.calls.add(1);
        if is_sampled() {
            self.timed.add(start.elapsed());
        }
    }

    /// The current values.
    #[must_use]
    pub fn read(&self) -> SampledReading {
        SampledReading { timed: self.timed.read(), calls: self.calls.get() }
    }
}

/// A call in progress.
#[derive(Debug)]
#[must_use]
pub struct Call<'a> {
    of: &'a Sampled,
    /// `None` if the call is not timed.
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

/// The values of a [`Sampled`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledReading {
    /// Number of all calls.
    pub calls: u64,
    /// The timed calls.
    pub timed: Reading,
}

/// The calls on files of a volume.
#[derive(Debug, Default)]
pub struct Calls {
    /// open, including creation if that is one call.
    pub open: Sampled,
    /// Reads.
    pub read: Sampled,
    /// Writes and appends.
    pub write: Sampled,
    /// fsync and fdatasync, from call to return. All of them are timed.
    pub fsync: Histogram,
}

thread_local! {
    /// Calls until the next timed one, including it.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static SEED: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread times this call. The gaps are 1 to 31 calls, at random, so that the
/// sample does not beat with a program that repeats itself.
#[inline]
fn is_sampled() -> bool {
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
    // The linear congruential generator of Numerical Recipes, whose high bits are good.
    let seed = SEED.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    SEED.set(seed);
    LEFT.set(1 + ((u64::from(seed) * u64::from(2 * SAMPLE - 1)) >> 32) as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_calls_are_counted_and_a_sample_is_timed() {
        let sampled = Sampled::default();
        // More threads than shards, all at the same time.
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

    /// Fails if calls are timed at even distances: for a program that alternates reads and writes,
    /// only one of the two would be timed.
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
