//! `freeze`: dirty images of live kernel mounts, recovered by uext4 and by the kernel.

use std::path::PathBuf;
use uext4_sim::freeze::{round, why_not};

/// Recover dirty images of live kernel mounts and compare with the kernel
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The uext4 command
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Rounds, each with the next seed
    #[arg(long, default_value_t = 10)]
    rounds: u64,
    /// Seed of the first round
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the dirty images in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if let Some(why) = why_not() {
        println!("skipped: the kernel cannot mount and freeze images here: {why}");
        return Ok(());
    }
    let (mut faults, mut replayed) = (0, 0);
    for seed in args.seed..args.seed + args.rounds {
        let round = round(&args.binary, seed, args.keep.as_deref())?;
        let state = if round.replayed { "replayed" } else { "nothing to replay" };
        println!("{}: {state}, {} faults", round.what, round.faults.len());
        round.faults.iter().for_each(|fault| println!("  {fault}"));
        faults += round.faults.len();
        replayed += u64::from(round.replayed);
    }
    println!("{} rounds, {replayed} with a dirty journal, {faults} faults", args.rounds);
    if faults > 0 { Err(format!("{faults} faults")) } else { Ok(()) }
}
