//! `cargo xtask remote`: the long form of the tests of network block devices.
//!
//! # What
//! Fault model: see `crates/uext4-cli/tests/remote.rs`, whose tests are run one after the other.
//! All of them must run: a cluster of Ceph that cannot be had is a failure.

use std::process::Stdio;

use crate::packages::{self, Found};
use crate::{machine, workspace};

/// Runs the tests with `only` in their names.
pub(crate) fn run(only: &str) -> Result<(), String> {
    if let Some(why) = machine::why_no_fuse() {
        return Err(format!("remote: {why}"));
    }
    match packages::provide_ceph() {
        Found::All => {}
        Found::Installed(names) => println!("installed: {names}"),
        Found::Missing(names) => return Err(format!("remote: missing: {names}")),
    }
    let status = workspace::cargo(&["test", "--locked", "--quiet", "-p", "uext4-cli"])
        .args(["--test", "remote", only, "--"])
        .args(["--ignored", "--nocapture", "--test-threads=1"])
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("remote: cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("remote: {status}")) }
}
