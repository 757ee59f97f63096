//! `uext4 lab pair`: loads on two builds of uext4, run alternately.
//!
//! Each round takes A, B, B, A: what drifts with time alone cancels, and the two runs of a build
//! are an A/A pair. Each run is a process of its own.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::compare::Judging;
use crate::failure::{At, Result, Why, say};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The other build of `uext4`, which is A; this one is B
    program: PathBuf,
    /// Folder for the two runs, a.jsonl and b.jsonl, and for compare.json
    #[arg(long)]
    out: PathBuf,
    /// Rounds of two runs of each build
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    judging: Judging,
    /// Loads and options of `lab run`
    #[arg(last = true, required = true)]
    load: Vec<OsString>,
}

impl Args {
    pub(super) fn bisect(&self) -> bool {
        self.judging.bisect
    }
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<()> {
    let own = std::env::current_exe().at("lab", "this program")?;
    std::fs::create_dir_all(&args.out).at("lab", args.out.display())?;
    let paths = ["a.jsonl", "b.jsonl"].map(|name| args.out.join(name));
    let figures = measure(&args.program, &own, &args.load, args.rounds, true)?;
    // What an earlier pair left there is not of these figures.
    match std::fs::remove_file(args.out.join("compare.json")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).at("lab", args.out.display());
        }
        _ => {}
    }
    for (path, figures) in paths.iter().zip(figures) {
        std::fs::write(path, figures).at("lab", path.display())?;
    }
    let comparison = args.judging.compare(&paths[0], &paths[1])?;
    // For `lab report` of this folder.
    let compared = args.out.join("compare.json");
    std::fs::write(&compared, comparison.to_json()).at("lab", compared.display())?;
    args.judging.judge(&comparison)
}

/// Runs a load on the builds A and B, and returns the figures of each.
pub(super) fn measure(
    a: &Path,
    b: &Path,
    load: &[OsString],
    rounds: u32,
    is_told: bool,
) -> Result<[Vec<u8>; 2]> {
    let mut figures = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        if is_told {
            say(&format!("lab: round {round} of {rounds}"));
        }
        for (at, build) in [0, 1, 1, 0].into_iter().enumerate() {
            let is_first = is_told && round == 1 && at == 0;
            figures[build].extend(run_once([a, b][build], load, is_first)?);
        }
    }
    Ok(figures)
}

/// One run of a build; returns its figures. What it notes is the same in each, and told if it is
/// the first or fails.
fn run_once(program: &Path, load: &[OsString], is_first: bool) -> Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(["lab", "run"]).args(load).args(["--peer", "none", "--rounds", "1", "--json"]);
    let output = command.stdin(Stdio::null()).output().at("lab", program.display())?;
    if is_first || !output.status.success() {
        let _ = std::io::stderr().write_all(&output.stderr);
    }
    if !output.status.success() {
        return Err(Why::new(format!("lab run: {}", output.status)).at("lab", program.display()));
    }
    Ok(output.stdout)
}
