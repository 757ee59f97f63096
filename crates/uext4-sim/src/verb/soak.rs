//! `soak`: a mount under load for long, by both transports.

use std::path::PathBuf;
use std::time::Duration;
use uext4_sim::soak::{Plan, run as soak, why_not};

/// Load mounts for long, kill their daemons, and look at what they hold
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The uext4 command
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Minutes under load; fractions too
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Mounts and unmounts under load, before that
    #[arg(long, default_value_t = 200)]
    mounts: u32,
    /// Seconds of one load; the programs end then, and the daemon is looked at
    #[arg(long, default_value_t = 5)]
    period: u64,
    /// Chooses the programs
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if let Some(why) = why_not() {
        return Err(format!("not here: {why}"));
    }
    let time = Duration::try_from_secs_f64(args.minutes * 60.0).map_err(|e| e.to_string())?;
    let period = Duration::from_secs(args.period.max(1));
    let plan = Plan { time, period, mounts: args.mounts, seed: args.seed };
    soak(&args.binary, &plan, &|line| println!("{line}"))
}
