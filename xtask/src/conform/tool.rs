//! Programs from crates, installed on first use at the version that is written down here.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::workspace;

/// A program that a crate installs.
pub(crate) struct Tool {
    /// The crate, and what the program calls itself where it tells its version.
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// The program and how it is asked for its version, where it has another name.
    pub(super) program: &'static [&'static str],
    /// More arguments of `cargo install`.
    pub(super) arguments: &'static [&'static str],
}

/// POSIX semantics of names and attributes, 398 cases.
pub(super) const PJDFSTEST: Tool =
    Tool { name: "pjdfstest", version: "0.2.2", program: &[], arguments: &[] };
/// The file system exerciser: random operations on the bytes of one file.
pub(super) const FSX: Tool = Tool { name: "fsx", version: "0.3.2", program: &[], arguments: &[] };

/// Builds and runs fuzz targets with libFuzzer.
pub(super) const CARGO_FUZZ: Tool =
    Tool { name: "cargo-fuzz", version: "0.13.2", program: &[], arguments: &[] };

/// Licences, sources, advisories and versions of all packages. Without optimisation it is built in
/// half the time, and has its opinion in a few seconds all the same.
pub(crate) const CARGO_DENY: Tool =
    Tool { name: "cargo-deny", version: "0.20.2", program: &[], arguments: &["--debug"] };

/// Lays out a C library: soname, links, header, the file for pkg-config. It has cargo itself in it;
/// so it is built without optimisation, which takes minutes less.
pub(crate) const CARGO_C: Tool = Tool {
    name: "cargo-c",
    version: "0.10.24+cargo-0.98.0",
    program: &["cargo-cinstall", "cinstall"],
    arguments: &["--debug", "--bin", "cargo-cinstall"],
};

impl Tool {
    /// Where the program is; installs it if it is not there in this version.
    pub(crate) fn provide(&self) -> Result<PathBuf, String> {
        let root = workspace::target().join("tools");
        if let Some(path) = self.find() {
            return Ok(path);
        }
        let (name, version) = (self.name, self.version);
        let status = workspace::cargo(&["install", "--locked", "--quiet", "--force"])
            .args([name, "--version", version, "--root"])
            .arg(&root)
            .args(self.arguments)
            // Nobody looks into it by a debugger.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .stdin(Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success())
            && let Some(path) = self.find()
        {
            return Ok(path);
        }
        Err(format!("{name} {version} cannot be installed (cargo install --locked {name})"))
    }

    /// Where the program is, if it is there in this version.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let path =
            workspace::target().join("tools/bin").join(self.program.first().unwrap_or(&self.name));
        self.is_there(&path).then_some(path)
    }

    fn is_there(&self, path: &PathBuf) -> bool {
        let words = self.program.iter().skip(1);
        let said = Command::new(path).args(words).arg("--version").stdin(Stdio::null()).output();
        let wanted = format!("{} {}", self.name, self.version);
        said.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == wanted)
    }
}
