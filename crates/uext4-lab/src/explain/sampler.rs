//! What the threads of a run wait for, by looking at them again and again.
//!
//! What: every few milliseconds some of the threads are looked at, in turn: whether each runs, and
//! if not, what the engine says that it waits for, or in which function of the kernel it sleeps
//! (`/proc/PID/stack`, for root). A look stands for the time since the last one and for those
//! threads that were not looked at. It costs little however many threads there are.
//! How often threads sleep is counted by the kernel, and read at each look: a thread that ends is
//! read a last time some moments before.
//! Invariants: the threads that are looked at are not stopped, and wait for nothing here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use uext4::stats::Blocked;

use crate::explain::causes::{self, Cause};
use crate::explain::counts::{self, Sources};
use crate::explain::tasks::{Found, Part, Stack, Task, Wanted};

/// Time between looks.
const STEP: Duration = Duration::from_millis(10);
/// Threads of a part that are looked at each time, at most.
const LOOKS: usize = 32;
/// How often it is seen at least which threads there are, and how often each has slept.
const REFRESH: Duration = Duration::from_millis(200);
/// It is seen more often where that takes less than this part of the time.
const REFRESH_PART: u32 = 20;
/// How often a daemon is asked what its threads wait for.
const ASK: Duration = Duration::from_millis(50);
/// A sleep for a lock or condition of a program, of which the kernel knows no more.
const FUTEX: &str = "lock or condition of a program";
/// A sleep of which nothing is told: functions of the kernel are for root only.
const ASLEEP: &str = "asleep (only root is shown what for)";

/// Looks at a cause.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) looks: u64,
    pub(super) ms: f64,
    /// Functions of the kernel, the innermost first; of the engine's waits, none.
    pub(super) stacks: HashMap<Vec<String>, u64>,
}

/// What was seen of one part of the threads.
#[derive(Clone, Debug, Default)]
pub(super) struct PartSeen {
    pub(super) threads: usize,
    /// Of which its shares are made.
    pub(super) looks: u64,
    /// Time of all threads together.
    pub(super) ms: f64,
    pub(super) running_ms: f64,
    pub(super) waits: BTreeMap<String, Tally>,
    pub(super) locks: BTreeMap<String, Tally>,
}

/// What was seen of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampled {
    pub(super) seconds: f64,
    pub(super) parts: BTreeMap<Part, PartSeen>,
    /// Sleeps and preemptions of all threads.
    pub(super) sleeps: f64,
    pub(super) preemptions: f64,
    pub(super) processes: BTreeSet<i32>,
    /// Processor time of looking.
    pub(super) cpu_s: f64,
}

/// Sleeps and preemptions of a thread since it began.
type Switches = [u64; 2];

/// How often a thread has slept in the run.
#[derive(Clone, Copy, Debug)]
struct Slept {
    /// What counts from here on: nothing of what it did before the run.
    first: (Instant, Switches),
    last: (Instant, Switches),
    /// When it was last seen.
    lived: Instant,
}

impl Slept {
    /// Sleeps and preemptions: those that were counted, and at the same rate those from the last
    /// count to when it was last seen. After that it had ended.
    fn total(&self) -> [f64; 2] {
        let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
        let counted = seconds(self.first.0, self.last.0);
        let more = seconds(self.last.0, self.lived.max(self.last.0));
        let part = if counted > 0.0 { more / counted } else { 0.0 };
        [0, 1].map(|n| self.last.1[n].saturating_sub(self.first.1[n]) as f64 * (1.0 + part))
    }
}

/// Looks at the threads of a run.
pub(super) struct Sampler<'a> {
    sources: Sources<'a>,
    /// What the engine says of its sleeping threads: by thread, what each waits for.
    blocked: HashMap<i32, &'static str>,
    asked: Instant,
    wanted: &'a Wanted,
    found: Found,
    began: Instant,
    sampled: Sampled,
    slept: HashMap<i32, Slept>,
    /// Where the next look at a part begins.
    next: BTreeMap<Part, usize>,
}

/// Processor time of a thread, by its `schedstat`.
pub(super) fn processor_seconds(schedstat: &str) -> f64 {
    let text = fs::read_to_string(schedstat).unwrap_or_default();
    let ns = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    ns.unwrap_or(0.0) / 1e9
}

impl<'a> Sampler<'a> {
    /// Ready to look. Threads that exist now were there before the run.
    pub(super) fn new(sources: Sources<'a>, wanted: &'a Wanted) -> Self {
        let began = Instant::now();
        let mut sampler = Self {
            sources,
            blocked: HashMap::new(),
            asked: began,
            wanted,
            found: Found::default(),
            began,
            sampled: Sampled::default(),
            slept: HashMap::new(),
            next: BTreeMap::new(),
        };
        sampler.find(|_| true);
        sampler
    }

