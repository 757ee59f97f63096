//! `uext4 touch`: times of files of an image, and new empty files.

use std::ffi::OsString;

use uext4::{Error, ErrorKind, SetAttr, SetTime, Timestamp, Volume};

use crate::dates;
use crate::examples::{self, Examples};
use crate::failure::{At, Result};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::operands::{self, Try, each};
use crate::spec::{ImagePath, Location};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 touch disk.img:/etc/machine-id", "make it, or set its times to now"),
    ("uext4 touch -d 2026-01-01T00:00Z disk.img:/etc", "set both times"),
    ("uext4 touch -m -r app disk.img:/usr/bin/app", "modification time of a file of the host"),
];

/// Set the times of files of an image, or make them
///
/// A DATE without a time zone is in that of the user, as with touch(1).
#[derive(clap::Args)]
#[command(disable_help_flag = true, after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Set the access time only
    #[arg(short)]
    access: bool,
    /// Set the modification time only
    #[arg(short)]
    modification: bool,
    /// Do not make files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// This time: ISO 8601, @SECONDS, now, today, yesterday, tomorrow, or "2 days ago"
    #[arg(short, long, value_name = "DATE", group = "when", allow_hyphen_values = true)]
    date: Option<String>,
    /// The times of this file of the host, or of an image
    #[arg(short, long, value_name = "FILE", group = "when")]
    reference: Option<OsString>,
    /// This time, as [[CC]YY]MMDDhhmm[.ss]
    #[arg(short = 't', value_name = "STAMP", group = "when", value_parser = dates::parse_stamp)]
    stamp: Option<Timestamp>,
    /// Of a symbolic link itself
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (access, modification) = times(args)?;
    let both = args.access == args.modification;
    let change = SetAttr {
        atime: (both || args.access).then_some(access),
        mtime: (both || args.modification).then_some(modification),
        ..SetAttr::default()
    };
    each("touch", &args.paths, |volume, path| touch(args, &change, volume, path))
}

/// The times to set.
fn times(args: &Args) -> Result<(SetTime, SetTime)> {
    if let Some(reference) = &args.reference {
        let (access, modification) = reference_times(reference)?;
        return Ok((SetTime::At(access), SetTime::At(modification)));
    }
    let time = match (&args.date, args.stamp) {
        (Some(date), _) => SetTime::At(dates::parse(date).at("touch", date)?),
        (None, Some(time)) => SetTime::At(time),
        (None, None) => SetTime::Now,
    };
    Ok((time, time))
}

fn reference_times(name: &OsString) -> Result<(Timestamp, Timestamp)> {
    match Location::parse(name) {
        Location::Host(path) => {
            let stat = rustix::fs::stat(&path).at("touch", path.display())?;
            let nanos = |nanos: u64| u32::try_from(nanos).unwrap_or(0);
            let access = Timestamp { secs: stat.st_atime, nanos: nanos(stat.st_atime_nsec) };
            let modification = Timestamp { secs: stat.st_mtime, nanos: nanos(stat.st_mtime_nsec) };
            Ok((access, modification))
        }
        Location::Image(path) => {
            let volume = image::volume("touch", &path.image, Access::Read)?;
            let found = resolve(&volume, &path.path, Last::Follow).at("touch", &path)?;
            let attr = volume.attr(found.inode());
            Ok((attr.atime, attr.mtime))
        }
    }
}

fn touch(args: &Args, change: &SetAttr, volume: &Volume, path: &ImagePath) -> Try<()> {
    let last = if args.no_dereference { Last::Keep } else { Last::Follow };
    let inode = match operands::existing(volume, &path.path, last)? {
        Some(inode) => inode,
        None if args.no_create => return Ok(()),
        None if args.no_dereference => return Err(Error::from(ErrorKind::NotFound).into()),
        None => operands::make_file(volume, &path.path)?,
    };
    volume.set_attr(&inode, change)?;
    Ok(())
}
