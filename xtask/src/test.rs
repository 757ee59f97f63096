//! `cargo xtask test`.
//!
//! # What
//! Every step runs, also after one that failed, and the table at the end names the failed ones.
//! A test that cannot run here prints `skipped: REASON`; those lines are gathered, so that a run
//! never looks more complete than it was.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::conform::{self, Trouble};
use crate::packages::{self, Found};
use crate::step::{Outcome, Steps};
use crate::{machine, workspace};

/// Cargo steps before the tests: name and arguments.
const CHECKS: &[(&str, &[&str])] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"]),
    ("build tests", &["test", "--workspace", "--locked", "--no-run", "--quiet"]),
];

/// `--show-output` so that the reasons of skipped tests can be gathered.
const TESTS: &[&str] = &["test", "--workspace", "--locked", "--no-fail-fast"];
const TESTS_TAIL: &[&str] = &["--", "--show-output"];

/// Operations of the program fsx through a mount.
const FSX_OPERATIONS: u64 = 20_000;
/// Rigs that need the engine built in another way: step, package, feature, test program.
const FEATURES: &[(&str, &str, &str, &str)] = &[
    ("canaries", "uext4-sim", "plant", "canaries"),
    ("canaries of direct races", "uext4", "plant", "direct_races"),
    ("schedules", "uext4-sim", "shuttle,plant", "schedules"),
    ("simulation", "uext4-sim", "simulate", "simulate"),
];

/// Runs all steps; the error names the failed ones.
pub(crate) fn run(verbose: bool, no_install: bool) -> Result<(), String> {
    let mut steps = Steps::default();
    steps.run("packages", || provide_packages(!no_install));
    for (name, arguments) in CHECKS {
        steps.run(name, || run_plain(workspace::cargo(arguments)));
    }
    steps.run("tests", || run_tests(&[TESTS, TESTS_TAIL].concat(), verbose));
    steps.run("pjdfstest", || suite(conform::pjdfstest::run(&conform::debug_command())));
    steps.run("fsx on a mount", || {
        suite(conform::fsx::on_mount(&conform::debug_command(), FSX_OPERATIONS, 1))
    });
    steps.run("fio engine", || suite(conform::fio::run(&conform::debug_command())));
    for (name, package, feature, program) in FEATURES {
        let arguments = ["test", "-p", package, "--locked", "--features", feature];
        let program = ["--test", program];
        let arguments = [&arguments[..], &program, TESTS_TAIL].concat();
        steps.run(name, || run_tests(&arguments, verbose));
    }
    steps.run("licences", || {
        if machine::program("cargo-deny").is_none() {
            return Outcome::Skipped("cargo-deny is not installed".into());
        }
        run_plain(workspace::cargo(&["deny", "--offline", "check", "licenses", "bans"]))
    });
    steps.close()
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

fn suite(result: Result<String, Trouble>) -> Outcome {
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

fn run_tests(arguments: &[&str], verbose: bool) -> Outcome {
    let mut command = workspace::cargo(arguments);
    match filter_tests(&mut command, verbose) {
        Ok((true, report)) => Outcome::Passed(report.summary()),
        Ok((false, report)) => Outcome::Failed(report.summary()),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

fn filter_tests(command: &mut Command, verbose: bool) -> std::io::Result<(bool, Report)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut report = Report::default();
    if let Some(output) = child.stdout.take() {
        let mut screen = std::io::stdout();
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if report.show(&line) || verbose {
                writeln!(screen, "{line}")?;
            }
        }
    }
    let success = child.wait()?.success();
    report.print_skipped();
    Ok((success, report))
}

/// What the test programs have said so far.
#[derive(Default)]
struct Report {
    passed: u64,
    failed: u64,
    /// Inside the section that repeats the output of tests that passed.
    in_successes: bool,
    /// The test whose output is being repeated.
    current: String,
    skipped: Vec<(String, String)>,
}

impl Report {
    /// Takes in one line; true if it is worth showing.
    fn show(&mut self, line: &str) -> bool {
        if line == "successes:" {
            self.in_successes = true;
            return false;
        }
        if line == "failures:" || line.starts_with("test result:") {
            self.in_successes = false;
        }
        if let Some(counts) = line.strip_prefix("test result:") {
            self.passed += number_before(counts, "passed");
            self.failed += number_before(counts, "failed");
            return number_before(counts, "passed") + number_before(counts, "failed") > 0;
        }
        if self.in_successes {
            if let Some(name) = line.strip_prefix("---- ") {
                self.current = name.split(' ').next().unwrap_or(name).to_owned();
            } else if let Some(reason) = skip_reason(line) {
                self.skipped.push((self.current.clone(), reason.to_owned()));
            }
            return false;
        }
        let passed_test = line.starts_with("test ") && line.ends_with("... ok");
        !passed_test && !line.is_empty() && !line.starts_with("running ")
    }

    fn summary(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped.len())
    }

    fn print_skipped(&self) {
        for (test, reason) in &self.skipped {
            println!("skipped {test}: {reason}");
        }
    }
}

fn skip_reason(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["skipped:", "SKIPPED:", "skip:", "SKIP:"]
        .iter()
        .find_map(|word| line.strip_prefix(word))
        .map(str::trim)
}

/// The number before a word in `ok. 3 passed; 0 failed; ...`.
fn number_before(counts: &str, word: &str) -> u64 {
    counts
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_reduced_to_results_failures_and_reasons() {
        let output = "\nrunning 3 tests\ntest a::one ... ok\ntest b ... ok\ntest c ... FAILED\n\n\
            successes:\n\n---- b stdout ----\nnoise\nskipped: needs root\n\n\nsuccesses:\n    \
            a::one\n    b\n\nfailures:\n\n---- c stdout ----\nboom\n\nfailures:\n    c\n\n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; \
            finished in 0.01s\n";
        let mut report = Report::default();
        let shown: Vec<&str> = output.lines().filter(|line| report.show(line)).collect();
        assert_eq!(
            shown[..6],
            ["test c ... FAILED", "failures:", "---- c stdout ----", "boom", "failures:", "    c"]
        );
        assert_eq!(shown.len(), 7);
        assert_eq!(report.summary(), "2 passed, 1 failed, 1 skipped");
        assert_eq!(report.skipped, [("b".to_owned(), "needs root".to_owned())]);
    }
}
