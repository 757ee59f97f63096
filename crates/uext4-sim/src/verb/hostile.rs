//! `hostile`: every verb of the command on damaged images and archives.

use std::path::PathBuf;

use uext4_sim::hostile::{Outcome, archives, exports, images, overlays};

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
        let damaged = images::Trial::new(&args.binary, &args.shape).map_err(text)?;
        let overlaid = overlays::Trial::new(&args.binary, &args.shape).map_err(text)?;
        let edited = exports::Trial::new(&args.binary).map_err(text)?;
        for case in cases(args.images) {
            add(&mut total, "damaged image", damaged.case(case).map_err(text)?);
            add(&mut total, "overlay", overlaid.case(case).map_err(text)?);
            add(&mut total, "edited image", edited.case(case).map_err(text)?);
        }
    }
    if args.archives > 0 {
        let trial = archives::Trial::new(&args.binary).map_err(text)?;
        for case in cases(args.archives) {
            add(&mut total, "archive", trial.case(case).map_err(text)?);
        }
    }
    let (calls, done) = total.tally.of("");
    println!(
        "{}\n\n{} images of each sort, {} archives, {calls} calls, {done} with status 0, {} faults",
        total.tally,
        args.images,
        args.archives,
        total.faults.len()
    );
    if total.faults.is_empty() { Ok(()) } else { Err(format!("{} faults", total.faults.len())) }
}

fn add(total: &mut Outcome, sort: &str, outcome: Outcome) {
    if !outcome.faults.is_empty() {
        println!("{sort}, {}", outcome.what);
    }
    for fault in &outcome.faults {
        println!("  {fault}");
    }
    total.tally.add(&outcome.tally);
    total.faults.extend(outcome.faults);
}
