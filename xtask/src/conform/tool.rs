//! Programs from crates, installed on first use at the version that is written down here.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::workspace;

/// A program that a crate of the same name installs.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
}

/// POSIX semantics of names and attributes, 398 cases.
pub(super) const PJDFSTEST: Tool = Tool { name: "pjdfstest", version: "0.2.2" };
/// The file system exerciser: random operations on the bytes of one file.
pub(super) const FSX: Tool = Tool { name: "fsx", version: "0.3.2" };

/// Builds and runs fuzz targets with libFuzzer.
pub(super) const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };

impl Tool {
    /// Where the program is; installs it if it is not there in this version.
    pub(super) fn provide(&self) -> Result<PathBuf, String> {
        let root = workspace::target().join("tools");
        let path = root.join("bin").join(self.name);
        if self.is_there(&path) {
            return Ok(path);
        }
        let (name, version) = (self.name, self.version);
        let status = workspace::cargo(&["install", "--locked", "--quiet", "--force"])
            .args([name, "--version", version, "--root"])
            .arg(&root)
            .stdin(Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) && self.is_there(&path) {
            return Ok(path);
        }
        Err(format!("{name} {version} cannot be installed (cargo install --locked {name})"))
    }

    fn is_there(&self, path: &PathBuf) -> bool {
        let said = Command::new(path).arg("--version").stdin(Stdio::null()).output();
        let wanted = format!("{} {}", self.name, self.version);
        said.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == wanted)
    }
}
