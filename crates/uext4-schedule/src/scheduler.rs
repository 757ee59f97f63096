//! The baton: one thread runs, the others sleep.

use crate::policy::{Policy, Stops, distance};
use crate::state::{Baton, Failure, Next, State, Status, Waited};
use parking_lot::{Condvar, Mutex};
use rand::Rng;
use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How a simulation runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Everything is drawn from it.
    pub seed: u64,
    /// The order of the threads.
    pub policy: Policy,
    /// Simulated time that passes from one point to the next.
    pub step: Duration,
    /// So much simulated time may pass without [`progress`].
    pub patience: Duration,
    /// What [`processors`] says.
    pub processors: usize,
}

/// What came of a simulation.
#[derive(Debug)]
pub struct Outcome<T> {
    /// What the first thread returned, once all threads had ended.
    pub result: Result<T, Failure>,
    /// A hash of every decision and everything witnessed: equal runs have equal ones.
    pub trace: u64,
    /// Points passed.
    pub steps: u64,
    /// Times that the next thread was chosen.
    pub switches: u64,
    /// Simulated time.
    pub time: Duration,
    /// Preemptions: choices that no wait made necessary.
    pub preemptions: u64,
    /// Where threads waited, and how often.
    pub waits: BTreeMap<Waited, u64>,
    /// Places that said so by [`reached`], and how often.
    pub reached: BTreeMap<Waited, u64>,
}

/// What nobody wakes: no address is 1.
pub(crate) const NOBODY: usize = 1;
/// Stops after which they come half as often as at first.
const RARER: u32 = 300;
/// The same of preemptions at any point. A run with millions of them, each a few microseconds,
/// would take the time of a hundred others.
const RARER_PREEMPTIONS: u64 = 3_000;
/// Longest wait for iterations of others, which may wait for the one that is stopped.
const LINGER_MAX: Duration = Duration::from_millis(400);

pub(crate) struct Scheduler {
    state: Mutex<State>,
    /// Points until the next preemption; only the holder of the baton changes it.
    left: AtomicU32,
    /// What `left` was at first.
    drawn: AtomicU32,
    step: u64,
    stops: Option<Stops>,
    /// Passages of the places where threads are stopped until the next stop; as `left`.
    until_stop: AtomicU32,
    processors: usize,
    failure: Mutex<Option<Failure>>,
    ended: Condvar,
    is_over: Mutex<bool>,
}

/// The simulation that the calling thread is part of.
struct Me {
    scheduler: Arc<Scheduler>,
    index: usize,
}

thread_local! {
    static ME: OnceCell<Me> = const { OnceCell::new() };
    static ABOUT: Cell<&'static str> = const { Cell::new("") };
}

fn with_me<T>(work: impl FnOnce(&Scheduler, usize) -> T) -> Option<T> {
    ME.try_with(|me| me.get().map(|me| work(&me.scheduler, me.index))).ok().flatten()
}

/// A place at which another thread may be given the baton.
#[inline]
#[track_caller]
pub fn point() {
    point_of(Location::caller());
}

/// A point that belongs to another place of the source: where the lock was taken that is let go.
#[inline]
pub(crate) fn point_of(place: &'static Location<'static>) {
    with_me(|scheduler, index| {
        if scheduler.stops.is_some_and(|stops| stops.are_at(index, place)) {
            match scheduler.until_stop.load(Ordering::Relaxed) {
                0 => return scheduler.stop(index, place),
                left => scheduler.until_stop.store(left - 1, Ordering::Relaxed),
            }
        }
        match scheduler.left.load(Ordering::Relaxed) {
            0 => scheduler.preempt(index),
            left => scheduler.left.store(left - 1, Ordering::Relaxed),
        }
    });
}

/// How many processors the simulation pretends to have; 1 outside of one.
#[must_use]
pub fn processors() -> usize {
    with_me(|scheduler, _| scheduler.processors).unwrap_or(1)
}

