//! What runs in the guest: the suites, each a step, and the table.

use std::process::Command;

use super::scripts;
use crate::conform::{self, Trouble};
use crate::step::Steps;
use crate::test::suite;

/// Words of a kernel that found itself wrong.
const ALARMS: &[&str] = &["WARNING:", "BUG:", "Oops", "possible deadlock", "blocked for more than"];

/// Runs all suites; the error names the failed ones.
pub(super) fn run(operations: u64) -> Result<(), String> {
    let command = super::command();
    let mut steps = Steps::default();
    steps.run("system calls, NFS", || suite(scripts::run(&command)));
    steps.run("fsx on a mount", || suite(conform::fsx::on_mount(&command, operations, 1)));
    steps.run("pjdfstest", || suite(conform::pjdfstest::run(&command)));
    steps.run("kernel's log", || suite(log()));
    steps.close()
}

/// The kernel's own complaints.
pub(super) fn log() -> Result<String, Trouble> {
    let said =
        Command::new("dmesg").output().map_err(|error| Trouble::Missing(error.to_string()))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let alarms: Vec<&str> =
        said.lines().filter(|line| ALARMS.iter().any(|word| line.contains(word))).collect();
    if alarms.is_empty() { Ok(String::new()) } else { Err(Trouble::fault(alarms.join("\n"))) }
}
