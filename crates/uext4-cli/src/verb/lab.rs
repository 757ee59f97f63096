//! `uext4 lab`: loads on uext4 and on its peers, alternately, on this machine.

mod compare;
mod compare_check;
mod explain_check;
mod failures;
mod fio;
mod guard;
mod lent;
mod measuring;
mod pair;
mod report;
mod run;
mod sets;

use std::ffi::OsString;
use std::io::Write;

use uext4_lab::{LOADS, Target};

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Result, say};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 lab list", "which loads there are"),
    ("uext4 lab run E0,M1 --json > a.json", "two loads on uext4 and on its peers"),
    ("uext4 lab compare a.json b.json", "what has become faster, what slower"),
];

/// Measure uext4 beside the kernel, fuse2fs and mke2fs
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the loads
    List,
    /// Run loads, on every target in each round
    Run(Box<run::Args>),
    /// Run a job file of fio on every target in each round
    Fio(fio::Args),
    /// Compare two runs; exit status 1 where the second is worse
    Compare(compare::Args),
    /// Count what operations cost; exit status 1 where it is more than in a baseline
    Guard(guard::Args),
    /// Run loads on two builds of uext4 alternately, and compare them
    Pair(pair::Args),
    /// Write the report of a folder of evidence, one HTML file
    Report(report::Args),
    /// Compare this build with itself and with an ablation; exit status 1 where a verdict is wrong
    #[command(hide = true)]
    CompareCheck(compare_check::Args),
    /// Run options that are known to move a counter; exit status 1 where an explanation is wrong
    #[command(hide = true)]
    ExplainCheck(explain_check::Args),
    /// A process of a load
    #[command(hide = true)]
    Worker { args: Vec<OsString> },
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.action {
        Action::List => list(),
        Action::Run(args) => measuring::run(&args),
        Action::Fio(args) => fio::run(&args),
        Action::Compare(args) => {
            compare::run(&args).map_err(|failure| no_verdict(failure, args.bisect()))
        }
        Action::Guard(args) => {
            guard::run(&args).map_err(|failure| no_verdict(failure, args.bisect()))
        }
        Action::Pair(args) => {
            pair::run(&args).map_err(|failure| no_verdict(failure, args.bisect()))
        }
        Action::Report(args) => report::run(&args).map_err(not_measured),
        Action::CompareCheck(args) => compare_check::run(&args).map_err(not_measured),
        Action::ExplainCheck(args) => explain_check::run(&args).map_err(not_measured),
        Action::Worker { args } => uext4_lab::worker::serve(&args).map_err(failed),
    }
}

/// A failure that says nothing about speed: exit status 2.
fn not_measured(failure: Failure) -> Failure {
    no_verdict(failure, false)
}

/// Exit status by which `git bisect run` knows a commit that cannot be tested.
const BISECT_SKIP: u8 = 125;

/// Exit status by which `git bisect run` ends: it takes all below 128 for a bad commit.
pub(crate) const BISECT_END: u8 = 255;

/// A mistake of the caller, which no other commit mends: exit status 2, or what ends a search.
fn mistake(failure: Failure, bisect: bool) -> Failure {
    match failure {
        Failure::Line(line) if bisect => {
            say(&line);
            Failure::Status(BISECT_END)
        }
        other => not_measured(other),
    }
}

/// A failure that says nothing about speed: exit status 2, or what `git bisect run` skips a commit
/// by.
fn no_verdict(failure: Failure, bisect: bool) -> Failure {
    match failure {
        Failure::Line(line) => {
            say(&line);
            Failure::Status(if bisect { BISECT_SKIP } else { 2 })
        }
        other => other,
    }
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut row = |cells: [&str; 7]| {
        let [id, metric, threads, block, space, peers, what] = cells;
        let line =
            format!("{id:<3} {metric:<11} {threads:>16} {block:>6} {space:>8}  {peers:<26} {what}");
        writeln!(out, "{line}").at("lab", "output")
    };
    row(["id", "metric", "threads", "bytes", "space", "peers", "what"])?;
    for load in LOADS {
        let threads: Vec<String> = load.threads.iter().map(ToString::to_string).collect();
        let peers: Vec<&str> = load.peers().map(Target::name).collect();
        let bytes = if load.block_bytes == 0 { "-".into() } else { load.block_bytes.to_string() };
        let space = format!("{:.1} GB", load.space_bytes as f64 / 1e9);
        let (threads, peers) = (threads.join(","), peers.join(","));
        row([load.id, load.metric, &threads, &bytes, &space, &peers, load.what])?;
    }
    Ok(())
}

fn failed(error: uext4_lab::Error) -> Failure {
    Failure::line(&format!("lab: {error}"))
}