    /// Looks until `stop` is set.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Sampled {
        self.look_until(stop);
        self.sampled.seconds = self.began.elapsed().as_secs_f64();
        for slept in self.slept.values() {
            let [sleeps, preemptions] = slept.total();
            self.sampled.sleeps += sleeps;
            self.sampled.preemptions += preemptions;
        }
        self.sampled.cpu_s = processor_seconds("/proc/thread-self/schedstat");
        self.sampled
    }

    fn look_until(&mut self, stop: &AtomicBool) {
        let mut looked = Instant::now();
        let (mut refreshed, mut wait) = (looked, STEP);
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(STEP);
            if refreshed.elapsed() >= wait {
                let begins = Instant::now();
                // A thread of the kernel that is found later was there all the time.
                self.find(|task| task.part == Part::Kernel);
                refreshed = Instant::now();
                wait = (begins.elapsed() * REFRESH_PART).clamp(STEP, REFRESH);
            }
            let now = Instant::now();
            self.look(now - looked);
            looked = now;
        }
        self.find(|task| task.part == Part::Kernel);
        // Those that live are counted to the end.
        for task in &self.found.tasks {
            count(&mut self.slept, task);
        }
    }

    /// Finds the threads that exist. What a new one has slept counts, but for those that were
    /// `there_before`.
    fn find(&mut self, there_before: impl Fn(&Task) -> bool) {
        self.found = self.wanted.find();
        let now = Instant::now();
        for task in &self.found.tasks {
            if let Some(slept) = self.slept.get_mut(&task.id) {
                slept.lived = now;
                continue;
            }
            let Some(switches) = task.switches() else { continue };
            let before = if there_before(task) { switches } else { Switches::default() };
            let slept = Slept { first: (now, before), last: (now, switches), lived: now };
            self.slept.insert(task.id, slept);
        }
    }

    /// Asks the engine which threads sleep in it.
    fn ask(&mut self) {
        if let Some(volume) = self.sources.volume {
            let blocked = volume.space().journal().waits().blocked().into_iter();
            let named = |blocked: Blocked| (blocked.thread, cause_of(blocked.wait_for.name()));
            self.blocked = blocked.map(named).collect();
        } else if self.asked.elapsed() >= ASK {
            self.asked = Instant::now();
            let stats = self.sources.mount.and_then(counts::stats_of_mount).unwrap_or_default();
            let blocked = stats["blocked"].as_array().map_or(&[][..], Vec::as_slice);
            let named = |blocked: &Value| {
                let id = i32::try_from(blocked["tid"].as_i64()?).ok()?;
                Some((id, cause_of(blocked["wait_for"].as_str()?)))
            };
            self.blocked = blocked.iter().filter_map(named).collect();
        }
    }

    fn look(&mut self, time: Duration) {
        self.sampled.processes.extend(&self.found.processes);
        self.ask();
        for part in [Part::Load, Part::Server, Part::Kernel] {
            let tasks: Vec<Task> =
                self.found.tasks.iter().filter(|task| task.part == part).cloned().collect();
            let count = tasks.len();
            let seen = self.sampled.parts.entry(part).or_default();
            seen.threads = seen.threads.max(count);
            if count == 0 {
                continue;
            }
            let looks = count.min(LOOKS);
            let next = self.next.entry(part).or_default();
            let first = *next;
            *next = (first + looks) % count;
            let ms = time.as_secs_f64() * 1000.0 * count as f64 / looks as f64;
            for at in 0..looks {
                self.look_at(&tasks[(first + at) % count], ms);
            }
        }
    }

    fn look_at(&mut self, task: &Task, ms: f64) {
        // Its end is no wait.
        let Some(is_running) = task.is_running() else { return };
        if self.slept.get(&task.id).is_none_or(|slept| slept.last.0.elapsed() >= REFRESH) {
            count(&mut self.slept, task);
        }
        let waits_for = self.blocked.get(&task.id).filter(|_| !is_running);
        let shown = match (is_running, waits_for) {
            (false, None) => task.stack(),
            _ => Stack::OnProcessor,
        };
        let text = if let Stack::Functions(text) = &shown { text } else { "" };
        let stack = causes::parse_stack(text);
        let Some(seen) = self.sampled.parts.get_mut(&task.part) else { return };
        let cause = match (waits_for, &shown) {
            (Some(cause), _) => Some(Cause::Wait((*cause).to_owned())),
            (None, Stack::Ended) => return,
            // What a thread of the kernel waits for is not told at all: mostly for work.
            (None, Stack::Forbidden) if task.part == Part::Kernel => return,
            (None, Stack::Forbidden) => Some(Cause::Wait(ASLEEP.to_owned())),
            (None, Stack::OnProcessor) => None,
            (None, Stack::Functions(_)) => causes::of(&stack),
        };
        let tally = match cause {
            // It runs, or has just been woken and has no functions to show.
            None => {
                seen.running_ms += ms;
                seen.ms += ms;
                seen.looks += 1;
                return;
            }
            Some(Cause::Idle) => return,
            Some(Cause::Futex) => seen.waits.entry(FUTEX.to_owned()).or_default(),
            Some(Cause::Wait(name)) => seen.waits.entry(name).or_default(),
            Some(Cause::Lock(name)) => {
                let lock = seen.locks.entry(name.clone()).or_default();
                lock.looks += 1;
                lock.ms += ms;
                seen.waits.entry(format!("lock: {name}")).or_default()
            }
        };
        seen.ms += ms;
        seen.looks += 1;
        tally.looks += 1;
        tally.ms += ms;
        if !stack.is_empty() {
            let stack: Vec<String> = stack.iter().map(|name| (*name).to_owned()).collect();
            *tally.stacks.entry(stack).or_default() += 1;
        }
    }
}

