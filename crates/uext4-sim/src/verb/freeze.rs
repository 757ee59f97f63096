//! `freeze`: dirty images of live kernel mounts, recovered by uext4 and by the kernel.

use std::path::PathBuf;
use uext4_sim::freeze::{Commits, round, why_not};

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
    /// With fast commits
    #[arg(long)]
    fast_commit: bool,
    /// With the journal on a device of its own
    #[arg(long)]
    external: bool,
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
    let (mut faults, mut replayed, mut fast_commits, mut cuts) = (0, 0, 0, 0);
    let commits = if args.fast_commit { Commits::Fast } else { Commits::Whole };
    for seed in args.seed..args.seed + args.rounds {
        let round = round(&args.binary, seed, commits, args.external, args.keep.as_deref())?;
        let recovery = round.recovery;
        let is_dirty = recovery.transactions > 0;
        let state = if is_dirty { "replayed" } else { "nothing to replay" };
        let fast = match recovery.fast_commits {
            0 => String::new(),
            commits => format!(" with {commits} fast commits"),
        };
        println!("{}: {state}{fast}, {} faults", round.what, round.faults.len());
        round.faults.iter().for_each(|fault| println!("  {fault}"));
        faults += round.faults.len();
        replayed += u64::from(is_dirty);
        fast_commits += recovery.fast_commits;
        cuts += round.cuts;
    }
    println!(
        "{} rounds, {replayed} with a dirty journal, {fast_commits} fast commits, {cuts} cuts, \
         {faults} faults",
        args.rounds
    );
    if faults > 0 { Err(format!("{faults} faults")) } else { Ok(()) }
}
