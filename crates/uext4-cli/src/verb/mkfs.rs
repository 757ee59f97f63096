//! `uext4 mkfs`: makes an ext4 file system, with the options and the words of mke2fs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use uext4_device::{Device, FileOptions, SharedDevice};
use uext4_mkfs::populate::Fill;
use uext4_mkfs::{JournalDevice, MkfsError, Options, Report, format_filled, format_with_journal};
use uuid::Uuid;

use crate::examples::{self, Examples};
use crate::failure::{Failure, Result, Why};
use crate::image::Access;
use crate::journal;
use crate::output::Output;
use crate::place;
use crate::progress::Progress;
use crate::signature;
use crate::spec::{Image, SIZE_FORMS, parse_size};
use crate::verbosity::{self, Verbosity, remark};
use target::Target;

mod config;
mod epoch;
mod fill;
mod given;
mod refused;
mod room;
mod summary;
mod target;
mod words;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 mkfs disk.img 1G", "make an image of 1 GiB"),
    ("uext4 mkfs -d rootfs -L root disk.img 512M", "fill it from a directory, and give it a label"),
    ("uext4 mkfs -d rootfs.tar.zst disk.img", "fill it from a tar archive; its size is by that"),
    ("uext4 mkfs -t ext2 -b 1024 floppy.img 1440", "an image as old systems read it"),
];

/// Make an ext4 file system
#[derive(clap::Args)]
#[command(version, after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Bytes per block: 1024, 2048 or 4096; up to 65536, which uext4 can only read. With a minus
    /// sign, at least so many
    #[arg(short = 'b', value_name = "BYTES", value_parser = parse_block_size,
        allow_negative_numbers = true)]
    block_size: Option<BlockSize>,
    /// Bytes per cluster, with the feature bigalloc
    #[arg(short = 'C', value_name = "BYTES", value_parser = parse_u32)]
    cluster_size: Option<u32>,
    /// Bytes per inode
    #[arg(short = 'I', value_name = "BYTES", value_parser = parse_u32)]
    inode_size: Option<u32>,
    /// One inode for so many bytes of the device
    #[arg(short = 'i', value_name = "BYTES", value_parser = parse_u32)]
    inode_ratio: Option<u32>,
    /// Number of inodes
    #[arg(short = 'N', value_name = "COUNT", value_parser = parse_count)]
    inodes: Option<u32>,
    /// Percentage of blocks kept back for root
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved: Option<f64>,
    /// Volume label
    #[arg(short = 'L', value_name = "LABEL", default_value = "")]
    label: String,
    /// Directory where it was mounted last, for the record
    #[arg(short = 'M', value_name = "DIR", default_value = "")]
    last_mounted: String,
    /// What the kernel does on an error in it: continue, remount-ro or panic
    #[arg(short = 'e', value_name = "BEHAVIOUR")]
    errors: Option<String>,
    /// UUID: the number itself, clear, random or time
    #[arg(short = 'U', value_name = "UUID", value_parser = parse_uuid)]
    uuid: Option<[u8; 16]>,
    /// Features to add, or with ^ to leave out, separated by commas
    #[arg(short = 'O', value_name = "FEATURES")]
    features: Vec<String>,
    /// Options of the journal, separated by commas: size, place, or another device for it
    #[arg(short = 'J', value_name = "OPTIONS", long_help = words::help(words::JOURNAL))]
    journal: Vec<String>,
    /// Extended options, separated by commas
    #[arg(short = 'E', value_name = "OPTIONS", long_help = words::help(words::EXTENDED))]
    extended: Vec<String>,
    /// Blocks of a group
    #[arg(short = 'g', value_name = "BLOCKS", value_parser = parse_count)]
    blocks_per_group: Option<u32>,
    /// Groups whose metadata is packed together
    #[arg(short = 'G', value_name = "GROUPS", value_parser = parse_count)]
    flex_groups: Option<u32>,
    /// Usage: floppy, small, default, big, huge, news, largefile or largefile4, or several of them
    /// separated by commas, the last of which counts most; by the size if none is given
    #[arg(short = 'T', value_name = "USAGE", value_delimiter = ',')]
    usage: Vec<String>,
    /// Defaults by type from a file of the form of mke2fs.conf, instead of those of e2fsprogs; or
    /// the environment names it by MKE2FS_CONFIG
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// File system type: ext2, ext3 or ext4
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// Revision: 0 for systems of before 1996, which has no features; or 1
    #[arg(short = 'r', value_name = "REVISION", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(..=1))]
    revision: u8,
    /// Fill it from a directory, a tar archive, also compressed (- for standard input), or an image
    /// of an OCI layout
    #[arg(short = 'd', value_name = "SOURCE")]
    fill: Option<PathBuf>,
    /// With -d and an OCI layout of several images: the one of this name
    #[arg(long = "ref", value_name = "NAME", requires = "fill")]
    reference: Option<String>,
    /// With -d and an image for several platforms: the one for this, as linux/arm64
    #[arg(long, value_name = "OS/ARCH", requires = "fill")]
    platform: Option<String>,
    /// With -d and without a size: a size of which so many percent are free, 10 if nothing is said
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["size", "shrink"],
        requires = "fill")]
    free: Option<f64>,
    /// With -d and without a size: the least size
    #[arg(long, conflicts_with = "size", requires = "fill")]
    shrink: bool,
    /// Bytes of a sector of the disk that an image file is a copy of: 512 or 4096. What partitions
    /// hold tells, unless they hold nothing yet
    #[arg(long, value_name = "BYTES", value_parser = parse_u32)]
    sector_size: Option<u32>,
    /// Show what would be made, and write nothing
    #[arg(short = 'n')]
    only_plan: bool,
    /// Write past the page cache
    #[arg(short = 'D')]
    direct: bool,
    /// Operating system: linux
    #[arg(short = 'o', value_name = "OS", hide = true)]
    creator: Option<String>,
    #[command(flatten)]
    refused: refused::Refused,
    /// Make it even where something is that would be lost
    #[arg(short = 'F')]
    force: bool,
    /// With a journal, as ext3 and ext4 have one anyway
    #[arg(short = 'j')]
    with_journal: bool,
    /// Say nothing
    #[arg(short = 'q', long)]
    quiet: bool,
    /// Image file or block device, with @p1 or @OFFSET for a partition in it
    #[arg(value_name = "IMAGE[@PART]")]
    image: OsString,
    /// Size: blocks with -b, else KiB; or with a suffix s (sectors), K, M, G or T
    size: Option<String>,
}

