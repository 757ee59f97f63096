//! Runs of all categories, one after the other, and what came of them.
//!
//! # What
//! A job is one run: a category and a seed. Workers take jobs until time or rounds are over; by
//! time the category with the fewest states comes next, by rounds each category gets its seeds in
//! turn, so that the same states are judged however fast the machine is.

use super::judge::Checker;
use super::{Effort, judge_run};
use crate::broken_syncs::BrokenSyncs;
use crate::category::{CATEGORIES, Category};
use crate::format::{Format, ORDINARY};
use crate::run::{ABLATIONS, Plan, record};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// First seed of each category.
    pub seed: u64,
    /// From one seed of a category to the next: as many as there are ablations keep to one of them.
    pub seed_step: u64,
    /// Seeds of each category; 0: as long as there is time.
    pub rounds: u64,
    /// The form of the file system.
    pub format: &'static Format,
    /// The categories.
    pub categories: Vec<Category>,
    /// How much of each run.
    pub effort: Effort,
    /// Threads that judge; 0: one for each processor.
    pub workers: usize,
    /// Whether runs are told of as they end.
    pub tells: bool,
    /// A fault that must be found.
    pub syncs: BrokenSyncs,
}

/// What came of one category.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Recorded runs.
    pub runs: usize,
    /// States that were recovered.
    pub judged: usize,
    /// Of these, states of crashes during a recovery.
    pub nested: usize,
    /// States that e2fsck recovered as well.
    pub e2fsck: usize,
    /// States that the kernel recovered as well.
    pub kernel: usize,
    /// Different recovered volumes.
    pub states: usize,
    /// Faults.
    pub faults: usize,
}

/// What came of all.
#[derive(Debug, Default)]
pub struct Summary {
    /// By category.
    pub tallies: BTreeMap<Category, Tally>,
    /// Every fault, with the command that repeats it.
    pub faults: Vec<String>,
    /// Seconds that it took.
    pub seconds: f64,
}

/// What the workers share.
struct CampaignProgress {
    summary: Summary,
    views: HashSet<u64>,
    /// Jobs begun, by category.
    begun: BTreeMap<Category, u64>,
}

/// The options of a seed: every ablation gets its share.
#[must_use]
pub fn plan(category: Category, seed: u64) -> Plan {
    plan_on(&ORDINARY, category, seed)
}

/// The same on a form of the file system.
#[must_use]
pub fn plan_on(format: &'static Format, category: Category, seed: u64) -> Plan {
    Plan::on(format, category, seed, ABLATIONS[(seed % ABLATIONS.len() as u64) as usize])
}

impl Campaign {
    /// All categories.
    #[must_use]
    pub fn all(seed: u64, effort: Effort) -> Campaign {
        let categories = CATEGORIES.to_vec();
        Campaign {
            seed,
            seed_step: 1,
            rounds: 0,
            format: &ORDINARY,
            categories,
            effort,
            workers: 0,
            tells: false,
            syncs: BrokenSyncs::None,
        }
    }

    /// Only seeds of the ablation option `word`, from the first one on; false if there is none.
    pub fn keep_to(&mut self, word: &str) -> bool {
        let count = ABLATIONS.len() as u64;
        let is = |seed: &u64| ABLATIONS[(seed % count) as usize] == word;
        let Some(seed) = (self.seed..self.seed + count).find(is) else { return false };
        (self.seed, self.seed_step) = (seed, count);
        true
    }

