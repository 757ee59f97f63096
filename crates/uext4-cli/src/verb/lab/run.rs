//! `uext4 lab run`: its command line, and the plan that it asks for.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use uext4_lab::{
    Ageing, Form, LOADS, Load, Plan, Route, Store, Target, counted, distinct_variants,
};

use super::lent::Lent;
use super::{failed, sets};
use crate::failure::{Failure, Result, Why};

#[derive(clap::Args)]
#[command(after_help = loads())]
pub(crate) struct Args {
    /// Loads, separated by commas; `all` for every one
    #[arg(value_delimiter = ',', required = true)]
    loads: Vec<String>,
    /// Peers, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "kernel,fuse2fs,mke2fs,raw")]
    peer: Vec<String>,
    /// Own targets, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "uext4,uext4-mount")]
    own: Vec<String>,
    /// Where images lie: ram, disk, or slow=US: ram with flushes that take so many microseconds
    /// (slow: 2,000)
    #[arg(long, default_value = "ram")]
    store: String,
    /// Folder for images, instead of /dev/shm or /var/tmp
    #[arg(long)]
    folder: Option<PathBuf>,
    /// How images are opened: natural (the file) or device (a loop device for every target)
    #[arg(long, default_value = "natural")]
    path: String,
    #[command(flatten)]
    pub(super) lent: Lent,
    /// Numbers of threads, separated by commas, instead of the loads' own
    #[arg(long, value_delimiter = ',')]
    threads: Vec<String>,
    /// How long a run of E0 (on uext4), E1a, E3 and E4 is to take
    #[arg(long, default_value = "10")]
    seconds: String,
    /// Writes of each thread of E0, instead of as many as uext4 makes in that time
    #[arg(long)]
    ops: Option<String>,
    /// Mount options of uext4, separated by commas, that all loads but M7 are run with beside the
    /// default; several times for several variants
    #[arg(long)]
    variant: Vec<String>,
    /// Values of a mount option of uext4, or after `kernel.` of the kernel's ext4, or after
    /// `mkfs.` of an option of mke2fs (mkfs.b=1024,4096), separated by commas, each of them a
    /// variant beside the default; several times for several options (on, off: the option and its
    /// no-form)
    #[arg(long, value_name = "OPTION=VALUES")]
    set: Vec<String>,
    /// Every combination of the options of --set, instead of one at a time: each mount, also the
    /// default, on each kind of file system, also the usual one
    #[arg(long, requires = "set")]
    combine: bool,
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
    #[arg(long, default_value = "1", requires = "aged")]
    churn: String,
    /// Where the chance of --aged begins
    #[arg(long, default_value_t = 5, requires = "aged")]
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
    /// All loads in a quarter of an hour: a scale, a time, rounds, threads and sizes for each
    #[arg(long, conflicts_with_all = ["scale", "seconds", "rounds"])]
    quick: bool,
    /// With --out: look at one more run of each candidate, and tell why they differ: stacks, waits,
    /// latencies, counters
    #[arg(long, requires = "out")]
    explain: bool,
    /// One line of JSON for each figure
    #[arg(long)]
    pub(super) json: bool,
    /// Folder for the evidence: figures, events, outputs of tools, a summary
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Go on with the run in that folder
    #[arg(long, requires = "out")]
    pub(super) resume: bool,
    /// With --out: no second run of the first own target in each round, which tells the noise
    #[arg(long)]
    no_aa: bool,
    /// Tell what would be run, how long that takes and how much room, and do nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

/// Journals that mke2fs makes of blocks of 4 KiB, in MiB.
const JOURNAL_MIB: std::ops::RangeInclusive<u32> = 4..=40_000;
/// A flush of the store `slow`: that of a cheap SSD.
const FLUSH: Duration = Duration::from_micros(2000);
const FLUSH_US: std::ops::RangeInclusive<u64> = 1..=10_000_000;
const SECONDS_MAX: f64 = 86_400.0;
const CHURN_MAX: f64 = 1000.0;

/// The loads, for the help of `run`.
fn loads() -> String {
    let lines = LOADS.iter().map(|load| format!("  {:<3} {}\n", load.id, load.what));
    format!("Loads:\n{}", lines.collect::<String>())
}

/// What the words ask for; a word that means nothing is the failure.
pub(super) fn plan(args: &Args) -> Result<Plan> {
    let loads: Vec<&'static Load> = if args.loads == ["all"] {
        LOADS.iter().collect()
    } else {
        let find = |id: &String| Load::find(id).ok_or_else(|| wrong("load", id));
        args.loads.iter().map(find).collect::<Result<_>>()?
    };
    let targets = args.own.iter().chain(&args.peer).filter(|name| *name != "none");
    let mut targets = targets.map(|name| target(name)).collect::<Result<Vec<_>>>()?;
    args.lent.replace_kernel(&mut targets);
    require_target(args)?;
    if !(args.scale > 0.0 && args.scale <= 1.0) {
        return Err(Why::new("scale must be above 0 and at most 1").at("lab", args.scale));
    }
    let store = store(&args.store)?;
    let route = args.lent.route(store, &args.path)?;
    let sets = sets::variants(&args.set, args.combine, !args.dry_run)?;
    let variants = [args.variant.clone(), sets.own].concat();
    let form = |name: &String| Form::find(name).ok_or_else(|| wrong("form", name));
    let churn = args.churn.parse().ok().filter(|churn| (0.0..=CHURN_MAX).contains(churn));
    let churn = churn.ok_or_else(|| Why::new("churn must be 0 to 1,000").at("lab", &args.churn))?;
    let seconds = args.seconds.parse().ok().filter(|s| *s > 0.0 && *s <= SECONDS_MAX);
    let seconds = seconds.ok_or_else(|| {
        Why::new("seconds must be above 0 and at most 86,400").at("lab", &args.seconds)
    })?;
    Ok(Plan {
        targets,
        store,
        folder: args.folder.clone(),
        route,
        dir: args.lent.dir()?,
        lent: None,
        rounds: args.rounds,
        scale: args.scale,
        threads: numbers(&args.threads, |_| true, "not a number of threads")?
            .into_iter()
            .map(|count| fit(&loads, count))
            .collect::<Result<_>>()?,
        duration: Duration::from_secs_f64(seconds),
        operations: numbers(args.ops.as_slice(), |n| n > 0, "not a number of writes")?.pop(),
        variants: distinct_variants(&variants).map_err(failed)?,
        kernel_variants: sets.kernel,
        mkfs: sets.mkfs,
        combine: args.combine,
        forms: args.form.iter().map(form).collect::<Result<_>>()?,
        blocks: numbers(&args.bs, is_request, "a request has 4 KiB to 1 MiB, in units of 4 KiB")?,
        aged: args.aged,
        ageing: Ageing { churn, seed: args.seed, ..Ageing::default() },
        journals: numbers(
            &args.journal,
            |mib| JOURNAL_MIB.contains(&mib),
            "a journal has 4 to 40,000 MiB",
        )?,
        quick: args.quick,
        aa: args.out.is_some() && !args.no_aa,
        out: None,
        resumed: Arc::default(),
        command: std::env::current_exe().ok(),
        explain: args.out.clone().filter(|_| args.explain),
        job: None,
        stop: Arc::new(AtomicBool::new(false)),
        loads,
    })
}

