//! `uext4 lab`: loads on uext4 and on its peers, alternately, on this machine.

mod compare;
mod compare_check;
mod fio;
mod guard;
mod pair;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use uext4_lab::{Ageing, Event, Form, LOADS, Load, Plan, Route, Store, Summary, Target};

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Result, Why, say};

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
    Run(Box<RunArgs>),
    /// Run a job file of fio on every target in each round
    Fio(fio::Args),
    /// Compare two runs; exit status 1 where the second is worse
    Compare(compare::Args),
    /// Count what operations cost; exit status 1 where it is more than in a baseline
    Guard(guard::Args),
    /// Run loads on two builds of uext4 alternately, and compare them
    Pair(pair::Args),
    /// Compare this build with itself and with an ablation; exit status 1 where a verdict is wrong
    #[command(hide = true)]
    CompareCheck(compare_check::Args),
    /// A process of a load
    #[command(hide = true)]
    Worker { args: Vec<OsString> },
}

#[derive(clap::Args)]
#[command(after_help = loads())]
struct RunArgs {
    /// Loads, separated by commas; `all` for every one
    #[arg(value_delimiter = ',', required = true)]
    loads: Vec<String>,
    /// Peers, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "kernel,fuse2fs,mke2fs,raw")]
    peer: Vec<String>,
    /// Own targets, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "uext4,uext4-mount")]
    own: Vec<String>,
    /// Where images lie: ram or disk
    #[arg(long, default_value = "ram")]
    store: String,
    /// Folder for images, instead of /dev/shm or /var/tmp
    #[arg(long)]
    folder: Option<PathBuf>,
    /// How images are opened: natural (the file) or device (a loop device for every target)
    #[arg(long, default_value = "natural")]
    path: String,
    /// Numbers of threads, separated by commas, instead of the loads' own
    #[arg(long, value_delimiter = ',')]
    threads: Vec<String>,
    /// How long a run of E0 (on uext4), E1a, E3 and E4 is to take
    #[arg(long, default_value = "10")]
    seconds: String,
    /// Writes of each thread of E0, instead of as many as uext4 makes in that time
    #[arg(long)]
    ops: Option<String>,
    /// Mount options of uext4, separated by commas, that E0 to E4 are run with beside the default;
    /// several times for several variants
    #[arg(long)]
    variant: Vec<String>,
    /// Forms, separated by commas: own and foreign of E1a, read and write of E4 (both if none is
    /// named), own and shared of M4, M6 and M7
    #[arg(long, value_delimiter = ',')]
    form: Vec<String>,
    /// Bytes of a request of E4, separated by commas, instead of 4, 8, 12 and 16 KiB
    #[arg(long, value_delimiter = ',')]
    bs: Vec<String>,
    /// E1b on a file system that was filled to 85 % and rewritten at random
    #[arg(long)]
    aged: bool,
    /// Bytes that --aged rewrites, by those that it fills
    #[arg(long, default_value = "1")]
    churn: String,
    /// Where the chance of --aged begins
    #[arg(long, default_value_t = 5)]
    seed: u64,
    /// Journals of E0, in MiB, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "128")]
    journal: Vec<String>,
    /// Runs of each target
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Part of the full size, for quick runs
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Looks at one more run of each candidate of E0 to E4 and S1, and writes into this folder why
    /// they differ: stacks, waits, latencies, counters
    #[arg(long, value_name = "DIR")]
    explain: Option<PathBuf>,
    /// One line of JSON for each figure
    #[arg(long)]
    json: bool,
}

/// Journals that mke2fs makes of blocks of 4 KiB, in MiB.
const JOURNAL_MIB: std::ops::RangeInclusive<u32> = 4..=40_000;
const SECONDS_MAX: f64 = 86_400.0;
const CHURN_MAX: f64 = 1000.0;

