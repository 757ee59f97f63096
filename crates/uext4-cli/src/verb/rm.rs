//! `uext4 rm`: remove names from an image.

use std::ffi::OsString;

use uext4::{ErrorKind, FileKind, InodeRef, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{names, resolve_parent};
use crate::spec::{self, ImagePath};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 rm disk.img:/etc/motd", "remove a file"),
    ("uext4 rm -r disk.img:/var/cache/apt", "a directory with what is in it"),
    ("uext4 rm -f disk.img:/core", "without a complaint where there is none"),
];

/// Remove files from an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Remove directories and what is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Say nothing of files that do not exist
    #[arg(short, long)]
    force: bool,
    /// Remove empty directories
    #[arg(short, long)]
    dir: bool,
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    for name in &args.paths {
        let path = spec::in_image("rm", name)?;
        let volume = image::volume("rm", &path.image, Access::Write)?;
        if let Err(failure) = remove(args, &volume, &path).at("rm", &path) {
            outcome.note(failure);
        }
        image::close("rm", &path.image, volume)?;
    }
    outcome.finish()
}

fn remove(args: &Args, volume: &Volume, path: &ImagePath) -> std::result::Result<(), Why> {
    let (parent, name) = resolve_parent(volume, &path.path)?;
    let inode = match volume.lookup(parent.inode(), &name) {
        Err(error) if args.force && *error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if inode.kind() != FileKind::Directory {
        return Ok(volume.unlink(parent.inode(), &name)?);
    }
    if args.recursive {
        return remove_tree(volume, parent.inode(), &name, inode);
    }
    if args.dir {
        return Ok(volume.rmdir(parent.inode(), &name)?);
    }
    Err(Why::new("Is a directory"))
}

/// A directory being emptied: what is left in it, and how it is removed in the end.
struct Emptying {
    dir: InodeRef,
    name: Vec<u8>,
    left: Vec<Vec<u8>>,
}

/// Removes a directory and all below it. Depth costs heap, not stack; a directory that is its own
/// ancestor, as a corrupt image may have, is refused.
fn remove_tree(
    volume: &Volume,
    parent: &InodeRef,
    name: &[u8],
    dir: InodeRef,
) -> std::result::Result<(), Why> {
    let mut levels = vec![level(volume, dir, name)?];
    while let Some(top) = levels.last_mut() {
        let Some(child_name) = top.left.pop() else {
            let done = levels.pop().expect("just seen");
            let above = levels.last().map_or(parent, |level| &level.dir);
            drop(done.dir);
            volume.rmdir(above, &done.name)?;
            continue;
        };
        let child = volume.lookup(&top.dir, &child_name)?;
        if child.kind() != FileKind::Directory {
            drop(child);
            volume.unlink(&top.dir, &child_name)?;
            continue;
        }
        if levels.iter().any(|level| level.dir.ino() == child.ino()) {
            let name = spec::show(&child_name);
            return Err(Why::new(format!("directory loop at '{name}'; run fsck")));
        }
        levels.push(level(volume, child, &child_name)?);
    }
    Ok(())
}

fn level(volume: &Volume, dir: InodeRef, name: &[u8]) -> std::result::Result<Emptying, Why> {
    let left = names(volume, &dir)?.into_iter().map(|listed| listed.name).collect();
    Ok(Emptying { dir, name: name.to_vec(), left })
}
