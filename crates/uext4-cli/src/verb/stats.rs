//! `uext4 stats`: what a mounted volume tells of itself, or what the log of an image holds.
//!
//! A mount answers through an attribute of its root ([`STATS_XATTR`]), also while all that work on
//! it wait. An image that is not mounted has no counters; its log is read as a replay would read
//! it, and nothing is written.

use std::ffi::OsString;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::io::Errno;
use serde::Serialize;
use uext4::journal::LogLocation;
use uext4_device::{FileOptions, SharedDevice};
use uext4_fuse::STATS_XATTR;
use uext4_fuse::mountinfo::{self, MountPoint};
use uext4_fuse::stats::Snapshot;
use uext4_ondisk::Incompat;
use uext4_ondisk::features::external_journal;
use uext4_ondisk::journal::replay::{ReplayLimits, ReplayPlan, plan};
use uext4_ondisk::journal::superblock::{JournalLayout, RawJournalSuperblock};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::figures;
use crate::host;
use crate::image::{self, Access};
use crate::inspect::Inspected;
use crate::journal::{self, JournalDevice};
use crate::mounted;
use crate::output::Output;
use crate::prometheus;
use crate::spec::Image;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 stats /mnt", "what a mount has done, and how long it took"),
    ("uext4 stats --interval 5 /mnt", "what happens in every five seconds"),
    ("uext4 stats --prometheus /mnt", "figures for node_exporter"),
];

/// Show counters, latencies and blocked threads of a mount, or the log of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the text format of Prometheus, for the textfile collector of node_exporter
    #[arg(long, conflicts_with_all = ["json", "interval"])]
    prometheus: bool,
    /// Print what happened in every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    interval: Option<Duration>,
    /// A directory of the mount; or an image file or block device, with @p1 or @OFFSET for a
    /// partition
    #[arg(value_name = "DIR|IMAGE[@PART]")]
    place: OsString,
}

fn parse_seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.filter(|s| *s >= Duration::from_millis(1)).ok_or("not a number of seconds".to_owned())
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let place = Path::new(&args.place);
    if is_dir(place) {
        if let Some(image) = image_of(place) {
            host::warn_of_shortage("stats", &image.path);
        }
        return match args.interval {
            None if args.prometheus => expose(place),
            None => show(&read(place)?, args.json),
            Some(interval) => watch(place, interval, args.json),
        };
    }
    let image = Image::parse(&args.place);
    if args.interval.is_some() || args.prometheus {
        let why = Why::new("an image that is not mounted has nothing that changes");
        return Err(why.at("stats", &image));
    }
    let log = ImageLog::read(&image)?;
    host::warn_of_shortage("stats", &image.path);
    let mut output = Output::new();
    match args.json {
        true => output.json(&log)?,
        false => output.bytes(log.text().as_bytes())?,
    }
    output.finish()
}

