//! `uext4 mkfs`: makes an ext4 file system, with the options and the words of mke2fs.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uext4_device::{DaxDevice, Device, FileDevice, FileOptions, SharedDevice};
use uext4_mkfs::populate::Fill;
use uext4_mkfs::{
    FsType, JournalDevice, MkfsError, Options, Report, format_filled, format_with_journal,
};
use uuid::Uuid;

use crate::examples::{self, Examples};
use crate::failure::{At, Failure, Result, Why};
use crate::image::{self, Access};
use crate::journal;
use crate::output::Output;
use crate::place::{self, Place};
use crate::progress::Progress;
use crate::signature;
use crate::spec::{Image, Part, SIZE_FORMS, parse_size};
use crate::verbosity::remark;

mod fill;
mod room;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 mkfs disk.img 1G", "make an image of 1 GiB"),
    ("uext4 mkfs -d rootfs -L root disk.img 512M", "fill it from a directory, and give it a label"),
    ("uext4 mkfs -t ext2 -b 1024 floppy.img 1440", "an image as old systems read it"),
];

/// Make an ext4 file system
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Bytes per block: 1024, 2048 or 4096; up to 65536, which uext4 can only read
    #[arg(short = 'b', value_name = "BYTES", value_parser = parse_u32)]
    block_size: Option<u32>,
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
    #[arg(short = 'm', value_name = "PERCENT", default_value_t = 5.0)]
    reserved: f64,
    /// Volume label
    #[arg(short = 'L', value_name = "LABEL", default_value = "")]
    label: String,
    /// UUID: the number itself, clear, random or time
    #[arg(short = 'U', value_name = "UUID", value_parser = parse_uuid)]
    uuid: Option<[u8; 16]>,
    /// Features to add, or with ^ to leave out, separated by commas
    #[arg(short = 'O', value_name = "FEATURES")]
    features: Vec<String>,
    /// Journal options: size=MEGABYTES, or device=PATH, a device made with -O journal_dev
    #[arg(short = 'J', value_name = "OPTIONS")]
    journal: Vec<String>,
    /// Extended options: lazy_itable_init=, lazy_journal_init=, root_owner=, hash_seed=, discard,
    /// nodiscard, offset=, mmp_update_interval=, quotatype=, encoding=, encoding_flags=
    #[arg(short = 'E', value_name = "OPTIONS")]
    extended: Vec<String>,
    /// Blocks of a group
    #[arg(short = 'g', value_name = "BLOCKS", value_parser = parse_count)]
    blocks_per_group: Option<u32>,
    /// Groups whose metadata is packed together
    #[arg(short = 'G', value_name = "GROUPS", value_parser = parse_count)]
    flex_groups: Option<u32>,
    /// Usage: floppy, small, default, big, huge, news, largefile or largefile4
    #[arg(short = 'T', value_name = "USAGE")]
    usage: Option<String>,
    /// File system type: ext2, ext3 or ext4
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// Revision: 0 for systems of before 1996, which has no features; or 1
    #[arg(short = 'r', value_name = "REVISION", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(..=1))]
    revision: u8,
    /// Fill it from a directory
    #[arg(short = 'd', value_name = "DIR")]
    fill: Option<PathBuf>,
    /// Bytes of a sector of the disk that an image file is a copy of: 512 or 4096. What partitions
    /// hold tells, unless they hold nothing yet
    #[arg(long, value_name = "BYTES", value_parser = parse_u32)]
    sector_size: Option<u32>,
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

const NO_SIZE: &str =
    "not a size below 16E (KiB, or blocks with -b; or with a suffix s, K, M, G or T)";
const NO_OFFSET: &str = "want bytes, or a number with a suffix s, K, M, G or T";

fn parse_count(text: &str) -> std::result::Result<u32, String> {
    parse_u32(text).map_err(|_| "not a number below 4G (K, M and G are taken)".to_owned())
}

