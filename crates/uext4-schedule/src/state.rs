//! What the scheduler knows: its threads, the clock, and what they wait for.

use crate::policy::{Order, Policy};
use crate::scheduler::NOBODY;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a simulation could not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Every thread waits for another: what each waits for.
    Deadlock(String),
    /// Simulated time passed and nobody told of progress: what each thread waits for.
    Stalled(String),
    /// A thread panicked.
    Panicked(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock(who) => write!(f, "deadlock:{who}"),
            Self::Stalled(who) => write!(f, "no progress:{who}"),
            Self::Panicked(what) => write!(f, "panic: {what}"),
        }
    }
}

/// A place in the source, as that where a thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waited {
    /// What was said to [`about`](crate::about) last: the name of the lock.
    pub what: &'static str,
    /// Source file of the wait.
    pub file: &'static str,
    /// Line in it.
    pub line: u32,
}

impl Waited {
    pub(crate) fn at(what: &'static str, place: &'static Location<'static>) -> Waited {
        Waited { what, file: place.file(), line: place.line() }
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}:{}", self.what, self.file, self.line)
    }
}

/// Wakes one thread.
#[derive(Debug, Default)]
pub(crate) struct Baton {
    is_here: AtomicBool,
}

impl Baton {
    pub(crate) fn give(&self, thread: &std::thread::Thread) {
        self.is_here.store(true, Ordering::Release);
        thread.unpark();
    }

    pub(crate) fn await_it(&self) {
        while !self.is_here.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ready,
    /// `on` is the address of what is waited for; it is compared only.
    Waits {
        on: usize,
        until: Option<u64>,
    },
    Done,
}

pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) status: Status,
    pub(crate) baton: Arc<Baton>,
    /// Known once it has been started.
    pub(crate) system: Option<std::thread::Thread>,
    /// What it said to [`stage`](crate::stage) last.
    pub(crate) stage: &'static str,
    priority: u64,
    at: Option<Waited>,
    timed_out: bool,
    /// It waits for this iteration.
    goal: Option<u64>,
}

/// What comes next.
pub(crate) enum Next {
    Thread(usize),
    /// Every thread has ended.
    End,
    Failed(Failure),
}

pub(crate) struct State {
    pub(crate) threads: Vec<Thread>,
    pub(crate) rng: StdRng,
    /// For the program: what it draws changes no schedule.
    pub(crate) inputs: StdRng,
    pub(crate) policy: Policy,
    /// Nanoseconds since the run began.
    pub(crate) now: u64,
    pub(crate) steps: u64,
    pub(crate) switches: u64,
    pub(crate) preemptions: u64,
    pub(crate) stops: u32,
    /// Turns of all threads.
    iterations: u64,
    pub(crate) trace: u64,
    /// When somebody told of progress last.
    pub(crate) progress_at: u64,
    pub(crate) patience: u64,
    pub(crate) waits: BTreeMap<Waited, u64>,
    pub(crate) reached: BTreeMap<Waited, u64>,
    lowest: u64,
}

impl State {
    pub(crate) fn new(seed: u64, policy: Policy, patience: u64) -> State {
        State {
            threads: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            inputs: StdRng::seed_from_u64(seed ^ 0x1_7075_7473),
            policy,
            now: 0,
            steps: 0,
            switches: 0,
            preemptions: 0,
            stops: 0,
            iterations: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            progress_at: 0,
            patience,
            waits: BTreeMap::new(),
            reached: BTreeMap::new(),
            lowest: u64::from(u32::MAX),
        }
    }

    pub(crate) fn add(&mut self, name: String) -> (usize, Arc<Baton>) {
        let baton = Arc::new(Baton::default());
        let priority = (1 << 40) + self.rng.random_range(0..1_u64 << 30);
        self.threads.push(Thread {
            name,
            status: Status::Ready,
            baton: Arc::clone(&baton),
            system: None,
            stage: "",
            priority,
            at: None,
            timed_out: false,
            goal: None,
        });
        (self.threads.len() - 1, baton)
    }