/// Says what the calling thread may wait for next: the name of a lock.
#[inline]
pub fn about(what: &'static str) {
    let _ = ABOUT.try_with(|about| about.set(what));
}

/// Whether the calling thread is part of a simulation.
#[must_use]
pub fn is_simulated() -> bool {
    with_me(|_, _| ()).is_some()
}

/// Something that the run was to do has been done; also an iteration.
pub fn progress() {
    with_me(|scheduler, _| {
        let mut state = scheduler.state.lock();
        state.progress_at = scheduler.now(&state);
        state.iteration();
    });
}

/// The calling thread has ended an iteration of what it does again and again: threads that are
/// stopped may wait for some iterations of others.
pub fn iteration() {
    with_me(|scheduler, _| scheduler.state.lock().iteration());
}

/// Waits until others have ended so many iterations, `limit` at most.
#[track_caller]
pub(crate) fn linger(iterations: u32, limit: Duration) {
    let place = Location::caller();
    with_me(|scheduler, index| {
        let mut state = scheduler.state.lock();
        scheduler.account(&mut state);
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        state.linger(index, iterations, nanos, place);
        scheduler.hand_on(state, index);
    });
}

/// Adds a value to the trace.
pub fn witness(value: u64) {
    with_me(|scheduler, _| scheduler.state.lock().mix(value));
}

/// Counts that the caller's place in the source was reached.
#[track_caller]
pub fn reached() {
    let at = Waited::at("", Location::caller());
    with_me(|scheduler, _| *scheduler.state.lock().reached.entry(at).or_default() += 1);
}

/// The calling thread is at a stage of its work that has a name; "" is none.
pub fn stage(name: &'static str) {
    with_me(|scheduler, index| scheduler.state.lock().threads[index].stage = name);
}

/// The stages at which threads are, in the order of their numbers.
#[must_use]
pub fn stages() -> String {
    with_me(|scheduler, _| {
        let state = scheduler.state.lock();
        let named =
            state.threads.iter().filter(|t| !t.stage.is_empty() && t.status != Status::Done);
        named.map(|thread| thread.stage).collect::<Vec<_>>().join(" + ")
    })
    .unwrap_or_default()
}

/// A random number of the simulation.
///
/// # Panics
/// Outside a simulation.
#[must_use]
pub fn random() -> u64 {
    with_me(|scheduler, _| scheduler.state.lock().inputs.random()).expect("a simulated thread")
}

/// True `percent` times of a hundred.
#[must_use]
pub fn chance(percent: u32) -> bool {
    random() % 100 < u64::from(percent)
}

/// The calling thread's number in its simulation: 0 is the first.
pub(crate) fn index() -> Option<usize> {
    with_me(|_, index| index)
}

pub(crate) fn now() -> u64 {
    with_me(|scheduler, _| scheduler.now(&scheduler.state.lock())).unwrap_or(0)
}

/// Waits until `on` is woken, or for `limit`. True: time ran out.
///
/// # Panics
/// Outside a simulation.
pub(crate) fn wait(on: usize, limit: Option<Duration>, at: &'static Location<'static>) -> bool {
    let what = ABOUT.with(Cell::get);
    wait_for(what, on, limit, at).expect("waits need a simulation")
}

/// `None`: outside a simulation.
pub(crate) fn wait_for(
    what: &'static str,
    on: usize,
    limit: Option<Duration>,
    at: &'static Location<'static>,
) -> Option<bool> {
    with_me(|scheduler, index| {
        let mut state = scheduler.state.lock();
        scheduler.account(&mut state);
        let until = limit.map(|limit| {
            let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
            state.now.saturating_add(nanos)
        });
        state.wait(index, on, until, Waited::at(what, at));
        scheduler.hand_on(state, index);
        scheduler.state.lock().timed_out(index)
    })
}

pub(crate) fn wake_all(on: usize) {
    with_me(|scheduler, _| scheduler.state.lock().wake_all(on));
}

pub(crate) fn wake_one(on: usize) {
    with_me(|scheduler, _| scheduler.state.lock().wake_one(on));
}

