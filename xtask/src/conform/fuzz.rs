//! `cargo xtask fuzz`: a target of `fuzz/` under libFuzzer, with structures of valid images as the
//! first inputs.
//!
//! What a run finds stands in `fuzz/artifacts/TARGET/`, what it has learnt in
//! `fuzz/corpus/TARGET/`.

use std::process::{Command, Stdio};

use super::tool;
use crate::{machine, workspace};

/// More than the images, the caches and the sanitizer need.
const MEMORY_MIB: u32 = 1500;
/// Larger than any single allocation that an image may cause.
const ALLOCATION_MIB: u32 = 300;
/// Time of one input under the sanitizer.
const SECONDS_MAX: u32 = 20;
/// A structure of 4 KiB, and which.
const INPUT_BYTES: u32 = 4200;

/// Runs `target` for `seconds`; an error if it found something.
pub(crate) fn run(target: &str, seconds: u64) -> Result<(), String> {
    let fuzz = workspace::root().join("fuzz");
    if !fuzz.join("fuzz_targets").join(format!("{target}.rs")).is_file() {
        return Err(format!("{target}: no such target in fuzz/fuzz_targets"));
    }
    tool::CARGO_FUZZ.provide()?;
    let corpus = fuzz.join("corpus");
    nightly(&["run", "--quiet", "--release", "--bin", "seeds", "--manifest-path"])
        .arg(fuzz.join("Cargo.toml"))
        .arg("--")
        .arg(&corpus)
        .env("CARGO_TARGET_DIR", workspace::target().join("fuzz"))
        .status()
        .ok()
        .filter(|status| status.success())
        .ok_or("the first inputs cannot be written; is a nightly compiler installed?")?;
    let status = nightly(&["fuzz", "run", "--fuzz-dir", "fuzz", "--target-dir"])
        .arg(workspace::target().join("fuzz"))
        .args([target, "--"])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-malloc_limit_mb={ALLOCATION_MIB}"))
        .arg(format!("-timeout={SECONDS_MAX}"))
        .arg(format!("-max_len={INPUT_BYTES}"))
        .arg("-len_control=0")
        .status()
        .map_err(|error| format!("cargo fuzz: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{target}: {status}")) }
}

/// A cargo command of the nightly toolchain, which finds cargo-fuzz.
fn nightly(words: &[&str]) -> Command {
    let mut path = workspace::target().join("tools/bin").into_os_string();
    path.push(":");
    path.push(machine::search_path());
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo"])
        .args(words)
        .current_dir(workspace::root())
        .env("PATH", path)
        // What the toolchain of this program has set for its children.
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .stdin(Stdio::null());
    command
}
