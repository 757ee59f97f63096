//! The longer checks: verbs of `uext4-sim`, built for release and called with the built command.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use crate::{machine, workspace};

/// Verbs that mount, and so need the `uext4` command.
const MOUNTING: &[&str] = &["kill9", "tree", "freeze"];

/// The verb whose engine is built in another way, and its features.
const SIMULATE: &str = "simulate";
const SIMULATE_FEATURES: &[&str] = &["-p", "uext4-sim", "--features", "simulate"];

/// Builds what a verb needs and runs it.
pub(crate) fn run(verb: &str, rest: &[OsString]) -> Result<(), String> {
    let what =
        if verb == SIMULATE { SIMULATE_FEATURES } else { &["-p", "uext4-cli", "-p", "uext4-sim"] };
    let built = workspace::cargo(&["build", "--release", "--locked", "--quiet"])
        .args(what)
        .stdin(Stdio::null())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(format!("{verb}: uext4-cli or uext4-sim does not build"));
    }
    let release = workspace::target().join("release");
    let mut command = Command::new(release.join("uext4-sim"));
    command.arg(verb).env("PATH", machine::search_path()).stdin(Stdio::null());
    if MOUNTING.contains(&verb) {
        command.arg("--binary").arg(release.join("uext4"));
    }
    let status = command
        .args(rest)
        .status()
        .map_err(|error| format!("{verb}: cannot run uext4-sim: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{verb}: {status}")) }
}
