//! `uext4 lab fio`: a job file of the user's own on every target.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use uext4_lab::{FIO_TARGETS, FioJob, Plan, Target, distinct_variants};

use super::lent::Lent;
use super::measuring::{Kept, measure};
use super::run::{store, target};
use super::{failed, not_measured};
use crate::examples::{self, Examples};
use crate::failure::{Result, Why};
use crate::spec;

/// Smallest image, in bytes.
const IMAGE_BYTES_MIN: u64 = 16 << 20;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 lab fio my.fio --rounds 5", "on uext4, the kernel and fuse2fs, alternately"),
    (
        "uext4 lab fio my.fio --engine $(cargo xtask fio) --targets uext4,kernel",
        "the library, by uext4's engine for fio",
    ),
    (
        "uext4 lab fio my.fio --device /dev/nvme1n1 --image-size 100G",
        "every target on one disk, whose content is lost",
    ),
];

/// Run a job file of fio on every target in each round, each time on an empty file system
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Job file; its `directory` is set by the lab, and for `uext4` its engine
    job: PathBuf,
    /// Targets, separated by commas: uext4, uext4-mount, kernel, dir, fuse2fs, bindfs
    #[arg(long, value_delimiter = ',', default_value = "uext4,uext4-mount,kernel,fuse2fs")]
    targets: Vec<String>,
    /// uext4's engine for fio, for the target `uext4`: `cargo xtask fio` builds it and prints its
    /// path
    #[arg(long)]
    engine: Option<PathBuf>,
    /// Size of the file system (sparse), or with --dir the room there: what the job's files need at
    /// most
    #[arg(long, default_value = "4G")]
    image_size: String,
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
    lent: Lent,
    /// Mount options of uext4, separated by commas, that the job is run with beside the default;
    /// several times for several variants
    #[arg(long)]
    variant: Vec<String>,
    /// Runs of each target
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One line of JSON for each figure
    #[arg(long)]
    json: bool,
    /// Folder for the evidence: figures, events, outputs of tools, a summary, a report
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with the run in that folder
    #[arg(long, requires = "out")]
    resume: bool,
    /// With --out: no second run of the first own target in each round, which tells the noise
    #[arg(long)]
    no_aa: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut plan = prepare(args).map_err(not_measured)?;
    args.lent.take(&mut plan)?;
    let (json, resume) = (args.json, args.resume);
    measure(plan, &Kept { json, out: args.out.as_deref(), resume, dry_run: false })
}

/// What the words ask for; a word that means nothing, or a job that fio rejects, is the failure.
fn prepare(args: &Args) -> Result<Plan> {
    let size = spec::parse_size(&args.image_size).filter(|size| *size >= IMAGE_BYTES_MIN);
    let size = size.ok_or_else(|| {
        Why::new("an image has a size of at least 16M").at("lab", &args.image_size)
    })?;
    let variants = distinct_variants(&args.variant).map_err(failed)?;
    let targets = args.targets.iter().map(|name| fio_target(name));
    let mut targets = targets.collect::<Result<Vec<_>>>()?;
    args.lent.replace_kernel(&mut targets);
    let store = store(&args.store)?;
    let route = args.lent.route(store, &args.path)?;
    let job = FioJob::read(&args.job, args.engine.as_deref(), size).map_err(failed)?;
    Ok(Plan {
        loads: vec![job.load()],
        job: Some(Arc::new(job)),
        targets,
        store,
        folder: args.folder.clone(),
        route,
        dir: args.lent.dir()?,
        rounds: args.rounds,
        variants,
        aa: args.out.is_some() && !args.no_aa,
        command: std::env::current_exe().ok(),
        stop: Arc::new(AtomicBool::new(false)),
        ..Plan::default()
    })
}

/// A target that fio can run on.
fn fio_target(name: &str) -> Result<Target> {
    let target = target(name)?;
    if FIO_TARGETS.contains(&target) {
        return Ok(target);
    }
    Err(Why::new("fio needs a file system: uext4, uext4-mount, kernel, dir, fuse2fs or bindfs")
        .at("lab", name))
}
