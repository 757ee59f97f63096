//! Threads that overwrite blocks at random places.
//!
//! Invariants: each block belongs to one thread, so what it must hold is known, and all files to
//! all threads. Each block names its place and the number of its write, at its begin and its end.
//! The clock is read once in [`SAMPLE`] writes, and one of those is timed. What is measured begins
//! after a ramp of half its time, as in the job that it stands for (`ramp_time=30 runtime=60`).

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uext4::IoBuf;

use crate::error::{Doing, Error, Result};
use crate::stored::shape::{BLOCK, FILES, Shape};
use crate::tree::Random;

/// Of so many writes one is timed.
const SAMPLE: u64 = 64;
/// Bytes of a mark: place and number.
const MARK: usize = 16;

/// What blocks are written to.
pub(crate) trait Sink: Sync {
    /// Writes one block.
    fn store(&self, file: usize, block: usize, data: &[u8]) -> Result<()>;

    /// Makes everything durable.
    fn flush(&self) -> Result<()>;
}

/// What the threads do, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) threads: u32,
    pub(crate) shape: Shape,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) stop: &'a AtomicBool,
}

/// What a turn measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    /// Those and the ramp's.
    pub(crate) writes: u64,
    /// The flush at the end included.
    pub(crate) seconds: f64,
    /// Of the writes that were timed, sorted, in nanoseconds.
    pub(crate) latencies_ns: Vec<u32>,
    /// By file and block: number of its last write; 0 if this turn did not write it.
    pub(crate) last: Vec<u32>,
}

impl Outcome {
    /// What a part of the timed writes was not slower than, in microseconds.
    pub(crate) fn latency_us(&self, part: f64) -> f64 {
        let rank = (part * self.latencies_ns.len() as f64).ceil() as usize;
        self.latencies_ns.get(rank.saturating_sub(1)).map_or(0.0, |ns| f64::from(*ns) / 1000.0)
    }
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
pub(crate) fn run(sink: &dyn Sink, job: Job<'_>) -> Result<Outcome> {
    let phase = Phase::default();
    let start = Barrier::new(job.threads as usize + 1);
    let pause = |time: Duration| {
        let began = Instant::now();
        while began.elapsed() < time && !job.stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5).min(time));
        }
        began
    };
    let (mut outcome, began) = thread::scope(|scope| {
        let threads: Vec<_> = (0..job.threads)
            .map(|number| {
                let (start, phase) = (&start, &phase);
                scope.spawn(move || run_thread(sink, job, number, start, phase))
            })
            .collect();
        start.wait();
        pause(job.time / 2);
        phase.measured.store(true, Ordering::Relaxed);
        let began = pause(job.time);
        phase.over.store(true, Ordering::Relaxed);
        let mut outcome =
            Outcome { last: vec![0; FILES * job.shape.blocks()], ..Outcome::default() };
        for thread in threads {
            let one = thread.join().map_err(|_| Error::new("a thread panicked"))??;
            outcome.operations += one.operations;
            outcome.writes += one.writes;
            outcome.latencies_ns.extend(one.latencies_ns);
            for (last, number) in outcome.last.iter_mut().zip(one.last) {
                *last = number.max(*last);
            }
        }
        Ok::<_, Error>((outcome, began))
    })?;
    sink.flush()?;
    outcome.seconds = began.elapsed().as_secs_f64();
    outcome.latencies_ns.sort_unstable();
    Ok(outcome)
}

fn run_thread(
    sink: &dyn Sink,
    job: Job<'_>,
    number: u32,
    start: &Barrier,
    phase: &Phase,
) -> Result<Outcome> {
    let (blocks, threads) = (job.shape.blocks(), job.threads as usize);
    // One block of a file in so many as there are threads is its own.
    let own = (blocks - number as usize).div_ceil(threads) as u64;
    let mut random = Random(job.seed << 16 | u64::from(number));
    // Aligned as for direct I/O: how loads and stores lie to each other in their pages decides
    // much, and must not depend on the side.
    let mut data = IoBuf::new(BLOCK).doing("memory")?;
    data.fill(0x32);
    let mut outcome = Outcome {
        last: vec![0; FILES * blocks],
        latencies_ns: Vec::with_capacity(1 << 20),
        ..Outcome::default()
    };
    start.wait();
    while !phase.over.load(Ordering::Relaxed) {
        let is_measured = phase.measured.load(Ordering::Relaxed);
        for turn in 0..SAMPLE {
            let pick = random.next();
            let file = (pick >> 32) as usize % FILES;
            let block = (pick & u64::from(u32::MAX)) % own;
            let block = block as usize * threads + number as usize;
            let place = file * blocks + block;
            outcome.writes += 1;
            let write = u32::try_from(outcome.writes).unwrap_or(u32::MAX);
            outcome.last[place] = write;
            mark(&mut data, place as u64, write);
            if turn == 0 && is_measured {
                let began = Instant::now();
                sink.store(file, block, &data)?;
                let ns = u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX);
                outcome.latencies_ns.push(ns);
            } else {
                sink.store(file, block, &data)?;
            }
        }
        outcome.operations += if is_measured { SAMPLE } else { 0 };
    }
    Ok(outcome)
}

/// Names place and write at both ends.
fn mark(data: &mut [u8], place: u64, write: u32) {
    let mut mark = [0; MARK];
    for (word, bytes) in [place, write.into()].into_iter().zip(mark.chunks_exact_mut(8)) {
        for (byte, shift) in bytes.iter_mut().zip((0..64).step_by(8)) {
            *byte = (word >> shift & 0xff) as u8;
        }
    }
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