/// Whether the name is a directory. Does not ask a mount for fresh attributes, which could wait.
fn is_dir(place: &Path) -> bool {
    let found = rustix::fs::statx(CWD, place, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    // What cannot be looked at may be a mount: then it fails below, with a reason.
    match found {
        Ok(found) => FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory,
        Err(error) => mounted::is_dead(&error.into()),
    }
}

/// The image of the mount that `dir` is on, if that can be written.
fn image_of(dir: &Path) -> Option<Image> {
    let mount = mount_of(dir).filter(|mount| !mount.read_only)?;
    Some(Image::parse(&mount.source))
}

/// The mount of ours that `dir` is on; asks the kernel alone.
fn mount_of(dir: &Path) -> Option<MountPoint> {
    let found = rustix::fs::statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    mountinfo::of_device(device).ok()?.filter(MountPoint::is_ours)
}

/// What the mount that `dir` is on tells now.
fn read(dir: &Path) -> Result<Snapshot> {
    let value = uext4_fuse::ask(dir, STATS_XATTR).map_err(|error| {
        let why = match Errno::from_io_error(&error) {
            Some(Errno::NODATA | Errno::OPNOTSUPP | Errno::INVAL) => Why::new(mounted::NOT_OURS),
            Some(Errno::ACCESS | Errno::PERM) => Why::new("only root and who mounted it may look"),
            _ => mounted::why(error, dir),
        };
        why.at("stats", dir.display())
    })?;
    serde_json::from_slice(&value).map_err(|error| {
        let why = format!("the mount is served by another version of uext4 ({error})");
        Why::new(why).at("stats", dir.display())
    })
}

/// One figure of the mount that `dir` is on, as it is now; `None` where it does not tell.
pub(crate) fn level(dir: &Path, name: &str) -> Option<u64> {
    read(dir).ok()?.levels.get(name).copied()
}

/// Why the mount that `dir` is on refuses changes, if it does and tells.
pub(crate) fn read_only_reason(dir: &Path) -> Option<String> {
    read(dir).ok().map(|snapshot| snapshot.read_only_reason).filter(|why| !why.is_empty())
}

fn show(snapshot: &Snapshot, json: bool) -> Result<()> {
    let mut output = Output::new();
    match json {
        true => output.json(snapshot)?,
        false => output.bytes(figures::text(snapshot).as_bytes())?,
    }
    output.finish()
}

/// Prints what Prometheus is to collect.
fn expose(dir: &Path) -> Result<()> {
    let snapshot = read(dir)?;
    let source = mount_of(dir).map(|mount| mount.source).unwrap_or_default();
    let mut output = Output::new();
    output.bytes(prometheus::text(&snapshot, &source.to_string_lossy()).as_bytes())?;
    output.finish()
}

/// Prints differences, one a line as JSON, until interrupted or the mount is gone.
fn watch(dir: &Path, interval: Duration, json: bool) -> Result<()> {
    let mut then = read(dir)?;
    let mut next = Instant::now();
    let mut is_first = true;
    loop {
        next += interval;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let now = read(dir)?;
        let between = figures::difference(&now, &then);
        let mut output = Output::new();
        if json {
            output.json_line(&between)?;
        } else {
            let seconds = between.open_for_ns as f64 / 1e9;
            let gap = if is_first { "" } else { "\n" };
            output.line(&format!("{gap}in {seconds:.3} seconds:"))?;
            output.bytes(figures::text(&between).as_bytes())?;
        }
        output.finish()?;
        (then, is_first) = (now, false);
    }
}

/// The log of an image that is not mounted. Space is in blocks.
#[derive(Debug, Serialize)]
struct ImageLog {
    block_size: u32,
    /// Blocks of the journal, its superblock included.
    journal_blocks: u32,
    log_blocks: u32,
    log_used: u32,
    log_free: u32,
    /// The file system says that the log must be replayed.
    needs_recovery: bool,
    /// Id of the oldest transaction of the log, or of the next one where it is empty.
    sequence: u32,
    /// Complete transactions in the log.
    transactions: u32,
    /// Blocks that a replay writes.
    blocks: usize,
    /// Blocks that it must not write, since they were freed.
    revoked: u32,
    /// Blocks whose images in the log are damaged.
    damaged: usize,
}

/// The journal of an image: its device, the place of its blocks, its superblock.
fn find_log(
    image: &Image,
    device: SharedDevice,
    inspected: &Inspected,
) -> Result<(SharedDevice, LogLocation, RawJournalSuperblock)> {
    if let Some(uuid) = external_journal(&inspected.superblock) {
        let Some(path) = journal::given() else {
            let why =
                format!("its journal {uuid} is on another device: name it (--journal-device)");
            return Err(Why::new(why).at("stats", image));
        };
        let options = FileOptions::new(Access::Read.into());
        let log = journal::open("stats", image, &path, &options)?;
        let location = LogLocation::on(&log, &inspected.superblock).at("stats", image)?;
        return match JournalDevice::read(&log).at("stats", image)? {
            Some(found) => Ok((log, location, found.journal)),
            None => Err(Why::new("has no journal").at("stats", image)),
        };
    }
    let Some(journal) = inspected.journal().at("stats", image)? else {
        return Err(Why::new("has no journal").at("stats", image));
    };
    let location = LogLocation::find(&*device, &inspected.layout, &inspected.superblock);
    Ok((device, location.at("stats", image)?, journal.superblock))
}

impl ImageLog {
    fn read(image: &Image) -> Result<Self> {
        let device = image::device("stats", image, Access::Read)?;
        let inspected = Inspected::read(device.clone()).at("stats", image)?;
        let layout = &inspected.layout;
        let (device, location, superblock) = find_log(image, device, &inspected)?;
        let log = JournalLayout::new(&superblock, layout.block_size, location.blocks());
        let log = log.map_err(|error| Why::new(error.to_string())).at("stats", image)?;
        let plan = match log.is_empty() {
            true => None,
            false => {
                let limits = ReplayLimits::new(layout.blocks_count);
                let read = |at: u32, bytes: &mut [u8]| -> std::io::Result<()> {
                    let mut runs = location.runs.iter();
                    let run = runs.find(|&&(first, _, len)| at >= first && at - first < len);
                    let &(first, start, _) = run.ok_or(std::io::ErrorKind::UnexpectedEof)?;
                    device.read_at(layout.byte_of(start.plus(u64::from(at - first))), bytes)
                };
                let plan = plan(&log, limits, read);
                Some(plan.map_err(|error| Why::new(error.to_string())).at("stats", image)?)
            }
        };
        let needs_recovery = layout.features.incompat.contains(Incompat::RECOVER);
        let journal_blocks = location.blocks();
        Ok(Self::new(&log, plan.as_ref(), layout.block_size, journal_blocks, needs_recovery))
    }

    fn new(
        log: &JournalLayout,
        plan: Option<&ReplayPlan>,
        block_size: u32,
        journal_blocks: u32,
        needs_recovery: bool,
    ) -> Self {
        let used = plan.map_or(0, |plan| match plan.next_log_block.checked_sub(log.start) {
            // As many complete transactions as fill the log end where they began.
            Some(0) if plan.transactions > 0 => log.len(),
            Some(used) => used,
            None => plan.next_log_block + log.len() - log.start,
        });
        Self {
            block_size,
            journal_blocks,
            log_blocks: log.len(),
            log_used: used,
            log_free: log.len() - used,
            needs_recovery,
            sequence: log.sequence.get(),
            transactions: plan.map_or(0, |plan| plan.transactions),
            blocks: plan.map_or(0, |plan| plan.writes.len()),
            revoked: plan.map_or(0, |plan| plan.revoked),
            damaged: plan.map_or(0, |plan| plan.damaged.len()),
        }
    }

    fn text(&self) -> String {
        let bytes = u64::from(self.journal_blocks) * u64::from(self.block_size);
        let rows = [
            ("Journal size", crate::text::human(bytes)),
            ("Block size", self.block_size.to_string()),
            ("Log blocks", self.log_blocks.to_string()),
            ("Log blocks used", self.log_used.to_string()),
            ("Log blocks free", self.log_free.to_string()),
            ("Journal sequence", self.sequence.to_string()),
            ("Needs recovery", if self.needs_recovery { "yes" } else { "no" }.to_owned()),
            ("Transactions to replay", self.transactions.to_string()),
            ("Blocks to write", self.blocks.to_string()),
            ("Blocks revoked", self.revoked.to_string()),
            ("Damaged images", self.damaged.to_string()),
        ];
        rows.iter().map(|(name, value)| format!("{:<25} {value}\n", format!("{name}:"))).collect()
    }
}
