//! Threads that write and sync.
//!
//! What: each thread writes a block at the next of its places and syncs, until it has made its
//! writes or the time is over. All start together; the clock stops when the last one ends.
//! Invariants: every write that is counted was synced. Nothing is shared between the threads but
//! the file system and two flags.

use std::time::{Duration, Instant};

use crate::bench::files::{FileSystem, LoadFile};
use crate::bench::{self, Latencies, Limits, Thread, threads};
use crate::error::Result;
use crate::explain::Timeline;
use crate::storm::content::{Places, stamp};
use crate::storm::storm_shape::{BLOCK, StormShape};
use crate::tree::Content;

/// What a run measured: writes that were synced, and the latency of a sync.
pub(crate) type StormOutcome = bench::Outcome<Synced>;

/// What is known besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Synced {
    pub(crate) syncs: u64,
    pub(crate) write: Latencies,
    /// Whether the time was over before the writes were made.
    pub(crate) cut_off: bool,
    /// Writes of each thread; empty where only their sum is known.
    pub(crate) writes: Vec<u64>,
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
pub(crate) fn run(
    files: &dyn FileSystem,
    shape: &StormShape,
    limits: Limits<'_>,
) -> Result<StormOutcome> {
    let work = |thread: Thread<'_>| write_and_sync(files, shape, thread, limits);
    let ended = threads::run(shape.threads, limits.stop, work, |began| began)?;
    let writes: Vec<u64> = ended.parts.iter().map(|part| part.writes).collect();
    let all = |of: fn(&Part) -> &Vec<u64>| {
        Latencies::of(ended.parts.iter().flat_map(|part| of(part).iter().copied()).collect())
    };
    let total = writes.iter().sum();
    let is_short = |each: u32| writes.iter().any(|&count| count < u64::from(each));
    Ok(StormOutcome {
        operations: total,
        seconds: (ended.at - ended.meanwhile).as_secs_f64(),
        latency: all(|part| &part.sync_ns),
        timelines: if limits.timelines { timelines(&ended.parts) } else { Vec::new() },
        more: Synced {
            syncs: total,
            write: all(|part| &part.write_ns),
            cut_off: limits.operations.is_some_and(is_short),
            writes,
        },
    })
}

fn write_and_sync(
    files: &dyn FileSystem,
    shape: &StormShape,
    thread: Thread<'_>,
    limits: Limits<'_>,
) -> Result<Part> {
    let number = thread.number;
    let file = files.open(&shape.name(shape.file_of(number)))?;
    let mut places = Places::new(shape, number);
    let mut data = vec![0; BLOCK];
    Content { seed: u64::from(number), len: BLOCK as u64 }.fill(0, &mut data);
    let mut part = Part::default();
    let operations = limits.operations.map_or(u64::MAX, u64::from);
    let end = thread.start() + limits.time;
    while part.writes < operations && Instant::now() < end && !thread.is_stopped() {
        one(&*file, places.next(), number, &mut data, &mut part)?;
    }
    Ok(part)
}

fn one(
    file: &dyn LoadFile,
    block: u32,
    thread: u32,
    data: &mut [u8],
    part: &mut Part,
) -> Result<()> {
    stamp(data, thread, block, part.writes);
    let start = Instant::now();
    file.write(u64::from(block) * BLOCK as u64, data)?;
    let written = Instant::now();
    file.sync()?;
    part.write_ns.push(nanoseconds(written - start));
    part.sync_ns.push(nanoseconds(written.elapsed()));
    part.writes += 1;
    Ok(())
}

/// Each thread does nothing but write and sync, so its times add up to the time.
fn timelines(parts: &[Part]) -> Vec<Timeline> {
    let (mut write, mut sync) = (Timeline::new("write"), Timeline::new("fsync"));
    let seconds = |ns: u64| ns as f64 / 1e9;
    for part in parts {
        let mut at_ns = 0;
        for (write_ns, sync_ns) in part.write_ns.iter().zip(&part.sync_ns) {
            at_ns += write_ns;
            write.add(seconds(at_ns), *write_ns);
            at_ns += sync_ns;
            sync.add(seconds(at_ns), *sync_ns);
        }
    }
    vec![sync, write]
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::storm::storm_shape::StormKind;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Counts; fails at one write.
    struct Counter {
        synced: AtomicU64,
        fails_at: u64,
    }

    impl FileSystem for Counter {
        fn open(&self, _: &str) -> Result<Box<dyn LoadFile + '_>> {
            Ok(Box::new(self))
        }
    }

    impl LoadFile for &Counter {
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

    fn shape() -> StormShape {
        let file_bytes = 20 * BLOCK as u64;
        StormShape { kind: StormKind::Own, threads: 5, journal_mib: 4, file_bytes }
    }

    fn at_stop(stop: &AtomicBool) -> Limits<'_> {
        Limits { operations: None, time: Duration::from_secs(60), stop, timelines: false }
    }

    #[test]
    fn each_thread_makes_its_writes_and_is_not_cut_off() {
        let sink = Counter { synced: AtomicU64::new(0), fails_at: u64::MAX };
        let stop = AtomicBool::new(false);
        let limits = Limits { operations: Some(7), ..at_stop(&stop) };
        let outcome = run(&sink, &shape(), limits).unwrap();
        assert!(outcome.latency.p99_us <= outcome.latency.max_us);
        let Synced { syncs, writes, cut_off, .. } = outcome.more;
        assert_eq!((outcome.operations, syncs, writes, cut_off), (35, 35, vec![7; 5], false));
        let limits = Limits { time: Duration::ZERO, ..limits };
        assert!(run(&sink, &shape(), limits).unwrap().more.cut_off);
    }

    #[test]
    fn a_failure_ends_the_run() {
        let sink = Counter { synced: AtomicU64::new(0), fails_at: 12 };
        let stop = AtomicBool::new(false);
        let limits = at_stop(&stop);
        let error = run(&sink, &shape(), limits).unwrap_err();
        assert_eq!(error.to_string(), "as planned");
    }
}
