//! `crash`: recorded runs of one seed after the other, cut and judged, until time is up.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use uext4_sim::crash::{Effort, judge_run};
use uext4_sim::plant::Plant;
use uext4_sim::run::{NEWER_FEATURES, Plan, Shape, record};

/// Record loads and judge what a loss of power leaves
#[derive(clap::Args)]
pub(crate) struct Args {
    /// First seed; without --seconds the only one
    #[arg(long)]
    seed: Option<u64>,
    /// Go on with further seeds for this long
    #[arg(long)]
    seconds: Option<u64>,
    /// Block size, MiB of journal and features of every seed, as BYTES,MIB[,FEATURES]
    #[arg(long)]
    shape: Option<String>,
    /// Threads of every seed; 1 makes a seed repeat best
    #[arg(long)]
    threads: Option<u32>,
    /// Operations of each thread
    #[arg(long)]
    operations: Option<usize>,
    /// Judge about this many places of a longer log; 0: all
    #[arg(long, default_value_t = 150)]
    places: usize,
    /// Subsets of unpromised writes at each place
    #[arg(long, default_value_t = 2)]
    subsets: usize,
    /// Keep the images of states with faults in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print what each thread did when a fault is found
    #[arg(long)]
    history: bool,
    /// Plant a fault, which must be found
    #[arg(long)]
    plant: Option<Planted>,
}

/// A planted fault.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Planted {
    /// Every other flush is answered and not done
    DroppedFlushes,
    /// Syncs do nothing
    SkippedSyncs,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let start = Instant::now();
    let first = args.seed.unwrap_or(1);
    let seconds = args.seconds.or(args.seed.is_none().then_some(60));
    let until = seconds.map(|seconds| start + Duration::from_secs(seconds));
    let shape = args.shape.as_deref().map(parse_shape).transpose()?;
    let (mut states, mut left_out, mut faults) = (0, 0, 0);
    for seed in first.. {
        if seed > first && until.is_none_or(|until| Instant::now() >= until) {
            break;
        }
        let plan = plan(seed, shape.as_ref(), args);
        let run = match record(&plan, plant(args.plant)) {
            Ok(run) => run,
            Err(error) => {
                println!("{plan}\n  {error}\n  again: {}", again(seed, args));
                faults += 1;
                continue;
            }
        };
        let effort = Effort {
            until,
            places_max: args.places,
            subsets: args.subsets,
            keep: args.keep.clone(),
            faults_max: 20,
            ..Effort::default()
        };
        let findings = judge_run(&run, seed, &effort)?;
        println!("{plan}: {} states, {} faults", findings.states, findings.faults.len());
        states += findings.states;
        left_out += findings.left_out;
        faults += findings.faults.len();
        if findings.faults.is_empty() {
            continue;
        }
        for fault in &findings.faults {
            println!("  {}: {}", fault.state, fault.what);
        }
        println!("  again: {}", again(seed, args));
        if args.history {
            print_history(&run.history);
        }
    }
    if left_out > 0 {
        println!("{left_out} places were left out (time, --places, or many faults)");
    }
    println!("{states} states, {faults} faults");
    if faults > 0 { Err(format!("{faults} faults")) } else { Ok(()) }
}

fn plan(seed: u64, shape: Option<&Shape>, args: &Args) -> Plan {
    let mut plan = match shape {
        Some(shape) => Plan::with(seed, shape.clone()),
        None => Plan::from_seed(seed),
    };
    plan.threads = args.threads.unwrap_or(plan.threads);
    plan.operations = args.operations.unwrap_or(plan.operations);
    plan
}

fn plant(planted: Option<Planted>) -> Plant {
    match planted {
        None => Plant::None,
        Some(Planted::DroppedFlushes) => Plant::DroppedFlushes,
        Some(Planted::SkippedSyncs) => Plant::SkippedSyncs,
    }
}

/// The command that repeats one seed.
fn again(seed: u64, args: &Args) -> String {
    let (places, subsets) = (args.places, args.subsets);
    let mut line = format!("cargo xtask crash --seed {seed} --places {places} --subsets {subsets}");
    if let Some(shape) = &args.shape {
        line += &format!(" --shape {shape}");
    }
    if let Some(threads) = args.threads {
        line += &format!(" --threads {threads}");
    }
    if let Some(operations) = args.operations {
        line += &format!(" --operations {operations}");
    }
    line
}

fn parse_shape(word: &str) -> Result<Shape, String> {
    let wrong = || format!("--shape {word}: not BYTES,MIB[,FEATURES]");
    let (block_size, rest) = word.split_once(',').ok_or_else(wrong)?;
    let (journal_mib, features) = rest.split_once(',').unwrap_or((rest, ""));
    let features = match features {
        "" => "",
        NEWER_FEATURES => NEWER_FEATURES,
        // It lives as long as the program.
        other => String::leak(other.to_owned()),
    };
    Ok(Shape {
        block_size: block_size.parse().map_err(|_| wrong())?,
        journal_mib: journal_mib.parse().map_err(|_| wrong())?,
        image_mib: 32,
        features,
    })
}

fn print_history(history: &uext4_sim::model::History) {
    for thread in &history.threads {
        println!("  thread {}:", thread.thread);
        for (index, entry) in thread.entries.iter().enumerate() {
            println!("    {index}: {}..{:?} {:?}", entry.started, entry.ended, entry.operation);
        }
    }
}
