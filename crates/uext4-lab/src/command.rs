//! Programs of the system that a run uses, and whether they are there.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::{Doing, Error, Result};

/// Where a program is: administrators' folders count, which a user's PATH may lack.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"];
    std::env::split_paths(&path)
        .chain(usual.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Runs a program to its end; what it prints is returned.
///
/// # Errors
/// It is not installed, or ended with another status than 0: its last line says why.
pub(crate) fn run<A: AsRef<OsStr>>(name: &str, args: &[A]) -> Result<String> {
    let (code, output) = status(name, args)?;
    if code == Some(0) {
        return Ok(output);
    }
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
    let code = code.map_or("killed by a signal".to_owned(), |code| format!("status {code}"));
    Err(Error::new(format!("{name}: {code}: {last}")))
}

/// Runs a program to its end; its exit status (`None`: a signal) and all that it printed.
///
/// # Errors
/// It cannot be started.
pub(crate) fn status<A: AsRef<OsStr>>(name: &str, args: &[A]) -> Result<(Option<i32>, String)> {
    let program = find(name).ok_or_else(|| Error::new(format!("{name} is not installed")))?;
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .doing(format_args!("starting {name}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), text))
}
