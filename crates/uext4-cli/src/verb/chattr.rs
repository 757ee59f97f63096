//! `uext4 chattr`: flags of files, as chattr(1) sets them, and projects.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use uext4::{FileKind, InodeRef, Volume};
use uext4_ondisk::InodeFlags;

use crate::examples::{self, Examples};
use crate::failure::{Failure, Result, Why, say};
use crate::image_path::{Last, resolve};
use crate::operands::{self, Images, Try, Visited};

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
    ("uext4 chattr -R -p 7 +P disk.img:/srv/a", "a project, also of what will be made in it"),
];

/// Change flags of files in an image, and their projects
///
/// A directory with F folds case: names that differ by case alone are the same. It is set and
/// cleared on empty directories only, of file systems with the feature casefold. A directory with P
/// gives its project to what is made in it.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
#[command(override_usage = "uext4 chattr [OPTIONS] [-p PROJECT] [+-=LETTERS]... <IMAGE:/PATH>...")]
pub(crate) struct Args {
    /// Set the number of the project, whose usage the project quota counts
    #[arg(short, long, value_name = "NUMBER")]
    project: Option<u32>,
    /// Also all that is below a directory; symbolic links are left alone
    #[arg(short = 'R', long)]
    recursive: bool,
    /// +, - or =, and letters of chattr(1), AacDdFiPSsTtux; then files, as IMAGE:/path
    #[arg(required = true, value_name = "+-=LETTERS|IMAGE:/PATH", allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Flags that are set and cleared, and the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    set: InodeFlags,
    clear: InodeFlags,
    project: Option<u32>,
    recursive: bool,
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

/// As lsattr(1) shows them: also those that say how a file is stored.
pub(crate) fn all_letters(flags: InodeFlags) -> String {
    const STORED: [(char, InodeFlags); 6] = [
        ('e', InodeFlags::EXTENTS),
        ('I', InodeFlags::INDEX),
        ('E', InodeFlags::ENCRYPT),
        ('V', InodeFlags::VERITY),
        ('N', InodeFlags::INLINE_DATA),
        ('j', InodeFlags::JOURNAL_DATA),
    ];
    let shown = STORED.iter().filter(|(_, flag)| flags.contains(*flag));
    let stored: String = shown.map(|(letter, _)| *letter).collect();
    let rest = STORED.iter().fold(flags, |rest, (_, flag)| rest.difference(*flag));
    letters(rest) + &stored
}

impl Change {
    /// Takes the words apart that are no paths, which come first. Behind one of them clap takes
    /// every other for one, too.
    fn parse(args: &Args) -> Try<(Self, &[OsString])> {
        let mut change = Self {
            set: InodeFlags::empty(),
            clear: InodeFlags::empty(),
            project: args.project,
            recursive: args.recursive,
        };
        let mut words = &args.words[..];
        while let Some((word, rest)) = words.split_first() {
            match word.as_bytes() {
                b"-R" | b"--recursive" => change.recursive = true,
                b"-p" | b"--project" => {
                    let number = rest.first().map(|word| word.as_bytes()).unwrap_or_default();
                    change.project = Some(project(number)?);
                    words = rest.get(1..).unwrap_or_default();
                    continue;
                }
                [b'-', b'p', number @ ..] => change.project = Some(project(number)?),
                [b'+' | b'-' | b'=', ..] => change.add(&word.to_string_lossy())?,
                _ => break,
            }
            words = rest;
        }
        if change.set.intersects(change.clear) {
            return Err(Why::new("sets and clears the same flag"));
        }
        Ok((change, words))
    }

    /// Takes a sign with letters.
    fn add(&mut self, mode: &str) -> Try<()> {
        let (sign, letters) = mode.split_at(1);
        let mut flags = InodeFlags::empty();
        for letter in letters.chars() {
            let known = LETTERS.iter().find(|(known, _)| *known == letter);
            flags |= known.ok_or_else(|| unknown(letter))?.1;
        }
        match sign {
            "+" => self.set |= flags,
            "-" => self.clear |= flags,
            // All that chattr can change become these.
            _ => {
                self.set |= flags;
                let all = LETTERS.iter().map(|(_, flag)| *flag).collect::<InodeFlags>();
                self.clear |= all.difference(flags);
            }
        }
        Ok(())
    }

    /// Whether nothing is changed.
    fn is_none(self) -> bool {
        self.set.is_empty() && self.clear.is_empty() && self.project.is_none()
    }
}

/// The number of a project.
fn project(text: &[u8]) -> Try<u32> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Why::new("-p wants a number"))
}

fn unknown(letter: char) -> Why {
    Why::new(format!("no flag has the letter {letter}"))
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (change, paths) = Change::parse(args).map_err(|why| usage(&why.to_string()))?;
    if paths.is_empty() || change.is_none() {
        return Err(usage("want + or - and letters, or -p, and then files"));
    }
    let mut images = Images::new("chattr");
    for path in images.paths(paths)? {
        images.among(&path, |volume, outcome| {
            let found = resolve(volume, &path.path, Last::Follow)?;
            apply(change, volume, found.inode())?;
            if change.recursive && found.inode().kind() == FileKind::Directory {
                let top = Visited { inode: found.inode(), path: &path };
                operands::below("chattr", volume, top, outcome, &mut |visited| match visited
                    .inode
                    .kind()
                {
                    FileKind::Symlink => Ok(()),
                    _ => apply(change, volume, visited.inode),
                });
            }
            Ok(())
        });
    }
    images.finish()
}

/// Wrong usage, told as clap tells it.
fn usage(why: &str) -> Failure {
    say(&format!("chattr: {why}"));
    Failure::Status(2)
}

fn apply(change: Change, volume: &Volume, inode: &InodeRef) -> Try<()> {
    // In this order, as an immutable file keeps its project.
    let flags = InodeFlags::from_bits_retain(volume.flags(inode));
    let wanted = flags.difference(change.clear).union(change.set);
    let thaws = change.clear.contains(InodeFlags::IMMUTABLE);
    if thaws && wanted != flags {
        volume.set_flags(inode, wanted.bits())?;
    }
    if let Some(project) = change.project {
        volume.set_project_id(inode, project)?;
    }
    if !thaws && wanted != flags {
        volume.set_flags(inode, wanted.bits())?;
    }
    Ok(())
}
