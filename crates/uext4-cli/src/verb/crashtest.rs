//! `uext4 crashtest`: whether a program survives a loss of power on ext4.

mod text;

use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use uext4_crashtest::model::Guarantees;
use uext4_crashtest::run::{self, Outcome, Plan, Watch};
use uext4_fuse::{FuseOptions, Word};

use crate::ended::Ended;
use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Result, Why, say, with_status};
use crate::progress::Progress;
use crate::spec::{SIZE_FORMS, parse_size};
use crate::verbosity::{self, Verbosity};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 crashtest --setup ./fill --run ./store --check ./check", "test a program"),
    ("uext4 crashtest --run ./store --check ./check --out report", "keep a failing image"),
    ("uext4 crashtest --run ./store --check ./check -o noauto_da_alloc", "mounted otherwise"),
];

/// States that are tried where neither their number nor a time is given.
const STATES: u64 = 1000;
/// Seconds for them then.
const SECONDS: u64 = 300;

/// Test whether a program survives a loss of power on ext4
///
/// The program runs on a mount that records its system calls. From a model of what ext4
/// guarantees (docs/crash-model.md) come the file systems that a loss of power could have left;
/// each is mounted, and the check command says by its exit status whether it is sound. Commands
/// are run by sh -c with the mount as their working directory. UEXT4_CRASHTEST_DIR names the
/// mount; UEXT4_CRASHTEST_OUTPUT, for the check, a file with what the program had printed on its
/// standard output when the power failed.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Makes what the program finds; its effects are durable
    #[arg(long, value_name = "COMMAND")]
    setup: Option<String>,
    /// The program
    #[arg(long, value_name = "COMMAND")]
    run: String,
    /// Exit status 0 says that a state is sound
    #[arg(long, value_name = "COMMAND")]
    check: String,
    /// Size of the file system, which is in memory
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    image_size: String,
    /// What ext4 guarantees of data: ordered, journal or writeback
    #[arg(long, default_value = "ordered")]
    mode: String,
    /// Mount options of ext4, and of FUSE, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Longest time for trying states; 300 where --states is not given
    #[arg(long, value_name = "N")]
    seconds: Option<NonZero<u64>>,
    /// Most states to try; 1000 where --seconds is not given
    #[arg(long, value_name = "N")]
    states: Option<NonZero<u64>>,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest time of each command, in seconds
    #[arg(long, value_name = "N", default_value = "120")]
    timeout: NonZero<u32>,
    /// Checks at a time; as many as there are processors by default
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Folder for crash.json and, of a state that fails, failing.img
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The result as one object of JSON
    #[arg(long)]
    json: bool,
}

/// Files in the folder of `--out`.
const REPORT: &str = "crash.json";
const IMAGE: &str = "failing.img";

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let begun = plan(args).and_then(|plan| {
        let is_new = args.out.as_deref().map(check_folder).transpose()?.unwrap_or(false);
        Ok((Ended::listen("crashtest", &plan.stop)?, plan, is_new))
    });
    let (ended, plan, is_new) = begun.map_err(with_status(2))?;
    match test(args, &plan, is_new) {
        // A failure that was found is one, whatever came after it.
        Ok(true) => Err(Failure::Status(1)),
        found => ended.or(found.map(drop)).map_err(with_status(2)),
    }
}

