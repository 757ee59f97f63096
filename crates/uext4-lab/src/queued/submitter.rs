//! One thread with many requests in flight.
//!
//! What: whatever is free is filled and started together, and whatever is done is reaped together,
//! one at least: as fio's libaio with `iodepth=64`, but that it starts one at a time.
//! Invariants: no two writes in flight share a block, so what a block must hold is known. A latency
//! runs from the start of a request's batch to the moment when it was reaped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uext4::{IoBuf, IoMemory};

use crate::bench::stamp::SECTOR;
use crate::bench::{self, FilePlace, Latencies};
use crate::error::{Error, Result};
use crate::explain::Timeline;
use crate::queued::queued_shape::{DEPTH, read_stamp, stamp};
use crate::queued::ring::{Op, Ring};
use crate::tree::Random;

/// What the thread does, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedJob<'a> {
    pub(crate) op: Op,
    /// Bytes of a request.
    pub(crate) bytes: usize,
    pub(crate) file_bytes: u64,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    /// Where requests must lie in one piece: the same for all targets.
    pub(crate) place: &'a FilePlace,
    pub(crate) stop: &'a AtomicBool,
    /// Whether latencies are kept over time.
    pub(crate) timelines: bool,
}

/// What a run measured: requests and their latency.
pub(crate) type QueuedOutcome = bench::Outcome<LastWrites>;

/// What is known besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastWrites {
    /// By block of `bytes`: number of its last write; 0 if this run did not write it. Empty where
    /// another program wrote.
    pub(crate) by_block: Vec<u32>,
    /// Of the processes that made the requests, where that is not this one.
    pub(crate) context_switches: Option<u64>,
}

/// Memory for the requests of a job.
pub(crate) fn memory(bytes: usize) -> Result<IoMemory> {
    IoMemory::new(bytes * DEPTH).map_err(|error| Error::new(format!("memory: {error}")))
}

struct Thread<'a, R> {
    job: QueuedJob<'a>,
    ring: &'a mut R,
    random: Random,
    /// By tag: what is not in flight. Moved as a whole: loads of 16 bytes over stores of 8 wait for
    /// the stamps before them.
    bufs: Vec<Option<IoBuf>>,
    /// By tag: when the request was started.
    started: Vec<Instant>,
    /// By tag: its block.
    block: Vec<usize>,
    in_flight: Vec<bool>,
    last: Vec<u32>,
    writes: u32,
    latencies_ns: Vec<u32>,
    /// Of a job with timelines: when requests were reaped, and how many had been by then.
    reaped: Vec<(f64, usize)>,
}

/// Runs the job on a ring whose buffers are of `memory`.
///
/// # Errors
/// The first request that fails, or is not what it must be.
pub(crate) fn run<R: Ring>(
    ring: &mut R,
    job: QueuedJob<'_>,
    memory: IoMemory,
) -> Result<QueuedOutcome> {
    let blocks = usize::try_from(job.file_bytes / job.bytes as u64).unwrap_or(usize::MAX);
    let began = Instant::now();
    let mut thread = Thread {
        job,
        ring,
        random: Random(job.seed),
        started: vec![began; DEPTH],
        block: vec![0; DEPTH],
        in_flight: vec![false; blocks],
        last: vec![0; blocks],
        writes: 0,
        latencies_ns: Vec::with_capacity(1 << 22),
        reaped: Vec::new(),
        bufs: memory.into_bufs(job.bytes).into_iter().map(Some).collect(),
    };
    let mut free: Vec<usize> = (0..DEPTH).collect();
    let began = Instant::now();
    let mut done = Vec::with_capacity(DEPTH);
    let (mut now, end) = (began, began + job.time);
    while now < end && !job.stop.load(Ordering::Relaxed) {
        for slot in free.drain(..) {
            thread.start(slot, now)?;
        }
        now = thread.reap(&mut done, &mut free)?;
        if job.timelines {
            thread.reaped.push(((now - began).as_secs_f64(), thread.latencies_ns.len()));
        }
    }
    while free.len() < DEPTH {
        now = thread.reap(&mut done, &mut free)?;
    }
    let seconds = (now - began).as_secs_f64();
    Ok(QueuedOutcome {
        operations: thread.latencies_ns.len() as u64,
        seconds,
        timelines: thread.timelines(),
        latency: Latencies::of(thread.latencies_ns),
        more: LastWrites { by_block: thread.last, context_switches: None },
    })
}

impl<R: Ring> Thread<'_, R> {
    fn timelines(&self) -> Vec<Timeline> {
        if !self.job.timelines {
            return Vec::new();
        }
        let (mut timeline, mut from) = (Timeline::new("request"), 0);
        for &(end_s, to) in &self.reaped {
            self.latencies_ns[from..to].iter().for_each(|ns| timeline.add(end_s, (*ns).into()));
            from = to;
        }
        vec![timeline]
    }

    fn start(&mut self, slot: usize, now: Instant) -> Result<()> {
        let bytes = self.job.bytes as u64;
        let (block, offset) = loop {
            let block = self.random.below(self.in_flight.len() as u64);
            let offset = block * bytes;
            let block = block as usize;
            if !self.in_flight[block] && self.job.place.find(offset, bytes).is_some() {
                break (block, offset);
            }
        };
        let mut buf = self.bufs[slot].take().expect("it is not in flight");
        if self.job.op == Op::Write {
            self.writes += 1;
            self.last[block] = self.writes;
            stamp(&mut buf, offset, self.writes.into());
        }
        (self.started[slot], self.block[slot]) = (now, block);
        self.in_flight[block] = true;
        self.ring.push(self.job.op, offset, buf, slot as u64)
    }

    /// Takes what is done; returns the time.
    fn reap(&mut self, done: &mut Vec<R::Done>, free: &mut Vec<usize>) -> Result<Instant> {
        self.ring.reap(done)?;
        let now = Instant::now();
        for done in done.drain(..) {
            let (tag, buf) = R::served(done)?;
            let slot = tag as usize;
            let block = self.block[slot];
            self.in_flight[block] = false;
            let ns = (now - self.started[slot]).as_nanos();
            self.latencies_ns.push(u32::try_from(ns).unwrap_or(u32::MAX));
            let offset = block as u64 * self.job.bytes as u64;
            // One sector: to look at all would measure this.
            if self.job.op == Op::Read && read_stamp(&buf[..SECTOR], offset).is_none() {
                return Err(Error::new(format!("a read at {offset} brought something else")));
            }
            self.bufs[slot] = Some(buf);
            free.push(slot);
        }
        Ok(now)
    }
}
