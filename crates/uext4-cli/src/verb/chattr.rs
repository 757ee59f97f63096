//! `uext4 chattr`: flags of files, as chattr(1) sets them.

use std::ffi::OsString;

use uext4::Volume;
use uext4_ondisk::InodeFlags;

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::spec::{self, ImagePath};

/// The letters of chattr(1).
const LETTERS: [(char, InodeFlags); 14] = [
    ('A', InodeFlags::NOATIME),
    ('a', InodeFlags::APPEND),
    ('c', InodeFlags::COMPR),
    ('D', InodeFlags::DIRSYNC),
    ('d', InodeFlags::NODUMP),
    ('F', InodeFlags::CASEFOLD),
    ('i', InodeFlags::IMMUTABLE),
    ('P', InodeFlags::PROJINHERIT),
    ('S', InodeFlags::SYNC),
    ('s', InodeFlags::SECRM),
    ('T', InodeFlags::TOPDIR),
    ('t', InodeFlags::NOTAIL),
    ('u', InodeFlags::UNRM),
    ('x', InodeFlags::DAX),
];

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 chattr +i disk.img:/etc/passwd", "make a file immutable"),
    ("uext4 chattr -- -i disk.img:/etc/passwd", "let it change again"),
    (
        "uext4 chattr +Ad disk.img:/var/cache",
        "keep no access times of it, and leave it out of dumps",
    ),
];

/// Change flags of files in an image
///
/// A directory with F folds case: names that differ by case alone are the same. It is set and
/// cleared on empty directories only, of file systems with the feature casefold.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// + or -, and letters of chattr(1): AacDdFiPSsTtux
    #[arg(value_name = "+-LETTERS", allow_hyphen_values = true, value_parser = parse_change)]
    change: Change,
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Flags, and whether they are set or cleared.
#[derive(Clone, Copy, Debug)]
struct Change {
    set: bool,
    flags: InodeFlags,
}

/// Flags by their letters; those without one as a number.
pub(crate) fn letters(flags: InodeFlags) -> String {
    let known = LETTERS.iter().filter(|(_, flag)| flags.contains(*flag));
    let mut text: String = known.map(|(letter, _)| *letter).collect();
    let rest = LETTERS.iter().fold(flags, |rest, (_, flag)| rest.difference(*flag));
    if !rest.is_empty() {
        text.push_str(&format!("0x{:x}", rest.bits()));
    }
    text
}

fn parse_change(text: &str) -> std::result::Result<Change, String> {
    let (set, letters) = match text.split_at_checked(1) {
        Some(("+", letters)) => (true, letters),
        Some(("-", letters)) => (false, letters),
        _ => return Err("want + or - and letters".to_owned()),
    };
    let mut flags = InodeFlags::empty();
    for letter in letters.chars() {
        let known = LETTERS.iter().find(|(known, _)| *known == letter);
        flags |= known.ok_or_else(|| format!("no flag has the letter {letter}"))?.1;
    }
    Ok(Change { set, flags })
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    for name in &args.paths {
        let path = spec::in_image("chattr", name)?;
        let volume = image::volume("chattr", &path.image, Access::Write)?;
        if let Err(failure) = change(args.change, &volume, &path).at("chattr", &path) {
            outcome.note(failure);
        }
        image::close("chattr", &path.image, volume)?;
    }
    outcome.finish()
}

fn change(change: Change, volume: &Volume, path: &ImagePath) -> std::result::Result<(), Why> {
    let found = resolve(volume, &path.path, Last::Follow)?;
    let mut flags = InodeFlags::from_bits_retain(volume.flags(found.inode()));
    flags.set(change.flags, change.set);
    Ok(volume.set_flags(found.inode(), flags.bits())?)
}
