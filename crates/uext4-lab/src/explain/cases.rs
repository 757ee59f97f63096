//! Options that are known to move a counter, and whether explanations say so.
//!
//! What: each option that leaves a mechanism out, for comparison, with a load that shows it, and
//! the counter by which it is known. `uext4 lab explain-check` runs them all.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Doing, Error, Result};
use crate::load::{Form, Load};
use crate::plan::{Event, Plan, run};
use crate::target::Target;

/// A load with variants that each move a counter.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    load: &'static str,
    target: Target,
    form: Option<Form>,
    threads: u32,
    /// Writes of each thread of E0.
    operations: Option<u32>,
    scale: f64,
    seconds: f64,
    /// Whether the file system is aged before.
    aged: bool,
    /// Variants that are run beside the default of the load.
    variants: &'static [&'static str],
    moves: &'static [Move],
}

/// A counter that an option moves.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// The option, as a pair names its difference.
    option: &'static str,
    counter: &'static str,
    rises: bool,
}

/// What an explanation says of an option.
#[derive(Clone, Debug)]
pub struct Checked {
    load: &'static str,
    target: &'static str,
    option: &'static str,
    counter: &'static str,
    /// Both values, where the counter is named.
    values: Option<(f64, f64)>,
    /// Whether it is named and moves as it must.
    pub is_right: bool,
}

const fn up(option: &'static str, counter: &'static str) -> Move {
    Move { option, counter, rises: true }
}

const fn down(option: &'static str, counter: &'static str) -> Move {
    Move { option, counter, rises: false }
}

const CASE: Case = Case {
    load: "E0",
    target: Target::Uext4,
    form: None,
    threads: 1,
    operations: None,
    scale: 0.1,
    seconds: 1.0,
    aged: false,
    variants: &[],
    moves: &[],
};

/// All of them.
pub const CASES: &[Case] = &[
    Case {
        threads: 256,
        operations: Some(40),
        scale: 0.05,
        variants: &[
            "writeback=ordered",
            "writeback=unwritten",
            "writeback=unwritten,journal_join=herd",
            "writeback=unwritten,checkpoint=inline",
            "journal_credits=worst",
        ],
        moves: &[
            up("writeback=ordered", "commit_data_flush_count"),
            up("writeback=unwritten", "joins_refused_full"),
            // However many wait: that depends on the machine.
            up("journal_join=herd", "wakeups_per_join_wait"),
            up("checkpoint=inline", "checkpoints_forced"),
            up("journal_credits=worst", "credits"),
        ],
        ..CASE
    },
    Case {
        load: "E3",
        threads: 16,
        variants: &["fsync_batch=rescan"],
        // Where passes are shared, no sync waits for the lock.
        moves: &[up("fsync_batch=rescan", "lock_waits_writeback")],
        ..CASE
    },
    Case {
        load: "E4",
        form: Some(Form::Write),
        scale: 0.02,
        moves: &[up("dio_completion=deferred", "direct_completions_deferred")],
        ..CASE
    },
    Case {
        load: "E2",
        threads: 2,
        scale: 0.02,
        moves: &[up("dax_overwrite=journal", "dax_overwrite_handles")],
        ..CASE
    },
    Case {
        load: "E1a",
        form: Some(Form::Own),
        threads: 2,
        scale: 0.02,
        variants: &["mb_reserve=off"],
        moves: &[down("mb_reserve=off", "mb_preallocation_hits")],
        ..CASE
    },
    // With preallocation there are too few searches to see how they are made.
    Case {
        load: "E1a",
        form: Some(Form::Foreign),
        threads: 32,
        scale: 0.05,
        variants: &[
            "mb_reserve=off",
            "mb_reserve=off,mb_free=global",
            "mb_reserve=off,mb_stream_goal=global",
            "mb_reserve=off,mb_stream_goal=global,mb_trylock=0",
        ],
        moves: &[
            up("mb_free=global", "lock_waits_frees"),
            up("mb_stream_goal=global", "mb_busy_skips"),
            down("mb_trylock=0", "mb_busy_skips"),
        ],
        ..CASE
    },
    Case {
        load: "E1b",
        threads: 16,
        scale: 0.05,
        aged: true,
        variants: &["mb_optimize_scan=0"],
        moves: &[up("mb_optimize_scan=0", "mb_cr_goal_fast_groups_considered")],
        ..CASE
    },
    Case {
        load: "E0",
        target: Target::Kernel,
        threads: 2048,
        operations: Some(20),
        scale: 1.0,
        moves: &[
            up("dioread_lock", "handles_per_txn"),
            down("dioread_lock", "transactions"),
            down("dioread_lock", "context_switches"),
        ],
        ..CASE
    },
];

