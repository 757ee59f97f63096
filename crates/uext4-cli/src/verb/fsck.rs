//! `uext4 fsck`: what is wrong with a file system, as `e2fsck -fn` says.
//!
//! Exit status, as of fsck(8): 0 clean, 4 errors left, 8 the check could not be made, 12 it had to
//! stop half-way, 16 wrong usage.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use uext4_device::FileOptions;
use uext4_fsck::{Finding, Options, Pass, Place, Progress, Report};

use crate::examples::{self, Examples};
use crate::failure::{Failure, Result, say, with_status};
use crate::image::{self, Access};
use crate::journal;
use crate::output::Output;
use crate::place;
use crate::spec::Image;

const ERRORS_LEFT: u8 = 4;
const OPERATIONAL: u8 = 8;
/// Exit status of wrong usage.
pub(crate) const USAGE: u8 = 16;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 fsck disk.img", "check an image; status 4 if something is wrong"),
    ("uext4 fsck --threads 1 /dev/sdb1", "check a device gently"),
    ("uext4 fsck --json disk.img@p2", "what is wrong in a partition, for programs"),
];

/// Check a file system; nothing is written
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Only look: the default, and all there is yet
    #[arg(short = 'n', long = "no", conflicts_with_all = ["preen", "yes"])]
    no: bool,
    /// Check even if the file system is marked clean: always done
    #[arg(short = 'f', long)]
    force: bool,
    /// Repair what is safe to repair
    #[arg(short = 'p', long, hide = true)]
    preen: bool,
    /// Repair everything
    #[arg(short = 'y', long, hide = true)]
    yes: bool,
    /// The device of the journal, if that is another one; as --journal-device
    #[arg(short = 'j', value_name = "PATH")]
    log_device: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Threads; by default one for each core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
}

#[derive(Serialize)]
struct FindingJson<'a> {
    code: &'a str,
    severity: &'a str,
    place: PlaceJson,
    sentence: &'a str,
}

/// Where a finding stands: the words of the plain form, and the numbers.
#[derive(Serialize)]
struct PlaceJson {
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

#[derive(Serialize)]
struct ReportJson<'a> {
    image: String,
    clean: bool,
    stopped: bool,
    errors: u64,
    warnings: u64,
    inodes: u64,
    inodes_used: u64,
    blocks: u64,
    blocks_used: u64,
    files: u64,
    directories: u64,
    findings: Vec<FindingJson<'a>>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.preen || args.yes {
        say("fsck: repair is not there yet; -n checks");
        return Err(Failure::Status(USAGE));
    }
    // Both are what is done anyway.
    let _ = (args.no, args.force);
    check(args).map_err(with_status(OPERATIONAL))
}

fn check(args: &Args) -> Result<()> {
    let image = Image::parse(&args.image);
    // Whatever it looks like: a backup superblock may be all that is left of an ext4.
    let place = place::Place::of("fsck", &image)?;
    let options = FileOptions::new(Access::Read.into());
    let device = image::any_device("fsck", &image, place, &options)?;
    let path = args.log_device.clone().or_else(journal::given);
    let journal = path.map(|path| journal::open("fsck", &image, &path, &options));
    let journal = journal.transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options { threads: args.threads.unwrap_or(cores), ..Options::default() };
    let mut bars = Bars::new();
    let checked = uext4_fsck::check_with_journal(&*device, journal.as_deref(), &options, &mut bars);
    let report = match checked {
        Ok(report) => report,
        Err(error) => {
            image::check_format("fsck", &image, device)?;
            return Err(Failure::line(&format!("fsck: {image}: {error}")));
        }
    };
    drop(bars);
    let mut output = Output::new();
    if args.json {
        output.json(&shape(&report, image.to_string()))?;
    } else {
        print(&report, &image.to_string(), &mut output)?;
    }
    output.finish()?;
    match (report.is_clean(), report.stopped) {
        (true, _) => Ok(()),
        (false, false) => Err(Failure::Status(ERRORS_LEFT)),
        (false, true) => Err(Failure::Status(ERRORS_LEFT | OPERATIONAL)),
    }
}

fn print(report: &Report, image: &str, output: &mut Output) -> Result<()> {
    for finding in &report.findings {
        output.line(&line(finding))?;
    }
    let kept = report.findings.len() as u64;
    let left = (report.errors + report.warnings).saturating_sub(kept);
    if left > 0 {
        output.line(&format!("{image}: {left} more findings"))?;
    }
    if report.stopped {
        output.line(&format!("{image}: the check stopped here"))?;
        return Ok(());
    }
    if report.errors > 0 {
        output.line(&format!("{image}: ********** {} errors left **********", report.errors))?;
    }
    let counts = &report.counts;
    // Tenths of a percent, rounded.
    let tenths = (counts.fragmented * 10_000 / counts.inodes_used.max(1) + 5) / 10;
    output.line(&format!(
        "{image}: {}/{} files ({}.{}% non-contiguous), {}/{} blocks",
        counts.inodes_used,
        counts.inodes,
        tenths / 10,
        tenths % 10,
        counts.blocks_used,
        counts.blocks,
    ))
}

fn line(finding: &Finding) -> String {
    format!("{}: {finding}", finding.severity.name())
}

fn shape(report: &Report, image: String) -> ReportJson<'_> {
    let findings = report.findings.iter().map(|finding| FindingJson {
        code: finding.code,
        severity: finding.severity.name(),
        place: place(&finding.place),
        sentence: &finding.sentence,
    });
    let counts = &report.counts;
    ReportJson {
        image,
        clean: report.is_clean(),
        stopped: report.stopped,
        errors: report.errors,
        warnings: report.warnings,
        inodes: counts.inodes,
        inodes_used: counts.inodes_used,
        blocks: counts.blocks,
        blocks_used: counts.blocks_used,
        files: counts.files,
        directories: counts.directories,
        findings: findings.collect(),
    }
}

fn place(place: &Place) -> PlaceJson {
    let text = place.to_string();
    let mut json = PlaceJson { text, group: None, inode: None, block: None, name: None };
    match place {
        Place::Superblock => {}
        Place::Group(group) => json.group = Some(group.get()),
        Place::Inode(ino) => json.inode = Some(ino.get()),
        Place::Block(block) => json.block = Some(block.get()),
        Place::DirBlock(dir, block) => {
            json.inode = Some(dir.get());
            json.block = Some((*block).into());
        }
        Place::Entry(dir, name) => {
            json.inode = Some(dir.get());
            json.name = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    json
}

/// A bar for each pass, on a terminal.
struct Bars {
    bar: Option<ProgressBar>,
}

impl Bars {
    fn new() -> Self {
        Self { bar: None }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bars {
    fn pass(&mut self, pass: Pass, steps: u64) {
        self.clear();
        let target = ProgressDrawTarget::stderr();
        if target.is_hidden() {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:40}] {percent}%") {
            bar.set_style(style);
        }
        bar.set_prefix(format!("Pass {}: {}", pass.number(), pass.name()));
        bar.enable_steady_tick(Duration::from_millis(200));
        self.bar = Some(bar);
    }

    fn advance(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.clear();
    }
}
