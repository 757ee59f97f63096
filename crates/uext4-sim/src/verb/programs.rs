//! `programs`: programs that people run, on mounts by both transports, and a table of what came.

use std::path::PathBuf;
use std::time::Instant;
use uext4_sim::daemon_mount::Transport;
use uext4_sim::mount::why_no_fuse;
use uext4_sim::programs::{PROGRAMS, Size};

/// Run programs that people run on mounts by both transports
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The uext4 command
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Only programs with this in their name
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// As short as in the suite of tests
    #[arg(long)]
    short: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if let Some(why) = why_no_fuse() {
        return Err(format!("nothing can be mounted here: {why}"));
    }
    let size = if args.short { Size::Short } else { Size::Long };
    println!("program | transport | result | seconds\n---|---|---|---:");
    let mut failed = Vec::new();
    for program in PROGRAMS.iter().filter(|program| program.name.contains(&args.only)) {
        for transport in Transport::ALL {
            let start = Instant::now();
            let why_not = program.why_not().or(transport.why_not().map(str::to_owned));
            let result = match why_not {
                Some(why) => format!("skipped: {why}"),
                None => match program.run(&args.binary, transport, size) {
                    Ok(()) => "ok".to_owned(),
                    Err(why) => {
                        eprintln!("{} by {}: {why}", program.name, transport.name());
                        failed.push(format!("{} by {}", program.name, transport.name()));
                        "FAILED".to_owned()
                    }
                },
            };
            let (name, way) = (program.name, transport.name());
            println!("{name} | {way} | {result} | {:.1}", start.elapsed().as_secs_f64());
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
