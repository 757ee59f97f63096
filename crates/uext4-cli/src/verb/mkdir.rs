//! `uext4 mkdir`: directories in an image.

use std::ffi::OsString;

use uext4::{Device, ErrorKind, FileKind, InodeRef, NewInode, Volume};

use crate::examples::{self, Examples};
use crate::failure::{Result, Why};
use crate::image_path::{Last, resolve, resolve_parent};
use crate::mode::{self, ModeChange};
use crate::operands::{Try, caller, each, umask};
use crate::output::Told;
use crate::spec::{self, ImagePath};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 mkdir disk.img:/srv", "make a directory"),
    ("uext4 mkdir -p disk.img:/srv/www/html", "with its parents"),
    ("uext4 mkdir -m 1777 disk.img:/tmp", "with permission bits"),
];

/// Make directories in an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Make parents as needed; no error if the directory exists
    #[arg(short, long)]
    parents: bool,
    /// Permission bits as of chmod (default: 0777 less the umask)
    #[arg(short, long, value_parser = mode::parse, allow_hyphen_values = true)]
    mode: Option<ModeChange>,
    /// Name each directory that is made
    #[arg(short, long)]
    verbose: bool,
    /// Directories, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    each("mkdir", &args.paths, |volume, path| make(args, volume, path))
}

fn make(args: &Args, volume: &Volume, path: &ImagePath) -> Try<()> {
    let (umask, told) = (umask(), Told::new(args.verbose));
    let default = 0o777 & !umask;
    let last = args.mode.as_ref().map_or(default, |mode| mode.apply(0o777, true, umask));
    if !args.parents {
        let (parent, name) = resolve_parent(volume, &path.path)?;
        make_one(volume, parent.inode(), &name, last)?;
        told.say(&format!("created directory '{path}'"));
        return Ok(());
    }
    // Resolved step by step, so that existing symbolic links to directories serve as parents.
    let parts: Vec<&[u8]> = path.path.split(|b| *b == b'/').filter(|p| !p.is_empty()).collect();
    let mut so_far = b"/".to_vec();
    for (i, part) in parts.iter().enumerate() {
        let is_last = i + 1 == parts.len();
        let parent = resolve(volume, &so_far, Last::Follow)?;
        so_far = spec::join(&so_far, part);
        if *part == b"." || *part == b".." {
            continue;
        }
        match volume.lookup(parent.inode(), part) {
            Ok(_) => {
                if resolve(volume, &so_far, Last::Follow)?.inode().kind() != FileKind::Directory {
                    return Err(Why::new("File exists"));
                }
            }
            Err(error) if *error.kind() == ErrorKind::NotFound => {
                // Parents stay writable for their owner, as mkdir(1) makes them.
                let mode = if is_last { last } else { default | 0o300 };
                make_one(volume, parent.inode(), part, mode)?;
                let made = ImagePath { path: so_far.clone(), ..path.clone() };
                told.say(&format!("created directory '{made}'"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn make_one(volume: &Volume, parent: &InodeRef, name: &[u8], mode: u16) -> Try<InodeRef> {
    let new = NewInode {
        kind: FileKind::Directory,
        mode,
        owner: caller(),
        rdev: Device { major: 0, minor: 0 },
    };
    match volume.create(parent, name, &new) {
        Err(error) if *error.kind() == ErrorKind::Exists => Err(Why::new("File exists")),
        other => Ok(other?),
    }
}
