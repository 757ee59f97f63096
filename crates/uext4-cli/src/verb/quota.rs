//! `uext4 quota`: usage and limits of users, groups and projects, as repquota(8) shows and
//! setquota(8) sets them.

use std::ffi::OsString;

use serde::Serialize;
use uext4::Volume;
use uext4::quota::{Counted, QuotaEntry, QuotaInfo, QuotaKind};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image::{self, Access};
use crate::output::Output;
use crate::spec::Image;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 quota disk.img", "what users, groups and projects use"),
    (
        "uext4 quota -u --set 1000:1048576:2097152:0:0 disk.img",
        "a soft limit of 1 GiB and a hard one of 2",
    ),
    ("uext4 quota --json disk.img", "the figures for programs"),
];

/// Show or set the usage limits (quota) of users, groups and projects of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Users alone
    #[arg(short, long, group = "kind")]
    user: bool,
    /// Groups alone
    #[arg(short, long, group = "kind")]
    group: bool,
    /// Projects alone
    #[arg(short = 'P', long, group = "kind")]
    project: bool,
    /// Set limits, as ID:SOFT:HARD:SOFT:HARD: of space in KiB, then of inodes; 0 is none
    #[arg(long, value_name = "LIMITS", requires = "kind", value_parser = parse_limits)]
    set: Vec<QuotaEntry>,
    /// Set the times of grace of soft limits, as SPACE:INODES in seconds
    #[arg(long, value_name = "TIMES", requires = "kind", value_parser = parse_grace)]
    grace: Option<(u32, u32)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
}

fn parse_limits(text: &str) -> std::result::Result<QuotaEntry, String> {
    let numbers: Vec<u64> = text.split(':').filter_map(|word| word.parse().ok()).collect();
    let fields = text.split(':').count();
    match numbers[..] {
        [id, space_soft, space_hard, inodes_soft, inodes_hard] if fields == 5 => {
            let is_above = |soft: u64, hard: u64| hard != 0 && soft > hard;
            if is_above(space_soft, space_hard) || is_above(inodes_soft, inodes_hard) {
                return Err("a soft limit is above its hard one".to_owned());
            }
            let limits = |soft: u64, hard: u64| Counted { soft, hard, ..Counted::default() };
            let bytes = |kib: u64| kib.checked_mul(1024).ok_or("a limit is too large");
            Ok(QuotaEntry {
                id: u32::try_from(id).map_err(|_| "an id has 32 bits")?,
                space: limits(bytes(space_soft)?, bytes(space_hard)?),
                inodes: limits(inodes_soft, inodes_hard),
            })
        }
        _ => Err("want ID:SOFT:HARD:SOFT:HARD".to_owned()),
    }
}

fn parse_grace(text: &str) -> std::result::Result<(u32, u32), String> {
    let parts = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parts.ok_or_else(|| "want SPACE:INODES in seconds".to_owned())
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = Image::parse(&args.image);
    let flags = [args.user, args.group, args.project];
    let is_any = !flags.contains(&true);
    let kinds: Vec<QuotaKind> =
        QuotaKind::ALL.into_iter().filter(|kind| is_any || flags[kind.number()]).collect();
    if let ([kind], false) = (&kinds[..], args.set.is_empty() && args.grace.is_none()) {
        let volume = image::volume("quota", &image, Access::Write)?;
        let changed = change(args, &volume, *kind).at("quota", &image);
        let closed = image::close("quota", &image, volume);
        return changed.and(closed);
    }
    let volume = image::volume("quota", &image, Access::Read)?;
    let mut tables = Vec::new();
    for kind in kinds {
        if let Some((info, entries)) = volume.quota(kind).at("quota", &image)? {
            tables.push(Table::new(kind, &info, &entries));
        }
    }
    if tables.is_empty() {
        return Err(Why::new("the file system keeps no such quota").at("quota", &image));
    }
    let mut output = Output::new();
    if args.json {
        output.json(&tables)?;
    } else {
        for table in &tables {
            table.print(&mut output)?;
        }
    }
    output.finish()
}

fn change(args: &Args, volume: &Volume, kind: QuotaKind) -> std::result::Result<(), Why> {
    if let Some((space, inodes)) = args.grace {
        volume.set_quota_grace(kind, space, inodes)?;
    }
    for entry in &args.set {
        volume.set_quota_limits(kind, entry)?;
    }
    Ok(())
}

/// The quota of one kind.
#[derive(Serialize)]
struct Table {
    kind: &'static str,
    space_grace_s: u32,
    inode_grace_s: u32,
    owners: Vec<Row>,
}

/// An owner. Space is in bytes; a limit of 0 is none, and so is a deadline.
#[derive(Serialize)]
struct Row {
    id: u32,
    space_used: u64,
    space_soft: u64,
    space_hard: u64,
    space_deadline: u64,
    inodes_used: u64,
    inodes_soft: u64,
    inodes_hard: u64,
    inodes_deadline: u64,
}

impl Table {
    fn new(kind: QuotaKind, info: &QuotaInfo, entries: &[QuotaEntry]) -> Self {
        // Below the soft limit the field has no meaning.
        let deadline =
            |of: &Counted| if of.soft != 0 && of.used > of.soft { of.deadline } else { 0 };
        let row = |entry: &QuotaEntry| Row {
            id: entry.id,
            space_used: entry.space.used,
            space_soft: entry.space.soft,
            space_hard: entry.space.hard,
            space_deadline: deadline(&entry.space),
            inodes_used: entry.inodes.used,
            inodes_soft: entry.inodes.soft,
            inodes_hard: entry.inodes.hard,
            inodes_deadline: deadline(&entry.inodes),
        };
        Self {
            kind: kind.name(),
            space_grace_s: info.space_grace,
            inode_grace_s: info.inode_grace,
            owners: entries.iter().map(row).collect(),
        }
    }

    fn print(&self, output: &mut Output) -> Result<()> {
        let Self { kind, space_grace_s, inode_grace_s, .. } = self;
        output.line(&format!(
            "quota of {kind}s; grace of space {space_grace_s} s, of inodes {inode_grace_s} s"
        ))?;
        output.line(&format!(
            "{kind:<10}  -- {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "KiB", "soft", "hard", "inodes", "soft", "hard"
        ))?;
        for row in &self.owners {
            let over = |used: u64, soft: u64| if soft != 0 && used > soft { '+' } else { '-' };
            output.line(&format!(
                "{:<10}  {}{} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
                row.id,
                over(row.space_used, row.space_soft),
                over(row.inodes_used, row.inodes_soft),
                row.space_used.div_ceil(1024),
                row.space_soft / 1024,
                row.space_hard / 1024,
                row.inodes_used,
                row.inodes_soft,
                row.inodes_hard,
            ))?;
        }
        Ok(())
    }
}