    pub(crate) fn mix(&mut self, value: u64) {
        self.trace = (self.trace ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    /// The thread waits from now on.
    pub(crate) fn wait(&mut self, index: usize, on: usize, until: Option<u64>, at: Waited) {
        *self.waits.entry(at).or_default() += 1;
        let thread = &mut self.threads[index];
        thread.status = Status::Waits { on, until };
        thread.at = Some(at);
        thread.timed_out = false;
        thread.goal = None;
    }

    /// The thread waits until others have ended so many iterations, or for so many nanoseconds.
    pub(crate) fn linger(
        &mut self,
        index: usize,
        iterations: u32,
        nanos: u64,
        place: &'static Location<'static>,
    ) {
        let until = self.now.saturating_add(nanos);
        self.wait(index, NOBODY, Some(until), Waited::at("some time", place));
        self.threads[index].goal = Some(self.iterations + u64::from(iterations));
    }

    /// A thread has ended an iteration.
    pub(crate) fn iteration(&mut self) {
        self.iterations += 1;
        let iterations = self.iterations;
        for thread in &mut self.threads {
            if thread.goal.is_some_and(|goal| goal <= iterations) {
                thread.goal = None;
                thread.status = Status::Ready;
            }
        }
    }

    /// Whether the wait that has ended ran out of time.
    pub(crate) fn timed_out(&self, index: usize) -> bool {
        self.threads[index].timed_out
    }

    pub(crate) fn wake_all(&mut self, on: usize) {
        for thread in &mut self.threads {
            if matches!(thread.status, Status::Waits { on: its, .. } if its == on) {
                thread.status = Status::Ready;
            }
        }
    }

    pub(crate) fn wake_one(&mut self, on: usize) {
        let waits =
            |thread: &Thread| matches!(thread.status, Status::Waits { on: its, .. } if its == on);
        let waiters: Vec<usize> =
            (0..self.threads.len()).filter(|&i| waits(&self.threads[i])).collect();
        if !waiters.is_empty() {
            let chosen = waiters[self.rng.random_range(0..waiters.len())];
            self.threads[chosen].status = Status::Ready;
        }
    }

    /// The thread comes after all others.
    pub(crate) fn lower(&mut self, index: usize) {
        self.lowest -= 1;
        self.threads[index].priority = self.lowest;
    }

    /// Chooses the thread that runs now. One whose time has come can run; if nobody can, the clock
    /// jumps to the next such time.
    pub(crate) fn next(&mut self) -> Next {
        if self.now.saturating_sub(self.progress_at) > self.patience {
            return Next::Failed(Failure::Stalled(self.describe()));
        }
        loop {
            self.fire();
            let ready =
                || self.threads.iter().enumerate().filter(|(_, t)| t.status == Status::Ready);
            let count = ready().count();
            if count > 0 {
                let chosen = match self.policy.order {
                    Order::Random => {
                        let which = if count == 1 { 0 } else { self.rng.random_range(0..count) };
                        ready().nth(which).map(|(index, _)| index)
                    }
                    Order::Priority => {
                        ready().max_by_key(|(_, t)| t.priority).map(|(index, _)| index)
                    }
                };
                let chosen = chosen.unwrap_or_default();
                self.switches += 1;
                self.mix(self.steps << 8 ^ chosen as u64);
                return Next::Thread(chosen);
            }
            let times = self.threads.iter().filter_map(|thread| match thread.status {
                Status::Waits { until, .. } => until,
                _ => None,
            });
            match times.min() {
                Some(time) => self.now = self.now.max(time),
                None if self.threads.iter().all(|t| t.status == Status::Done) => return Next::End,
                None => return Next::Failed(Failure::Deadlock(self.describe())),
            }
        }
    }

    fn fire(&mut self) {
        for thread in &mut self.threads {
            if matches!(thread.status, Status::Waits { until: Some(time), .. } if time <= self.now)
            {
                thread.status = Status::Ready;
                thread.timed_out = true;
                thread.goal = None;
            }
        }
    }

    /// What each thread waits for.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for thread in self.threads.iter().filter(|thread| thread.status != Status::Done) {
            let what = match (&thread.status, thread.at) {
                (Status::Waits { until, .. }, Some(at)) => match until {
                    Some(_) => format!("waits for {at}, with a limit"),
                    None => format!("waits for {at}"),
                },
                _ => "can run".to_owned(),
            };
            text += &format!("\n    {}: {what}", thread.name);
        }
        text
    }
}
