//! The longer checks: verbs of `uext4-sim`, built with optimisation and called with the built
//! command.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use crate::{machine, workspace};

/// Verbs that call the `uext4` command.
const CALLING: &[&str] = &["kill9", "programs", "soak", "tree", "freeze", "features", "hostile"];

/// The verb whose engine is built in another way: its name and that of the profile, and what is
/// built.
const SIMULATE: &str = "simulate";
const SIMULATE_BUILD: &[&str] =
    &["--profile", SIMULATE, "-p", "uext4-sim", "--features", "simulate"];
const BUILD: &[&str] = &["--release", "-p", "uext4-cli", "-p", "uext4-sim"];

/// Builds what a verb needs and runs it.
pub(crate) fn run(verb: &str, rest: &[OsString]) -> Result<(), String> {
    let (what, profile) =
        if verb == SIMULATE { (SIMULATE_BUILD, SIMULATE) } else { (BUILD, "release") };
    let built = workspace::cargo(&["build", "--locked", "--quiet"])
        .args(what)
        .stdin(Stdio::null())
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(format!("{verb}: uext4-cli or uext4-sim does not build"));
    }
    let programs = workspace::target().join(profile);
    let mut command = Command::new(programs.join("uext4-sim"));
    command.arg(verb).env("PATH", machine::search_path()).stdin(Stdio::null());
    if CALLING.contains(&verb) {
        command.arg("--binary").arg(programs.join("uext4"));
    }
    let status = command
        .args(rest)
        .status()
        .map_err(|error| format!("{verb}: cannot run uext4-sim: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{verb}: {status}")) }
}

/// The crash test of growths: what grows is no part of the test kit, on which its tests depend.
pub(crate) fn growths(rest: &[OsString]) -> Result<(), String> {
    let status = workspace::cargo(&["run", "--locked", "--quiet", "--release"])
        .args(["-p", "uext4-resize", "--example", "crash", "--"])
        .args(rest)
        .env("PATH", machine::search_path())
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("crash: cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("crash --growth: {status}")) }
}
