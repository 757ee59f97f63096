//! Many seeds, each in a process of workers; and the shrinking of one that fails.
//!
//! # What
//! A worker is this program again, with a stretch of seeds: a run that fails leaves threads behind,
//! and ends its process. What a worker says of each seed is a line; the first fault ends the
//! campaign. The failing case is shrunk by leaving more and more of it out, as long as some run of
//! it fails.

use super::case::Case;
use super::coverage::Coverage;
use super::fault::is_alike;
use super::part::Parts;
use super::plan::SeedPlan;
use super::run;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time in which a worker must tell of its next seed: some thread of it waits outside the
/// scheduler, or computes for ever.
const PATIENCE: Duration = Duration::from_secs(180);
/// Seeds of one worker.
const STRETCH: u64 = 100;
/// Runs that shrinking may take.
const ATTEMPTS: u32 = 120;

/// The program that workers are.
#[derive(Clone, Debug)]
pub struct Workers {
    /// `uext4-sim`, built with this feature.
    pub program: PathBuf,
}

/// How far a campaign goes.
#[derive(Clone, Debug)]
pub struct SeedCampaign {
    /// The program.
    pub workers: Workers,
    /// What all runs have in common; its seed is the first.
    pub case: Case,
    /// Seeds, at most.
    pub seeds: Option<u64>,
    /// Time, at most.
    pub time: Option<Duration>,
    /// Operations, about.
    pub operations: Option<u64>,
    /// Processes.
    pub jobs: usize,
}

/// What a campaign has come to.
#[derive(Debug, Default)]
pub struct Totals {
    /// Seeds that were run.
    pub seeds: u64,
    /// Operations of all callers.
    pub operations: u64,
    /// Lives.
    pub lives: u64,
    /// Losses of power.
    pub cuts: u64,
    /// What was reached.
    pub coverage: Coverage,
    /// The case that failed first, and its faults.
    pub fault: Option<(Case, Vec<String>)>,
}

/// One run in a process of its own.
#[derive(Clone, Debug, Default)]
pub struct RunVerdict {
    /// As [`super::Report`] has it; 0 if the process was ended.
    pub trace: u64,
    /// Preemptions of the schedule.
    pub preemptions: u64,
    /// What is wrong.
    pub faults: Vec<String>,
}

/// What a worker does: runs seeds and tells of each.
///
/// # Errors
/// The first seed that fails; the process must end then.
pub fn work(case: &Case, seeds: u64) -> Result<(), String> {
    let mut coverage = Coverage::default();
    for seed in case.seed..case.seed + seeds {
        let case = Case { seed, ..case.clone() };
        if case.verbose {
            println!("{}", SeedPlan::draw(&case));
        }
        let report = run(&case);
        coverage.add(&report.coverage);
        for fault in &report.faults {
            println!("fault\t{}", fault.replace('\n', "\n      "));
        }
        println!(
            "seed\t{seed}\t{:016x}\t{}\t{}\t{}\t{}",
            report.trace, report.operations, report.lives, report.cuts, report.preemptions
        );
        if !report.faults.is_empty() {
            print!("{coverage}");
            return Err(format!("cargo xtask simulate {case}"));
        }
    }
    print!("{coverage}");
    Ok(())
}

impl Workers {
    /// Runs one case in a process of its own.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn attempt(&self, case: &Case) -> Result<RunVerdict, String> {
        let mut worker = self.start(case, 1, 0)?;
        let mut verdict = RunVerdict::default();
        while let Some(line) = worker.next() {
            match line {
                Line::Fault(fault) => verdict.faults.push(fault),
                Line::Seed { trace, preemptions, .. } => {
                    verdict.trace = trace;
                    verdict.preemptions = preemptions;
                }
                Line::Other(_) => {}
            }
        }
        verdict.faults.extend(worker.end());
        Ok(verdict)
    }

    /// The least case that still fails by the judge of the first of `faults`, as far as
    /// [`ATTEMPTS`] runs lead.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn shrink(&self, case: &Case, faults: &[String], preemptions: u64) -> Result<Case, String> {
        let mut least = case.clone();
        let mut left = ATTEMPTS;
        let mut try_case = |least: &mut Case, smaller: Case| -> Result<bool, String> {
            if left == 0 || smaller == *least {
                return Ok(false);
            }
            left -= 1;
            let fails = is_alike(&self.attempt(&smaller)?.faults, faults);
            if fails {
                *least = smaller;
            }
            Ok(fails)
        };
        let plan = SeedPlan::draw(case);
        for lives in 1..plan.lives() {
            let smaller = Case { lives: Some(lives), ..least.clone() };
            if try_case(&mut least, smaller)? {
                break;
            }
        }
        for threads in 1..plan.callers() {
            let smaller = Case { threads: Some(threads), ..least.clone() };
            if try_case(&mut least, smaller)? {
                break;
            }
        }
        for part in plan.parts().iter() {
            let mut without = least.without;
            without.insert(part);
            let with = least.with.without(without);
            let smaller = Case { with, without, ..least.clone() };
            try_case(&mut least, smaller)?;
        }
        let mut most = plan.operations() as u64;
        bisect(&mut most, |operations| {
            let smaller = Case { operations: Some(operations as usize), ..least.clone() };
            try_case(&mut least, smaller)
        })?;
        let mut most = preemptions;
        bisect(&mut most, |preemptions| {
            let smaller = Case { preemptions: Some(preemptions), ..least.clone() };
            try_case(&mut least, smaller)
        })?;
        Ok(least)
    }

    fn start(&self, case: &Case, seeds: u64, processor: usize) -> Result<Worker, String> {
        let mut command = Command::new(&self.program);
        command.args(["simulate", "--worker", "--seeds", &seeds.to_string()]);
        command.args(["--processor", &processor.to_string()]);
        let words = case.to_string();
        let mut child = command
            .args(words.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("a worker: {error}"))?;
        let (tell, lines) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                lines.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
            });
        }
        Ok(Worker { child, lines, has_fault: false, fate: None })
    }
}

