//! `uext4 sync`: a mounted volume made durable as a whole.
//!
//! sync(1) and syncfs(2) make the kernel write its pages to a FUSE server, but tell only those of
//! type `fuseblk` to flush. This verb does both for all: write-back by syncfs(2), then fsync(2) of
//! the directory, on which a uext4 mount commits and flushes everything.

use std::path::PathBuf;

use uext4_fuse::attach;

use crate::examples::{self, Examples};
use crate::failure::{At, Result, Why};
use crate::mounted;

/// What the help shows.
const EXAMPLES: Examples = &[
    ("uext4 sync /mnt", "write everything of a mount to its device"),
    ("uext4 sync .", "of the mount that this directory is in"),
    ("uext4 sync /mnt && cp disk.img backup.img", "before its image is copied"),
];

/// Write everything of a mount to its image
#[derive(clap::Args)]
#[command(after_help = examples::help(EXAMPLES))]
pub(crate) struct Args {
    /// A directory of the mount
    dir: PathBuf,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    let place = args.dir.display();
    let meta = args.dir.metadata().map_err(|error| mounted::why(error, &args.dir));
    let meta = meta.at("sync", &place)?;
    if !meta.is_dir() {
        return Err(Why::new("Not a directory").at("sync", place));
    }
    mounted::check(&meta).at("sync", &place)?;
    attach::sync(&args.dir).at("sync", place)
}
