//! `uext4 mv`: rename within an image.

use std::ffi::OsString;

use uext4::{ErrorKind, FileKind, RenameMode, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve, resolve_parent};
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
    /// Sources, then the new name or an existing directory, all in one image
    #[arg(required = true, num_args = 2.., value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut paths: Vec<ImagePath> =
        args.paths.iter().map(|name| spec::in_image("mv", name)).collect::<Result<_>>()?;
    let target = paths.pop().expect("clap asks for two");
    if let Some(other) = paths.iter().find(|path| path.image != target.image) {
        let why = Why::new(format!("is not in {}; copy it and remove it", target.image));
        return Err(why.at("mv", other));
    }
    let volume = image::volume("mv", &target.image, Access::Write)?;
    let mut outcome = Outcome::default();
    let into = resolve(&volume, &target.path, Last::Follow).is_ok_and(|found| {
        found.inode().kind() == FileKind::Directory && !is_respelled(&volume, &paths, &target)
    });
    if paths.len() > 1 && !into {
        outcome.note(Why::new("Not a directory").at("mv", &target));
        paths.clear();
    }
    for path in &paths {
        let to = if into {
            let name = spec::last_part(&path.path);
            ImagePath { path: spec::join(&target.path, name), ..target.clone() }
        } else {
            target.clone()
        };
        if let Err(failure) = rename(args, &volume, path, &to).at("mv", path) {
            outcome.note(failure);
        }
    }
    image::close("mv", &target.image, volume)?;
    outcome.finish()
}

/// Whether the target is the only source, by another spelling of its name.
fn is_respelled(volume: &Volume, paths: &[ImagePath], target: &ImagePath) -> bool {
    let [path] = paths else { return false };
    let number =
        |path: &[u8]| resolve(volume, path, Last::Keep).ok().map(|found| found.inode().ino());
    spec::last_part(&path.path) != spec::last_part(&target.path)
        && number(&path.path).is_some_and(|source| number(&target.path) == Some(source))
}

fn rename(
    args: &Args,
    volume: &Volume,
    from: &ImagePath,
    to: &ImagePath,
) -> std::result::Result<(), Why> {
    let (old_dir, old_name) = resolve_parent(volume, &from.path)?;
    let inode = volume.lookup(old_dir.inode(), &old_name)?;
    let (new_dir, new_name) = resolve_parent(volume, &to.path)?;
    if inode.kind() == FileKind::Directory && new_dir.goes_through(&inode) {
        return Err(Why::new("cannot be moved into itself"));
    }
    let mode = if args.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
    match volume.rename(old_dir.inode(), &old_name, new_dir.inode(), &new_name, mode) {
        // mv -n leaves an existing file and says nothing.
        Err(error) if args.no_clobber && *error.kind() == ErrorKind::Exists => Ok(()),
        Err(error) => {
            Err(Why::new(format!("cannot move to {}: {}", spec::show(&to.path), Why::from(error))))
        }
        Ok(()) => Ok(()),
    }
}
