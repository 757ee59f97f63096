//! `uext4 lab report`: a folder of evidence as one HTML file.

use std::io::Write;
use std::path::PathBuf;

use crate::failure::{Failure, Result, Why};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder that `lab run --out` or `crashtest --out` wrote
    folder: PathBuf,
    /// Write the ratios of the run as a picture (SVG) for a README, instead of the report
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
}

/// Runs the verb: writes the report, or the picture, and prints its path.
pub(super) fn run(args: &Args) -> Result<()> {
    let failed = |error| Failure::line(&format!("lab: {error}"));
    let path = match &args.picture {
        None => uext4_report::write(&args.folder).map_err(failed)?,
        Some(path) if path.extension().is_none_or(|ending| ending != "svg") => {
            return Err(Why::new("a picture is an SVG: FILE.svg").at("lab", path.display()));
        }
        Some(path) => {
            uext4_report::write_picture(&args.folder, path).map_err(failed)?;
            path.clone()
        }
    };
    writeln!(std::io::stdout(), "{}", path.display()).map_err(crate::output::failed)
}
