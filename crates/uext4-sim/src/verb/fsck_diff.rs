//! `fsck-diff`: the checker beside e2fsck, on seeded damage.

use std::collections::BTreeMap;

use uext4_sim::fsck_diff::Cases;

/// Compare verdicts of `uext4 fsck -n` and `e2fsck -fn` on damaged images
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Cases
    #[arg(long, default_value_t = 1000)]
    cases: u64,
    /// Number of the first case
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only images that mke2fs makes with this word, such as `encrypt`
    #[arg(long, value_name = "WORD", default_value = "")]
    only: String,
    /// Keep the image of the first difference in this file
    #[arg(long, value_name = "FILE")]
    keep: Option<std::path::PathBuf>,
    /// Tell what both say of every case
    #[arg(long)]
    verbose: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let cases = Cases::with(&args.only).map_err(text)?;
    let (mut failed, mut dirty, mut grown, mut listed) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut peak = peak_mib();
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    for case in args.seed..args.seed.saturating_add(args.cases) {
        let found = cases.compare(case).map_err(text)?;
        let now = peak_mib();
        if now > peak + 64 {
            println!("{}\n  peak memory rises from {peak} to {now} MiB", found.what);
            grown += 1;
        }
        peak = peak.max(now);
        dirty += u64::from(!found.theirs);
        listed += u64::from(!found.reasons.is_empty());
        for reason in &found.reasons {
            *reasons.entry(format!("{reason:?}")).or_default() += 1;
        }
        if !found.is_fine() {
            failed += 1;
            if let (Some(path), 1) = (&args.keep, failed) {
                cases.damaged(case).0.save(path).map_err(text)?;
            }
        }
        if args.verbose || !found.is_fine() {
            let only = match args.only.as_str() {
                "" => String::new(),
                word => format!(" --only {word}"),
            };
            println!("{}", found.what);
            println!("  reproduce: cargo xtask fsck-diff --seed {case} --cases 1{only}");
            print!("  ours: {}\n{}", found.ours, indent(&found.our_words));
            print!("  e2fsck: {}\n{}", found.theirs, indent(&found.their_words));
        }
    }
    println!(
        "{} cases, {dirty} not clean, {listed} differences with a reason {reasons:?}, \
         {failed} without",
        args.cases
    );
    if grown > 0 {
        return Err(format!("{grown} cases took more memory than their image is worth"));
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} verdicts differ")) }
}

/// Most resident memory of this process so far, in MiB; 0 where the system does not tell.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn indent(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| format!("    {line}\n")).collect()
}
