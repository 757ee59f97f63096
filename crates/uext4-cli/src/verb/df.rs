//! `uext4 df`: free space and inodes of images, as df(1) tells them of a mount.

use std::ffi::OsString;

use serde::Serialize;
use uext4::{StatFs, Volume};

use crate::examples::{self, Examples};
use crate::failure::{Failure, Outcome, Result};
use crate::image::{self, Access};
use crate::output::Output;
use crate::spec::{self, Image};
use crate::text;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 df -h disk.img", "how much room an image has"),
    ("uext4 df -i disk.img@p2", "how many files it can take"),
    ("uext4 df --json a.img b.img", "of several images, for programs"),
];

/// Show the free space of images
///
/// As a mount of the image would: without what the file system needs for itself, and what is
/// reserved for root is not available.
#[derive(clap::Args)]
#[command(disable_help_flag = true, after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Sizes like 1.5G
    #[arg(short, long)]
    human_readable: bool,
    /// Inodes in place of blocks
    #[arg(short, long)]
    inodes: bool,
    /// In KiB (always so; taken for df's sake)
    #[arg(short)]
    kib: bool,
    /// In MiB
    #[arg(short, conflicts_with = "human_readable")]
    mib: bool,
    /// In units of so many bytes (with K, M, G or T)
    #[arg(short = 'B', long, value_name = "SIZE", value_parser = unit)]
    block_size: Option<u64>,
    /// The columns of POSIX (always so; taken for df's sake)
    #[arg(short = 'P', long)]
    portability: bool,
    /// The type of the file system, too
    #[arg(short = 'T', long)]
    print_type: bool,
    /// Print JSON, in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Image files or block devices, with @p1 or @OFFSET for a partition in them
    #[arg(required = true, value_name = "IMAGE[@PART]")]
    images: Vec<OsString>,
}

/// Takes `512`, `4K`, and `M` for `1M`.
fn unit(text: &str) -> std::result::Result<u64, String> {
    let with_digits = match text.starts_with(|c: char| c.is_ascii_digit()) {
        true => text.to_owned(),
        false => format!("1{text}"),
    };
    let size = spec::parse_size(&with_digits).filter(|size| *size > 0);
    size.ok_or_else(|| format!("want a size: {}", spec::SIZE_FORMS))
}

/// The space of one image, in bytes.
#[derive(Serialize)]
struct RoomShape {
    image: String,
    label: String,
    block_size: u32,
    size: u64,
    used: u64,
    available: u64,
    /// Free, but for root alone or for the file system itself.
    reserved: u64,
    inodes: u64,
    inodes_used: u64,
    inodes_free: u64,
}

impl RoomShape {
    fn new(image: &Image, volume: &Volume) -> Self {
        let StatFs {
            block_size, blocks, blocks_free, blocks_available, inodes, inodes_free, ..
        } = volume.stat_fs();
        let bytes = |blocks: u64| blocks.saturating_mul(block_size.into());
        Self {
            image: image.to_string(),
            label: spec::show(&volume.label()),
            block_size,
            size: bytes(blocks),
            used: bytes(blocks.saturating_sub(blocks_free)),
            available: bytes(blocks_available),
            reserved: bytes(blocks_free.saturating_sub(blocks_available)),
            inodes,
            inodes_used: inodes.saturating_sub(inodes_free),
            inodes_free,
        }
    }

    /// Columns between the name of the image and where it is mounted.
    fn columns(&self, args: &Args) -> Vec<String> {
        let size = |bytes: u64| match args.human_readable {
            true => text::human(bytes),
            false => bytes.div_ceil(args.unit()).to_string(),
        };
        let count = |count: u64| match args.human_readable {
            true => text::human(count),
            false => count.to_string(),
        };
        let columns = if args.inodes {
            let share = percent(self.inodes_used, self.inodes_free);
            [count(self.inodes), count(self.inodes_used), count(self.inodes_free), share]
        } else {
            let share = percent(self.used, self.available);
            [size(self.size), size(self.used), size(self.available), share]
        };
        let kind = args.print_type.then(|| "ext4".to_owned());
        kind.into_iter().chain(columns).collect()
    }
}

/// The used part of what there is for anyone, rounded up.
fn percent(used: u64, available: u64) -> String {
    let all = u128::from(used) + u128::from(available);
    if all == 0 {
        return "-".to_owned();
    }
    format!("{}%", (u128::from(used) * 100).div_ceil(all))
}

impl Args {
    fn unit(&self) -> u64 {
        self.block_size.unwrap_or(if self.mib { 1 << 20 } else { 1 << 10 })
    }

    fn titles(&self) -> Vec<String> {
        let unit = self.unit();
        let blocks = match unit {
            _ if self.human_readable => "Size".to_owned(),
            unit if unit % (1 << 40) == 0 => format!("{}T-blocks", unit >> 40),
            unit if unit % (1 << 30) == 0 => format!("{}G-blocks", unit >> 30),
            unit if unit % (1 << 20) == 0 => format!("{}M-blocks", unit >> 20),
            unit if unit % (1 << 10) == 0 => format!("{}K-blocks", unit >> 10),
            unit => format!("{unit}B-blocks"),
        };
        let available = if self.human_readable { "Avail" } else { "Available" };
        let own = match self.inodes {
            true => ["Inodes", "IUsed", "IFree", "IUse%"],
            false => [blocks.as_str(), "Used", available, "Use%"],
        };
        let kind = self.print_type.then_some("Type");
        kind.into_iter().chain(own).map(str::to_owned).collect()
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    let mut rooms = Vec::new();
    for name in &args.images {
        let image = spec::image_or_inside(name).image;
        match image::volume("df", &image, Access::Read) {
            Ok(volume) => rooms.push(RoomShape::new(&image, &volume)),
            Err(Failure::OutputClosed) => return Err(Failure::OutputClosed),
            Err(failure) => outcome.note(failure),
        }
    }
    let mut output = Output::new();
    if args.json {
        output.json(&rooms)?;
    } else if !rooms.is_empty() {
        print(args, &rooms, &mut output)?;
    }
    output.finish()?;
    outcome.finish()
}

fn print(args: &Args, rooms: &[RoomShape], output: &mut Output) -> Result<()> {
    let titles = args.titles();
    let rows: Vec<Vec<String>> = rooms.iter().map(|room| room.columns(args)).collect();
    let first = rooms.iter().map(|room| room.image.len()).max().unwrap_or(0).max(14);
    let width = |column: usize| {
        let cells = rows.iter().chain([&titles]).filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut line = |name: &str, cells: &[String], end: &str| {
        let mut text = format!("{name:<first$}");
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            match args.print_type && column == 0 {
                true => text.push_str(&format!(" {cell:<width$}")),
                false => text.push_str(&format!(" {cell:>width$}")),
            }
        }
        output.line(&format!("{text} {end}"))
    };
    line("Filesystem", &titles, "Mounted on")?;
    for (room, row) in rooms.iter().zip(&rows) {
        // An image that is looked into is mounted nowhere.
        line(&crate::failure::one_line(&room.image), row, "-")?;
    }
    Ok(())
}
