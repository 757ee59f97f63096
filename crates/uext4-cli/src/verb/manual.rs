//! `uext4 manual`: the manual pages, from the command line that this program takes.

use std::fs;
use std::path::PathBuf;

use crate::failure::{At, Result};

/// Write the manual pages into a folder: uext4(1), and a page for each verb
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder, such as /usr/local/share/man/man1; it is made if it does not exist
    folder: PathBuf,
}

/// Runs the verb on the whole command line.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<()> {
    let folder = &args.folder;
    fs::create_dir_all(folder).at("manual", folder.display())?;
    clap_mangen::generate_to(command, folder).at("manual", folder.display())
}
