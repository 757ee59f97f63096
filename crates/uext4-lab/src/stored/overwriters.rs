//! Threads that overwrite blocks at random places.
//!
//! Invariants: each block belongs to one thread, so what it must hold is known, and all files to
//! all threads. Each block names its place and the number of its write, at its begin and its end.
//! The clock is read once in [`SAMPLE`] writes, and one of those is timed. What is measured begins
//! after a ramp of half its time, as in the job that it stands for (`ramp_time=30 runtime=60`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uext4::IoBuf;

use crate::bench::{self, Latencies, Thread, stamp, threads};
use crate::error::{Doing, Result};
use crate::explain::Timeline;
use crate::stored::stored_shape::{BLOCK, FILES, StoredShape};
use crate::tree::Random;

/// Of so many writes one is timed.
const SAMPLE: u64 = 64;
/// Bytes of a mark: place and number.
const MARK: usize = 16;

/// What blocks are written to.
pub(crate) trait Blocks: Sync {
    /// Writes one block.
    fn store(&self, file: usize, block: usize, data: &[u8]) -> Result<()>;

    /// Makes everything durable.
    fn flush(&self) -> Result<()>;
}

/// What the threads do, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredJob<'a> {
    pub(crate) threads: u32,
    pub(crate) shape: StoredShape,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) stop: &'a AtomicBool,
    /// Whether latencies are kept over time.
    pub(crate) timelines: bool,
}

/// What a run measured: overwrites after the ramp, and the latency of those that were timed. The
/// flush at the end is in the time.
pub(crate) type StoredOutcome = bench::Outcome<Overwrites>;

/// What is known besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overwrites {
    /// Those of the ramp, too.
    pub(crate) writes: u64,
    /// By file and block: number of its last write; 0 if this run did not write it.
    pub(crate) last: Vec<u32>,
}

/// What one thread did.
struct Part {
    operations: u64,
    latencies_ns: Vec<u32>,
    /// Of a job with timelines: when each of those ended.
    ends_s: Vec<f64>,
    more: Overwrites,
}

/// How far the threads are.
#[derive(Default)]
struct Phase {
    measured: AtomicBool,
    over: AtomicBool,
}

/// Runs the job.
///
/// # Errors
/// The first write that fails.
pub(crate) fn run(blocks: &dyn Blocks, job: StoredJob<'_>) -> Result<StoredOutcome> {
    let phase = Phase::default();
    let pause = |time: Duration| {
        let began = Instant::now();
        while began.elapsed() < time && !job.stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5).min(time));
        }
        began
    };
    let work = |thread: Thread<'_>| run_thread(blocks, job, thread, &phase);
    let ended = threads::run(job.threads, job.stop, work, |_| {
        pause(job.time / 2);
        phase.measured.store(true, Ordering::Relaxed);
        let began = pause(job.time);
        phase.over.store(true, Ordering::Relaxed);
        began
    })?;
    blocks.flush()?;
    let seconds = ended.meanwhile.elapsed().as_secs_f64();
    let parts = ended.parts;
    let mut more = Overwrites { writes: 0, last: vec![0; FILES * job.shape.blocks()] };
    for part in &parts {
        more.writes += part.more.writes;
        for (last, number) in more.last.iter_mut().zip(&part.more.last) {
            *last = (*number).max(*last);
        }
    }
    Ok(StoredOutcome {
        operations: parts.iter().map(|part| part.operations).sum(),
        seconds,
        timelines: if job.timelines { timelines(&parts) } else { Vec::new() },
        latency: Latencies::of(parts.into_iter().flat_map(|part| part.latencies_ns).collect()),
        more,
    })
}

fn run_thread(
    target: &dyn Blocks,
    job: StoredJob<'_>,
    thread: Thread<'_>,
    phase: &Phase,
) -> Result<Part> {
    let number = thread.number;
    let (blocks, threads) = (job.shape.blocks(), job.threads as usize);
    // One block of a file in so many as there are threads is its own.
    let own = (blocks - number as usize).div_ceil(threads) as u64;
    let mut random = Random(job.seed << 16 | u64::from(number));
    // Aligned as for direct I/O: how loads and stores lie to each other in their pages decides
    // much, and must not depend on the target.
    let mut data = IoBuf::new(BLOCK).doing("memory")?;
    data.fill(0x32);
    let mut part = Part {
        operations: 0,
        latencies_ns: Vec::with_capacity(1 << 20),
        ends_s: Vec::new(),
        more: Overwrites { writes: 0, last: vec![0; FILES * blocks] },
    };
    let started = thread.start();
    while !phase.over.load(Ordering::Relaxed) {
        let is_measured = phase.measured.load(Ordering::Relaxed);
        for sample in 0..SAMPLE {
            let pick = random.next();
            let file = (pick >> 32) as usize % FILES;
            let block = (pick & u64::from(u32::MAX)) % own;
            let block = block as usize * threads + number as usize;
            let place = file * blocks + block;
            part.more.writes += 1;
            let write = u32::try_from(part.more.writes).unwrap_or(u32::MAX);
            part.more.last[place] = write;
            mark(&mut data, place as u64, write);
            if sample == 0 && is_measured {
                let began = Instant::now();
                target.store(file, block, &data)?;
                let ns = u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX);
                part.latencies_ns.push(ns);
                if job.timelines {
                    part.ends_s.push(started.elapsed().as_secs_f64());
                }
            } else {
                target.store(file, block, &data)?;
            }
        }
        part.operations += if is_measured { SAMPLE } else { 0 };
    }
    Ok(part)
}

fn timelines(parts: &[Part]) -> Vec<Timeline> {
    let mut timeline = Timeline::new("write");
    let all = parts.iter().flat_map(|part| part.ends_s.iter().zip(&part.latencies_ns));
    all.for_each(|(end_s, ns)| timeline.add(*end_s, (*ns).into()));
    vec![timeline]
}

/// Names place and write at both ends.
fn mark(data: &mut [u8], place: u64, write: u32) {
    let mut mark = [0; MARK];
    stamp::put(&mut mark, [place, write.into()]);
    let end = data.len() - MARK;
    data[..MARK].copy_from_slice(&mark);
    data[end..].copy_from_slice(&mark);
}

/// Whether a block holds that write.
pub(crate) fn holds(data: &[u8], place: usize, write: u32) -> bool {
    let mut wanted = vec![0x32; data.len()];
    mark(&mut wanted, place as u64, write);
    data == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_tells_its_write_if_it_is_whole_and_in_its_place() {
        let mut data = vec![0x32; BLOCK];
        mark(&mut data, 70_000, 5);
        assert!(holds(&data, 70_000, 5) && !holds(&data, 70_001, 5) && !holds(&data, 70_000, 4));
        data[100] = 0;
        assert!(!holds(&data, 70_000, 5));
    }
}
