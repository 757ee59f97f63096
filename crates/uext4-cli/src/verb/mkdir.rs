//! `uext4 mkdir`: directories in an image.

use std::ffi::OsString;

use uext4::{Device, ErrorKind, FileKind, InodeRef, NewInode, Owner, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve, resolve_parent};
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
    /// Permission bits, octal (default: 0777 less the umask)
    #[arg(short, long, value_parser = parse_mode)]
    mode: Option<u16>,
    /// Directories, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

fn parse_mode(text: &str) -> std::result::Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("not an octal mode".to_owned()),
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut outcome = Outcome::default();
    for name in &args.paths {
        let path = spec::in_image("mkdir", name)?;
        let volume = image::volume("mkdir", &path.image, Access::Write)?;
        let made = make(args, &volume, &path).at("mkdir", &path);
        if let Err(failure) = made {
            outcome.note(failure);
        }
        image::close("mkdir", &path.image, volume)?;
    }
    outcome.finish()
}

fn make(args: &Args, volume: &Volume, path: &ImagePath) -> std::result::Result<(), Why> {
    let default = 0o777 & !umask();
    let last = args.mode.unwrap_or(default);
    if !args.parents {
        let (parent, name) = resolve_parent(volume, &path.path)?;
        return make_one(volume, parent.inode(), &name, last).map(drop);
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
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn make_one(
    volume: &Volume,
    parent: &InodeRef,
    name: &[u8],
    mode: u16,
) -> std::result::Result<InodeRef, Why> {
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

/// The user that runs the command owns what it makes.
fn caller() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// The umask, which can only be read by setting it; no other thread creates files now.
fn umask() -> u16 {
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    (mask.as_raw_mode() & 0o777) as u16
}
