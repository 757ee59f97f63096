//! `features`: images of seeded combinations of features, by mke2fs, the kernel and uext4 in turns.

use std::path::PathBuf;
use std::time::Instant;

use uext4_sim::feature_mix::{Bench, Mix, Outcome};
use uext4_sim::mount::{why_no_fuse, why_no_loop};

/// Fill, read, change and read back images of every combination of features
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The uext4 command
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Combinations that mke2fs makes
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Each feature by itself, at 1 and 4 KiB blocks, instead of combinations
    #[arg(long)]
    singles: bool,
    /// Keep the image of the last fault in this file
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if let Some(why) = why_no_fuse().or(why_no_loop()) {
        return Err(format!("nothing can be mounted here: {why}"));
    }
    let bench = Bench::new(&args.binary)?;
    let start = Instant::now();
    let (mut passed, mut faults, mut not_made) = (0_u64, 0_u64, 0_u64);
    let singles: Vec<Mix> = if args.singles { Mix::singles().collect() } else { Vec::new() };
    let mut seeds = args.seed..;
    let mut singles = singles.into_iter();
    loop {
        let (name, mix) = if args.singles {
            let Some(mix) = singles.next() else { break };
            ("single".to_owned(), mix)
        } else if passed + faults < args.rounds {
            let Some(seed) = seeds.next() else { break };
            (format!("seed {seed}"), Mix::of_seed(seed))
        } else {
            break;
        };
        match bench.try_mix(&mix, args.keep.as_deref()) {
            Ok(Outcome::NotMade) => not_made += 1,
            Ok(Outcome::Passed(filler, reader)) => {
                passed += 1;
                println!("{name}: {mix}: filled by {filler}, read back by {reader}");
            }
            Err(why) => {
                faults += 1;
                println!("{name}: {mix}: WRONG: {why}");
            }
        }
    }
    println!(
        "{} images, {faults} faults, {not_made} that mke2fs does not make, {:.0} s",
        passed + faults,
        start.elapsed().as_secs_f64()
    );
    if faults > 0 { Err(format!("{faults} faults")) } else { Ok(()) }
}