/// Whether a state failed. The folder of `--out` may be new.
fn test(args: &Args, plan: &Plan, is_new: bool) -> Result<bool> {
    let shown = Shown(Progress::wait("crashtest", "image".to_owned()));
    let outcome = run::test(plan, &shown);
    drop(shown);
    if let Some(folder) = args.out.as_deref().filter(|_| is_new && outcome.is_err()) {
        // There is nothing to keep in it.
        let _ = std::fs::remove_dir(folder);
    }
    let outcome = outcome.map_err(|error| Failure::line(&format!("crashtest: {error}")))?;
    let kept = args.out.as_deref().map(|folder| keep(folder, &outcome)).transpose();
    let text = match args.json {
        true => json(&outcome)?,
        false => text::of(&outcome.report, args.out.as_deref()),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(crate::output::failed)?;
    if let Some(why) = &outcome.report.cut_short {
        say(&format!("crashtest: {why}"));
    }
    kept?;
    Ok(outcome.report.failure.is_some())
}

/// What the words ask for.
fn plan(args: &Args) -> Result<Plan> {
    let wrong = |why: String| Failure::line(&format!("crashtest: {why}"));
    let mut guarantees =
        Guarantees::of_mode(&args.mode).map_err(|error| wrong(error.to_string()))?;
    let mut fuse = FuseOptions::default();
    let words = args.options.iter().flat_map(|list| list.split(','));
    for word in words.filter(|word| !word.is_empty()) {
        // A mount takes some of those that the model knows nothing of.
        let is_of_mount = Guarantees::objection(word).is_none();
        if !is_of_mount || fuse.parse(word).map_err(wrong)? != Word::Taken {
            guarantees.set(word).map_err(|error| wrong(error.to_string()))?;
        }
    }
    if fuse.read_only || fuse.remount {
        return Err(wrong("mount options 'ro' and 'remount' leave nothing to test".to_owned()));
    }
    fuse.check(rustix::process::geteuid().is_root()).map_err(wrong)?;
    let size = parse_size(&args.image_size).ok_or_else(|| {
        Why::new(format!("not a size: {SIZE_FORMS}")).at("crashtest", &args.image_size)
    })?;
    let processors = std::thread::available_parallelism();
    let is_unlimited = args.seconds.is_none() && args.states.is_none();
    let or = |given: Option<NonZero<u64>>, default: u64| {
        given.map(NonZero::get).or_else(|| is_unlimited.then_some(default))
    };
    Ok(Plan {
        setup: args.setup.clone(),
        run: args.run.clone(),
        check: args.check.clone(),
        image_size: size,
        guarantees,
        fuse,
        states: or(args.states, STATES),
        time: or(args.seconds, SECONDS).map(Duration::from_secs),
        seed: args.seed,
        limit: Duration::from_secs(args.timeout.get().into()),
        jobs: args.jobs.map_or_else(|| processors.map_or(1, NonZero::get), NonZero::get),
        stop: Arc::new(AtomicBool::new(false)),
    })
}

/// Refuses a folder that has a result already, before hours are spent on another one. Whether it is
/// new.
fn check_folder(folder: &Path) -> Result<bool> {
    for name in [REPORT, IMAGE] {
        let path = folder.join(name);
        if path.symlink_metadata().is_ok() {
            return Err(Why::new("is there already").at("crashtest", path.display()));
        }
    }
    let is_new = !folder.exists();
    std::fs::create_dir_all(folder).at("crashtest", folder.display())?;
    Ok(is_new)
}

/// Keeps a result in its folder.
fn keep(folder: &Path, outcome: &Outcome) -> Result<()> {
    let (report, image) = (folder.join(REPORT), folder.join(IMAGE));
    std::fs::write(&report, json(outcome)?).at("crashtest", report.display())?;
    match &outcome.image {
        Some(device) => device.save(&image).at("crashtest", image.display()),
        None => Ok(()),
    }
}

fn json(outcome: &Outcome) -> Result<String> {
    let text = serde_json::to_string_pretty(&outcome.report);
    text.map(|text| text + "\n").map_err(|error| Failure::line(&format!("crashtest: {error}")))
}

/// What the user sees meanwhile: a line of progress, and what the program prints.
struct Shown(Progress);

impl Watch for Shown {
    fn begins(&self, what: &str) {
        self.0.change(what.to_owned());
    }

    fn prints(&self, bytes: &[u8]) {
        if verbosity::given() != Verbosity::Quiet {
            // Standard output is for the result. A terminal that is gone is no reason to stop.
            self.0.aside(|| drop(io::stderr().write_all(bytes)));
        }
    }

    fn checked(&self, states: u64) {
        self.0.change(format!("{states} states checked"));
    }
}
