//! `uext4 cat`: file contents to standard output.

use std::ffi::OsString;

use uext4::FileKind;

use crate::examples::{self, Examples};
use crate::failure::{At, Outcome, Result, Why};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, resolve};
use crate::output::Output;
use crate::spec::ImagePath;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 cat disk.img:/etc/fstab", "print a file of an image"),
    ("uext4 cat disk.img@p1:/boot/config | less", "a file of the first partition, page by page"),
    ("uext4 cat disk.img:/var/log/syslog > syslog", "save it on the host"),
];

/// Print files of an image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// Files, as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    paths: Vec<OsString>,
}

const READ_BYTES: usize = 1 << 20;

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut output = Output::new();
    let mut outcome = Outcome::default();
    for path in glob::in_image("cat", &args.paths, &mut outcome)? {
        match print("cat", &path, &mut output) {
            Err(crate::failure::Failure::OutputClosed) => {
                return Err(crate::failure::Failure::OutputClosed);
            }
            Err(failure) => outcome.note(failure),
            Ok(()) => {}
        }
    }
    output.finish()?;
    outcome.finish()
}

/// Prints one file; for `verb`.
pub(crate) fn print(verb: &str, path: &ImagePath, output: &mut Output) -> Result<()> {
    let volume = image::volume(verb, &path.image, Access::Read)?;
    let found = resolve(&volume, &path.path, Last::Follow).at(verb, path)?;
    match found.inode().kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Why::new("Is a directory").at(verb, path)),
        _ => return Err(Why::new("is a special file without contents").at(verb, path)),
    }
    let file = volume.open_file(found.inode()).at(verb, path)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = 0;
    loop {
        let len = file.read_at(offset, &mut buffer).at(verb, path)?;
        if len == 0 {
            return Ok(());
        }
        output.bytes(&buffer[..len])?;
        offset += len as u64;
    }
}