/// Lets others run first.
pub(crate) fn yield_now() {
    with_me(|scheduler, index| {
        let mut state = scheduler.state.lock();
        scheduler.account(&mut state);
        state.lower(index);
        scheduler.hand_on(state, index);
    });
}

/// Starts a thread of the simulation of the calling thread; its number and what wakes the thread
/// that joins it.
pub(crate) fn spawn(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<(usize, std::thread::JoinHandle<()>)> {
    let scheduler = ME
        .with(|me| me.get().map(|me| Arc::clone(&me.scheduler)))
        .expect("threads are started inside a simulation");
    scheduler.start(name, body)
}

/// Waits for the end of a thread.
pub(crate) fn join(index: usize, at: &'static Location<'static>) {
    let is_done =
        |scheduler: &Scheduler| scheduler.state.lock().threads[index].status == Status::Done;
    while !with_me(|scheduler, _| is_done(scheduler)).expect("a simulated thread") {
        wait_for("a thread's end", usize::MAX - index, None, at);
    }
}

/// Runs `root` as the first thread of a simulation, to the end of all its threads.
pub fn run<T: Send + 'static>(
    settings: Settings,
    root: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let state = State::new(settings.seed, settings.policy, nanos(settings.patience));
    let scheduler = Arc::new(Scheduler {
        state: Mutex::new(state),
        left: AtomicU32::new(0),
        drawn: AtomicU32::new(0),
        step: nanos(settings.step),
        stops: settings.policy.stops,
        until_stop: AtomicU32::new(0),
        processors: settings.processors.max(1),
        failure: Mutex::new(None),
        ended: Condvar::new(),
        is_over: Mutex::new(false),
    });
    let result = Arc::new(Mutex::new(None));
    let put = Arc::clone(&result);
    let started = scheduler.start("root".to_owned(), move || *put.lock() = Some(root()));
    let (_, thread) = started.expect("a thread");
    scheduler.begin();
    let mut is_over = scheduler.is_over.lock();
    while !*is_over {
        scheduler.ended.wait(&mut is_over);
    }
    drop(is_over);
    let failure = scheduler.failure.lock().take();
    if failure.is_none() {
        // It has done its work.
        let _ = thread.join();
    }
    let mut state = scheduler.state.lock();
    Outcome {
        result: failure.map_or_else(|| Ok(result.lock().take().expect("its end")), Err),
        trace: state.trace,
        steps: state.steps,
        switches: state.switches,
        time: Duration::from_nanos(state.now),
        preemptions: state.preemptions,
        waits: std::mem::take(&mut state.waits),
        reached: std::mem::take(&mut state.reached),
    }
}

impl Scheduler {
    /// Points since the last account move the clock.
    fn account(&self, state: &mut State) {
        let left = self.left.load(Ordering::Relaxed);
        let passed = u64::from(self.drawn.load(Ordering::Relaxed) - left) + 1;
        self.drawn.store(left, Ordering::Relaxed);
        state.steps += passed;
        state.now += passed * self.step;
    }

    fn now(&self, state: &State) -> u64 {
        let left = self.left.load(Ordering::Relaxed);
        state.now + u64::from(self.drawn.load(Ordering::Relaxed) - left) * self.step
    }

    #[cold]
    fn preempt(&self, index: usize) {
        let mut state = self.state.lock();
        self.account(&mut state);
        let rarer = u32::try_from(state.preemptions / RARER_PREEMPTIONS).unwrap_or(u32::MAX);
        let mean = state.policy.mean.saturating_mul(rarer.saturating_add(1));
        let distance = distance(&mut state.rng, mean);
        self.left.store(distance, Ordering::Relaxed);
        self.drawn.store(distance, Ordering::Relaxed);
        if state.preemptions >= state.policy.preemptions_max {
            return;
        }
        state.preemptions += 1;
        state.lower(index);
        self.hand_on(state, index);
    }

