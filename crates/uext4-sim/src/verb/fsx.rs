//! `fsx`: random operations on the bytes of one file, on one shape of volume after the other.

use std::time::Instant;
use uext4_sim::fsx::{SHAPES, run as exercise};

/// Random operations on the bytes of a file, every read compared
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operations, shared out among the shapes of volumes
    #[arg(long, default_value_t = 100_000)]
    ops: u64,
    /// Seed of the operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let start = Instant::now();
    let each = args.ops.div_ceil(SHAPES.len() as u64);
    for (index, shape) in SHAPES.iter().enumerate() {
        let tally = exercise(shape, args.seed + index as u64, each)
            .map_err(|fault| format!("{}: {fault}\nagain: {}", shape.name, again(args)))?;
        println!("{}: {tally}", shape.name);
    }
    let operations = each * SHAPES.len() as u64;
    println!("{operations} operations, 0 faults, {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn again(args: &Args) -> String {
    format!("cargo xtask fsx --ops {} --seed {}", args.ops, args.seed)
}
