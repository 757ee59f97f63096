//! What the threads of a run wait for, by looking at them again and again.
//!
//! What: every few milliseconds some of the threads are looked at, in turn: whether each runs, and
//! if not, what the engine says that it waits for, or in which function of the kernel it sleeps
//! (`/proc/PID/stack`, for root). A look stands for the time since the last one and for those
//! threads that were not looked at. It costs little however many threads there are.
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
use crate::explain::tasks::{Found, Part, Task, Wanted};

/// Time between looks.
const STEP: Duration = Duration::from_millis(10);
/// Threads of a part that are looked at each time, at most.
const LOOKS: usize = 32;
/// How often it is seen which threads there are, and how often each has slept.
const REFRESH: Duration = Duration::from_millis(200);
/// How often a daemon is asked what its threads wait for.
const ASK: Duration = Duration::from_millis(50);
/// A sleep for a lock or condition of a program, of which the kernel knows no more.
const FUTEX: &str = "lock or condition of a program";
/// A sleep of which nothing is told.
const ASLEEP: &str = "asleep";

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
    /// Sleeps and preemptions of all threads, in a second.
    pub(super) sleeps_per_s: f64,
    pub(super) preemptions_per_s: f64,
    pub(super) processes: BTreeSet<i32>,
    /// Processor time of looking.
    pub(super) cpu_s: f64,
}

/// How often a thread had slept at two moments.
#[derive(Clone, Copy, Debug)]
struct Slept {
    first: (Instant, [u64; 2]),
    last: (Instant, [u64; 2]),
}

struct Sampler<'a> {
    sources: Sources<'a>,
    /// What the engine says of its sleeping threads: by thread, what each waits for.
    blocked: HashMap<i32, &'static str>,
    asked: Instant,
    found: Found,
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

/// Looks until `stop` is set.
pub(super) fn run(sources: Sources<'_>, wanted: &Wanted, stop: &AtomicBool) -> Sampled {
    let began = Instant::now();
    let mut sampler = Sampler {
        sources,
        blocked: HashMap::new(),
        asked: began,
        found: wanted.find(),
        sampled: Sampled::default(),
        slept: HashMap::new(),
        next: BTreeMap::new(),
    };
    let (mut refreshed, mut looked) = (began, began);
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(STEP);
        if refreshed.elapsed() >= REFRESH {
            sampler.found = wanted.find();
            refreshed = Instant::now();
        }
        let now = Instant::now();
        sampler.look(now - looked);
        looked = now;
    }
    sampler.sampled.seconds = began.elapsed().as_secs_f64();
    sampler.add_sleeps();
    sampler.sampled.cpu_s = processor_seconds("/proc/thread-self/schedstat");
    sampler.sampled
}

impl Sampler<'_> {
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
        self.note_sleeps(task);
        let waits_for = self.blocked.get(&task.id).filter(|_| !is_running);
        let text = match (is_running, waits_for) {
            (false, None) => task.read("stack").unwrap_or_default(),
            _ => String::new(),
        };
        let stack = causes::parse_stack(&text);
        let Some(seen) = self.sampled.parts.get_mut(&task.part) else { return };
        let cause = match waits_for {
            Some(cause) => Some(Cause::Wait((*cause).to_owned())),
            // The functions are for root only.
            None if text.is_empty() && !is_running => match task.part {
                // It ends.
                Part::Kernel => Some(Cause::Idle),
                _ => Some(Cause::Wait(ASLEEP.to_owned())),
            },
            None => causes::of(&stack),
        };
        let tally = match cause {
            // A thread that has just been woken has no functions to show.
            None => {
                seen.running_ms += ms;
                seen.ms += ms;
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
        tally.looks += 1;
        tally.ms += ms;
        if !stack.is_empty() {
            let stack: Vec<String> = stack.iter().map(|name| (*name).to_owned()).collect();
            *tally.stacks.entry(stack).or_default() += 1;
        }
    }

    fn note_sleeps(&mut self, task: &Task) {
        let now = Instant::now();
        if self.slept.get(&task.id).is_some_and(|slept| now - slept.last.0 < REFRESH) {
            return;
        }
        let Some(switches) = task.switches() else { return };
        let now = (now, switches);
        self.slept.entry(task.id).or_insert(Slept { first: now, last: now }).last = now;
    }

    /// Threads end before they can be asked a last time: what is known are rates.
    fn add_sleeps(&mut self) {
        for slept in self.slept.values() {
            let seconds = (slept.last.0 - slept.first.0).as_secs_f64();
            if seconds > 0.0 {
                let rate = |n: usize| (slept.last.1[n] - slept.first.1[n]) as f64 / seconds;
                self.sampled.sleeps_per_s += rate(0);
                self.sampled.preemptions_per_s += rate(1);
            }
        }
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