/// Reads how often a thread that was found has slept.
fn count(all: &mut HashMap<i32, Slept>, task: &Task) {
    if let (Some(slept), Some(switches)) = (all.get_mut(&task.id), task.switches()) {
        slept.last = (Instant::now(), switches);
    }
}

/// A wait in the engine, of the name that `uext4 stats` gives it, in the words that the kernel's
/// waits have.
fn cause_of(wait_for: &str) -> &'static str {
    match wait_for {
        "transaction_locked" => "journal: transaction locked",
        "transaction_full" => "journal: credits",
        "log_space" => "journal: log space",
        "reserved_credits" => "journal: reserved credits",
        "commit" => "journal: commit",
        "writeback" => "sync by another thread",
        "flush" => "device: flush",
        "dirty_limit" => "dirty limit",
        "direct_io" => "direct I/O",
        _ => "another wait in the engine",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Fault model: what a thread slept is taken for a rate that held all the run.
    #[test]
    fn sleeps_are_those_of_the_time_that_a_thread_lived() {
        let at = |ms: u64| Duration::from_millis(ms);
        let began = Instant::now();
        let slept = |last: u64, switches: Switches, lived: u64| Slept {
            first: (began, [100, 7]),
            last: (began + at(last), switches),
            lived: began + at(lived),
        };
        assert_eq!(slept(1000, [300, 9], 1000).total(), [200.0, 2.0]);
        // It lived half as long again after the last count.
        assert_eq!(slept(1000, [300, 9], 1500).total(), [300.0, 3.0]);
        assert_eq!(slept(0, [100, 7], 0).total(), [0.0, 0.0]);
        // Found in its last moment.
        assert_eq!(slept(0, [102, 7], 200).total(), [2.0, 0.0]);
    }

    /// Fault model: sleeps of a thread that begins late are left out, or multiplied.
    #[test]
    fn a_thread_that_sleeps_so_often_is_told_to_have_slept_so_often() {
        const SLEEPS: u64 = 300;
        let caller = rustix::thread::gettid().as_raw_nonzero().get();
        let wanted = Wanted { caller, ..Wanted::default() };
        let mut sampler = Sampler::new(Sources::default(), &wanted);
        let (go_on, wait) = mpsc::channel::<()>();
        let (told, ready) = mpsc::channel();
        let stop = AtomicBool::new(false);
        let id = thread::scope(|scope| {
            let looks = scope.spawn(|| sampler.look_until(&stop));
            thread::sleep(2 * REFRESH);
            let load = thread::Builder::new().name("load-1".into());
            let load = load.spawn_scoped(scope, move || {
                (0..SLEEPS).for_each(|_| thread::sleep(Duration::from_micros(100)));
                told.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                let _ = wait.recv();
            });
            let id: i32 = ready.recv().unwrap();
            stop.store(true, Ordering::Relaxed);
            looks.join().unwrap();
            drop(go_on);
            load.unwrap().join().unwrap();
            id
        });
        let [sleeps, _] = sampler.slept[&id].total();
        // A sleep that is over before the thread is off its processor is none; and beside its
        // sleeps the thread may wait for a lock or a page, and does for the end.
        let range = SLEEPS as f64 * 0.5..SLEEPS as f64 * 1.9;
        assert!(range.contains(&sleeps), "{sleeps}");
    }
}