    /// The calling thread is at a place where threads are stopped: it comes last for a while, or
    /// sleeps for some time or for some iterations of others. Stops become rarer, so that a place
    /// in a loop does not take up the run.
    #[cold]
    fn stop(&self, index: usize, place: &'static Location<'static>) {
        let Some(stops) = self.stops else { return };
        let mut state = self.state.lock();
        self.account(&mut state);
        let mean = stops.mean.saturating_mul(1 + state.stops / RARER);
        self.until_stop.store(distance(&mut state.rng, mean), Ordering::Relaxed);
        if state.preemptions >= state.policy.preemptions_max {
            return;
        }
        state.stops += 1;
        state.preemptions += 1;
        match state.rng.random_range(0..4) {
            0 => state.lower(index),
            1 | 2 if stops.iterations > 0 => {
                let iterations = state.rng.random_range(1..=stops.iterations);
                state.linger(index, iterations, LINGER_MAX.as_nanos() as u64, place);
            }
            _ => {
                let nap = state.rng.random_range(0..=stops.nap.as_nanos() as u64);
                let until = state.now.saturating_add(nap);
                state.wait(index, NOBODY, Some(until), Waited::at("some time", place));
            }
        }
        self.hand_on(state, index);
    }

    /// Chooses the next thread; returns when the calling one has the baton again.
    fn hand_on(&self, mut state: parking_lot::MutexGuard<'_, State>, index: usize) {
        match state.next() {
            Next::Thread(next) if next == index => {}
            Next::Thread(next) => {
                let mine = Arc::clone(&state.threads[index].baton);
                Self::give(state, next);
                mine.await_it();
            }
            Next::End => unreachable!("the calling thread has not ended"),
            Next::Failed(failure) => self.fail(state, failure),
        }
    }

    /// Without the lock, which the thread that wakes takes next.
    fn give(state: parking_lot::MutexGuard<'_, State>, next: usize) {
        let thread = &state.threads[next];
        let baton = Arc::clone(&thread.baton);
        let system = thread.system.clone().expect("a thread that was started");
        drop(state);
        baton.give(&system);
    }

    fn start(
        self: &Arc<Self>,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<(usize, std::thread::JoinHandle<()>)> {
        let (index, baton) = self.state.lock().add(name.clone());
        let scheduler = Arc::clone(self);
        let started = std::thread::Builder::new().name(name).spawn(move || {
            scheduler.be(index, &baton, body);
        });
        let entry = &mut self.state.lock().threads[index];
        match &started {
            Ok(thread) => entry.system = Some(thread.thread().clone()),
            Err(_) => entry.status = Status::Done,
        }
        Ok((index, started?))
    }

    /// The life of a thread.
    fn be(self: &Arc<Self>, index: usize, baton: &Baton, body: impl FnOnce()) {
        let me = Me { scheduler: Arc::clone(self), index };
        ME.with(|cell| assert!(cell.set(me).is_ok(), "a thread of one simulation"));
        baton.await_it();
        let ended = catch_unwind(AssertUnwindSafe(body));
        let mut state = self.state.lock();
        self.account(&mut state);
        if let Err(panic) = ended {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = format!("{}: {}", state.threads[index].name, text.unwrap_or_default());
            self.fail(state, Failure::Panicked(text));
        }
        state.threads[index].status = Status::Done;
        state.wake_all(usize::MAX - index);
        match state.next() {
            Next::Thread(next) => Self::give(state, next),
            Next::End => self.end(),
            Next::Failed(failure) => self.fail(state, failure),
        }
    }

    /// The first thread gets the baton.
    fn begin(&self) {
        Self::give(self.state.lock(), 0);
    }

    fn end(&self) {
        *self.is_over.lock() = true;
        self.ended.notify_all();
    }

    /// Ends the simulation; the calling thread sleeps for ever.
    fn fail(&self, state: parking_lot::MutexGuard<'_, State>, failure: Failure) -> ! {
        drop(state);
        *self.failure.lock() = Some(failure);
        self.end();
        loop {
            std::thread::park();
        }
    }
}
