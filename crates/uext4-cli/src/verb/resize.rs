//! `uext4 resize`: grows an image, as resize2fs(8) does, and never loses it.
//!
//! Sizes are those of `mkfs`, or `+SIZE` for so much more. Everything is looked at before a file
//! becomes longer; docs/resize.md has the order of writes, and what a crash leaves.

use std::ffi::OsString;
use std::fs::File;

use serde::Serialize;
use uext4_ondisk::RawSuperblock;
use uext4_resize::{Report, ResizeError, Shape, fitting_blocks, resize};

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Result, Why};
use crate::image::{self, Access};
use crate::output::Output;
use crate::place::Place;
use crate::spec::{Image, parse_size};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 resize disk.img 64G", "grow an image to 64 GiB; its file becomes longer"),
    ("uext4 resize disk.img +8G", "grow it by 8 GiB"),
    ("uext4 resize disk.img@p1", "fill a partition that has been made larger"),
];

/// Grow a file system that is not mounted, as resize2fs does
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Show what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
    /// Size: KiB, or with a suffix s (sectors), K, M, G or T; with + before it so much more.
    /// Without it as large as the file, the device or the partition
    #[arg(value_parser = Size::parse)]
    size: Option<Size>,
}

/// A size as it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Bytes(u64),
    More(u64),
}

impl Size {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let (digits, is_more) = match text.strip_prefix('+') {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        // A bare number counts KiB, as with mkfs.
        let bytes = match digits.parse::<u64>() {
            Ok(kib) => kib.checked_mul(1024),
            Err(_) => parse_size(digits),
        };
        let bytes = bytes.ok_or("want KiB, or a number with a suffix s, K, M, G or T")?;
        Ok(if is_more { Self::More(bytes) } else { Self::Bytes(bytes) })
    }
}

/// What the verb tells.
#[derive(Serialize)]
struct Told {
    image: String,
    changed: bool,
    dry_run: bool,
    old: Numbers,
    new: Numbers,
    steps: usize,
}

#[derive(Serialize)]
struct Numbers {
    bytes: u64,
    blocks: u64,
    block_size: u32,
    inodes: u32,
    groups: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_meta_group: Option<u32>,
}

impl From<Shape> for Numbers {
    fn from(shape: Shape) -> Self {
        Self {
            bytes: shape.blocks.saturating_mul(shape.block_size.into()),
            blocks: shape.blocks,
            block_size: shape.block_size,
            inodes: shape.inodes,
            groups: shape.groups,
            first_meta_group: shape.first_meta_group,
        }
    }
}

/// Why a growth ended.
enum Stopped {
    /// The image could not be opened.
    Opening(Failure),
    Growing(ResizeError),
}

impl From<ResizeError> for Stopped {
    fn from(error: ResizeError) -> Self {
        Self::Growing(error)
    }
}

impl From<ResizeError> for Why {
    fn from(error: ResizeError) -> Self {
        Self::new(error.to_string())
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = Image::parse(&args.image);
    let room = Room::of(&image)?;
    let (bytes, blocks, planned) = examine(args, &image, &room)?;
    if args.dry_run || planned.steps.is_empty() {
        return tell(args, &image, &planned);
    }
    room.extend_to(&image, bytes)?;
    let mut open = || image::volume("resize", &image, Access::Write).map_err(Stopped::Opening);
    match resize(blocks, &mut open) {
        Ok(report) => tell(args, &image, &report),
        Err(Stopped::Opening(failure)) => Err(failure),
        Err(Stopped::Growing(error)) => Err(Why::from(error).at("resize", &image)),
    }
}

/// Bytes and blocks that the image is to have, and what that makes of it. The journal is replayed
/// in memory only.
fn examine(args: &Args, image: &Image, room: &Room) -> Result<(u64, u64, Report)> {
    let volume = image::volume("resize", image, Access::Read)?;
    if let Some(reason) = volume.read_only_reason() {
        return Err(Why::new(format!("can only be read: {reason}")).at("resize", image));
    }
    let sb = volume.superblock();
    let bytes = wanted(args, &sb, room).at("resize", image)?;
    let blocks = blocks(args, &sb, bytes).at("resize", image)?;
    let planned = uext4_resize::examine(&volume, blocks).at("resize", image)?;
    Ok((bytes, blocks, planned))
}

/// Where an image can grow.
struct Room {
    place: Place,
    /// Bytes that are there, from the place of the image on.
    bytes: u64,
    /// It is a file, and the image reaches to its end, which can be moved.
    can_extend: bool,
}

impl Room {
    fn of(image: &Image) -> Result<Self> {
        let place = Place::of("resize", image)?;
        let device = image::device("resize", image, Access::Read)?;
        let is_file = image.uri().is_none() && image.path.metadata().at("resize", image)?.is_file();
        let can_extend = place.len.is_none() && is_file;
        Ok(Self { place, bytes: device.len(), can_extend })
    }