/// Refuses a run of no target.
pub(super) fn require_target(args: &Args) -> Result<()> {
    match args.own.iter().chain(&args.peer).all(|name| name == "none") {
        true => Err(Failure::line("lab: nothing to run: --own and --peer are none")),
        false => Ok(()),
    }
}

fn wrong(what: &str, name: &str) -> Failure {
    Why::new(format!("no such {what}")).at("lab", name)
}

pub(super) fn target(name: &str) -> Result<Target> {
    Target::find(name).ok_or_else(|| wrong("target", name))
}

pub(super) fn store(name: &str) -> Result<Store> {
    let slow = |flush: Duration| Ok(Store::Slow(flush));
    match (name, name.strip_prefix("slow=")) {
        ("ram", _) => Ok(Store::Ram),
        ("disk", _) => Ok(Store::Disk),
        ("slow", _) => slow(FLUSH),
        (_, Some(text)) => match text.parse() {
            Ok(us) if FLUSH_US.contains(&us) => slow(Duration::from_micros(us)),
            _ => Err(Why::new("a flush takes 1 to 10,000,000 microseconds").at("lab", name)),
        },
        _ => Err(wrong("store", name)),
    }
}

pub(super) fn route(name: &str) -> Result<Route> {
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
            let most = counted(load.threads_max, "thread");
            let range = if load.threads_max == 1 { "" } else { "1 to " };
            let why = format!("{} takes {range}{most}", load.id);
            Err(Why::new(why).at("lab", count))
        }
    }
}
