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

    /// The rates of uext4, of uext4 again and of raw in each round.
    type Rounds = Vec<[f64; 3]>;

    /// Of each run with these rates: its line of the summary, and its report.
    fn told(runs: &[Rounds]) -> Vec<(String, String)> {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("out");
        let load = Load::find("E3").unwrap();
        let mut plan = Plan { loads: vec![load], ..Plan::default() };
        let mut evidence = Evidence::open(&out, &mut plan, false).unwrap();
        let series = [(Target::Uext4, "default"), (Target::Uext4, "aa"), (Target::Raw, "default")];
        let mut reports = Vec::new();
        // Of one size each: a table of the summary.
        for (rounds, bs) in runs.iter().zip((4096..).step_by(4096)) {
            let mut raw = String::new();
            for (rates, round) in rounds.iter().zip(1..) {
                for ((target, variant), value) in series.into_iter().zip(*rates) {
                    let run = TargetRun { load, target, form: None, threads: 16, bs, round };
                    let figure = Measurement {
                        experiment: load.id,
                        target: target.name(),
                        variant: variant.to_owned(),
                        store: "ram",
                        path: "natural",
                        threads: 16,
                        bs,
                        form: None,
                        metric: "iops",
                        value,
                        unit: "1/s",
                        round,
                    };
                    raw += &format!("{}\n", figure.to_json());
                    let name = RunName { run, variant };
                    for event in [Event::Run(name), Event::Measured(&figure), Event::Ended(name)] {
                        evidence.keep(&event).unwrap();
                    }
                }
            }
            let folder = scratch.path().join(bs.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("raw.jsonl"), raw).unwrap();
            reports.push(uext4_report::render(&folder).unwrap());
        }
        let summary = evidence.finish(None).unwrap();
        let lines = summary.lines().filter(|line| line.starts_with("| raw |")).map(str::to_owned);
        lines.zip(reports).collect()
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
        let mut runs = Vec::new();
        for rounds in [3, 5, 7, 9, 10, 14] {
            for by in [0.7, 0.9, 0.96, 1.0, 1.04, 1.1, 1.4] {
                let mut rate = |rate: f64| rate * (0.95 + 0.1 * chance());
                runs.push(
                    (0..rounds).map(|_| [1000.0, 1000.0, 1000.0 / by].map(&mut rate)).collect(),
                );
            }
        }
        // So alike that a ratio beyond the noise is written as 1.
        runs.extend(vec![vec![[1000.0, 1000.0, 997.0]; 5]; 3]);
        let all = told(&runs);
        assert_eq!(all.len(), runs.len());
        let words = [
            ("better |", ">1 won<"),
            ("worse |", ">1 lost<"),
            ("within noise |", ">no difference shown<"),
            ("few rounds |", ">few rounds ("),
            ("little difference |", ">little difference<"),
        ];
        let mut seen = [0; 5];
        for (summary, report) in all {
            let at = words.iter().position(|(word, _)| summary.ends_with(word));
            let at = at.unwrap_or_else(|| panic!("{summary}"));
            seen[at] += 1;
            assert!(report.contains(words[at].1), "{summary}");
        }
        assert!(seen.iter().all(|count| *count > 2), "{seen:?}");
    }
}
