//! `uext4 mv`: rename within an image.

use std::collections::HashSet;
use std::ffi::OsString;

use uext4::{FileKind, Ino, InodeRef, RenameMode, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::image_path::{Last, names, resolve, resolve_parent};
use crate::operands::{self, Images, JUST_MADE, Try};
use crate::output::Told;
use crate::spec::{self, ImagePath};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 mv disk.img:/etc/motd disk.img:/etc/motd.old", "rename a file"),
    ("uext4 mv disk.img:/a disk.img:/b disk.img:/dir", "move two into a directory"),
    ("uext4 mv -n disk.img:/new disk.img:/old", "unless there is one of that name"),
];

/// Move or rename files within an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Do not replace an existing file
    #[arg(short, long)]
    no_clobber: bool,
    /// Replace without asking (always so; taken for mv's sake)
    #[arg(short, long)]
    force: bool,
    /// Replace existing files that are older alone
    #[arg(short, long)]
    update: bool,
    /// The last operand is the new name, never a directory for it
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    no_target_directory: bool,
    /// Move into this directory
    #[arg(short, long, value_name = "IMAGE:/DIR")]
    target_directory: Option<OsString>,
    /// Name each file
    #[arg(short, long)]
    verbose: bool,
    /// Sources, then the new name or an existing directory, all in one image
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (names, target) =
        operands::split_target("mv", &args.paths, args.target_directory.as_ref())?;
    let mut images = Images::new("mv");
    let (paths, target) = (images.paths(names)?, spec::in_image("mv", target)?);
    if let Some(other) = paths.iter().find(|path| path.image != target.image) {
        let why = Why::new(format!("is not in {}; copy it and remove it", target.image));
        return Err(why.at("mv", other));
    }
    images.among(&target, |volume, outcome| {
        let into = is_into(args, volume, &paths, &target)?;
        let mut moved = HashSet::new();
        for path in &paths {
            let to = match into {
                true => target.below(spec::last_part(&path.path)),
                false => target.clone(),
            };
            if let Err(failure) = rename(args, volume, path, &to, &mut moved).at("mv", path) {
                outcome.note(failure);
            }
        }
        Ok(())
    });
    images.finish()
}

/// Whether the sources go into the target as a directory.
fn is_into(args: &Args, volume: &Volume, paths: &[ImagePath], target: &ImagePath) -> Try<bool> {
    if args.no_target_directory {
        return match paths {
            [_] => Ok(false),
            _ => Err(Why::new("extra operand before it")),
        };
    }
    let must_be_dir = paths.len() > 1 || args.target_directory.is_some();
    let is_dir = match resolve(volume, &target.path, Last::Follow) {
        Ok(found) => found.inode().kind() == FileKind::Directory,
        Err(why) if must_be_dir => return Err(why),
        Err(_) => false,
    };
    match is_dir && (must_be_dir || !is_respelled(volume, paths, target)) {
        false if must_be_dir => Err(Why::new("Not a directory")),
        into => Ok(into),
    }
}

/// Whether the target is the only source, by another spelling of its name.
fn is_respelled(volume: &Volume, paths: &[ImagePath], target: &ImagePath) -> bool {
    let [path] = paths else { return false };
    let number =
        |path: &[u8]| resolve(volume, path, Last::Keep).ok().map(|found| found.inode().ino());
    spec::last_part(&path.path) != spec::last_part(&target.path)
        && number(&path.path).is_some_and(|source| number(&target.path) == Some(source))
}

/// Renames a file, unless that would replace one of those `moved` before by the same command.
fn rename(
    args: &Args,
    volume: &Volume,
    from: &ImagePath,
    to: &ImagePath,
    moved: &mut HashSet<Ino>,
) -> Try<()> {
    let (old_dir, old_name) = resolve_parent(volume, &from.path)?;
    let inode = volume.lookup(old_dir.inode(), &old_name)?;
    let is_directory = inode.kind() == FileKind::Directory;
    if from.path.last() == Some(&b'/') && !is_directory {
        return Err(Why::new("Not a directory"));
    }
    let cannot = |why: Why| Why::new(format!("cannot move to {}: {why}", spec::show(&to.path)));
    let (new_dir, new_name) = resolve_parent(volume, &to.path).map_err(cannot)?;
    let there = operands::entry(volume, new_dir.inode(), &new_name).map_err(cannot)?;
    if let Some(there) = &there {
        let is_kept = || volume.attr(there).mtime >= volume.attr(&inode).mtime;
        if args.no_clobber || args.update && is_kept() {
            return Ok(());
        }
    }
    if is_directory && new_dir.goes_through(&inode) {
        return Err(Why::new("cannot be moved into itself"));
    }
    if to.path.last() == Some(&b'/') && !is_directory {
        return Err(cannot(Why::new("Not a directory")));
    }
    if let Some(there) = &there
        && there.ino() != inode.ino()
        && moved.contains(&there.ino())
    {
        return Err(cannot(Why::new(JUST_MADE)));
    }
    if there.is_some_and(|there| there.ino() == inode.ino()) {
        let is_listed = |dir: &InodeRef, name: &[u8]| -> Try<bool> {
            Ok(names(volume, dir)?.iter().any(|listed| listed.name == name))
        };
        // Where case is folded, a spelling that is not listed is a new one of the same name.
        if is_listed(old_dir.inode(), &old_name)? && is_listed(new_dir.inode(), &new_name)? {
            return Err(Why::new("source and target are the same file"));
        }
    }
    volume
        .rename(old_dir.inode(), &old_name, new_dir.inode(), &new_name, RenameMode::Replace)
        .map_err(|error| cannot(error.into()))?;
    moved.insert(inode.ino());
    Told::new(args.verbose).say(&format!("renamed '{from}' -> '{to}'"));
    Ok(())
}
