//! Threads that write and sync.
//!
//! What: each thread writes a block at the next of its places and syncs, until it has made its
//! writes or the time is over. All start together; the clock stops when the last one ends.
//! Invariants: every write that is counted was synced. Nothing is shared between the threads but
//! the sink and two flags.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use crate::gate::Gate;
use crate::storm::content::{Places, stamp};
use crate::storm::shape::{BLOCK, Shape};
use crate::storm::sink::{Cell, Sink};
use crate::tree::Content;

/// Thousands of threads: each has what the engine's deepest call needs, and no more.
const STACK_BYTES: usize = 256 << 10;

/// When threads stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// After so many writes each, if that is set.
    pub(crate) operations: Option<u32>,
    /// After this time in any case.
    pub(crate) time: Duration,
    /// When somebody sets this.
    pub(crate) stop: &'a AtomicBool,
}

/// What a turn measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Writes that were synced.
    pub(crate) operations: u64,
    /// Syncs.
    pub(crate) syncs: u64,
    pub(crate) seconds: f64,
    pub(crate) sync: Latencies,
    pub(crate) write: Latencies,
    /// Whether the time was over before the writes were made.
    pub(crate) cut_off: bool,
    /// Writes of each thread; empty where only their sum is known.
    pub(crate) writes: Vec<u64>,
}

/// Quantiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Latencies {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    pub(crate) mean_us: f64,
}

impl Latencies {
    /// Of latencies in nanoseconds, in any order.
    fn of(mut all: Vec<u64>) -> Self {
        all.sort_unstable();
        let Some(&max) = all.last() else { return Self::default() };
        // The least latency that this part of all does not exceed.
        let at = |part: f64| {
            let rank = (part * all.len() as f64).ceil() as usize;
            all[rank.clamp(1, all.len()) - 1] as f64 / 1000.0
        };
        let mean_us = all.iter().sum::<u64>() as f64 / all.len() as f64 / 1000.0;
        Self { p50_us: at(0.5), p99_us: at(0.99), max_us: max as f64 / 1000.0, mean_us }
    }
}

/// What one thread did.
#[derive(Default)]
struct Part {
    writes: u64,
    write_ns: Vec<u64>,
    sync_ns: Vec<u64>,
}

/// Runs the threads to their end.
///
/// # Errors
/// The first failure of a thread; the others are stopped then.
pub(crate) fn run(sink: &dyn Sink, shape: &Shape, limits: Limits<'_>) -> Result<Outcome> {
    let (gate, failed) = (Gate::default(), AtomicBool::new(false));
    let work = |thread: u32| -> Result<Part> {
        let done = write_and_sync(sink, shape, thread, limits, &gate, &failed);
        if done.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        // Nobody must wait for a thread that has failed before the start.
        gate.arrive_late();
        done
    };
    let (seconds, parts) = thread::scope(|scope| {
        let work = &work;
        let mut running = Vec::new();
        for thread in 0..shape.threads {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            match builder.name(format!("load-{thread}")).spawn_scoped(scope, move || work(thread)) {
                Ok(handle) => running.push(handle),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    gate.open(0);
                    return Err(error).doing(format_args!("starting thread {thread}"));
                }
            }
        }
        let began = gate.open(shape.threads);
        let parts: Vec<Result<Part>> = running
            .into_iter()
            .map(|handle| {
                let ended = handle.join();
                ended.map_err(|_| Error::new("a thread of the load panicked")).flatten()
            })
            .collect();
        Ok((began.elapsed().as_secs_f64(), parts))
    })?;
    let parts = parts.into_iter().collect::<Result<Vec<Part>>>()?;
    Ok(Outcome::of(&parts, seconds, limits.operations))
}

impl Outcome {
    fn of(parts: &[Part], seconds: f64, operations: Option<u32>) -> Self {
        let writes: Vec<u64> = parts.iter().map(|part| part.writes).collect();
        let all = |of: fn(&Part) -> &Vec<u64>| {
            Latencies::of(parts.iter().flat_map(|part| of(part).iter().copied()).collect())
        };
        let total = writes.iter().sum();
        let cut_off = operations.is_some_and(|each| writes.iter().any(|&n| n < u64::from(each)));
        Self {
            operations: total,
            syncs: total,
            seconds,
            sync: all(|part| &part.sync_ns),
            write: all(|part| &part.write_ns),
            cut_off,
            writes,
        }
    }
}

