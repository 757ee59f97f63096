//! `uext4 lab guard`: costs of operations beside a baseline.

use std::io::Write;
use std::path::{Path, PathBuf};

use uext4_lab::guard::{self, Change, Compared, Costs};

use super::{failed, mistake};
use crate::failure::{At, Failure, Result, say};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Costs by operation; what this build counts, too, is compared
    baseline: PathBuf,
    /// Write the costs of this build there
    #[arg(long)]
    update: bool,
    /// Print JSON: the costs, and what differs, as guard.json of a folder of evidence has it
    #[arg(long, conflicts_with = "update")]
    json: bool,
    /// Exit status 1 also where the baseline has a cost that this build does not count
    #[arg(long, conflicts_with = "update")]
    whole: bool,
    /// Exit status 125 where nothing can be compared, by which `git bisect run` skips a commit
    #[arg(long)]
    bisect: bool,
}

impl Args {
    pub(super) fn bisect(&self) -> bool {
        self.bisect
    }
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<()> {
    let file = args.baseline.display();
    let own = std::env::current_exe().at("lab", "this program")?;
    let baseline = if args.update {
        None
    } else {
        Some(read(&args.baseline).map_err(|failure| mistake(failure, args.bisect))?)
    };
    let costs = guard::measure(&own).map_err(failed)?;
    let Some(baseline) = baseline else {
        return std::fs::write(&args.baseline, costs.to_json()).at("lab", &file);
    };
    let Compared { changes, left_out, is_short } = costs.against(&baseline).map_err(failed)?;
    left_out.iter().for_each(|line| say(&format!("lab: {line}")));
    let mut out = std::io::stdout().lock();
    if args.json {
        let text = guard::to_json(&costs, &changes, &left_out);
        out.write_all(text.as_bytes()).map_err(crate::output::failed)?;
    } else {
        for change in &changes {
            writeln!(out, "{}", line(change)).map_err(crate::output::failed)?;
        }
    }
    if changes.iter().any(Change::is_worse) || args.whole && is_short {
        Err(Failure::Reported)
    } else {
        Ok(())
    }
}

fn read(path: &Path) -> Result<Costs> {
    let file = path.display();
    let text = std::fs::read_to_string(path).at("lab", &file)?;
    Costs::parse(&text).map_err(|error| Failure::line(&format!("lab: {file}: {error}")))
}

fn line(change: &Change) -> String {
    let verdict = if change.is_worse() { "WORSE" } else { "better: update the baseline" };
    let Change { operation, what, before, now } = change;
    format!("{operation}: {what} {before} -> {now}: {verdict}")
}
