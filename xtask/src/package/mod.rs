//! `cargo xtask package`: what is given to users, in `target/package`.
//!
//! # What
//! A Debian package ([`deb`]), two of the C library ([`library`]), a static binary, the sources
//! with all that they are built from ([`source`]), a wheel of the Python package ([`wheel`]), and
//! what is in the binary ([`inventory`]): a bill of materials in the form of CycloneDX, and the
//! texts of the licences.
//! Everything is of the commit's date, so that two builds of a commit differ in nothing that is
//! packed here.

mod bundled;
mod chroot;
mod contents;
mod deb;
mod inventory;
mod library;
mod source;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};

use crate::packages::{self, Found};
use crate::step::{Outcome, Steps};
use crate::{machine, workspace};

use inventory::Inventory;

/// The target of the static binary.
const STATIC: &str = "x86_64-unknown-linux-musl";

/// A part of what is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The Debian package.
    Deb,
    /// The Debian packages of the C library.
    Library,
    /// The static binary.
    Static,
    /// The sources with their dependencies.
    Source,
    /// The wheel of the Python package.
    Wheel,
    /// The bill of materials and the licences.
    Sbom,
}

#[derive(Args)]
pub(crate) struct Options {
    /// Only these; by default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Also install and use them in a fresh Debian (by mmdebstrap, 33 MB from its mirror), as root.
    #[arg(long = "try")]
    try_them: bool,
    /// What `cargo xtask test` does of it: the Debian package of the debug build, which is there.
    #[arg(long, conflicts_with = "only")]
    short: bool,
}

/// The version of all crates of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the verb.
pub(crate) fn verb(options: &Options) -> Result<(), String> {
    if !options.short {
        check_committed()?;
    }
    if let Found::Missing(names) = packages::provide_packaging() {
        println!("missing: {names}");
    }
    let mut steps = Steps::default();
    if options.short {
        steps.run("Debian package", short);
        return steps.close();
    }
    let folder = folder()?;
    let wants = |part: Part| options.only.is_empty() || options.only.contains(&part);
    let tries = options.try_them;
    if wants(Part::Deb) {
        steps.run("Debian package", || outcome(build_deb(&folder)));
    }
    if wants(Part::Deb) && tries {
        let deb = deb::path(&folder);
        steps.run("Debian package, tried", || outcome(chroot::try_debian(&folder, &deb)));
    }
    if wants(Part::Library) {
        steps.run("C library", || outcome(library::build(&folder)));
    }
    if wants(Part::Library) && tries {
        steps.run("C library, tried", || outcome(chroot::try_library(&folder)));
    }
    if wants(Part::Static) {
        steps.run("static binary", || outcome(build_static(&folder)));
    }
    if wants(Part::Static) && tries {
        let binary = static_path(&folder);
        steps.run("static binary, tried", || outcome(chroot::try_static(&folder, &binary)));
    }
    if wants(Part::Source) {
        steps.run("sources", || outcome(source::build(&folder)));
    }
    if wants(Part::Source) && tries {
        steps.run("sources, tried", || outcome(chroot::try_sources(&folder)));
    }
    if wants(Part::Wheel) {
        steps.run("Python wheel", || outcome(wheel::build(&folder)));
    }
    if wants(Part::Sbom) {
        steps.run("bill of materials", || outcome(write_inventory(&folder)));
    }
    steps.close()
}

/// The packages have the date of a commit, and are what it has.
fn check_committed() -> Result<(), String> {
    let mut git = Command::new("git");
    git.args(["status", "--porcelain"]).current_dir(workspace::root());
    match output(&mut git) {
        Ok(changes) if !changes.trim().is_empty() => {
            let first = changes.lines().next().unwrap_or_default();
            Err(format!("what is packed must be committed: {first}"))
        }
        // Sources that were unpacked from an archive have no git.
        _ => Ok(()),
    }
}

/// The Debian package of the debug build, its contents and lintian's opinion.
pub(crate) fn short() -> Outcome {
    for program in ["dpkg-deb", "dpkg-shlibdeps", "lintian"] {
        if machine::program(program).is_none() {
            return Outcome::Skipped(format!("{program} is not installed"));
        }
    }
    let made = folder().and_then(|folder| {
        let folder = folder.join("debug");
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let inventory = Inventory::read()?;
        let deb = deb::build(&folder, &crate::conform::debug_command(), &inventory, "-Zgzip")?;
        contents::check(&folder, &deb)?;
        // The author of a commit on a developer's machine may have any address.
        let lintian = deb::lint(&[&deb], "bogus-mail-host")?;
        inventory.check_sbom().map(|linked| format!("{}; {lintian}; {linked}", described(&deb)))
    });
    outcome(made)
}

fn build_deb(folder: &Path) -> Result<String, String> {
    let command = crate::conform::release_command()?;
    let deb = deb::build(folder, &command, &Inventory::read()?, "-Zxz")?;
    let remark = described(&deb);
    contents::check(folder, &deb)?;
    deb::lint(&[&deb], "").map(|lintian| format!("{remark}; {lintian}"))
}

fn build_static(folder: &Path) -> Result<String, String> {
    let arguments = ["build", "--release", "--locked", "--quiet", "-p", "uext4-cli", "--target"];
    run(workspace::cargo(&arguments).arg(STATIC))
        .map_err(|why| format!("{why}: is the target there (rustup target add {STATIC})?"))?;
    let built = workspace::target().join(STATIC).join("release/uext4");
    let path = static_path(folder);
    run(Command::new("strip").arg("-o").arg(&path).arg(built))?;
    let kind = output(Command::new("readelf").arg("-l").arg(&path))?;
    if kind.contains("program interpreter") {
        return Err(format!("{} is not static", path.display()));
    }
    Ok(described(&path))
}

fn static_path(folder: &Path) -> PathBuf {
    folder.join(format!("uext4-{VERSION}-x86_64-linux-static"))
}

fn write_inventory(folder: &Path) -> Result<String, String> {
    let inventory = Inventory::read()?;
    let remark = inventory.check_sbom()?;
    let sbom = folder.join(format!("uext4-{VERSION}.cdx.json"));
    write(&sbom, inventory.sbom(date())?.as_bytes())?;
    write(&folder.join(format!("uext4-{VERSION}-licences.txt")), inventory.texts().as_bytes())?;
    Ok(remark)
}

/// `target/package`, which is made.
fn folder() -> Result<PathBuf, String> {
    let folder = workspace::target().join("package");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// Seconds of the date of what is packed: `SOURCE_DATE_EPOCH`, or that of the commit.
fn date() -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let of_commit = || {
        let mut git = Command::new("git");
        git.args(["log", "-1", "--format=%ct"]).current_dir(workspace::root());
        output(&mut git).ok()
    };
    given.or_else(of_commit).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// A file's name and size.
fn described(path: &Path) -> String {
    let size = fs::metadata(path).map_or(0, |found| found.len());
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    format!("{name}, {:.1} MiB", size as f64 / f64::from(1 << 20))
}

fn outcome(result: Result<String, String>) -> Outcome {
    match result {
        Ok(remark) => Outcome::Passed(remark),
        Err(what) => {
            println!("{what}");
            Outcome::Failed(what.lines().next().unwrap_or_default().to_owned())
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs a program that must succeed.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// What a program that must succeed prints.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{name}: {}: {said}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
