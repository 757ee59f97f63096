//! `simulate`: the whole engine from one seed, many times.

use std::time::Duration;
use uext4::injected_faults::Fault;
use uext4_sim::simulate::seed_campaign::{SeedCampaign, Workers, work};
use uext4_sim::simulate::{Case, Parts, SeedPlan};

/// Run the whole engine from one seed, and judge what comes of it
///
/// Without --seeds, --seconds and --total one seed is run, three times, and the runs compared.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The seed, or the first of many
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Go on with further seeds, so many in all
    #[arg(long)]
    seeds: Option<u64>,
    /// Go on with further seeds for this long
    #[arg(long)]
    seconds: Option<u64>,
    /// Go on with further seeds until so many operations are done
    #[arg(long)]
    total: Option<u64>,
    /// Processes; 0: one for each processor
    #[arg(long, default_value_t = 0)]
    jobs: usize,
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
    /// Inject a fault into the engine (docs/testing.md)
    #[arg(long, value_name = "NAME", alias = "plant")]
    inject: Option<Fault>,
    /// e2fsck judges each recovered image, instead of one in ten
    #[arg(long)]
    e2fsck: bool,
    /// Tell which locks were waited for, what was cut, and which errors were made
    #[arg(long)]
    coverage: bool,
    /// Tell of each operation
    #[arg(long)]
    verbose: bool,
    /// Report a failing seed as it is
    #[arg(long)]
    no_shrink: bool,
    /// Run the seeds in this process: for the program itself
    #[arg(long, hide = true)]
    worker: bool,
    /// Where it runs
    #[arg(long, hide = true, default_value_t = 0)]
    processor: usize,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let case = Case {
        seed: args.seed,
        operations: args.operations,
        threads: args.threads,
        lives: args.lives,
        preemptions: args.preemptions,
        with: args.with,
        without: args.without,
        fault: args.inject,
        e2fsck: args.e2fsck,
        verbose: args.verbose,
    };
    if args.worker {
        pin(args.processor);
        return work(&case, args.seeds.unwrap_or(1));
    }
    if args.verbose {
        pin(0);
        return work(&case, 1);
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let workers = Workers { program };
    if args.seeds.is_none() && args.seconds.is_none() && args.total.is_none() {
        return replay(&workers, &case);
    }
    let jobs = match args.jobs {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
        jobs => jobs,
    };
    let time = args.seconds.map(Duration::from_secs);
    let campaign = SeedCampaign {
        workers: workers.clone(),
        case,
        seeds: args.seeds,
        time,
        operations: args.total,
        jobs,
    };
    let totals = campaign.run()?;
    println!(
        "{} seeds, {} operations, {} lives, {} losses of power",
        totals.seeds, totals.operations, totals.lives, totals.cuts
    );
    if args.coverage {
        print!("{}", totals.coverage);
    }
    let Some((case, faults)) = totals.fault else { return Ok(()) };
    println!("fails: cargo xtask simulate {case}");
    faults.iter().for_each(|fault| println!("    {fault}"));
    if args.no_shrink {
        return Err(format!("cargo xtask simulate {case}"));
    }
    let preemptions = workers.attempt(&case)?.preemptions;
    let least = workers.shrink(&case, &faults, preemptions)?;
    replay(&workers, &least)
}

/// Runs one case three times, and compares.
fn replay(workers: &Workers, case: &Case) -> Result<(), String> {
    println!("{}", SeedPlan::draw(case));
    let first = workers.attempt(case)?;
    println!("trace {:016x}", first.trace);
    for _ in 0..2 {
        let again = workers.attempt(case)?;
        if (again.trace, &again.faults) != (first.trace, &first.faults) {
            let what = format!("trace {:016x}, {:?}", again.trace, again.faults);
            return Err(format!("the same case ran in another way: {what}: {case}"));
        }
    }
    println!("three runs alike");
    if first.faults.is_empty() {
        return Ok(());
    }
    first.faults.iter().for_each(|fault| println!("fault: {fault}"));
    Err(format!("cargo xtask simulate {case}"))
}

/// One processor: handing the baton on is then a matter of microseconds.
fn pin(processor: usize) {
    let Ok(mut all) = rustix::thread::sched_getaffinity(None) else { return };
    let is_there = |cpu: &usize| all.is_set(*cpu);
    let there: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(is_there).collect();
    if let Some(&cpu) = there.get(processor % there.len().max(1)) {
        all.clear();
        all.set(cpu);
        // Without it everything works, more slowly.
        let _ = rustix::thread::sched_setaffinity(None, &all);
    }
}