fn parse_u32(text: &str) -> std::result::Result<u32, String> {
    let number = parse_size(text).and_then(|n| u32::try_from(n).ok());
    number.ok_or_else(|| format!("not a number below 4G ({SIZE_FORMS})"))
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
    let mut image = Image::parse(&args.image);
    let options = options(args, &mut image)?;
    let path = journal_path(args);
    check_journal(args, path.is_some())?;
    image.sector = sector(args, &image)?;
    if let Some(dir) = &args.fill
        && !dir.metadata().at("mkfs", dir.display())?.is_dir()
    {
        return Err(Why::new("Not a directory").at("mkfs", dir.display()));
    }
    if options.size == Some(0) {
        return Err(Why::new("a size of 0 is too small: give a larger one").at("mkfs", &image));
    }
    let place = room::find(&image, options.size, args.force)?;
    let log = path.as_deref().map(|path| open_journal(&image, path)).transpose()?;
    let external = match (&log, &path) {
        (Some(log), Some(path)) => {
            let read = JournalDevice::read(log.as_ref(), journal::number(path));
            Some(read.map_err(|error| Why::new(error.to_string()).at("mkfs", path.display()))?)
        }
        _ => None,
    };
    // Before the image is there, which may be in it.
    let source = args.fill.as_deref().map(fill::Source::read).transpose()?;
    let (device, made) = open(args, &image, place, options.size)?;
    if let (false, Some(found)) =
        (args.force, signature::of(device.as_ref(), place::sector(&image)))
    {
        let why = Why::new(format!("{}; use -F to overwrite it", found.sentence()));
        return Err(why.at("mkfs", &image));
    }
    let report = match make(device.as_ref(), &options, external.as_ref(), source.as_ref()) {
        Ok(report) => report,
        Err(error) => {
            if made {
                // Our own file, and nothing is in it.
                let _ = std::fs::remove_file(&image.path);
            }
            return Err(match error {
                MkfsError::Source { .. } => Failure::line(&format!("mkfs: {error}")),
                _ => Why::new(error.to_string()).at("mkfs", &image),
            });
        }
    };
    for warning in &report.warnings {
        remark(&format!("mkfs: {image}: warning: {warning}"));
    }
    if args.quiet {
        return Ok(());
    }
    let mut output = Output::new();
    print(&report, &mut output)?;
    let user = rustix::process::geteuid();
    if !user.is_root() && options.root_owner.0 != user.as_raw() && args.fill.is_none() {
        output.line("Its top directory is root's: with -E root_owner it is yours")?;
    }
    output.finish()
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
    let fill = Fill {
        tree: source.tree(),
        contents: source.contents(),
        is_reproducible: false,
        threads: fill::threads(),
        progress: &|bytes| progress.add_bytes(bytes),
    };
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

fn open_journal(image: &Image, path: &Path) -> Result<SharedDevice> {
    journal::open("mkfs", image, path, &FileOptions::new(Access::Write.into()))
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

/// Opens what is there or makes a file of the size asked for; tells whether it was made.
fn open(
    args: &Args,
    image: &Image,
    place: Place,
    size: Option<u64>,
) -> Result<(SharedDevice, bool)> {
    let write = FileOptions::new(Access::Write.into());
    let open = || image::any_device("mkfs", image, place, &write);
    let wrong = |why: &str| Why::new(why).at("mkfs", image);
    let meta = match image.path.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let Some(size) = size else {
                return Err(wrong("does not exist; give a size to make it"));
            };
            let len = size.checked_add(place.offset).ok_or_else(|| wrong("too large"))?;
            return match FileDevice::create(&image.path, len) {
                Ok(device) if place.offset == 0 && !DaxDevice::is_only_way(&image.path) => {
                    Ok((Arc::new(device), true))
                }
                Ok(device) => {
                    drop(device);
                    Ok((open()?, true))
                }
                Err(error) => Err(Failure::line(&format!("mkfs: {error}"))),
            };
        }
        Err(error) => return Err(Why::from(error).at("mkfs", image)),
    };
    let wanted = size.and_then(|size| size.checked_add(place.offset));
    match wanted {
        Some(wanted) if meta.is_file() && meta.len() < wanted => {
            if meta.len() != 0 && !args.force {
                let why = format!("has only {} bytes; use -F to extend it", meta.len());
                return Err(wrong(&why));
            }
            let file = File::options().write(true).open(&image.path).at("mkfs", image)?;
            // Nobody may work on it while it grows.
            if file.try_lock().is_err() {
                return Err(wrong("in use: mounted, or held by another process"));
            }
            file.set_len(wanted).at("mkfs", image)?;
        }
        _ => {}
    }
    Ok((open()?, false))
}

fn options(args: &Args, image: &mut Image) -> Result<Options> {
    let wrong = |why: String| Failure::line(&format!("mkfs: {why}"));
    let fs_type = match args.fs_type.as_deref() {
        Some(name) => FsType::parse(name)
            .ok_or_else(|| wrong(format!("-t {name}: ext2, ext3 and ext4 are made")))?,
        None => FsType::Ext4,
    };
    let mut options = Options {
        block_size: args.block_size,
        cluster_size: args.cluster_size,
        inode_size: args.inode_size,
        inode_ratio: args.inode_ratio,
        inodes: args.inodes,
        reserved_percent: Some(args.reserved),
        label: args.label.clone(),
        uuid: args.uuid,
        fs_type: if args.with_journal { fs_type.with_journal() } else { fs_type },
        revision_0: args.revision == 0,
        features: args.features.join(","),
        blocks_per_group: args.blocks_per_group,
        flex_groups: args.flex_groups,
        usage: args.usage.iter().cloned().collect(),
        ..Options::default()
    };
    for word in args.journal.iter().flat_map(|list| list.split(',')) {
        journal_word(&mut options, word).map_err(|why| wrong(format!("-J {word}: {why}")))?;
    }
    for word in args.extended.iter().flat_map(|list| list.split(',')) {
        extended_word(&mut options, image, word)
            .map_err(|why| wrong(format!("-E {word}: {why}")))?;
    }
    if let Some(text) = &args.size {
        options.size =
            Some(size(text, args.block_size).ok_or_else(|| wrong(format!("{text}: {NO_SIZE}")))?);
    }
    Ok(options)
}

