//! `tree`: a large tree through uext4 and the kernel, both ways.

use std::path::PathBuf;
use std::time::Instant;
use uext4_sim::mount::why_no_fuse;
use uext4_sim::tree::build::Size;
use uext4_sim::tree::{Maker, Trial};

/// Untar a large tree through uext4 and the kernel, and compare
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The uext4 command
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Entries beside the directory of 200,000 names and the file of 3 GiB
    #[arg(long, default_value_t = 45_000)]
    entries: u64,
    /// The size that the test suite uses
    #[arg(long)]
    small: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if let Some(why) = why_no_fuse() {
        return Err(format!("nothing can be mounted here: {why}"));
    }
    let start = Instant::now();
    let (size, image_bytes) =
        if args.small { (Size::small(), 1 << 28) } else { (Size::full(args.entries), 8 << 30) };
    let trial = Trial::new(&args.binary, &size, image_bytes)?;
    println!("a tree of {} entries in {:.1} s", trial.entries, start.elapsed().as_secs_f64());
    let mut faults = 0;
    let mut tell = |what: &str, result: Result<String, String>| {
        match result {
            Ok(said) => println!("{what}: {said}"),
            Err(error) => {
                println!("{what}: WRONG: {error}");
                faults += 1;
            }
        }
        println!("  ({:.0} s so far)", start.elapsed().as_secs_f64());
    };
    tell("mke2fs, forward", trial.forward(Maker::Mke2fs));
    tell("uext4 mkfs, forward", trial.forward(Maker::Uext4));
    tell("mke2fs, backward", trial.backward(Maker::Mke2fs));
    if faults > 0 { Err(format!("{faults} of 3 ways failed")) } else { Ok(()) }
}
