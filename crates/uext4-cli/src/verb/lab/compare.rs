//! `uext4 lab compare`: two runs beside each other.

use std::io::Write;
use std::path::{Path, PathBuf};

use uext4_lab::{Comparing, Comparison, Run};

use super::{failed, mistake};
use crate::failure::{At, Failure, Result, Why};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Lines of JSON that `lab run --json` printed, or the folder of `lab run --out`
    run_a: PathBuf,
    /// The run that is compared with it
    run_b: PathBuf,
    #[command(flatten)]
    judging: Judging,
}

/// What a comparison goes by.
#[derive(clap::Args)]
pub(super) struct Judging {
    /// Percent that B may be worse by
    #[arg(long, default_value_t = 5.0)]
    threshold: f64,
    /// The variant of A that is compared, where each is not compared with its like
    #[arg(long, requires = "variant_b")]
    variant_a: Option<String>,
    /// The variant of B that is compared with it
    #[arg(long, requires = "variant_a")]
    variant_b: Option<String>,
    /// Print JSON, as compare.json of a folder of evidence has it
    #[arg(long)]
    json: bool,
    /// Exit status 125 where nothing can be compared, by which `git bisect run` skips a commit
    #[arg(long)]
    pub(super) bisect: bool,
}

impl Args {
    pub(super) fn bisect(&self) -> bool {
        self.judging.bisect
    }
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<()> {
    // No other commit has another run A.
    let before = args.judging.check().and_then(|()| read(&args.run_a));
    let before = before.map_err(|failure| mistake(failure, args.bisect()))?;
    let comparison = args.judging.compare(&before, &read(&args.run_b)?)?;
    args.judging.judge(&comparison)
}

impl Judging {
    /// Refuses what makes no comparison.
    pub(super) fn check(&self) -> Result<()> {
        if !(0.0..100.0).contains(&self.threshold) {
            return Err(Why::new("threshold must be 0 to 100").at("lab", self.threshold));
        }
        Ok(())
    }

    /// Compares two runs.
    pub(super) fn compare(&self, a: &Run, b: &Run) -> Result<Comparison> {
        let variants = self.variant_a.clone().zip(self.variant_b.clone());
        let comparing = Comparing {
            threshold: self.threshold / 100.0,
            variants: variants.map(|(a, b)| [a, b]),
        };
        comparing.compare(a, b).map_err(failed)
    }

    /// Prints a comparison; an error where B is worse.
    pub(super) fn judge(&self, comparison: &Comparison) -> Result<()> {
        let text = if self.json { comparison.to_json() } else { comparison.to_text() };
        std::io::stdout().write_all(text.as_bytes()).map_err(crate::output::failed)?;
        if comparison.is_worse() { Err(Failure::Reported) } else { Ok(()) }
    }
}

/// The run in a file, or in a folder of evidence.
pub(super) fn read(path: &Path) -> Result<Run> {
    let path = &if path.is_dir() { path.join("raw.jsonl") } else { path.to_owned() };
    let text = std::fs::read_to_string(path).at("lab", path.display())?;
    Run::parse(&text).map_err(|error| Failure::line(&format!("lab: {}: {error}", path.display())))
}