fn journal_word(options: &mut Options, word: &str) -> std::result::Result<(), &'static str> {
    match word.split_once('=') {
        Some(("size", megabytes)) => {
            let megabytes = megabytes.trim_end_matches('M');
            options.journal_mib = Some(megabytes.parse().map_err(|_| "not a number of MiB")?);
            Ok(())
        }
        // Taken apart: `journal_path`.
        Some(("device", path)) if !path.is_empty() => Ok(()),
        _ => Err("not supported"),
    }
}

fn extended_word(
    options: &mut Options,
    image: &mut Image,
    word: &str,
) -> std::result::Result<(), &'static str> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    // As mke2fs: the bare word means 1.
    let switch = || match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(_) => Err("0 or 1"),
    };
    match name {
        "lazy_itable_init" => options.lazy_itable_init = Some(switch()?),
        "lazy_journal_init" => options.lazy_journal_init = Some(switch()?),
        "discard" if value.is_none() => options.discard = Some(true),
        "nodiscard" if value.is_none() => options.discard = Some(false),
        "root_owner" => options.root_owner = root_owner(value).ok_or("want UID:GID")?,
        "quotatype" => {
            let types = value.and_then(quota_types);
            options.quota_types = Some(types.ok_or("want usrquota:grpquota:prjquota")?);
        }
        "hash_seed" => {
            let value = value.ok_or("want a UUID")?;
            options.hash_seed = Some(parse_uuid(value).map_err(|_| "want a UUID")?);
        }
        "mmp_update_interval" => {
            let seconds = value.and_then(|value| value.parse().ok());
            options.mmp_update_interval = Some(seconds.ok_or("want seconds, at most 300")?);
        }
        "encoding" => match value {
            Some("utf8" | "utf8-12.1") => {
                options.encoding.get_or_insert_default();
            }
            _ => return Err("want utf8, which is utf8-12.1"),
        },
        "encoding_flags" => {
            if options.encoding.is_none()
                && !options.features.split(',').any(|word| word == "casefold")
            {
                return Err("give encoding= before it");
            }
            let encoding = options.encoding.get_or_insert_default();
            match value {
                Some("strict") => encoding.strict = true,
                Some("nostrict") => encoding.strict = false,
                _ => return Err("want strict or nostrict"),
            }
        }
        "offset" => {
            let offset = value.and_then(parse_size).ok_or(NO_OFFSET)?;
            image.part = if offset == 0 { Part::Whole } else { Part::At(offset) };
        }
        _ => return Err("not supported"),
    }
    Ok(())
}

/// The kinds of quota in a list of words.
fn quota_types(value: &str) -> Option<[bool; 3]> {
    let mut types = [false; 3];
    for word in value.split(':') {
        let words = ["usrquota", "grpquota", "prjquota"];
        types[words.iter().position(|known| *known == word)?] = true;
    }
    Some(types)
}

fn root_owner(value: Option<&str>) -> Option<(u32, u32)> {
    match value {
        Some(value) => {
            let (uid, gid) = value.split_once(':')?;
            Some((uid.parse().ok()?, gid.parse().ok()?))
        }
        None => {
            let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
            Some((uid.as_raw(), gid.as_raw()))
        }
    }
}

/// As mke2fs: a bare number counts blocks with `-b`, else KiB.
fn size(text: &str, block_size: Option<u32>) -> Option<u64> {
    match text.parse::<u64>() {
        Ok(count) => count.checked_mul(u64::from(block_size.unwrap_or(1024))),
        Err(_) => parse_size(text),
    }
}

fn print(report: &Report, output: &mut Output) -> Result<()> {
    let unit = if report.block_size >= 1024 { report.block_size / 1024 } else { 0 };
    output.line(&format!(
        "Creating filesystem with {} {unit}k blocks and {} inodes",
        report.blocks, report.inodes
    ))?;
    output.line(&format!("Filesystem UUID: {}", Uuid::from_bytes(report.uuid)))?;
    if !report.backups.is_empty() {
        output.line("Superblock backups stored on blocks: ")?;
        let backups: Vec<String> = report.backups.iter().map(u64::to_string).collect();
        output.line(&format!("\t{}", backups.join(", ")))?;
    }
    if report.journal_blocks != 0 {
        output.line(&format!("Journal: {} blocks", report.journal_blocks))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_mke2fs() {
        assert_eq!(size("100", None), Some(102_400));
        assert_eq!(size("100", Some(4096)), Some(409_600));
        assert_eq!(size("1M", Some(4096)), Some(1 << 20));
        assert_eq!(size("8s", None), Some(4096));
        assert_eq!(size("x", None), None);
    }
}
