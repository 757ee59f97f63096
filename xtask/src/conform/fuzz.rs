//! `cargo xtask fuzz`: a target of `fuzz/` under libFuzzer. It begins with structures of valid
//! images and with the inputs that are kept in `fuzz/corpora/TARGET.tar.gz`.
//!
//! What a run finds stands in `fuzz/artifacts/TARGET/`, what it has learnt in
//! `fuzz/corpus/TARGET/`. `--keep` reduces that to the inputs that differ in coverage and puts
//! them into the archive.
//!
//! The engine is safe Rust, so AddressSanitizer, which takes three quarters of the speed and more,
//! is an option; a limit of address space finds the large allocations without it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tool;
use crate::{machine, workspace};

/// More than the images, the caches and the sanitizer need.
const MEMORY_MIB: u32 = 1500;
/// Larger than any single allocation that an image may cause.
const ALLOCATION_MIB: u32 = 300;
/// The same where no sanitizer counts allocations: all address space, in one heap.
const ADDRESS_SPACE_MIB: u32 = 600;
/// Time of one input.
const SECONDS_MAX: u32 = 20;
/// A structure of 4 KiB, and which.
const INPUT_BYTES: u32 = 4200;
/// What makes the sanitizer slow: stacks of allocations, and much freed memory that is kept.
const ASAN_OPTIONS: &str = "quarantine_size_mb=8:malloc_context_size=2:\
                            detect_stack_use_after_return=0:detect_leaks=0";

/// A target as it is built.
struct Target<'a> {
    name: &'a str,
    asan: bool,
}

/// Runs target `name` for `seconds`; an error if it found something.
pub(crate) fn run(name: &str, seconds: u64, asan: bool, keep: bool) -> Result<(), String> {
    let fuzz = workspace::root().join("fuzz");
    if !fuzz.join("fuzz_targets").join(format!("{name}.rs")).is_file() {
        return Err(format!("{name}: no such target in fuzz/fuzz_targets"));
    }
    tool::CARGO_FUZZ.provide()?;
    let target = Target { name, asan };
    target.build()?;
    let corpus = fuzz.join("corpus").join(name);
    let artifacts = fuzz.join("artifacts").join(name);
    for folder in [&corpus, &artifacts] {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    expect(target.command().arg("-runs=0").env("UEXT4_FUZZ_SEEDS", &corpus))?;
    let archive = fuzz.join("corpora").join(format!("{name}.tar.gz"));
    if archive.is_file() {
        expect(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&corpus))?;
    }
    expect(
        target
            .command()
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg("-print_final_stats=1")
            // Rarities are weighed again for each of the thousands of edges of every input.
            .arg("-entropic=0")
            .arg(&corpus),
    )?;
    if keep { target.keep(&corpus, &archive) } else { Ok(()) }
}

impl Target<'_> {
    fn folder(&self) -> PathBuf {
        workspace::target().join(if self.asan { "fuzz-asan" } else { "fuzz" })
    }

    /// Builds it. Coverage of compared values would cost a quarter of the time.
    fn build(&self) -> Result<(), String> {
        let sanitizer = if self.asan { "address" } else { "none" };
        let mut words = vec!["fuzz", "build", "--fuzz-dir", "fuzz", "--no-trace-compares"];
        words.extend(["--sanitizer", sanitizer, self.name, "--target-dir"]);
        expect(nightly(&words).arg(self.folder()))
            .map_err(|error| format!("{error}; is a nightly compiler installed?"))
    }

    fn program(&self) -> PathBuf {
        self.folder().join(triple()).join("release").join(self.name)
    }

    /// The target under its limits.
    fn command(&self) -> Command {
        let mut command = if self.asan {
            let mut command = Command::new(self.program());
            command.env("ASAN_OPTIONS", ASAN_OPTIONS);
            command.arg(format!("-malloc_limit_mb={ALLOCATION_MIB}"));
            command
        } else {
            let limit = format!("ulimit -v {}; exec \"$0\" \"$@\"", ADDRESS_SPACE_MIB << 10);
            let mut command = Command::new("/bin/sh");
            command.args(["-c", &limit]).arg(self.program());
            // A heap for each thread would take the address space.
            command.env("MALLOC_ARENA_MAX", "1");
            command
        };
        command
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-timeout={SECONDS_MAX}"))
            .arg(format!("-max_len={INPUT_BYTES}"))
            .arg("-len_control=0");
        command
    }

    /// Reduces the corpus, and puts it into the archive.
    fn keep(&self, corpus: &Path, archive: &Path) -> Result<(), String> {
        let reduced = corpus.with_extension("reduced");
        let _ = std::fs::remove_dir_all(&reduced);
        let failed = |error| format!("{}: {error}", reduced.display());
        std::fs::create_dir_all(&reduced).map_err(failed)?;
        expect(self.command().arg("-merge=1").arg(&reduced).arg(corpus))?;
        expect(
            Command::new("tar")
                .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"])
                .arg("-czf")
                .arg(archive)
                .arg("-C")
                .arg(&reduced)
                .arg("."),
        )?;
        std::fs::remove_dir_all(corpus).map_err(failed)?;
        std::fs::rename(&reduced, corpus).map_err(failed)
    }
}

/// The platform, as cargo-fuzz names the folder of what it builds.
fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Runs a command; an error if it fails.
fn expect(command: &mut Command) -> Result<(), String> {
    let status = command.stdin(Stdio::null()).status();
    let name = command.get_program().to_string_lossy().into_owned();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
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