fn write_and_sync(
    sink: &dyn Sink,
    shape: &Shape,
    thread: u32,
    limits: Limits<'_>,
    gate: &Gate,
    failed: &AtomicBool,
) -> Result<Part> {
    let cell = sink.open(shape, thread)?;
    let mut places = Places::new(shape, thread);
    let mut data = vec![0; BLOCK];
    Content { seed: u64::from(thread), len: BLOCK as u64 }.fill(0, &mut data);
    let mut part = Part::default();
    let operations = limits.operations.map_or(u64::MAX, u64::from);
    let end = gate.wait() + limits.time;
    while part.writes < operations && Instant::now() < end {
        if failed.load(Ordering::Relaxed) || limits.stop.load(Ordering::Relaxed) {
            break;
        }
        one(&*cell, places.next(), thread, &mut data, &mut part)?;
    }
    Ok(part)
}

fn one(cell: &dyn Cell, block: u32, thread: u32, data: &mut [u8], part: &mut Part) -> Result<()> {
    stamp(data, thread, block, part.writes);
    let start = Instant::now();
    cell.write(u64::from(block) * BLOCK as u64, data)?;
    let written = Instant::now();
    cell.sync()?;
    part.write_ns.push(nanoseconds(written - start));
    part.sync_ns.push(nanoseconds(written.elapsed()));
    part.writes += 1;
    Ok(())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Counts; fails at one write.
    struct Counter {
        synced: AtomicU64,
        fails_at: u64,
    }

    impl Sink for Counter {
        fn open(&self, _: &Shape, _: u32) -> Result<Box<dyn Cell + '_>> {
            Ok(Box::new(self))
        }
    }

    impl Cell for &Counter {
        fn write(&self, _: u64, data: &[u8]) -> Result<()> {
            assert_eq!(data.len(), BLOCK);
            Ok(())
        }

        fn sync(&self) -> Result<()> {
            if self.synced.fetch_add(1, Ordering::Relaxed) == self.fails_at {
                return Err(Error::new("as planned"));
            }
            Ok(())
        }
    }

    fn shape() -> Shape {
        Shape {
            shared: false,
            appends: false,
            threads: 5,
            journal_mib: 4,
            file_bytes: 20 * BLOCK as u64,
        }
    }

    #[test]
    fn each_thread_makes_its_writes_and_is_not_cut_off() {
        let sink = Counter { synced: AtomicU64::new(0), fails_at: u64::MAX };
        let stop = AtomicBool::new(false);
        let limits = Limits { operations: Some(7), time: Duration::from_secs(60), stop: &stop };
        let outcome = run(&sink, &shape(), limits).unwrap();
        assert_eq!((outcome.operations, outcome.syncs, outcome.writes), (35, 35, vec![7; 5]));
        assert!(!outcome.cut_off && outcome.sync.p99_us <= outcome.sync.max_us);
        let limits = Limits { time: Duration::ZERO, ..limits };
        assert!(run(&sink, &shape(), limits).unwrap().cut_off);
    }

    #[test]
    fn a_failure_ends_the_run() {
        let sink = Counter { synced: AtomicU64::new(0), fails_at: 12 };
        let stop = AtomicBool::new(false);
        let limits = Limits { operations: None, time: Duration::from_secs(60), stop: &stop };
        let error = run(&sink, &shape(), limits).unwrap_err();
        assert_eq!(error.to_string(), "as planned");
    }

    #[test]
    fn quantiles_are_exact() {
        let found = Latencies::of((1..=200).rev().map(|us| us * 1000).collect());
        assert_eq!((found.p50_us, found.p99_us, found.max_us), (100.0, 198.0, 200.0));
        assert_eq!(Latencies::of(Vec::new()), Latencies::default());
    }
}
