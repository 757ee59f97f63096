//! What a run left besides its figures: latencies, waits.

use serde::Deserialize;
use serde_json::Value;

/// Lines of a file of latencies; histograms of it, and buckets of one.
pub(super) const LINES_MAX: usize = 20_000;
const HISTOGRAMS_MAX: usize = 64;
const BUCKETS_MAX: usize = 500;
/// Causes, locks and phases of a run, and stacks of a cause.
const WAITS_MAX: usize = 200;
const STACKS_MAX: usize = 100;

/// A histogram of latencies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Histogram {
    pub(crate) phase: String,
    /// Upper bound in microseconds, and how many.
    pub(crate) buckets: Vec<(f64, f64)>,
}

/// Latencies of a part of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moment {
    pub(crate) phase: String,
    /// End of that part, in seconds from the start.
    pub(crate) t_s: f64,
    pub(crate) ops: Option<f64>,
    /// Microseconds.
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) max: Option<f64>,
}

/// The latencies of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latency {
    pub(crate) histograms: Vec<Histogram>,
    pub(crate) moments: Vec<Moment>,
}

impl Latency {
    /// Takes a line of a file; one of another form is left out.
    pub(super) fn add(&mut self, line: &Value) {
        let phase = line["phase"].as_str().unwrap_or("operation").to_owned();
        let number = |name: &str| line[name].as_f64();
        match line["kind"].as_str() {
            Some("histogram") if self.histograms.len() < HISTOGRAMS_MAX => {
                let buckets = line["buckets"].as_array().map_or(&[][..], Vec::as_slice);
                let bucket = |b: &Value| Some((b[0].as_f64()?, b[1].as_f64()?));
                let mut buckets: Vec<_> =
                    buckets.iter().filter_map(bucket).take(BUCKETS_MAX).collect();
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.histograms.push(Histogram { phase, buckets });
            }
            Some("series") => {
                let Some(t_s) = number("t_s") else { return };
                let [ops, p50, p99, max] = ["ops", "p50", "p99", "max"].map(number);
                self.moments.push(Moment { phase, t_s, ops, p50, p99, max });
            }
            _ => {}
        }
    }

    /// Puts its moments in their order.
    pub(super) fn arrange(&mut self) {
        self.moments.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
    }

    /// Its moments of a phase.
    pub(crate) fn of_phase(&self, phase: &str) -> impl Iterator<Item = &Moment> {
        self.moments.iter().filter(move |moment| moment.phase == phase)
    }
}

/// Where the threads of a run waited.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Waits {
    pub(crate) seconds: Option<f64>,
    pub(crate) threads: Option<f64>,
    running_ms: Option<f64>,
    /// All time that its threads were seen in, running or waiting; `None` of a file that does not
    /// say how long they ran.
    #[serde(skip)]
    seen_ms: Option<f64>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) locks: Vec<LockWait>,
    pub(crate) commit_phases: Vec<Phase>,
    pub(crate) context_switches_per_op: Option<f64>,
    pub(crate) wakeups_per_op: Option<f64>,
}

/// A cause of waiting.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wait {
    pub(crate) cause: String,
    pub(crate) count: Option<f64>,
    pub(crate) total_ms: Option<f64>,
    pub(crate) mean_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    /// Pairs of symbols (the innermost first or last) and how often.
    pub(crate) stacks: Vec<Value>,
}

impl Wait {
    /// Its stacks with their counts, most first.
    pub(crate) fn stacks(&self) -> Vec<(String, u64)> {
        let symbols = |list: &Value| {
            let words = list.as_array()?.iter().filter_map(Value::as_str);
            Some(words.collect::<Vec<_>>().join(" < "))
        };
        let stack = |pair: &Value| {
            let symbols = symbols(&pair[0]).or_else(|| pair[0].as_str().map(str::to_owned))?;
            Some((symbols, pair[1].as_u64().unwrap_or(1)))
        };
        let mut stacks: Vec<_> = self.stacks.iter().filter_map(stack).collect();
        stacks.sort_by_key(|stack| std::cmp::Reverse(stack.1));
        stacks
    }
}

/// Waits for a lock, by its name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LockWait {
    pub(crate) name: String,
    pub(crate) waits: Option<f64>,
    pub(crate) total_ms: Option<f64>,
}

/// A part of a commit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Phase {
    pub(crate) phase: String,
    pub(crate) mean_us: Option<f64>,
}

impl Waits {
    /// The part that waits of `total_ms` have of the time in which its threads ran or waited, as
    /// `wait_shares` of explain.json has it: sleeps that are no waits of the load are neither. Of a
    /// file that does not say how long they ran it is the part of the time of all threads. `None`
    /// where one of the numbers is missing.
    pub(crate) fn share(&self, total_ms: Option<f64>) -> Option<f64> {
        let of_all = || Some(self.seconds? * self.threads? * 1000.0);
        let all = self.seen_ms.or_else(of_all)?;
        (all > 0.0).then_some(total_ms? / all)
    }

    /// The time that its shares are of, in words.
    pub(crate) const fn whole(&self) -> &'static str {
        match self.seen_ms {
            Some(_) => "the time in which they ran or waited",
            None => "the time of all threads",
        }
    }

    /// Adds up the time that shares are of, as long as all waits are there.
    pub(super) fn add_up(&mut self) {
        let waited: f64 = self.waits.iter().filter_map(|wait| wait.total_ms).sum();
        self.seen_ms = self.running_ms.map(|running| running + waited);
    }

    /// Leaves out what is too much for a page; returns whether there was some.
    pub(super) fn keep_within(&mut self) -> bool {
        let most = self.waits.len().max(self.locks.len()).max(self.commit_phases.len());
        // Those that weigh most stay.
        self.waits.sort_by(|a, b| total(b.total_ms, a.total_ms));
        self.locks.sort_by(|a, b| total(b.total_ms, a.total_ms));
        self.waits.truncate(WAITS_MAX);
        self.locks.truncate(WAITS_MAX);
        self.commit_phases.truncate(WAITS_MAX);
        self.waits.iter_mut().for_each(|wait| wait.stacks.truncate(STACKS_MAX));
        most > WAITS_MAX
    }
}

/// Order of numbers of which some are missing: those come first.
fn total(a: Option<f64>, b: Option<f64>) -> std::cmp::Ordering {
    a.unwrap_or(f64::MIN).total_cmp(&b.unwrap_or(f64::MIN))
}
