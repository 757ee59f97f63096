//! `uext4 manual`: the manual pages, from the command line that this program takes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 manual man1", "write the pages into the folder man1"),
    ("uext4 manual /usr/local/share/man/man1", "where man(1) finds them"),
    ("uext4 manual /tmp/pages", "where nothing else is"),
];

/// Write the manual pages into a folder: uext4(1), and a page for each verb
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// The folder, such as /usr/local/share/man/man1; it is made if it does not exist
    folder: PathBuf,
}

/// Runs the verb on the whole command line.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<()> {
    let folder = &args.folder;
    let made = fs::create_dir_all(folder).map_err(|error| match folder.exists() {
        true => Why::new("is no directory"),
        false => Why::from(error),
    });
    made.at("manual", folder.display())?;
    clap_mangen::generate_to(command, folder).at("manual", folder.display())?;
    keep_columns(&folder.join("uext4-mount.1")).at("manual", folder.display())
}

/// The mount options stand in columns, which a page must not fill into lines.
fn keep_columns(page: &Path) -> io::Result<()> {
    let text = fs::read_to_string(page)?;
    let Some((head, options)) = text.split_once(".SH EXTRA\n") else { return Ok(()) };
    let options = options.replacen("\n.SH", "\n.fi\n.SH", 1);
    fs::write(page, format!("{head}.SH MOUNT OPTIONS\n.nf\n{options}"))
}
