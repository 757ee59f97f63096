//! `uext4 trim`: the device of an image, or of a mount, is told which blocks are free.
//!
//! A mount of ours is asked by the ioctl of fstrim(8); a directory of any other file system is
//! refused, so that a wrong name does not trim the host's. An image is opened. A file that holds an
//! image gets holes where its file system is free. What is printed is what `fstrim -v` prints.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use uext4_device::{TrimRange, trim_mounted};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image::{self, Access};
use crate::mounted;
use crate::output::Output;
use crate::spec::{Image, SIZE_FORMS, parse_size};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 trim disk.img", "punch holes where an image has free space"),
    ("uext4 trim -m 1M /dev/sdb1", "tell a device of its free runs of 1 MiB and more"),
    ("uext4 trim /mnt", "the free space of a mount, as fstrim(8)"),
];

/// Discard the free blocks of an image or a mount, so that they take no space
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Where to begin, in bytes or with K, M, G or T
    #[arg(short = 'o', long, visible_alias = "offset", value_name = "BYTES", value_parser = size)]
    start: Option<u64>,
    /// How much of the file system to go through
    #[arg(short, long, value_name = "BYTES", value_parser = size)]
    length: Option<u64>,
    /// Leave shorter free runs alone
    #[arg(short, long, visible_alias = "minimum", value_name = "BYTES", value_parser = size)]
    min: Option<u64>,
    /// Image file or block device, with @p1 or @OFFSET for a partition; or a directory of
    /// a uext4 mount
    #[arg(value_name = "IMAGE[@PART]|DIR")]
    place: OsString,
}

fn size(word: &str) -> std::result::Result<u64, String> {
    parse_size(word).ok_or_else(|| format!("not a size ({SIZE_FORMS})"))
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let range = TrimRange {
        start: args.start.unwrap_or(0),
        len: args.length.unwrap_or(u64::MAX),
        min_len: args.min.unwrap_or(0),
    };
    let place = Path::new(&args.place);
    let is_dir = match place.metadata() {
        Err(error) if mounted::is_dead(&error) => {
            return Err(mounted::why(error, place).at("trim", place.display()));
        }
        found => found.is_ok_and(|found| found.is_dir()),
    };
    let bytes = match is_dir {
        true => trim_mount(place, range).at("trim", place.display())?,
        false => trim_image(&Image::parse(&args.place), range)?,
    };
    let mut output = Output::new();
    let line = format!("{}: {} ({bytes} bytes) trimmed", place.display(), words(bytes));
    output.line(&line)?;
    output.finish()
}

fn trim_mount(dir: &Path, range: TrimRange) -> std::result::Result<u64, Why> {
    let dir = File::open(dir)?;
    mounted::check(&dir.metadata()?)?;
    Ok(trim_mounted(&dir, range)?)
}

fn trim_image(image: &Image, range: TrimRange) -> Result<u64> {
    let volume = image::volume("trim", image, Access::Write)?;
    let TrimRange { start, len, min_len } = range;
    let trimmed = volume.trim(start, len, min_len).at("trim", image);
    image::close("trim", image, volume)?;
    trimmed
}

/// A size as fstrim(8) says it: `1.5 GiB`, `512 B`.
fn words(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = bytes.checked_ilog2().unwrap_or(0) / 10;
    let name = UNITS[unit as usize];
    let mut whole = bytes >> (10 * unit);
    if unit == 0 {
        return format!("{whole} {name}");
    }
    // In thousandths of 1024, rounded to one digit.
    let rest = bytes >> (10 * (unit - 1)) & 1023;
    let mut tenths = (rest * 10 + 512) / 1024;
    if tenths == 10 {
        (whole, tenths) = (whole + 1, 0);
    }
    match tenths {
        0 => format!("{whole} {name}"),
        _ => format!("{whole}.{tenths} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn sizes_are_told_as_fstrim_tells_them() {
        let told = [0, 512, 1024, 1536, 10 << 20, (3 << 30) + (1 << 28)].map(words);
        assert_eq!(told, ["0 B", "512 B", "1 KiB", "1.5 KiB", "10 MiB", "3.3 GiB"]);
        assert_eq!(words((1 << 20) - 1), "1024 KiB");
    }
}
