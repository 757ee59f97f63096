//! `uext4 lab compare-check`: whether `compare` flags a regression, and nothing else.
//!
//! What: each try runs this build beside itself, as `lab pair` does, with and without an ablation
//! option. The default of A beside the ablation of B is a regression that must be flagged; the
//! figures of A beside those of B are an A/A pair that must not be.

use std::io::Write;

use uext4_lab::{Comparing, Run};

use super::{failed, pair};
use crate::failure::{At, Failure, Result};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often both are tried
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    tries: u32,
    /// Rounds of a try, of two runs of A and two of B: at least 3, or there is no verdict
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..))]
    rounds: u32,
    /// The ablation option
    #[arg(long, default_value = ABLATION)]
    ablation: String,
}

/// Threads take blocks from the groups instead of from preallocations: about 1.6 times as slow.
const ABLATION: &str = "mb_reserve=off";
const LOAD: &str = "E1a --form own --threads 2 --own uext4 --scale 0.01 --seconds 0.2";
/// Part that B may be worse by, as `compare` has it without options.
const THRESHOLD: f64 = 0.05;

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<()> {
    let own = std::env::current_exe().at("lab", "this program")?;
    let load = LOAD.split(' ').chain(["--variant", &args.ablation]).map(Into::into);
    let load: Vec<_> = load.collect();
    let variants = ["default", &args.ablation].map(str::to_owned);
    let (mut found, mut alarms) = (0, 0);
    let mut out = std::io::stdout();
    for number in 1..=args.tries {
        let mut figures = [Vec::new(), Vec::new()];
        pair::measure([&own, &own], &load, args.rounds, number == 1, &mut |build, more| {
            figures[build].extend(more);
            Ok(())
        })?;
        let [a, b] = [parse(&figures[0])?, parse(&figures[1])?];
        let is_worse = |variants| {
            let comparing = Comparing { threshold: THRESHOLD, variants };
            comparing.compare(&a, &b).map(|comparison| comparison.is_worse()).map_err(failed)
        };
        let (regression, alarm) = (is_worse(Some(variants.clone()))?, is_worse(None)?);
        found += u32::from(regression);
        alarms += u32::from(alarm);
        let said = |worse| if worse { "WORSE" } else { "not worse" };
        let (regression, alarm) = (said(regression), said(alarm));
        writeln!(out, "try {number}: {} {regression}, A/A {alarm}", args.ablation)
            .map_err(crate::output::failed)?;
    }
    let tries = args.tries;
    writeln!(out, "regression found in {found} of {tries}, false alarms in {alarms} of {tries}")
        .map_err(crate::output::failed)?;
    if found == tries && alarms == 0 { Ok(()) } else { Err(Failure::Reported) }
}

fn parse(figures: &[u8]) -> Result<Run> {
    Run::parse(&String::from_utf8_lossy(figures)).map_err(failed)
}
