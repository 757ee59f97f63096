//! `uext4 lab`: loads on uext4 and on its peers, in turns, on this machine.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use uext4_lab::{Event, LOADS, Load, Plan, Route, Store, Summary, Target};

use crate::failure::{At, Failure, Result, Why, say};

/// Measure uext4 beside the kernel, fuse2fs and mke2fs
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the loads
    List,
    /// Run loads; each target takes its turn in each round
    Run(RunArgs),
    /// A process of a load
    #[command(hide = true)]
    Worker { args: Vec<OsString> },
}

#[derive(clap::Args)]
struct RunArgs {
    /// Loads, separated by commas; `all` for every one
    #[arg(value_delimiter = ',', required = true)]
    loads: Vec<String>,
    /// Peers, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "kernel,fuse2fs,mke2fs")]
    peer: Vec<String>,
    /// Own sides, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "uext4,uext4-mount")]
    own: Vec<String>,
    /// Where images lie: ram or disk
    #[arg(long, default_value = "ram")]
    store: String,
    /// Folder for images, instead of /dev/shm or /var/tmp
    #[arg(long)]
    folder: Option<PathBuf>,
    /// How images are opened: natural (the file) or device (a loop device for every side)
    #[arg(long, default_value = "natural")]
    path: String,
    /// Turns of each target
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Part of the full size, for quick runs
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// One line of JSON for each figure
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.action {
        Action::List => list(),
        Action::Run(args) => measure(&args),
        Action::Worker { args } => uext4_lab::worker::serve(&args).map_err(failed),
    }
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    for load in LOADS {
        writeln!(out, "{}  {:<9}  {}", load.id, load.metric, load.what).at("lab", "output")?;
    }
    Ok(())
}

fn measure(args: &RunArgs) -> Result<()> {
    let plan = plan(args)?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&plan.stop)).at("lab", "signals")?;
    }
    let mut summary = Summary::default();
    let mut failures = 0;
    let quiet = !std::io::stderr().is_terminal();
    if !args.json {
        uext4_lab::describe_machine().iter().for_each(|line| println!("{line}"));
    }
    let ran = uext4_lab::run(&plan, &mut |event| match event {
        Event::Turn { .. } if quiet => {}
        Event::Turn { load, target, threads, round } => {
            say(&format!("lab: {} {} x{threads} round {round}", load.id, target.name()));
        }
        Event::Skipped(target, reason) => {
            say(&format!("lab: {} is left out: {reason}", target.name()));
        }
        Event::Measured(figure) if args.json => println!("{}", figure.to_json()),
        Event::Measured(figure) => summary.add(figure.clone()),
        Event::Failed(load, target, error) => {
            failures += 1;
            say(&format!("lab: {} on {} gives no figure: {error}", load.id, target.name()));
        }
    });
    print!("{}", summary.to_text());
    ran.map_err(failed)?;
    if failures == 0 { Ok(()) } else { Err(Failure::Reported) }
}

fn plan(args: &RunArgs) -> Result<Plan> {
    let wrong = |what: &str, name: &str| Why::new(format!("no such {what}")).at("lab", name);
    let loads = if args.loads == ["all"] {
        Ok(LOADS.iter().collect())
    } else {
        let find = |id: &String| Load::find(id).ok_or_else(|| wrong("load", id));
        args.loads.iter().map(find).collect()
    };
    let targets = args.own.iter().chain(&args.peer).filter(|name| *name != "none");
    let targets = targets.map(|name| Target::find(name).ok_or_else(|| wrong("target", name)));
    let store = [Store::Ram, Store::Disk].into_iter().find(|store| store.name() == args.store);
    let route = [Route::Natural, Route::Device].into_iter().find(|route| route.name() == args.path);
    if !(args.scale > 0.0 && args.scale <= 1.0) {
        return Err(Why::new("scale must be above 0 and at most 1").at("lab", args.scale));
    }
    Ok(Plan {
        loads: loads?,
        targets: targets.collect::<Result<_>>()?,
        store: store.ok_or_else(|| wrong("store", &args.store))?,
        folder: args.folder.clone(),
        route: route.ok_or_else(|| wrong("path", &args.path))?,
        rounds: args.rounds,
        scale: args.scale,
        command: std::env::current_exe().ok(),
        stop: Arc::new(AtomicBool::new(false)),
    })
}

fn failed(error: uext4_lab::Error) -> Failure {
    Failure::line(&format!("lab: {error}"))
}
