//! Threads of a load: they start together, and the first failure stops all of them.
//!
//! Locking: one lock, held for a few instructions. No thread waits for one that has failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};

/// Thousands of threads: each has what the engine's deepest call needs, and no more.
const STACK_BYTES: usize = 256 << 10;

/// When the threads of a load stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// After so many operations each, if that is set.
    pub(crate) operations: Option<u32>,
    /// After this time in any case.
    pub(crate) time: Duration,
    /// When somebody sets this.
    pub(crate) stop: &'a AtomicBool,
    /// Whether latencies are kept over time.
    pub(crate) timelines: bool,
}

/// A thread of a load, as its work sees it.
#[derive(Clone, Copy)]
pub(crate) struct Thread<'a> {
    pub(crate) number: u32,
    barrier: &'a StartBarrier,
    failed: &'a AtomicBool,
    stop: &'a AtomicBool,
}

impl Thread<'_> {
    /// Waits until all threads are ready; returns the time of the start, which is the same for all.
    pub(crate) fn start(&self) -> Instant {
        self.barrier.wait()
    }

    /// Whether another thread has failed, or somebody wants the run to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }
}

/// Threads that have ended: what each returned, and when the last one ended.
pub(crate) struct Ended<T, M> {
    pub(crate) parts: Vec<T>,
    /// What this thread did meanwhile.
    pub(crate) meanwhile: M,
    pub(crate) at: Instant,
}

/// Runs so many threads to their end; `meanwhile` runs on this thread from their start on.
///
/// # Errors
/// The first failure of a thread; the others are stopped then.
pub(crate) fn run<T: Send, M>(
    count: u32,
    stop: &AtomicBool,
    work: impl Fn(Thread<'_>) -> Result<T> + Sync,
    meanwhile: impl FnOnce(Instant) -> M,
) -> Result<Ended<T, M>> {
    let (barrier, failed) = (StartBarrier::default(), AtomicBool::new(false));
    let work = |number: u32| {
        let done = work(Thread { number, barrier: &barrier, failed: &failed, stop });
        if done.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        // Nobody must wait for a thread that has failed before the start.
        barrier.arrive_late();
        done
    };
    thread::scope(|scope| {
        let work = &work;
        let mut running = Vec::new();
        for number in 0..count {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            match builder.name(format!("load-{number}")).spawn_scoped(scope, move || work(number)) {
                Ok(handle) => running.push(handle),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    barrier.open(0);
                    return Err(error).doing(format_args!("starting thread {number}"));
                }
            }
        }
        let meanwhile = meanwhile(barrier.open(count));
        let parts: Vec<Result<T>> = running
            .into_iter()
            .map(|handle| {
                let ended = handle.join();
                ended.map_err(|_| Error::new("a thread of the load panicked")).flatten()
            })
            .collect();
        let at = Instant::now();
        Ok(Ended { parts: parts.into_iter().collect::<Result<_>>()?, meanwhile, at })
    })
}

/// Holds threads until all are ready.
#[derive(Default)]
struct StartBarrier {
    state: Mutex<BarrierState>,
    arrival: Condvar,
    opening: Condvar,
}

#[derive(Default)]
struct BarrierState {
    /// Threads that have come here, or never will.
    arrived: u32,
    opened: Option<Instant>,
}

impl StartBarrier {
    /// Waits for the start; returns its time.
    fn wait(&self) -> Instant {
        let mut state = self.lock();
        state.arrived += 1;
        self.arrival.notify_one();
        loop {
            if let Some(opened) = state.opened {
                return opened;
            }
            state = self.opening.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A thread ends: if it has not waited here, nobody shall wait for it.
    fn arrive_late(&self) {
        let mut state = self.lock();
        if state.opened.is_none() {
            state.arrived += 1;
            self.arrival.notify_one();
        }
    }

    /// Lets the threads go when `count` have arrived; returns that time.
    fn open(&self, count: u32) -> Instant {
        let mut state = self.lock();
        while state.arrived < count {
            state = self.arrival.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let now = Instant::now();
        state.opened = Some(now);
        self.opening.notify_all();
        now
    }

    fn lock(&self) -> MutexGuard<'_, BarrierState> {
        // What it guards is whole at every moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