impl Case {
    /// Its load and target.
    #[must_use]
    pub const fn name(&self) -> (&'static str, &'static str) {
        (self.load, self.target.name())
    }

    /// Whether it can be had in seconds, without root.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.scale < 0.05
    }

    /// Runs it as `plan` says besides, and looks at what is said of it.
    ///
    /// # Errors
    /// The run fails; a target that the machine cannot run.
    pub fn check(&self, plan: Plan, tell: &mut dyn FnMut(Event<'_>)) -> Result<Vec<Checked>> {
        let load = Load::find(self.load).ok_or_else(|| Error::new("no such load"))?;
        let folder = tempfile::tempdir().doing("making a folder")?;
        let plan = Plan {
            loads: vec![load],
            targets: vec![self.target],
            rounds: 1,
            scale: self.scale,
            threads: vec![self.threads],
            duration: Duration::from_secs_f64(self.seconds),
            operations: self.operations,
            variants: self.variants.iter().map(|&variant| variant.to_owned()).collect(),
            aged: self.aged,
            forms: self.form.into_iter().collect(),
            blocks: vec![4096],
            journals: vec![if self.target == Target::Kernel { 128 } else { 4 }],
            explain: Some(plan.explain.unwrap_or_else(|| folder.path().to_path_buf())),
            ..plan
        };
        if let Some(reason) = self.target.obstacle(&plan) {
            return Err(Error::new(reason));
        }
        run(&plan, tell)?;
        let file = plan.explain.as_deref().unwrap_or(folder.path()).join(super::FILE);
        self.look(&file)
    }

    /// What the file says of its moves.
    fn look(&self, file: &Path) -> Result<Vec<Checked>> {
        let text = std::fs::read_to_string(file).doing("reading the explanation")?;
        let all: Value = serde_json::from_str(&text).doing("the explanation")?;
        Ok(self.moves.iter().map(|moves| self.one(&all, moves)).collect())
    }

    fn one(&self, all: &Value, of: &Move) -> Checked {
        let Move { option, counter, rises } = *of;
        let pairs = all["pairs"].as_array().map_or(&[][..], Vec::as_slice);
        let is_it = |pair: &&Value| {
            pair["experiment"] == self.load
                && pair["a"]["target"] == self.target.name()
                && pair["difference"] == option
        };
        let counters = pairs.iter().find(is_it).and_then(|pair| pair["counters"].as_array());
        let named = counters.and_then(|all| all.iter().find(|one| one["name"] == counter));
        let values = named.and_then(|one| Some((one["a"].as_f64()?, one["b"].as_f64()?)));
        let is_right = values.is_some_and(|(a, b)| if rises { b > a } else { b < a });
        let (load, target) = (self.load, self.target.name());
        Checked { load, target, option, counter, values, is_right }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { load, target, option, counter, .. } = self;
        write!(f, "{load:<4} {target:<7} {option:<26} {counter:<28} ")?;
        match self.values {
            Some((a, b)) => {
                let said = if self.is_right { "named" } else { "WRONG WAY" };
                write!(f, "{a:>12.4} {b:>12.4}  {said}")
            }
            None => write!(f, "{:>12} {:>12}  NOT NAMED", "-", "-"),
        }
    }
}