    /// Runs it.
    ///
    /// # Errors
    /// The machinery failed.
    pub fn run(&self) -> Result<Summary, String> {
        let start = Instant::now();
        let workers = match self.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        };
        let progress = Mutex::new(CampaignProgress {
            summary: Summary::default(),
            views: HashSet::new(),
            begun: self.categories.iter().map(|&category| (category, 0)).collect(),
        });
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..workers).map(|_| scope.spawn(|| self.work(&progress))).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|_| Err("a judge panicked".into())))
                .collect()
        });
        results.into_iter().collect::<Result<(), String>>()?;
        let progress = progress.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(Summary { seconds: start.elapsed().as_secs_f64(), ..progress.summary })
    }

    fn work(&self, progress: &Mutex<CampaignProgress>) -> Result<(), String> {
        loop {
            let is_late = self.effort.until.is_some_and(|until| Instant::now() >= until);
            let Some((category, seed)) = lock(progress).next(self).filter(|_| !is_late) else {
                return Ok(());
            };
            let plan = plan_on(self.format, category, seed);
            let start = Instant::now();
            let format = self.format;
            let again = format!(
                "cargo xtask crash --format {format} --category {category} --seed {seed} --rounds 1"
            );
            let run = match record(&plan, self.syncs) {
                Ok(run) => run,
                Err(error) => {
                    let mut progress = lock(progress);
                    progress.summary.tallies.entry(category).or_default().faults += 1;
                    progress.summary.faults.push(format!("{plan}: {error}\n  again: {again}"));
                    println!("{plan}: {error}\n  again: {again}");
                    continue;
                }
            };
            let recorded = start.elapsed();
            let judged = judge_run(&run, seed, &Checker, &self.effort)?;
            let mut progress = lock(progress);
            let fresh = judged.views.iter().filter(|&&view| progress.views.insert(view)).count();
            let tally = progress.summary.tallies.entry(category).or_default();
            tally.runs += 1;
            tally.judged += judged.states;
            tally.nested += judged.nested;
            tally.e2fsck += judged.e2fsck;
            tally.kernel += judged.kernel;
            tally.states += fresh;
            tally.faults += judged.faults.len();
            if self.tells {
                let ms = |time: Duration| time.as_millis();
                println!(
                    "{plan}: {fresh} states of {} images, {} faults, {} + {} ms",
                    judged.states,
                    judged.faults.len(),
                    ms(recorded),
                    ms(start.elapsed().saturating_sub(recorded))
                );
            }
            for (state, what) in &judged.faults {
                println!("  {state}: {what}\n  again: {again}");
                progress.summary.faults.push(format!("{plan}: {state}: {what}\n  again: {again}"));
            }
        }
    }
}

fn lock(progress: &Mutex<CampaignProgress>) -> std::sync::MutexGuard<'_, CampaignProgress> {
    progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl CampaignProgress {
    /// The next job: category and seed.
    fn next(&mut self, campaign: &Campaign) -> Option<(Category, u64)> {
        let states = |category: &Category| {
            self.summary.tallies.get(category).map_or(0, |tally| tally.states)
        };
        let category = if campaign.rounds > 0 {
            let open = self.begun.iter().filter(|(_, begun)| **begun < campaign.rounds);
            *open.min_by_key(|(_, begun)| **begun)?.0
        } else {
            let least = |(category, begun): &(&Category, &u64)| (states(category), **begun);
            *self.begun.iter().min_by_key(least)?.0
        };
        let begun = self.begun.get_mut(&category)?;
        *begun += 1;
        Some((category, campaign.seed + (*begun - 1) * campaign.seed_step))
    }
}

impl Summary {
    /// Different recovered volumes.
    #[must_use]
    pub fn states(&self) -> usize {
        self.tallies.values().map(|tally| tally.states).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<18}{:>6}{:>10}{:>10}{:>10}{:>8}{:>8}{:>8}",
            "category", "runs", "states", "images", "in recov.", "e2fsck", "kernel", "faults"
        )?;
        for (category, tally) in &self.tallies {
            writeln!(
                f,
                "{category:<18}{:>6}{:>10}{:>10}{:>10}{:>8}{:>8}{:>8}",
                tally.runs,
                tally.states,
                tally.judged,
                tally.nested,
                tally.e2fsck,
                tally.kernel,
                tally.faults
            )?;
        }
        writeln!(f, "{:.0} s", self.seconds)?;
        write!(f, "{} states, {} faults", self.states(), self.faults.len())
    }
}
