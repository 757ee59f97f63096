//! `kill9`: rounds of mount, load, `kill -9`, recovery.

use std::path::PathBuf;
use std::time::Instant;
use uext4_sim::daemon_mount::Transport;
use uext4_sim::kill9::round;
use uext4_sim::mount::why_no_fuse;

/// Kill the mounting process under load, recover, compare
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The uext4 command
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Rounds, each with the next seed and the other transport
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// Seed of the first round
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the images of rounds with faults in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if let Some(why) = why_no_fuse() {
        return Err(format!("nothing can be mounted here: {why}"));
    }
    let start = Instant::now();
    let (mut faults, mut syncs) = (0, 0);
    for seed in args.seed..args.seed + args.rounds {
        // A seed means the same transport in every run.
        let mut way = Transport::of(seed);
        if let Some(why) = way.why_not() {
            println!("skipped: seed {seed} by {}: {why}", way.name());
            way = Transport::DevFuse;
        }
        match round(&args.binary, seed, way, args.keep.as_deref()) {
            Ok(round) => {
                let (operations, found) = (round.operations, round.faults.len());
                let what = &round.what;
                println!("{what}: {operations} operations, {} syncs, {found} faults", round.syncs);
                round.faults.iter().for_each(|fault| println!("  {fault}"));
                faults += found;
                syncs += round.syncs;
            }
            Err(error) => {
                println!("seed {seed}: {error}");
                faults += 1;
            }
        }
    }
    println!(
        "{} rounds, {syncs} syncs, {faults} faults, {:.0} s",
        args.rounds,
        start.elapsed().as_secs_f64()
    );
    if faults > 0 { Err(format!("{faults} faults")) } else { Ok(()) }
}
