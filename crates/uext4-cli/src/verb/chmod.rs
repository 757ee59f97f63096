//! `uext4 chmod`: permission bits of files of an image.

use std::ffi::OsString;

use uext4::{FileKind, InodeRef, SetAttr, Volume};

use crate::examples::{self, Examples};
use crate::failure::{At, Result};
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::mode::{self, ModeChange};
use crate::operands::{self, Images, Try, Visited, umask};
use crate::output::Told;
use crate::spec::{ImagePath, Location};
use crate::text;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 chmod 0600 disk.img:/root/.ssh/authorized_keys", "exactly this mode"),
    ("uext4 chmod u+s,go-w disk.img:/usr/bin/su", "changes, one after the other"),
    ("uext4 chmod -R a+rX disk.img:/srv", "readable for all, with all below"),
];

/// Change permission bits of files of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// All that is below directories, too; no symbolic link there is followed
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Say what is done to each file
    #[arg(short, long)]
    verbose: bool,
    /// Say what is done to each file whose mode changes
    #[arg(short, long)]
    changes: bool,
    /// The mode of this file of the host, or of an image; no MODE is given then
    #[arg(long, value_name = "FILE")]
    reference: Option<OsString>,
    /// MODE (octal, or letters as of chmod(1), such as u+rwX,g=o,-t), then files as IMAGE:/path
    #[arg(required = true, value_name = "MODE IMAGE:/PATH", allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (change, names) = match &args.reference {
        Some(reference) => (ModeChange::exactly(reference_mode(reference)?), &args.words[..]),
        None => {
            let (word, names) = args.words.split_first().expect("clap asks for one");
            let text = word.to_string_lossy();
            let change = mode::parse(&text).map_err(crate::failure::Why::new);
            (change.at("chmod", &text)?, names)
        }
    };
    let job = Job { change, umask: umask(), args };
    let mut images = Images::new("chmod");
    let paths = images.paths(names)?;
    if paths.is_empty() {
        return Err(crate::failure::Why::new("no file after it").at("chmod", "MODE"));
    }
    for path in &paths {
        images.among(path, |volume, outcome| {
            let found = resolve(volume, &path.path, Last::Follow)?;
            let top = found.inode();
            job.change(volume, top, path)?;
            if args.recursive && top.kind() == FileKind::Directory {
                let visited = Visited { inode: top, path };
                operands::below("chmod", volume, visited, outcome, &mut |found| match found
                    .inode
                    .kind()
                {
                    FileKind::Symlink => Ok(()),
                    _ => job.change(volume, found.inode, found.path),
                });
            }
            Ok(())
        });
    }
    images.finish()
}

fn reference_mode(name: &OsString) -> Result<u16> {
    match Location::parse(name) {
        Location::Host(path) => {
            let stat = rustix::fs::stat(&path).at("chmod", path.display())?;
            // The mask leaves 12 bits, so the cast loses nothing.
            Ok((stat.st_mode & 0o7777) as u16)
        }
        Location::Image(path) => {
            let volume = image::volume("chmod", &path.image, Access::Read)?;
            let found = resolve(&volume, &path.path, Last::Follow).at("chmod", &path)?;
            Ok(volume.attr(found.inode()).mode)
        }
    }
}

struct Job<'a> {
    change: ModeChange,
    umask: u16,
    args: &'a Args,
}

impl Job<'_> {
    fn change(&self, volume: &Volume, inode: &InodeRef, path: &ImagePath) -> Try<()> {
        let attr = volume.attr(inode);
        let is_directory = attr.kind == FileKind::Directory;
        let new = self.change.apply(attr.mode, is_directory, self.umask);
        // Set even where nothing changes: the time of the change is set, as by chmod(2).
        volume.set_attr(inode, &SetAttr { mode: Some(new), ..SetAttr::default() })?;
        let shown = |mode: u16| format!("{mode:04o} ({})", &text::mode(attr.kind, mode)[1..]);
        let is_same = new == attr.mode;
        Told::new(self.args.verbose || self.args.changes && !is_same).say(&match is_same {
            true => format!("mode of '{path}' retained as {}", shown(new)),
            false => {
                format!("mode of '{path}' changed from {} to {}", shown(attr.mode), shown(new))
            }
        });
        Ok(())
    }
}
