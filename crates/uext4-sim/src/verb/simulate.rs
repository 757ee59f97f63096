//! `simulate`: the whole engine from one seed.

use uext4_sim::simulate::{Case, Parts, Plan, run};

/// Run the whole engine from one seed, and judge what comes of it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Operations of each caller in each life, at most
    #[arg(long)]
    operations: Option<usize>,
    /// Callers, at most
    #[arg(long)]
    threads: Option<u32>,
    /// Lives, at most
    #[arg(long)]
    lives: Option<usize>,
    /// Preemptions, at most
    #[arg(long)]
    preemptions: Option<u64>,
    /// Parts that are in whatever the seed draws
    #[arg(long, default_value = "", hide_default_value = true)]
    with: Parts,
    /// Parts that are left out
    #[arg(long, default_value = "", hide_default_value = true)]
    without: Parts,
    /// e2fsck judges the last image, too
    #[arg(long)]
    e2fsck: bool,
    /// Tell of each operation
    #[arg(long)]
    verbose: bool,
}

/// Runs the verb.
pub(crate) fn run_verb(args: &Args) -> Result<(), String> {
    pin();
    for seed in args.seed..args.seed + args.seeds {
        let case = Case {
            seed,
            operations: args.operations,
            threads: args.threads,
            lives: args.lives,
            preemptions: args.preemptions,
            with: args.with,
            without: args.without,
            e2fsck: args.e2fsck,
            verbose: args.verbose,
        };
        if args.verbose {
            println!("{}", Plan::draw(&case));
        }
        let report = run(&case);
        println!(
            "seed {seed} trace {:016x} operations {} lives {} cuts {} preemptions {} switches {}",
            report.trace,
            report.operations,
            report.lives,
            report.cuts,
            report.preemptions,
            report.switches
        );
        if !report.faults.is_empty() {
            println!("{}", Plan::draw(&case));
            for fault in &report.faults {
                println!("fault: {fault}");
            }
            return Err(format!("cargo xtask simulate {case}"));
        }
    }
    Ok(())
}

/// One processor: handing the baton on is then a matter of microseconds.
fn pin() {
    let Ok(mut all) = rustix::thread::sched_getaffinity(None) else { return };
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu));
    if let Some(first) = first {
        all.clear();
        all.set(first);
        // Without it everything works, more slowly.
        let _ = rustix::thread::sched_setaffinity(None, &all);
    }
}