/// Looks for the smallest number that fails, as if all larger ones did.
fn bisect(
    most: &mut u64,
    mut fails: impl FnMut(u64) -> Result<bool, String>,
) -> Result<(), String> {
    let mut least = 0;
    while least < *most {
        let middle = least + (*most - least) / 2;
        if fails(middle)? {
            *most = middle;
        } else {
            least = middle + 1;
        }
    }
    Ok(())
}

impl SeedCampaign {
    /// Runs it, to its end or to the first fault.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn run(&self) -> Result<Totals, String> {
        let begun = Instant::now();
        let totals = Mutex::new(Totals::default());
        let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let job = &|processor: usize| -> Result<(), String> {
            while !is_over.load(Ordering::Relaxed) {
                let first = next.fetch_add(STRETCH, Ordering::Relaxed);
                let count =
                    self.seeds.map_or(STRETCH, |all| all.saturating_sub(first).min(STRETCH));
                if count == 0 {
                    return Ok(());
                }
                let case = Case { seed: self.case.seed + first, ..self.case.clone() };
                let worker = self.workers.start(&case, count, processor)?;
                self.stretch(worker, case.seed, begun, &totals, &is_over);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let jobs: Vec<_> =
                (0..self.jobs.max(1)).map(|number| scope.spawn(move || job(number))).collect();
            jobs.into_iter().try_for_each(|job| job.join().expect("a job"))
        })?;
        Ok(totals.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// One worker.
    fn stretch(
        &self,
        mut worker: Worker,
        mut at: u64,
        begun: Instant,
        totals: &Mutex<Totals>,
        is_over: &AtomicBool,
    ) {
        let mut faults = Vec::new();
        while let Some(line) = worker.next() {
            let mut totals = totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match line {
                Line::Fault(fault) => faults.push(fault),
                Line::Seed { operations, lives, cuts, .. } => {
                    totals.seeds += 1;
                    totals.operations += operations;
                    totals.lives += lives;
                    totals.cuts += cuts;
                    at += u64::from(faults.is_empty());
                }
                Line::Other(line) => totals.coverage.add_line(&line),
            }
            let enough = self.operations.is_some_and(|all| totals.operations >= all)
                || self.time.is_some_and(|time| begun.elapsed() >= time);
            if enough {
                is_over.store(true, Ordering::Relaxed);
            }
            if is_over.load(Ordering::Relaxed) && faults.is_empty() {
                return;
            }
        }
        faults.extend(worker.end());
        if !faults.is_empty() {
            is_over.store(true, Ordering::Relaxed);
            let mut totals = totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            totals.fault.get_or_insert((Case { seed: at, ..self.case.clone() }, faults));
        }
    }
}

enum Line {
    Seed { trace: u64, operations: u64, lives: u64, cuts: u64, preemptions: u64 },
    Fault(String),
    Other(String),
}

struct Worker {
    child: Child,
    lines: Receiver<String>,
    /// It told of a fault, and so ends badly.
    has_fault: bool,
    fate: Option<String>,
}

impl Worker {
    /// The next line; `None` when there is none any more.
    fn next(&mut self) -> Option<Line> {
        let line = match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                self.fate = Some(format!("says nothing for {PATIENCE:?}"));
                self.kill();
                return None;
            }
        };
        if let Some(fault) = line.strip_prefix("fault\t") {
            self.has_fault = true;
            return Some(Line::Fault(fault.to_owned()));
        }
        let words: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
        Some(match words.first() {
            Some(&"seed") => Line::Seed {
                trace: words.get(2).and_then(|w| u64::from_str_radix(w, 16).ok()).unwrap_or(0),
                operations: number(3),
                lives: number(4),
                cuts: number(5),
                preemptions: number(6),
            },
            _ => Line::Other(line),
        })
    }

    fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
    }

    /// What its end tells besides its lines.
    fn end(mut self) -> Option<String> {
        let status = self.child.wait();
        let is_well = self.has_fault || status.as_ref().is_ok_and(|status| status.success());
        self.fate.take().or_else(|| (!is_well).then(|| format!("the process ended: {status:?}")))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Parts of a case's run, for its shrinking.
impl SeedPlan {
    fn lives(&self) -> usize {
        self.lives.len()
    }

    fn callers(&self) -> u32 {
        self.threads
    }

    fn parts(&self) -> Parts {
        self.parts
    }

    fn operations(&self) -> usize {
        self.lives.iter().map(|life| life.operations).max().unwrap_or(0)
    }
}