    /// Makes the file longer, durably, if it must be.
    fn extend_to(&self, image: &Image, bytes: u64) -> Result<()> {
        if bytes <= self.bytes || !self.can_extend {
            return Ok(());
        }
        let file = File::options().write(true).open(&image.path).at("resize", image)?;
        // Nobody may work on it while it becomes longer.
        if file.try_lock().is_err() {
            let why = Why::new("in use: mounted, or held by another process");
            return Err(why.at("resize", image));
        }
        file.set_len(self.place.offset + bytes).at("resize", image)?;
        file.sync_all().at("resize", image)
    }
}

/// The bytes that the image is to have.
fn wanted(args: &Args, sb: &RawSuperblock, room: &Room) -> std::result::Result<u64, Why> {
    let bytes = match args.size {
        None => return Ok(room.bytes),
        Some(Size::Bytes(bytes)) => Some(bytes),
        Some(Size::More(bytes)) => has(sb).checked_add(bytes),
    };
    let too_large = || Why::new("so large a file is not possible");
    let bytes = bytes.filter(|bytes| bytes.checked_add(room.place.offset).is_some_and(fits));
    let bytes = bytes.ok_or_else(too_large)?;
    if bytes <= room.bytes || room.can_extend {
        return Ok(bytes);
    }
    let (what, help) = match room.place.len {
        Some(_) => {
            let help = "make the partition larger first (growpart, or sfdisk -N), \
                        then resize without a size";
            ("its partition", help)
        }
        None => ("the device", "make the device larger first (lvextend, or qemu-img resize)"),
    };
    Err(Why::new(format!("{what} has only {} bytes: {help}", room.bytes)))
}

/// Whether a file can have so many bytes.
fn fits(bytes: u64) -> bool {
    i64::try_from(bytes).is_ok()
}

fn block_size(sb: &RawSuperblock) -> u64 {
    1024 << sb.s_log_block_size.get().min(6)
}

fn has(sb: &RawSuperblock) -> u64 {
    sb.blocks_count().saturating_mul(block_size(sb))
}

/// The blocks that the image is to have; never fewer than it has.
fn blocks(args: &Args, sb: &RawSuperblock, bytes: u64) -> std::result::Result<u64, Why> {
    let mut blocks = bytes / block_size(sb);
    if args.size.is_none() {
        // As in resize2fs, a file system that fills its device ends on a page boundary.
        blocks -= blocks % (4096 / block_size(sb)).max(1);
    } else if blocks < sb.blocks_count() {
        let has = has(sb);
        return Err(Why::new(format!(
            "has {has} bytes, more than {bytes}: shrinking is not supported yet; resize2fs can \
             shrink it, or copy its files into a new image (uext4 mkfs, uext4 cp -a)"
        )));
    }
    Ok(fitting_blocks(sb, blocks)?.max(sb.blocks_count()))
}

fn tell(args: &Args, image: &Image, report: &Report) -> Result<()> {
    if args.quiet {
        return Ok(());
    }
    let mut output = Output::new();
    let (old, new) = (report.old, report.last());
    if args.json {
        output.json(&Told {
            image: image.to_string(),
            changed: !report.steps.is_empty() && !args.dry_run,
            dry_run: args.dry_run,
            old: old.into(),
            new: new.into(),
            steps: report.steps.len(),
        })?;
        return output.finish();
    }
    if report.steps.is_empty() {
        let blocks = old.blocks;
        output.line(&format!("{image}: has {blocks} blocks already: nothing to do"))?;
        return output.finish();
    }
    let verb = if args.dry_run { "would grow" } else { "grown" };
    output.line(&format!(
        "{image}: {verb} from {} to {} blocks of {} bytes, from {} to {} groups, to {} inodes",
        old.blocks, new.blocks, new.block_size, old.groups, new.groups, new.inodes
    ))?;
    if let (None, Some(group)) = (old.first_meta_group, new.first_meta_group) {
        output.line(&format!(
            "{image}: no blocks are reserved for the descriptors of groups from {group} on: they \
             are in these groups (meta_bg)"
        ))?;
    }
    output.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_mkfs_or_more() {
        assert_eq!(Size::parse("64G"), Ok(Size::Bytes(64 << 30)));
        assert_eq!(Size::parse("100"), Ok(Size::Bytes(100 << 10)));
        assert_eq!(Size::parse("+8s"), Ok(Size::More(4096)));
        assert!(Size::parse("-1G").is_err() && Size::parse("+").is_err());
        assert!(Size::parse("99999999999999T").is_err());
    }
}