const NO_OFFSET: &str = "want bytes, or a number with a suffix s, K, M, G or T";

fn parse_count(text: &str) -> std::result::Result<u32, String> {
    parse_u32(text).map_err(|_| "not a number below 4G (K, M and G are taken)".to_owned())
}

fn parse_u32(text: &str) -> std::result::Result<u32, String> {
    let number = parse_size(text).and_then(|n| u32::try_from(n).ok());
    number.ok_or_else(|| format!("not a number below 4G ({SIZE_FORMS})"))
}

/// What `-b` asks for.
#[derive(Clone, Copy, Debug)]
enum BlockSize {
    Exactly(u32),
    AtLeast(u32),
}

impl BlockSize {
    fn exactly(self) -> Option<u32> {
        if let Self::Exactly(bytes) = self { Some(bytes) } else { None }
    }

    fn at_least(self) -> Option<u32> {
        if let Self::AtLeast(bytes) = self { Some(bytes) } else { None }
    }
}

fn parse_block_size(text: &str) -> std::result::Result<BlockSize, String> {
    match text.strip_prefix('-') {
        Some(least) => parse_u32(least).map(BlockSize::AtLeast),
        None => parse_u32(text).map(BlockSize::Exactly),
    }
}

fn parse_uuid(text: &str) -> std::result::Result<[u8; 16], String> {
    match text {
        "clear" | "null" => Ok([0; 16]),
        "random" | "time" => Ok(*Uuid::new_v4().as_bytes()),
        _ => Uuid::try_parse(text).map(|uuid| *uuid.as_bytes()).map_err(|_| "no UUID".to_owned()),
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    args.refused.check()?;
    let epoch = epoch::given()?;
    let mut image = Image::parse(&args.image);
    let mut options = given::options(args, &mut image)?;
    let path = journal_path(args);
    check_journal(args, path.is_some())?;
    image.sector = sector(args, &image)?;
    if options.size == Some(0) {
        return Err(Why::new("a size of 0 is too small: give a larger one").at("mkfs", &image));
    }
    let place = room::find(&image, options.size, args.force || args.only_plan)?;
    let access = if args.only_plan { Access::Read } else { Access::Write };
    let log = path.as_deref().map(|path| open_journal(&image, path, access)).transpose()?;
    let external = match (&log, &path) {
        (Some(log), Some(path)) => {
            let read = JournalDevice::read(log.as_ref(), journal::number(path));
            Some(read.map_err(|error| Why::new(error.to_string()).at("mkfs", path.display()))?)
        }
        _ => None,
    };
    // Before the image is there, which may be in it.
    let source = args.fill.as_deref().map(|path| fill::Source::read(args, path, epoch));
    let source = source.transpose()?;
    if let Some(source) = &source {
        fill::settle(args, &image, &mut options, external.as_ref(), source)?;
    }
    let target = match args.only_plan {
        true => target::open_to_plan(&image, place, options.size)?,
        false => target::open(args, &image, place, options.size)?,
    };
    let mut work = || {
        check_unused(args, &image, &target)?;
        if let (Some(epoch), None) = (epoch, &source) {
            let bytes = options.size.unwrap_or(target.device.len());
            options.make_reproducible(epoch, format!("{bytes} bytes").as_bytes());
        }
        let made = make(&*target.device, &options, external.as_ref(), source.as_ref());
        made.map_err(|error| match error {
            MkfsError::Source { .. } => Failure::line(&format!("mkfs: {error}")),
            _ => Why::new(error.to_string()).at("mkfs", &image),
        })
    };
    let report = work().inspect_err(|_| target.put_back())?;
    for warning in &report.warnings {
        remark(&format!("mkfs: {image}: warning: {warning}"));
    }
    if args.quiet {
        return Ok(());
    }
    let mut output = Output::new();
    summary::print(&report, &options, verbosity::given() == Verbosity::Verbose, &mut output)?;
    let user = rustix::process::geteuid();
    let owner = options.root_owner.unwrap_or_default().0;
    if !user.is_root() && owner != user.as_raw() && args.fill.is_none() {
        output.line("Its top directory is root's: with -E root_owner it is yours")?;
    }
    output.finish()
}

/// Refuses a device that holds something, which `-F` takes, or that is in use.
fn check_unused(args: &Args, image: &Image, target: &Target) -> Result<()> {
    let device = &target.device;
    let found = signature::of(device.as_ref(), place::sector(image)).filter(|_| !args.force);
    match found.map(|found| format!("{}; use -F to overwrite it", found.sentence())) {
        Some(why) if args.only_plan => remark(&format!("mkfs: {image}: {why}")),
        Some(why) => return Err(Why::new(why).at("mkfs", image)),
        None => {}
    }
    // What -F says of a file system is not said of one that is in use.
    if args.force && !args.only_plan && !target.is_made() {
        match uext4::mmp_holder(device) {
            Ok(Some(holder)) => {
                return Err(Why::new(format!("{holder}: in use")).at("mkfs", image));
            }
            Err(error) if *error.kind() == uext4::ErrorKind::Io => {
                let why = format!("cannot see whether another host has it: {error}");
                return Err(Why::new(why).at("mkfs", image));
            }
            // Whatever else lies there, or is damaged, is overwritten.
            Ok(None) | Err(_) => {}
        }
    }
    Ok(())
}

/// Makes the file system, and fills it.
fn make(
    device: &dyn Device,
    options: &Options,
    external: Option<&JournalDevice<'_>>,
    source: Option<&fill::Source>,
) -> uext4_mkfs::Result<Report> {
    let Some(source) = source else { return format_with_journal(device, options, external) };
    let progress = Progress::image("mkfs");
    let fill = Fill { progress: &|bytes| progress.add_bytes(bytes), ..source.fill() };
    format_filled(device, options, external, Some(&fill))
}

/// The device that `-J device=` names.
fn journal_path(args: &Args) -> Option<PathBuf> {
    let mut words = args.journal.iter().flat_map(|list| list.split(','));
    words.find_map(|word| word.strip_prefix("device=")).map(PathBuf::from)
}

/// Refuses words on journals that contradict each other.
fn check_journal(args: &Args, is_elsewhere: bool) -> Result<()> {
    let has = |feature| {
        let mut words = args.features.iter().flat_map(|list| list.split(','));
        words.any(|word| word.trim() == feature)
    };
    let is_journal = has("journal_dev");
    let why = match () {
        () if journal::given().is_some() => {
            "--journal-device names the journal of a file system that is there; a new one has -J \
             device="
        }
        () if is_elsewhere && is_journal => {
            "-O journal_dev makes a journal device, which has no other (-J device=)"
        }
        () if is_elsewhere && has("^has_journal") => {
            "-O ^has_journal and -J device= exclude each other"
        }
        () if is_journal && args.fill.is_some() => {
            "-O journal_dev makes a journal device, which holds no files (-d)"
        }
        () => return Ok(()),
    };
    Err(Failure::line(&format!("mkfs: {why}")))
}

fn open_journal(image: &Image, path: &Path, access: Access) -> Result<SharedDevice> {
    journal::open("mkfs", image, path, &FileOptions::new(access.into()))
}

/// The size of sectors that was asked for, which is not another than a device's own.
fn sector(args: &Args, image: &Image) -> Result<Option<u64>> {
    let Some(size) = args.sector_size.map(u64::from) else { return Ok(None) };
    let wrong = |why: String| Err(Failure::line(&format!("mkfs: --sector-size {size}: {why}")));
    match place::sector_of_device(image) {
        _ if size != 512 && size != 4096 => wrong("want 512 or 4096".to_owned()),
        Some(own) if own != size => wrong(format!("{image} has sectors of {own} bytes")),
        _ => Ok(Some(size)),
    }
}
