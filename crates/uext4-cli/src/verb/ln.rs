//! `uext4 ln`: links in an image.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use uext4::{FileKind, Ino, InodeRef, RenameMode, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image_path::{Last, resolve, resolve_parent};
use crate::operands::{self, Images, JUST_MADE, Try, caller};
use crate::output::Told;
use crate::spec::{self, ImagePath, Location};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 ln -s ../usr/share/zoneinfo/UTC disk.img:/etc/localtime", "a symbolic link"),
    ("uext4 ln disk.img:/bin/busybox disk.img:/bin/ls", "a hard link"),
    ("uext4 ln -sf busybox disk.img:/bin/sh", "in place of what is there"),
];

/// Make hard or symbolic links in an image
///
/// The target of a symbolic link is any text; written as IMAGE:/path it is the path alone.
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Make symbolic links
    #[arg(short, long)]
    symbolic: bool,
    /// Replace what is there, in one step
    #[arg(short, long)]
    force: bool,
    /// A last operand that is a symbolic link to a directory is the name of the link
    #[arg(short = 'n', long)]
    no_dereference: bool,
    /// The last operand is the name of the link, never a directory for it
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,
    /// Make the links in this directory
    #[arg(short, long, value_name = "IMAGE:/DIR")]
    target_directory: Option<OsString>,
    /// Link hard to what a symbolic link leads to
    #[arg(short = 'L', long, overrides_with = "physical")]
    logical: bool,
    /// Link hard to a symbolic link itself (always so without -L)
    #[arg(short = 'P', long)]
    physical: bool,
    /// Name each link
    #[arg(short, long)]
    verbose: bool,
    /// What the links lead to, then the link or a directory for links
    #[arg(required = true, value_name = "TARGET")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (targets, place) =
        operands::split_target("ln", &args.paths, args.target_directory.as_ref())?;
    let place = spec::in_image("ln", place)?;
    let told = Told::new(args.verbose);
    let mut images = Images::new("ln");
    images.among(&place, |volume, outcome| {
        let mut made = HashSet::new();
        let into = goal(args, volume, &place, targets.len() > 1)?;
        for target in targets {
            let shown = OsStr::display(target);
            let text = match Location::parse(target) {
                Location::Image(path) if path.image == place.image => path.path,
                // Any text, such as that of a URL.
                Location::Image(_) if args.symbolic => target.as_bytes().to_vec(),
                Location::Image(_) => {
                    outcome.note(Why::new("is in another image").at("ln", shown));
                    continue;
                }
                Location::Host(_) => target.as_bytes().to_vec(),
            };
            let link = match into {
                false => place.clone(),
                true => place.below(spec::last_part(&text)),
            };
            match make(args, volume, &text, &link, &mut made).at("ln", &link) {
                Ok(()) => told.say(&format!(
                    "'{link}' {} '{}'",
                    if args.symbolic { "->" } else { "=>" },
                    spec::show(&text)
                )),
                Err(failure) => outcome.note(failure),
            }
        }
        Ok(())
    });
    images.finish()
}

/// Whether links go into the last operand as a directory.
fn goal(args: &Args, volume: &Volume, place: &ImagePath, many: bool) -> Try<bool> {
    let must_be_dir = many || args.target_directory.is_some();
    if args.no_target_directory {
        return if many { Err(Why::new("extra operand before it")) } else { Ok(false) };
    }
    let last = match args.no_dereference && args.target_directory.is_none() {
        true => Last::Keep,
        false => Last::Follow,
    };
    match resolve(volume, &place.path, last) {
        Ok(found) if found.inode().kind() == FileKind::Directory => Ok(true),
        Ok(_) if must_be_dir => Err(Why::new("Not a directory")),
        Err(why) if must_be_dir => Err(why),
        Ok(_) | Err(_) => Ok(false),
    }
}

/// Makes a link, unless that would replace one of those `made` before by the same command.
fn make(
    args: &Args,
    volume: &Volume,
    target: &[u8],
    link: &ImagePath,
    made: &mut HashSet<Ino>,
) -> Try<()> {
    let from = match args.symbolic {
        true => None,
        false => Some(hard_target(args, volume, target)?),
    };
    let (dir, name) = resolve_parent(volume, &link.path)?;
    let dir = dir.inode();
    let make = |name: &[u8]| -> uext4::Result<Ino> {
        match &from {
            Some(inode) => volume.link(inode, dir, name).map(|()| inode.ino()),
            None => volume.symlink(dir, name, target, caller()).map(|inode| inode.ino()),
        }
    };
    let Some(there) = operands::entry(volume, dir, &name)? else {
        made.insert(make(&name)?);
        return Ok(());
    };
    if !args.force {
        return Err(Why::new("File exists"));
    }
    if there.kind() == FileKind::Directory {
        return Err(Why::new("cannot overwrite directory"));
    }
    if from.as_ref().is_some_and(|from| from.ino() == there.ino()) {
        // Another name of it already, or its own.
        let old = resolve_parent(volume, target)?;
        return match old.0.inode().ino() == dir.ino() && old.1 == name {
            true => Err(Why::new("target and link are the same file")),
            false => Ok(()),
        };
    }
    // As ln(1): a text is easily written again.
    if !args.symbolic && made.contains(&there.ino()) {
        return Err(Why::new(JUST_MADE));
    }
    drop(there);
    made.insert(replace(volume, dir, &name, make)?);
    Ok(())
}

/// The inode of a hard link: any file but a directory, also a symbolic link itself.
fn hard_target(args: &Args, volume: &Volume, target: &[u8]) -> Try<InodeRef> {
    let of = |why: Why| why.of(spec::show(target));
    if target.first() != Some(&b'/') {
        return Err(of(Why::new("a hard link is made to IMAGE:/path; -s takes any text")));
    }
    let last = if args.logical { Last::Follow } else { Last::Keep };
    let found = resolve(volume, target, last).map_err(of)?;
    if found.inode().kind() == FileKind::Directory {
        return Err(of(Why::new("hard link not allowed for directory")));
    }
    Ok(found.inode().clone())
}

/// Makes a link beside `name` and renames it over it: a crash or a full image leaves the old one.
fn replace(
    volume: &Volume,
    dir: &InodeRef,
    name: &[u8],
    make: impl FnOnce(&[u8]) -> uext4::Result<Ino>,
) -> Try<Ino> {
    let beside = operands::free_name(volume, dir)?;
    let made = make(&beside)?;
    let renamed = volume.rename(dir, &beside, dir, name, RenameMode::Replace);
    if renamed.is_err() {
        // The first failure is the one to tell.
        let _ = volume.unlink(dir, &beside);
    }
    renamed?;
    Ok(made)
}
