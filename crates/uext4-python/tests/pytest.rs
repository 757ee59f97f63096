//! The tests of the Python package: `tests/*.py`, by Debian's Python, on the module of this build.
//!
//! `cargo test -p uext4-python` runs them; `PYTEST_ADDOPTS='-k mkfs'` in the environment, some.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python that Debian's pytest is for.
const PYTHON: &str = "/usr/bin/python3";

/// Fault model: that of each file of tests.
#[test]
fn pytest() {
    let has_pytest = Command::new(PYTHON).args(["-m", "pytest", "--version"]).output();
    if !has_pytest.is_ok_and(|output| output.status.success()) {
        println!("skipped: {PYTHON} with pytest is not installed");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let package = scratch.path().join("package");
    assemble(&package);
    let mut command = Command::new(PYTHON);
    // Development mode: whatever is not closed, and each error in a finalizer, is told.
    command.args(["-X", "dev", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
    command.arg("-W").arg("error::pytest.PytestUnraisableExceptionWarning");
    command.arg("--basetemp").arg(scratch.path().join("tests")).arg(folder().join("tests"));
    command.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    for skipped in said.lines().filter_map(|line| line.strip_prefix("SKIPPED ")) {
        println!("skipped: {skipped}");
    }
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "pytest: {}", output.status);
}

/// The package as a wheel has it: the Python layer, and the module beside it.
fn assemble(package: &Path) {
    let layer = package.join("uext4");
    fs::create_dir_all(&layer).unwrap();
    for entry in fs::read_dir(folder().join("python/uext4")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, layer.join(path.file_name().unwrap())).unwrap();
        }
    }
    let program = std::env::current_exe().unwrap();
    let module = program.parent().unwrap().join("lib_uext4.so");
    fs::copy(module, layer.join("_uext4.abi3.so")).unwrap();
    // By which fsspec finds the package.
    let installed = package.join("uext4-0.dist-info");
    fs::create_dir_all(&installed).unwrap();
    fs::write(installed.join("METADATA"), "Metadata-Version: 2.1\nName: uext4\nVersion: 0\n")
        .unwrap();
    let project = fs::read_to_string(folder().join("pyproject.toml")).unwrap();
    let (_, points) = project.split_once("[project.entry-points.\"fsspec.specs\"]\n").unwrap();
    let point = points.lines().next().unwrap().replace('"', "");
    fs::write(installed.join("entry_points.txt"), format!("[fsspec.specs]\n{point}\n")).unwrap();
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
