//! `crash`: recorded runs of every category, cut and judged, until time is up.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use uext4_sim::category::{CATEGORIES, Category};
use uext4_sim::crash::{Campaign, Depth, Effort, Samples, unjournaled};
use uext4_sim::format::{FormatName, ORDINARY};
use uext4_sim::mount::why_no_loop;
use uext4_sim::oracle::e2fsck;
use uext4_sim::run::ABLATIONS;

/// Record loads and judge what a loss of power leaves
#[derive(clap::Args)]
pub(crate) struct Args {
    /// First seed of each category
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Go on with further seeds for this long; without it and --rounds: 60
    #[arg(long)]
    seconds: Option<u64>,
    /// So many seeds of each category instead of a time
    #[arg(long, default_value_t = 0)]
    rounds: u64,
    /// One category instead of all
    #[arg(long)]
    category: Option<Category>,
    /// The form of the file system
    #[arg(long, value_name = "NAME", default_value = ORDINARY.name)]
    format: FormatName,
    /// Only the seeds of this data mode or ablation option
    #[arg(long, value_name = "WORD", alias = "contrast")]
    ablation: Option<String>,
    /// Threads that judge; 0: one for each processor
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// Look closely at every so many windows between flushes
    #[arg(long, default_value_t = 4)]
    close_every: usize,
    /// Every subset of so many pieces of unflushed writes
    #[arg(long, default_value_t = 6)]
    exhaustive: u32,
    /// Random subsets of each kind beyond that
    #[arg(long, default_value_t = 2)]
    random: u32,
    /// Images to recover of each run; 0: all
    #[arg(long, default_value_t = 0)]
    images: usize,
    /// Keep the images of states with faults in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Tell of each run
    #[arg(long)]
    verbose: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let seconds = args.seconds.or((args.rounds == 0).then_some(60));
    let kernel = match why_no_loop() {
        None => 2_000,
        Some(why) => {
            println!("skipped: the kernel as a judge: {why}");
            0
        }
    };
    let e2fsck = match e2fsck() {
        Some(_) => 200,
        None => {
            println!("skipped: e2fsck as a judge: not installed");
            0
        }
    };
    if !args.format.0.has_journal() {
        return without_journal(args, seconds);
    }
    let effort = Effort {
        until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        faults_max: 5,
        states_max: args.images,
        depth: Depth { exhaustive_max: args.exhaustive.min(12), random: args.random },
        close_every: args.close_every,
        samples: Samples { nested: 10, e2fsck, kernel, ..Samples::default() },
        keep: args.keep.clone(),
    };
    let mut campaign = Campaign::all(args.seed, effort);
    campaign.rounds = args.rounds;
    campaign.format = args.format.0;
    campaign.categories = args.category.map_or(CATEGORIES.to_vec(), |category| vec![category]);
    campaign.workers = args.workers;
    campaign.tells = args.verbose;
    if let Some(word) = args.ablation.as_deref().filter(|word| !campaign.keep_to(word)) {
        return Err(format!("'{word}' is none of {}", ABLATIONS.join(", ")));
    }
    let summary = campaign.run()?;
    println!("{summary}");
    match summary.faults.len() {
        0 => Ok(()),
        faults => Err(format!("{faults} faults")),
    }
}

/// Seeds on a file system without a journal: [`unjournaled`] has the rules.
fn without_journal(args: &Args, seconds: Option<u64>) -> Result<(), String> {
    if e2fsck().is_none() {
        return Err("e2fsck, which repairs file systems without a journal, is not installed".into());
    }
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let depth = Depth { exhaustive_max: args.exhaustive.min(12), random: args.random };
    let images = if args.images == 0 { usize::MAX } else { args.images };
    let (mut states, mut faults) = (0, 0);
    for seed in args.seed.. {
        let is_last = args.rounds > 0 && seed >= args.seed + args.rounds;
        if is_last || until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let format = args.format.0;
        let judged = unjournaled::judge_run(format.features, seed, depth, images, until)?;
        states += judged.states;
        faults += judged.faults.len();
        for (state, what) in judged.faults {
            println!("{state}: {what}\n  again: --format {format} --seed {seed} --rounds 1");
        }
    }
    println!("{states} states, {faults} faults");
    if faults == 0 { Ok(()) } else { Err(format!("{faults} faults")) }
}
