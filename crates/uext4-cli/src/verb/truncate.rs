//! `uext4 truncate`: lengths of files of an image.

use std::ffi::OsString;

use uext4::{FileKind, Privs, SetAttr, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::operands::{self, Try, each};
use crate::spec::{ImagePath, Location};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 truncate -s 0 disk.img:/var/log/syslog", "empty a file"),
    ("uext4 truncate -s 1G disk.img:/swapfile", "make a file with a hole of 1 GiB"),
    ("uext4 truncate -s %4096 disk.img:/data", "round up to pages"),
];

/// Shorten or lengthen files of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Length in bytes, or with K, M, G, T, P or E (KB is 1000); before it +, -, <, >, / or %:
    /// more, less, at most, at least, rounded down, rounded up
    #[arg(short, long, value_name = "SIZE", value_parser = parse, allow_hyphen_values = true)]
    #[arg(required_unless_present = "reference")]
    size: Option<Change>,
    /// The length of this file of the host, or of an image; SIZE must be relative then
    #[arg(short, long, value_name = "FILE")]
    reference: Option<OsString>,
    /// Do not make files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Refused: the size of a block says nothing of a file
    #[arg(short = 'o', long, hide = true)]
    io_blocks: bool,
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// How the length changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    To(u64),
    More(u64),
    Less(u64),
    AtMost(u64),
    AtLeast(u64),
    Down(u64),
    Up(u64),
}

fn parse(text: &str) -> std::result::Result<Change, String> {
    let (make, size): (fn(u64) -> Change, &str) = match text.split_at_checked(1) {
        Some(("+", size)) => (Change::More, size),
        Some(("-", size)) => (Change::Less, size),
        Some(("<", size)) => (Change::AtMost, size),
        Some((">", size)) => (Change::AtLeast, size),
        Some(("/", size)) => (Change::Down, size),
        Some(("%", size)) => (Change::Up, size),
        _ => (Change::To, text),
    };
    let size = parse_bytes(size).ok_or("want bytes, or a suffix K, M, G, T, P, E, KB, ...")?;
    match make(size) {
        Change::Down(0) | Change::Up(0) => Err("division by zero".to_owned()),
        change => Ok(change),
    }
}

/// `K`, `KiB` and their like are powers of 1024, `KB` of 1000.
fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let Some(letter) = suffix.chars().next() else { return Some(number) };
    let power = "KMGTPE".find(letter.to_ascii_uppercase())? as u32 + 1;
    let unit: u64 = match &suffix[1..] {
        "" | "iB" => 1024,
        "B" => 1000,
        _ => return None,
    };
    number.checked_mul(unit.checked_pow(power)?)
}

impl Change {
    /// The new length of a file that has `old`.
    fn apply(self, old: u64) -> Option<u64> {
        match self {
            Self::To(size) => Some(size),
            Self::More(size) => old.checked_add(size),
            Self::Less(size) => Some(old.saturating_sub(size)),
            Self::AtMost(size) => Some(old.min(size)),
            Self::AtLeast(size) => Some(old.max(size)),
            Self::Down(size) => Some(old - old % size),
            Self::Up(size) => old.checked_next_multiple_of(size),
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.io_blocks {
        return Err(Why::new("not supported; give bytes").at("truncate", "-o"));
    }
    let base = args.reference.as_ref().map(reference_size).transpose()?;
    if base.is_some() && matches!(args.size, Some(Change::To(_))) {
        return Err(Why::new("must be relative with -r, such as +4K").at("truncate", "-s"));
    }
    each("truncate", &args.paths, |volume, path| truncate(args, base, volume, path))
}

fn reference_size(name: &OsString) -> Result<u64> {
    match Location::parse(name) {
        Location::Host(path) => Ok(path.metadata().at("truncate", path.display())?.len()),
        Location::Image(path) => {
            let volume = image::volume("truncate", &path.image, Access::Read)?;
            let found = resolve(&volume, &path.path, Last::Follow).at("truncate", &path)?;
            Ok(volume.attr(found.inode()).size)
        }
    }
}

fn truncate(args: &Args, base: Option<u64>, volume: &Volume, path: &ImagePath) -> Try<()> {
    let inode = match operands::existing(volume, &path.path, Last::Follow)? {
        Some(inode) if inode.kind() == FileKind::Regular => inode,
        Some(inode) if inode.kind() == FileKind::Directory => {
            return Err(Why::new("Is a directory"));
        }
        Some(_) => return Err(Why::new("Invalid argument")),
        None if args.no_create => return Ok(()),
        None => operands::make_file(volume, &path.path)?,
    };
    let old = base.unwrap_or_else(|| volume.attr(&inode).size);
    let size = args.size.map_or(Some(old), |change| change.apply(old));
    let size = size.ok_or_else(|| Why::new("File too large"))?;
    // As any change of content: a file that was root's to run with rights keeps none of them.
    let kill_priv = Some(Privs::Capabilities);
    volume.set_attr(&inode, &SetAttr { size: Some(size), kill_priv, ..SetAttr::default() })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_truncate() {
        let rows = [
            ("5", 10, Some(5)),
            ("+5", 10, Some(15)),
            ("-5", 10, Some(5)),
            ("-50", 10, Some(0)),
            ("<5", 10, Some(5)),
            ("<50", 10, Some(10)),
            (">50", 10, Some(50)),
            (">5", 10, Some(10)),
            ("/4", 10, Some(8)),
            ("%4", 10, Some(12)),
            ("%4", 12, Some(12)),
            ("1K", 0, Some(1024)),
            ("1KB", 0, Some(1000)),
            ("2MiB", 0, Some(2 << 20)),
            ("+1", u64::MAX, None),
            ("%4096", u64::MAX, None),
        ];
        for (text, old, want) in rows {
            assert_eq!(parse(text).unwrap().apply(old), want, "{text} of {old}");
        }
        for text in ["", "+", "x", "1X", "1KiBB", "/0", "%0", "16E", "-", "++1", "1 K", "K"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
