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

#[cfg(test)]
mod tests {
    use uext4_lab::{Event, Evidence, Load, Measurement, Plan, RunName, Target, TargetRun};

    /// The summary and the report of a run with these rates of uext4, of uext4 again and of raw.
    fn told(rounds: &[[f64; 3]]) -> (String, String) {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("out");
        let load = Load::find("E3").unwrap();
        let mut plan = Plan { loads: vec![load], ..Plan::default() };
        let mut evidence = Evidence::open(&out, &mut plan, false).unwrap();
        for (rates, round) in rounds.iter().zip(1..) {
            let series =
                [(Target::Uext4, "default"), (Target::Uext4, "aa"), (Target::Raw, "default")];
            for ((target, variant), value) in series.into_iter().zip(*rates) {
                let run = TargetRun { load, target, form: None, threads: 16, bs: 16384, round };
                let name = RunName { run, variant };
                let figure = Measurement {
                    experiment: load.id,
                    target: target.name(),
                    variant: variant.to_owned(),
                    store: "ram",
                    path: "natural",
                    threads: 16,
                    bs: 16384,
                    form: None,
                    metric: "iops",
                    value,
                    unit: "1/s",
                    round,
                };
                evidence.keep(&Event::Run(name)).unwrap();
                evidence.keep(&Event::Measured(&figure)).unwrap();
                evidence.keep(&Event::Ended(name)).unwrap();
            }
        }
        let summary = evidence.finish(None).unwrap();
        let line = summary.lines().find(|line| line.starts_with("| raw |")).unwrap().to_owned();
        (line, uext4_report::render(&out).unwrap())
    }

    /// Fault model: summary.md and the report of one run with different verdicts.
    #[test]
    fn summary_and_report_have_one_rule() {
        // The same rates in each run of the test.
        let mut seed = 18_u64;
        let mut chance = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as f64 / f64::from(1_u32 << 31)
        };
        let mut seen = [0; 4];
        for rounds in [3, 5, 7, 9, 10, 14] {
            for by in [0.7, 0.9, 0.96, 1.0, 1.04, 1.1, 1.4] {
                let rates: Vec<[f64; 3]> = (0..rounds)
                    .map(|_| {
                        [1000.0, 1000.0, 1000.0 / by].map(|rate| rate * (0.95 + 0.1 * chance()))
                    })
                    .collect();
                let (summary, report) = told(&rates);
                let words = [
                    ("better |", ">1 won<"),
                    ("worse |", ">1 lost<"),
                    ("within noise |", ">no difference shown<"),
                    ("few rounds |", ">few rounds<"),
                ];
                let at = words.iter().position(|(word, _)| summary.ends_with(word));
                let at = at.unwrap_or_else(|| panic!("{summary}"));
                seen[at] += 1;
                assert!(report.contains(words[at].1), "{rounds} rounds by {by}: {summary}");
            }
        }
        assert!(seen.iter().all(|count| *count > 2), "{seen:?}");
    }
}
