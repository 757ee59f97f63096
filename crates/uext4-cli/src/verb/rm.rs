//! `uext4 rm`: remove names from an image.

use std::ffi::OsString;

use uext4::{ErrorKind, FileKind, InodeRef, Volume};

use crate::examples::{self, Examples};
use crate::failure::{Outcome, Result, Why};
use crate::image_path::{names, resolve_parent};
use crate::operands::{self, Images, Try};
use crate::output::Told;
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
    /// Name each file that is removed
    #[arg(short, long)]
    verbose: bool,
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut images = Images::new("rm");
    for path in images.paths(&args.paths)? {
        images.among(&path, |volume, outcome| {
            let told = Told::new(args.verbose);
            Removal { volume, outcome, told }.remove(args, &path)
        });
    }
    images.finish()
}

/// What removes files of one image.
struct Removal<'r> {
    volume: &'r Volume,
    outcome: &'r mut Outcome,
    told: Told,
}

/// A directory being emptied: what is left in it, and where it is removed in the end.
struct Emptying {
    dir: InodeRef,
    path: ImagePath,
    left: Vec<Vec<u8>>,
    /// Something in it could not be removed, which was told.
    keeps: bool,
}

/// Something in the innermost directory stays.
fn mark(levels: &mut [Emptying]) {
    if let Some(level) = levels.last_mut() {
        level.keeps = true;
    }
}

impl Removal<'_> {
    fn remove(&mut self, args: &Args, path: &ImagePath) -> Try<()> {
        let (parent, name) = match resolve_parent(self.volume, &path.path) {
            Err(why) if args.force && why.is_absent() => return Ok(()),
            other => other?,
        };
        let parent = parent.inode();
        let Some(inode) = operands::entry(self.volume, parent, &name)? else {
            let not_there = || Err(uext4::Error::from(ErrorKind::NotFound).into());
            return if args.force { Ok(()) } else { not_there() };
        };
        if inode.kind() != FileKind::Directory {
            if path.path.last() == Some(&b'/') {
                return Err(Why::new("Not a directory"));
            }
            drop(inode);
            return self.unlink(parent, &name, path);
        }
        if args.recursive {
            return self.tree(parent, inode, path);
        }
        if args.dir {
            return self.rmdir(parent, &name, path);
        }
        Err(Why::new("Is a directory"))
    }

    fn unlink(&self, dir: &InodeRef, name: &[u8], path: &ImagePath) -> Try<()> {
        self.volume.unlink(dir, name)?;
        self.told.say(&format!("removed '{path}'"));
        Ok(())
    }

    fn rmdir(&self, dir: &InodeRef, name: &[u8], path: &ImagePath) -> Try<()> {
        self.volume.rmdir(dir, name)?;
        self.told.say(&format!("removed directory '{path}'"));
        Ok(())
    }

    /// Removes a directory and all below it. What fails is told, and the rest is removed. Depth
    /// costs heap, not stack.
    fn tree(&mut self, parent: &InodeRef, dir: InodeRef, path: &ImagePath) -> Try<()> {
        let mut levels = vec![self.level(parent, dir, path.clone())?];
        while let Some(top) = levels.last_mut() {
            let (step, path) = if let Some(name) = top.left.pop() {
                let path = top.path.below(&name);
                (self.entry(&mut levels, &name, &path), path)
            } else {
                let Emptying { dir, path, keeps, .. } = levels.pop().expect("just seen");
                drop(dir);
                if keeps {
                    // Told already; so what is above is not empty either.
                    mark(&mut levels);
                    continue;
                }
                let above = levels.last().map_or(parent, |level| &level.dir);
                (self.rmdir(above, spec::last_part(&path.path), &path), path)
            };
            if let Err(why) = step {
                mark(&mut levels);
                self.outcome.note(why.at("rm", path));
            }
        }
        Ok(())
    }

    /// Removes one file, or goes into a directory.
    fn entry(&self, levels: &mut Vec<Emptying>, name: &[u8], path: &ImagePath) -> Try<()> {
        let dir = &levels.last().expect("it has the name").dir;
        let child = self.volume.lookup(dir, name)?;
        if child.kind() != FileKind::Directory {
            drop(child);
            return self.unlink(dir, name, path);
        }
        let level = self.level(dir, child, path.clone())?;
        levels.push(level);
        Ok(())
    }

    /// Enters a directory, unless it belongs elsewhere: damage may give one a second name, also
    /// below itself, and what is in it would go although nobody named it.
    fn level(&self, parent: &InodeRef, dir: InodeRef, path: ImagePath) -> Try<Emptying> {
        spec::check_path(&path.path)?;
        if self.volume.lookup(&dir, b"..")?.ino() != parent.ino() {
            return Err(Why::new("directory loop, or a second name of a directory; run fsck"));
        }
        let left = names(self.volume, &dir)?.into_iter().map(|listed| listed.name).collect();
        Ok(Emptying { dir, path, left, keeps: false })
    }
}
