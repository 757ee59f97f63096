//! The wheel of the Python package, which `pip install` takes.
//!
//! # What
//! It is built by maturin, of the version that `pyproject.toml` names: the program that knows the
//! tags and the records of wheels, and finds the module that cargo has built. It comes from
//! Python's index, by its sum, into a virtual environment below `target`. The wheel is then
//! installed in a fresh one, without an index, and the tests of the package run there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::inventory::Inventory;
use super::{date, described, output, run, write};
use crate::workspace;

/// Debian's, for which its pytest and fsspec are.
const PYTHON: &str = "/usr/bin/python3";

/// The crate of the module.
const CRATE: &str = "uext4-python";
/// Beside its manifest: maturin's version and the sums of its wheels.
const SUMS: &str = "maturin.txt";

/// Builds the wheel and tries it.
pub(super) fn build(folder: &Path) -> Result<String, String> {
    let sources = workspace::root().join("crates").join(CRATE);
    let project = read(&sources.join("pyproject.toml"))?;
    let maturin = pinned(&project).ok_or("pyproject.toml: requires no maturin==VERSION")?;
    let tools = folder.join("wheel-tools");
    environment(&tools, &[])?;
    let mut install = Command::new(tools.join("bin/pip"));
    install.args(["install", "-q", "--only-binary", ":all:", "--require-hashes", "-r"]);
    output(install.arg(sources.join(SUMS))).map_err(|why| no_index(maturin, &why))?;
    let stage = folder.join("wheel-sources");
    lay_out(&stage, &sources, &project)?;
    let wheels = stage.join("wheel");
    run(Command::new(tools.join("bin/maturin"))
        .args(["build", "--quiet", "--release", "--locked", "--interpreter", PYTHON, "--out"])
        .arg(&wheels)
        .current_dir(&stage)
        .env("SOURCE_DATE_EPOCH", date().to_string()))?;
    let built = fs::read_dir(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    let built = built.flatten().next().ok_or("maturin has built no wheel")?.path();
    let wheel = folder.join(built.file_name().unwrap_or_default());
    fs::rename(&built, &wheel).map_err(|error| format!("{}: {error}", wheel.display()))?;
    remove(&stage)?;
    let tests = attempt(folder, &wheel, &sources.join("tests"))?;
    Ok(format!("{}; installed, {tests}", described(&wheel)))
}

/// What maturin packs: the Python layer, and the licences of all that is linked in.
fn lay_out(stage: &Path, sources: &Path, project: &str) -> Result<(), String> {
    remove(stage)?;
    let manifest = sources.join("Cargo.toml");
    let table = format!("[tool.maturin]\nmanifest-path = \"{}\"", manifest.display());
    write(&stage.join("pyproject.toml"), project.replacen("[tool.maturin]", &table, 1).as_bytes())?;
    write(&stage.join("README.md"), read(&sources.join("README.md"))?.as_bytes())?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        write(&stage.join(licence), read(&workspace::root().join(licence))?.as_bytes())?;
    }
    let texts = Inventory::read_of(CRATE)?.texts();
    write(&stage.join("python/uext4/third-party.txt"), texts.as_bytes())?;
    let layer = sources.join("python/uext4");
    let files = fs::read_dir(&layer).map_err(|error| format!("{}: {error}", layer.display()))?;
    for path in files.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
        let name = path.file_name().unwrap_or_default();
        write(&stage.join("python/uext4").join(name), read(&path)?.as_bytes())?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Installs the wheel in a fresh environment, and runs the tests of the package there.
fn attempt(folder: &Path, wheel: &Path, tests: &Path) -> Result<String, String> {
    let fresh = folder.join("wheel-fresh");
    // Debian's pytest and fsspec are seen from there.
    environment(&fresh, &["--system-site-packages"])?;
    let pip = ["install", "-q", "--no-index", "--no-deps"];
    output(Command::new(fresh.join("bin/pip")).args(pip).arg(wheel))?;
    let said = output(
        Command::new(fresh.join("bin/python"))
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
            .arg(tests)
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    )?;
    remove(&fresh)?;
    Ok(said.lines().last().unwrap_or("no tests").to_owned())
}

/// A new virtual environment.
fn environment(path: &PathBuf, options: &[&str]) -> Result<(), String> {
    remove(path)?;
    let made = output(Command::new(PYTHON).args(["-m", "venv"]).args(options).arg(path));
    made.map(drop).map_err(|why| format!("{}: is python3-venv installed?", first_line(&why)))
}

fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// What `requires` of a project says: `maturin==VERSION`.
fn pinned(project: &str) -> Option<&str> {
    let (_, rest) = project.split_once("requires = [\"")?;
    let (pinned, _) = rest.split_once('"')?;
    Some(pinned).filter(|pinned| pinned.starts_with("maturin=="))
}

/// One line for an index that cannot be reached.
fn no_index(maturin: &str, why: &str) -> String {
    let said = why.lines().rfind(|line| line.contains("ERROR")).unwrap_or(first_line(why));
    format!("pip cannot install {maturin}, which builds the wheel (no index in reach?): {said}")
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{no_index, pinned};

    #[test]
    fn the_pinned_version_is_that_of_the_project() {
        let project = include_str!("../../../crates/uext4-python/pyproject.toml");
        let version = pinned(project).expect("a version");
        let sums = include_str!("../../../crates/uext4-python/maturin.txt");
        assert!(sums.contains(&format!("\n{version} \\\n")), "{version}: {sums}");
        assert_eq!(pinned("requires = [\"maturin==1.2.3\"]"), Some("maturin==1.2.3"));
        assert_eq!(pinned("requires = [\"maturin>=1\"]"), None);
    }

    #[test]
    fn a_missing_index_is_told_in_one_line() {
        let said = "pip: exit status: 1: WARNING: retrying\nERROR: No matching distribution\n";
        let line = no_index("maturin==1.2.3", said);
        assert!(line.contains("No matching distribution") && line.lines().count() == 1, "{line}");
    }
}
