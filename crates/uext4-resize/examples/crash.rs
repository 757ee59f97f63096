//! `cargo xtask crash --growth`: growths of a file system, cut and judged, until time is up.
//!
//! Fault model and judges: `uext4_sim::growth`. In words of its command line it takes `--seed`,
//! `--seconds` and `--rounds`, each with a number.

#[path = "../tests/common/mod.rs"]
mod common;

use common::grow_to;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use uext4_sim::crash::Depth;
use uext4_sim::growth::{CASES, Case, Effort, Judged, judge};
use uext4_sim::mount::why_no_loop;
use uext4_sim::oracle::e2fsck;

/// Every so many states e2fsck recovers too.
const E2FSCK_EVERY: usize = 7;
/// Every so many states the kernel recovers too.
const KERNEL_EVERY: usize = 5;

struct Args {
    seed: u64,
    rounds: u64,
    until: Option<Instant>,
    kernel_every: usize,
}

impl Args {
    fn parse() -> Result<Self, String> {
        let (mut seed, mut rounds, mut seconds) = (1, 0, None);
        let mut words = std::env::args().skip(1).filter(|word| word != "--growth");
        while let Some(word) = words.next() {
            let number = words.next().and_then(|value| value.parse().ok());
            let number: u64 = number.ok_or_else(|| format!("{word}: needs a number"))?;
            match word.as_str() {
                "--seed" => seed = number,
                "--rounds" => rounds = number,
                "--seconds" => seconds = Some(number),
                _ => return Err(format!("{word}: not an option of growths")),
            }
        }
        let seconds = seconds.or((rounds == 0).then_some(60));
        let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let no_kernel = why_no_loop();
        if let Some(why) = no_kernel {
            println!("skipped: the kernel as a judge: {why}");
        }
        let kernel_every = if no_kernel.is_none() { KERNEL_EVERY } else { 0 };
        Ok(Self { seed, rounds, until, kernel_every })
    }

    fn is_over(&self, seed: u64) -> bool {
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        is_late || self.rounds > 0 && seed >= self.seed + self.rounds
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("crash --growth: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let args = Args::parse()?;
    if e2fsck().is_none() {
        return Err("e2fsck, which judges growths, is not installed".into());
    }
    let mut all: Vec<Judged> = CASES.iter().map(|_| Judged::default()).collect();
    for seed in args.seed.. {
        if args.is_over(seed) {
            break;
        }
        for (case, sum) in CASES.iter().zip(&mut all) {
            // Each state of those with mmp takes seconds.
            if !args.is_over(seed) && (!case.has_mmp() || seed == args.seed) {
                sum.add(one(case, seed, &args)?);
            }
        }
    }
    let mut faults = 0;
    println!("{:<42} states e2fsck kernel refused faults", "growth");
    for (case, sum) in CASES.iter().zip(&all) {
        let Judged { states, by_e2fsck, mounted, refused, .. } = sum;
        let (name, found) = (case.name, sum.faults.len());
        println!("{name:<42} {states:>6} {by_e2fsck:>6} {mounted:>6} {refused:>7} {found:>6}");
        faults += found;
    }
    if faults == 0 { Ok(()) } else { Err(format!("{faults} faults")) }
}

fn one(case: &'static Case, seed: u64, args: &Args) -> Result<Judged, String> {
    let depth = match case.has_mmp() {
        true => Depth { exhaustive_max: 0, random: 0 },
        false => Depth { exhaustive_max: 6, random: 2 },
    };
    let (until, kernel_every) = (args.until, args.kernel_every);
    let effort = Effort { depth, e2fsck_every: E2FSCK_EVERY, kernel_every, until };
    let growth = case.record(&case.image(grow_to)?, grow_to)?;
    let judged = judge(&growth, seed, &effort)?;
    for what in &judged.faults {
        println!("{}, seed {seed}: {what}", case.name);
    }
    Ok(judged)
}
