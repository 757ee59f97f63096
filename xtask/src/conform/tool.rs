//! Programs from crates, installed on first use at the version that is written down here.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::workspace;

/// A program that a crate of the same name installs.
pub(crate) struct Tool {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// More arguments of `cargo install`.
    pub(super) arguments: &'static [&'static str],
}

/// POSIX semantics of names and attributes, 398 cases.
pub(super) const PJDFSTEST: Tool = Tool { name: "pjdfstest", version: "0.2.2", arguments: &[] };
/// The file system exerciser: random operations on the bytes of one file.
pub(super) const FSX: Tool = Tool { name: "fsx", version: "0.3.2", arguments: &[] };

/// Builds and runs fuzz targets with libFuzzer.
pub(super) const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2", arguments: &[] };

/// Licences, sources, advisories and versions of all packages. Without optimisation it is built in
/// half the time, and has its opinion in a few seconds all the same.
pub(crate) const CARGO_DENY: Tool =
    Tool { name: "cargo-deny", version: "0.20.2", arguments: &["--debug"] };

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
        let path = workspace::target().join("tools/bin").join(self.name);
        self.is_there(&path).then_some(path)
    }

    fn is_there(&self, path: &PathBuf) -> bool {
        let said = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        let wanted = format!("{} {}", self.name, self.version);
        said.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == wanted)
    }
}
