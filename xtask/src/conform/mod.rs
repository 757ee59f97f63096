//! Conformance: suites of others, on a mount of uext4 and on the kernel's mount of the same image.
//!
//! # What
//! [`pjdfstest`] and [`fsx`] are programs of their own crates, installed at a pinned version by
//! [`tool`]; [`fuzz`] drives the fuzz targets by cargo-fuzz likewise. [`stage`] mounts in a mount
//! namespace of its own, so that nothing is left behind whatever happens. [`fio`] runs loads on the
//! engine in fio's own process, by the plug-in that [`ioengine`] builds. [`old_kernel`] does the
//! conformance of the mount again on another kernel.

pub(crate) mod fio;
pub(crate) mod fsx;
pub(crate) mod fuzz;
pub(crate) mod ioengine;
pub(crate) mod old_kernel;
pub(crate) mod pjdfstest;
mod stage;
pub(crate) mod tool;

use std::path::PathBuf;
use std::process::Stdio;

use crate::{machine, workspace};

/// Why a suite cannot run here or failed.
pub(crate) enum Trouble {
    /// Something is missing on this machine.
    Missing(String),
    /// A fault.
    Fault(String),
}

impl Trouble {
    fn fault(text: impl Into<String>) -> Self {
        Self::Fault(text.into())
    }

    /// As the error of a verb, which somebody asked for: what is missing is an error as well.
    pub(crate) fn into_error(self) -> String {
        match self {
            Self::Missing(why) | Self::Fault(why) => why,
        }
    }
}

/// The command as the test suite builds it.
pub(crate) fn debug_command() -> PathBuf {
    workspace::target().join("debug/uext4")
}

/// Builds the command for release; its path.
pub(crate) fn release_command() -> Result<PathBuf, String> {
    let status = workspace::cargo(&["build", "--release", "--locked", "--quiet"])
        .args(["-p", "uext4-cli"])
        .stdin(Stdio::null())
        .status();
    if status.is_ok_and(|status| status.success()) {
        Ok(workspace::target().join("release/uext4"))
    } else {
        Err("uext4-cli does not build".to_owned())
    }
}

/// What mounting as root with other users needs.
fn obstacle() -> Option<String> {
    if !machine::is_root() {
        return Some("needs root: it changes users and mounts".to_owned());
    }
    if let Some(why) = machine::why_no_fuse() {
        return Some(why.to_owned());
    }
    ["mke2fs", "e2fsck", "unshare", "mount"]
        .into_iter()
        .find(|program| machine::program(program).is_none())
        .map(|program| format!("{program} is not installed"))
}
