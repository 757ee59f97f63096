//! `cargo xtask test`.
//!
//! # What
//! Every step runs, also after one that failed, and the table at the end names the failed ones.
//! A test that cannot run here prints `skipped: REASON`, or is ignored by its author; both are
//! gathered, so that a run never looks more complete than it was. The slowest test programs stand
//! below the table.

use std::process::{Command, Stdio};

use crate::conform::{self, Trouble};
use crate::licences;
use crate::package;
use crate::packages::{self, Found};
use crate::report::{Report, Times};
use crate::step::{Outcome, Steps};
use crate::{machine, workspace};

/// Cargo steps before the tests: name and arguments.
const CHECKS: &[(&str, &[&str])] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("clippy", WORKSPACE),
    ("clippy, simulation", &clippy_of("uext4-sim/simulate")),
    ("clippy, schedules", &clippy_of("uext4-sim/shuttle,uext4-sim/injected-faults")),
    ("build tests", &["test", "--workspace", "--locked", "--no-run", "--quiet"]),
];

/// Everything, with the parts that are in no other build: of the lab, and images of Ceph. Nothing
/// is linked, so librbd need not be there. What stands in for these parts elsewhere is compiled,
/// not linted.
const WORKSPACE: &[&str] = &[
    "clippy",
    "--workspace",
    "--all-targets",
    "--locked",
    "--features",
    "uext4-lab/peer-rust-fs-ext4,uext4-lab/sampler,uext4-cli/rbd",
    "--",
    "--deny",
    "warnings",
];

/// Lints of the test kit, and of the engine below it, built in another way.
const fn clippy_of(features: &'static str) -> [&'static str; 9] {
    let package = "--package=uext4-sim";
    let (flag, tail) = ("--features", "--");
    ["clippy", package, "--all-targets", "--locked", flag, features, tail, "--deny", "warnings"]
}

/// `--show-output` so that the reasons of skipped tests can be gathered.
const TESTS: &[&str] = &["test", "--workspace", "--locked", "--no-fail-fast"];
const TESTS_TAIL: &[&str] = &["--", "--show-output"];

/// Operations of the program fsx through a mount.
const FSX_OPERATIONS: u64 = 20_000;
/// Rigs that need the engine built in another way: step, features, test programs. The whole
/// workspace is named, so that foreign crates are built with the features that they have already:
/// for one package alone most of them would be built again.
const FEATURES: &[(&str, &str, &[&str])] = &[
    (
        "injected faults",
        "uext4-sim/injected-faults,uext4/injected-faults",
        &["injected_faults", "direct_races", "invariants"],
    ),
    ("schedules", "uext4-sim/shuttle,uext4-sim/injected-faults", &["schedules"]),
    ("simulation", "uext4-sim/simulate", &["simulate"]),
];

/// Runs all steps; the error names the failed ones.
pub(crate) fn run(verbose: bool, no_install: bool) -> Result<(), String> {
    let mut steps = Steps::default();
    let mut times = Times::default();
    steps.run("packages", || provide_packages(!no_install));
    for (name, arguments) in CHECKS {
        steps.run(name, || run_plain(workspace::cargo(arguments)));
    }
    steps.run("tests", || run_tests(&[TESTS, TESTS_TAIL].concat(), verbose, &mut times));
    steps.run("pjdfstest", || suite(conform::pjdfstest::run(&conform::debug_command())));
    steps.run("fsx on a mount", || {
        suite(conform::fsx::on_mount(&conform::debug_command(), FSX_OPERATIONS, 1))
    });
    steps.run("fio engine", || suite(conform::fio::run(&conform::debug_command())));
    steps.run("costs of operations", costs);
    steps.run("Debian package", package::short);
    for (name, features, programs) in FEATURES {
        let programs = programs.iter().flat_map(|program| ["--test", program]);
        let mut arguments = [TESTS, &["--features", features]].concat();
        arguments.extend(programs.chain(TESTS_TAIL.iter().copied()));
        steps.run(name, || run_tests(&arguments, verbose, &mut times));
    }
    steps.run("licences", || licences(!no_install));
    let verdict = steps.close();
    println!("\nSlowest test programs");
    for line in times.slowest() {
        println!("{line}");
    }
    verdict
}

fn provide_packages(install: bool) -> Outcome {
    match packages::provide(install) {
        Found::All => Outcome::Passed(String::new()),
        Found::Installed(names) => Outcome::Passed(format!("installed {names}")),
        Found::Missing(names) => {
            let remark = format!("missing: {names}");
            println!("{remark}");
            // A developer's machine may go without; continuous integration may not.
            if machine::is_root() && std::env::var_os("CI").is_some() {
                Outcome::Failed(remark)
            } else {
                Outcome::Skipped(remark)
            }
        }
    }
}

/// Costs of operations of the debug build, beside those that are committed.
fn costs() -> Outcome {
    if machine::program("valgrind").is_none() {
        return Outcome::Skipped("valgrind is not installed".into());
    }
    let baseline = workspace::root().join("crates/uext4-lab/guard.json");
    let mut command = Command::new(conform::debug_command());
    // A debug build counts all that the baseline has.
    command.args(["lab", "guard", "--whole"]).arg(baseline);
    run_plain(command)
}

/// Licences and sources of packages, and cargo-deny's opinion of them.
fn licences(install: bool) -> Outcome {
    match licences::all(install) {
        Ok(remark) => Outcome::Passed(remark),
        Err(what) => {
            println!("{what}");
            Outcome::Failed(what.lines().next().unwrap_or_default().to_owned())
        }
    }
}

/// A suite's result as that of a step.
pub(crate) fn suite(result: Result<String, Trouble>) -> Outcome {
    match result {
        Ok(remark) => Outcome::Passed(remark),
        Err(Trouble::Missing(why)) => {
            println!("skipped: {why}");
            Outcome::Skipped(why)
        }
        Err(Trouble::Fault(what)) => {
            println!("{what}");
            Outcome::Failed(what.lines().next().unwrap_or_default().to_owned())
        }
    }
}

fn run_plain(mut command: Command) -> Outcome {
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Outcome::Passed(String::new()),
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Runs test programs and keeps their times.
fn run_tests(arguments: &[&str], verbose: bool, times: &mut Times) -> Outcome {
    let mut command = workspace::cargo(arguments);
    match Report::follow(&mut command, verbose) {
        Ok((success, report)) => {
            let summary = report.summary();
            times.extend(report.times);
            if success { Outcome::Passed(summary) } else { Outcome::Failed(summary) }
        }
        Err(error) => Outcome::Failed(error.to_string()),
    }
}
