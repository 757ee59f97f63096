//! `uext4 lab pair`: loads on two builds of uext4, in turns.
//!
//! Each round takes A, B, B, A: what drifts with time alone cancels, and the two turns of a build
//! are an A/A pair. Each turn is a process of its own.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::compare::Judging;
use crate::failure::{At, Result, Why, say};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The other build of `uext4`, which is A; this one is B
    program: PathBuf,
    /// Folder for the two runs, a.jsonl and b.jsonl
    #[arg(long)]
    out: PathBuf,
    /// Rounds of two turns of each build
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    judging: Judging,
    /// Loads and options of `lab run`
    #[arg(last = true, required = true)]
    load: Vec<OsString>,
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<()> {
    let own = std::env::current_exe().at("lab", "this program")?;
    std::fs::create_dir_all(&args.out).at("lab", args.out.display())?;
    let [a, b] = ["a.jsonl", "b.jsonl"].map(|name| args.out.join(name));
    let create = |path: &Path| File::create(path).at("lab", path.display());
    let (mut of_a, mut of_b) = (create(&a)?, create(&b)?);
    for round in 1..=args.rounds {
        say(&format!("lab: round {round} of {}", args.rounds));
        for (at, is_own) in [false, true, true, false].into_iter().enumerate() {
            let (program, out) =
                if is_own { (&own, &mut of_b) } else { (&args.program, &mut of_a) };
            turn(program, &args.load, round == 1 && at == 0, out)?;
        }
    }
    args.judging.judge(&a, &b)
}

/// One turn of a build; its figures go to `out`. What it notes is the same in each, and told if it
/// is the first or fails.
fn turn(program: &Path, load: &[OsString], is_first: bool, out: &mut File) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["lab", "run"]).args(load).args(["--peer", "none", "--rounds", "1", "--json"]);
    let output = command.stdin(Stdio::null()).output().at("lab", program.display())?;
    if is_first || !output.status.success() {
        let _ = std::io::stderr().write_all(&output.stderr);
    }
    if !output.status.success() {
        return Err(Why::new(format!("lab run: {}", output.status)).at("lab", program.display()));
    }
    out.write_all(&output.stdout).at("lab", "figures")
}
