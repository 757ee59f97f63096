//! `hostile`: every verb of the command on damaged images and archives.

use std::path::PathBuf;

use uext4_sim::hostile::{Outcome, archives, images};

/// Call every verb on damaged images and archives: no panic, no write outside, failures told
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The uext4 command
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Images
    #[arg(long, default_value_t = 1000)]
    images: u64,
    /// Only images whose mke2fs options contain this
    #[arg(long, default_value = "")]
    shape: String,
    /// Archives
    #[arg(long, default_value_t = 1000)]
    archives: u64,
    /// Number of the first case
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut total = Outcome::default();
    let cases = |count| args.seed..args.seed.saturating_add(count);
    if args.images > 0 {
        let trial = images::Trial::new(&args.binary, &args.shape).map_err(text)?;
        for case in cases(args.images) {
            add(&mut total, trial.case(case).map_err(text)?);
        }
    }
    if args.archives > 0 {
        let trial = archives::Trial::new(&args.binary).map_err(text)?;
        for case in cases(args.archives) {
            add(&mut total, trial.case(case).map_err(text)?);
        }
    }
    println!(
        "{} images, {} archives, {} calls, {} of them with status 0, {} faults",
        args.images,
        args.archives,
        total.calls,
        total.succeeded,
        total.faults.len()
    );
    if total.faults.is_empty() { Ok(()) } else { Err(format!("{} faults", total.faults.len())) }
}

fn add(total: &mut Outcome, outcome: Outcome) {
    if !outcome.faults.is_empty() {
        println!("{}", outcome.what);
    }
    for fault in &outcome.faults {
        println!("  {fault}");
    }
    total.calls += outcome.calls;
    total.succeeded += outcome.succeeded;
    total.faults.extend(outcome.faults);
}