/// Runs the verb.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.action {
        Action::List => list(),
        Action::Run(args) => measure(&args),
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
        Action::CompareCheck(args) => compare_check::run(&args).map_err(not_measured),
        Action::Worker { args } => uext4_lab::worker::serve(&args).map_err(failed),
    }
}

/// A failure that says nothing about speed: exit status 2.
fn not_measured(failure: Failure) -> Failure {
    no_verdict(failure, false)
}

/// Exit status by which `git bisect run` knows a commit that cannot be tested.
const BISECT_SKIP: u8 = 125;

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

/// The loads, for the help of `run`.
fn loads() -> String {
    let lines = LOADS.iter().map(|load| format!("  {:<3} {}\n", load.id, load.what));
    format!("Loads:\n{}", lines.collect::<String>())
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut row = |cells: [&str; 7]| {
        let [id, metric, threads, block, space, peers, what] = cells;
        let line =
            format!("{id:<3} {metric:<11} {threads:>16} {block:>6} {space:>8}  {peers:<19} {what}");
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

fn measure(args: &RunArgs) -> Result<()> {
    let plan = plan(args).map_err(not_measured)?;
    tell(&plan, args.json, &mut |events| uext4_lab::run(&plan, events))
}

/// What gives events.
type Runs<'a> = &'a mut dyn FnMut(&mut dyn FnMut(Event<'_>)) -> uext4_lab::Result<()>;

/// Runs it, and tells its events as they come; as JSON only the figures.
fn tell(plan: &Plan, json: bool, runs: Runs<'_>) -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&plan.stop)).at("lab", "signals")?;
    }
    let mut summary = Summary::default();
    let (mut figures, mut failures) = (0, 0);
    let quiet = !std::io::stderr().is_terminal();
    // A reader that has gone, as `head` does, ends the run.
    let mut output = Ok(());
    let mut print = |text: &str| {
        let printed = std::io::stdout().write_all(text.as_bytes());
        if printed.is_err() {
            plan.stop.store(true, Ordering::Relaxed);
            output = printed;
        }
    };
    if !json {
        uext4_lab::describe_machine().iter().for_each(|line| print(&format!("{line}\n")));
    }
    let ran = runs(&mut |event| match event {
        Event::Run { .. } if quiet => {}
        Event::Run { load, target, variant, threads, round } => {
            let (id, target) = (load.id, target.name());
            say(&format!("lab: {id} {target} {variant} x{threads} round {round}"));
        }
        Event::Note(load, text) => say(&format!("lab: {}: {text}", load.id)),
        Event::Skipped(target, reason) => {
            say(&format!("lab: {} is left out: {reason}", target.name()));
        }
        Event::Measured(figure) => {
            figures += 1;
            match json {
                true => print(&format!("{}\n", figure.to_json())),
                false => summary.add(figure.clone()),
            }
        }
        Event::Failed(load, target, error) => {
            failures += 1;
            say(&format!("lab: {} on {} gives no figure: {error}", load.id, target.name()));
        }
    });
    print(&summary.to_text());
    output.map_err(crate::output::failed)?;
    ran.map_err(failed)?;
    if failures != 0 {
        return Err(Failure::Reported);
    }
    if figures == 0 && !plan.stop.load(Ordering::Relaxed) {
        return Err(not_measured(Failure::line("lab: nothing to run: no load has these targets")));
    }
    Ok(())
}

/// What the words ask for; a word that means nothing is the failure.
fn plan(args: &RunArgs) -> Result<Plan> {
    let loads: Vec<&'static Load> = if args.loads == ["all"] {
        LOADS.iter().collect()
    } else {
        let find = |id: &String| Load::find(id).ok_or_else(|| wrong("load", id));
        args.loads.iter().map(find).collect::<Result<_>>()?
    };
    let targets = args.own.iter().chain(&args.peer).filter(|name| *name != "none");
    let targets = targets.map(|name| target(name)).collect::<Result<Vec<_>>>()?;
    if targets.is_empty() {
        return Err(not_measured(Failure::line("lab: nothing to run: --own and --peer are none")));
    }
    if !(args.scale > 0.0 && args.scale <= 1.0) {
        return Err(Why::new("scale must be above 0 and at most 1").at("lab", args.scale));
    }
    for variant in &args.variant {
        uext4_lab::parse_options(variant).map_err(failed)?;
    }
    let form = |name: &String| Form::find(name).ok_or_else(|| wrong("form", name));
    let churn = args.churn.parse().ok().filter(|churn| (0.0..=CHURN_MAX).contains(churn));
    let churn = churn.ok_or_else(|| Why::new("churn must be 0 to 1,000").at("lab", &args.churn))?;
    let seconds = args.seconds.parse().ok().filter(|s| *s > 0.0 && *s <= SECONDS_MAX);
    let seconds = seconds.ok_or_else(|| {
        Why::new("seconds must be above 0 and at most 86,400").at("lab", &args.seconds)
    })?;
    Ok(Plan {
        targets,
        store: store(&args.store)?,
        folder: args.folder.clone(),
        route: route(&args.path)?,
        rounds: args.rounds,
        scale: args.scale,
        threads: numbers(&args.threads, |_| true, "not a number of threads")?
            .into_iter()
            .map(|count| fit(&loads, count))
            .collect::<Result<_>>()?,
        duration: Duration::from_secs_f64(seconds),
        operations: numbers(args.ops.as_slice(), |n| n > 0, "not a number of writes")?.pop(),
        variants: args.variant.clone(),
        forms: args.form.iter().map(form).collect::<Result<_>>()?,
        blocks: numbers(&args.bs, is_request, "a request has 4 KiB to 1 MiB, in units of 4 KiB")?,
        aged: args.aged,
        ageing: Ageing { churn, seed: args.seed, ..Ageing::default() },
        journals: numbers(
            &args.journal,
            |mib| JOURNAL_MIB.contains(&mib),
            "a journal has 4 to 40,000 MiB",
        )?,
        command: std::env::current_exe().ok(),
        explain: args.explain.clone(),
        stop: Arc::new(AtomicBool::new(false)),
        loads,
    })
}

fn wrong(what: &str, name: &str) -> Failure {
    Why::new(format!("no such {what}")).at("lab", name)
}

fn target(name: &str) -> Result<Target> {
    Target::find(name).ok_or_else(|| wrong("target", name))
}

fn store(name: &str) -> Result<Store> {
    let store = [Store::Ram, Store::Disk].into_iter().find(|store| store.name() == name);
    store.ok_or_else(|| wrong("store", name))
}

fn route(name: &str) -> Result<Route> {
    let route = [Route::Natural, Route::Device].into_iter().find(|route| route.name() == name);
    route.ok_or_else(|| wrong("path", name))
}

/// Whether a request of E4 can have so many bytes.
fn is_request(bytes: u32) -> bool {
    bytes.is_multiple_of(4096) && (1..=256).contains(&(bytes / 4096))
}

fn numbers(words: &[String], fits: impl Fn(u32) -> bool, why: &str) -> Result<Vec<u32>> {
    let parse = |word: &String| {
        let number = word.parse().ok().filter(|number| fits(*number));
        number.ok_or_else(|| Why::new(why).at("lab", word))
    };
    words.iter().map(parse).collect()
}

/// A number of threads that every load can be run with.
fn fit(loads: &[&'static Load], count: u32) -> Result<u32> {
    match loads.iter().find(|load| !(1..=load.threads_max).contains(&count)) {
        None => Ok(count),
        Some(load) => {
            let why = format!("{} takes 1 to {} threads", load.id, load.threads_max);
            Err(Why::new(why).at("lab", count))
        }
    }
}

fn failed(error: uext4_lab::Error) -> Failure {
    Failure::line(&format!("lab: {error}"))
}
