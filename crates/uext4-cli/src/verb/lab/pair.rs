//! `uext4 lab pair`: loads on two builds of uext4, run alternately.
//!
//! Each round takes A, B, B, A: what drifts with time alone cancels, and the two runs of a build
//! are an A/A pair. Each run is a process of its own.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Parser;

use super::compare::{Judging, read};
use super::measuring::cells_of;
use super::{Action, mistake};
use crate::failure::{At, Failure, Result, Why, say};
use crate::usage;

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
    /// Loads and options of `lab run`, but for --rounds, --peer and --json
    #[arg(last = true, required = true)]
    load: Vec<OsString>,
}

impl Args {
    pub(super) fn bisect(&self) -> bool {
        self.judging.bisect
    }
}

/// Options of `lab run` that a pair sets itself.
const ITS_OWN: [&str; 6] = ["--rounds", "--peer", "--json", "--out", "--resume", "--dry-run"];
/// With what each run of a pair is run.
const ONE_RUN: [&str; 5] = ["--peer", "none", "--rounds", "1", "--json"];

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<()> {
    let own = std::env::current_exe().at("lab", "this program")?;
    let paths = ["a.jsonl", "b.jsonl"].map(|name| args.out.join(name));
    let compared = args.out.join("compare.json");
    let load = check(args, &paths).and_then(|()| read_load(&args.load));
    let load = load.map_err(|failure| mistake(failure, args.bisect()))?;
    check_load(load)?;
    std::fs::create_dir_all(&args.out).at("lab", args.out.display())?;
    // What an earlier pair left there is not of these figures.
    for path in paths.iter().chain([&compared]) {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).at("lab", path.display());
            }
            _ => {}
        }
    }
    measure([&args.program, &own], &args.load, args.rounds, true, &mut |build, figures| {
        let path = &paths[build];
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(figures)).at("lab", path.display())
    })?;
    let comparison = args.judging.compare(&read(&paths[0])?, &read(&paths[1])?)?;
    // For `lab report` of this folder.
    std::fs::write(&compared, comparison.to_json()).at("lab", compared.display())?;
    args.judging.judge(&comparison)
}

/// Refuses what the caller cannot have meant.
fn check(args: &Args, paths: &[PathBuf; 2]) -> Result<()> {
    args.judging.check()?;
    for word in &args.load {
        let word = word.to_string_lossy();
        if ITS_OWN.contains(&word.split('=').next().unwrap_or_default()) {
            let why = "a pair sets it itself: --rounds and --out stand before --";
            return Err(Why::new(why).at("lab", word));
        }
    }
    // A search by commits is one pair after the other.
    match paths.iter().find(|path| !args.judging.bisect && path.exists()) {
        Some(path) => {
            let why = "figures of an earlier pair are there: name a new folder";
            Err(Why::new(why).at("lab", path.display()))
        }
        None => Ok(()),
    }
}

/// The loads and options of a run; what cannot be read is a mistake of the caller.
fn read_load(load: &[OsString]) -> Result<Box<super::run::Args>> {
    let words = ["uext4", "lab", "run"].map(OsString::from).into_iter();
    let words = words.chain(load.iter().cloned()).chain(ONE_RUN.map(OsString::from));
    let read = crate::Command::try_parse_from(words).map_err(|error| match error.use_stderr() {
        true => Failure::line(&format!("lab: {}", usage::sentence(&error))),
        false => Why::new("not behind --").at("lab", "--help"),
    })?;
    let crate::Verb::Lab(super::Args { action: Action::Run(args) }) = read.verb else {
        return Err(Failure::line("lab: a pair runs loads alone"));
    };
    super::run::require_target(&args)?;
    Ok(args)
}

/// Refuses what this build cannot run, before one has run: another commit may have other loads.
fn check_load(mut args: Box<super::run::Args>) -> Result<()> {
    // Nothing is tried on the kernel here.
    args.dry_run = true;
    cells_of(&mut super::run::plan(&args)?).map(drop)
}

/// Runs a load on the builds A and B, and hands the figures of each run to `keep` with the number
/// of its build.
pub(super) fn measure(
    builds: [&Path; 2],
    load: &[OsString],
    rounds: u32,
    is_told: bool,
    keep: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    for round in 1..=rounds {
        if is_told {
            say(&format!("lab: round {round} of {rounds}"));
        }
        for (at, build) in [0, 1, 1, 0].into_iter().enumerate() {
            let is_first = is_told && round == 1 && at == 0;
            keep(build, &run_once(builds[build], load, is_first)?)?;
        }
    }
    Ok(())
}

/// One run of a build; returns its figures. What it notes is the same in each, and told if it is
/// the first or fails.
fn run_once(program: &Path, load: &[OsString], is_first: bool) -> Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(["lab", "run"]).args(load).args(ONE_RUN);
    let output = command.stdin(Stdio::null()).output().at("lab", program.display())?;
    if is_first || !output.status.success() {
        let _ = std::io::stderr().write_all(&output.stderr);
    }
    if !output.status.success() {
        return Err(Why::new(format!("lab run: {}", output.status)).at("lab", program.display()));
    }
    Ok(output.stdout)
}
