//! `uext4 lab report`: a folder of evidence as one HTML file.

use std::io::Write;
use std::path::PathBuf;

use crate::failure::{Failure, Result};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder that `lab run --out` or `crashtest --out` wrote
    folder: PathBuf,
}

/// Runs the verb: writes the report and prints its path.
pub(super) fn run(args: &Args) -> Result<()> {
    let failed = |error| Failure::line(&format!("lab: {error}"));
    let path = uext4_report::write(&args.folder).map_err(failed)?;
    writeln!(std::io::stdout(), "{}", path.display()).map_err(crate::output::failed)
}
